"""What etcd says of the other nodes, in its order: who is there, which filters they want.

    range --> steps, in many turns --.
    then watch from that revision ---'--> apply --> NodeMesh, and a `Follower`

Nothing is parsed here (`mqttd.cluster.etcd.reading`): what cannot be read is as if it were not
there.

A chunk of routes is a run of frames, as workers tell each other their filters: `ADD`, `REMOVE`, and
`BEGIN` ... `END` around all that there are. So reading the chunks of a node in their order, from
whichever is the first that is left, ends with its filters.

Promise: sans-I/O; what was said twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from mqttd.cluster.etcd.client import Kv
from mqttd.cluster.etcd.keys import Copy, Heir, Keys, Member
from mqttd.cluster.etcd.reading import Chunk, Reading, Said
from mqttd.cluster.links.nodes import Node, NodeMesh
from mqttd.cluster.routes.absent import Absent
from mqttd.mesh.frames import ADD, BEGIN, END, REMOVE

__all__ = ["Follower", "View", "filters_of"]


class Follower(Protocol):
    """Is told what changes."""

    def joined(self, member: Member, node: Node | None) -> None:
        """A node is there; None: it is this one."""

    def left(self, member: Member, node: Node | None, lost: int) -> None:
        """It is there no more, and its filters are out of the tables; so many messages for it."""

    def given_up(self, name: str, lost: int) -> None:
        """A node that is not there is not awaited any more; so many messages were kept for it."""

    def taken(self, client_id: str, by: str, revision: int) -> None:
        """Another node has this client id now."""

    def everything(self, found: list[Said]) -> None:
        """All other keys, with those that cannot be read."""

    def other(self, said: Said) -> None:
        """One other key says this now, or cannot be read any more."""


class _Wanted:
    """The filters that a node's chunks say, read one after the other.

    Until the `END` has come of what is written anew, what was before holds, too.
    """

    def __init__(self) -> None:
        self.filters: set[str] = set()
        self._fresh: set[str] | None = None

    def take(self, chunk: Chunk) -> None:
        """The next one."""
        for kind, filters in chunk:
            if kind == BEGIN:
                self._fresh = set()
            elif kind == END and self._fresh is not None:
                self.filters, self._fresh = self._fresh, None
            for some in (self.filters, self._fresh):
                if some is not None and kind == ADD:
                    some.update(filters)
                elif some is not None and kind == REMOVE:
                    some.difference_update(filters)


def filters_of(chunks: Iterable[Chunk]) -> set[str]:
    """The filters that a node's chunks say."""
    wanted = _Wanted()
    for chunk in chunks:
        wanted.take(chunk)
    return wanted.filters


#: Bytes of values that a step reads, a chunk more, and filters that it puts into the tables or
#: looks for there: each takes a millisecond or some.
_READ: Final = 32 << 10
_PUT: Final = 500
#: What this sees to itself.
_OWN = frozenset(("node", "route", "taken", "home"))


class View:
    """What this node, `name`, knows of the others."""

    def __init__(self, name: str, keys: Keys, mesh: NodeMesh, follower: Follower) -> None:
        self.name = name
        self.keys = keys
        self.reading = Reading(keys)
        self.mesh = mesh
        self.follower = follower
        self.members: dict[str, Member] = {}
        self.absent = Absent(mesh)
        #: Nodes whose sessions wait for them while they are not there, and under which lease.
        self.homes: dict[str, int] = {}
        #: Who takes over what nodes have left; the streams of those that may be taken over.
        self.heirs: dict[str, Heir] = {}
        self.copies: dict[str, Copy] = {}
        #: Nodes that were put out; those that have been there since this one is.
        self.outs: set[str] = set()
        self.seen: set[str] = set()
        #: When all was read last, a node was not there any more that had been, or has come since
        #: that we had not heard of: what it had claimed of us may have gone with its lease.
        self.missed = False
        #: All is being read again: what cannot be read is not all known.
        self._reads = False

    def names(self) -> set[str]:
        """The nodes that are or were there, are waited for, were put out or left something."""
        return {*self.seen, *self.homes, *self.absent.nodes, *self.outs, *self.heirs, *self.copies}

    def is_taken_over(self, name: str) -> bool:
        """Whether somebody is about to take over what a node has left."""
        heir = self.heirs.get(name)
        return heir is not None and heir.stage != "done"

    def is_left(self, name: str) -> bool:
        """Whether a node is not there, and somebody takes over what it has left, or is about to."""
        return (name in self.copies and name not in self.members) or self.is_taken_over(name)

    def home_of(self, name: str) -> int:
        """The lease under which the sessions of a node wait for it; -1 for none."""
        return self.homes.get(name, -1)

    def brief_of(self, name: str) -> int:
        """The lease under which a node is there, with what does not outlast it; 0 for none."""
        member = self.members.get(name)
        return member.lease if member is not None else 0

    def is_of(self, name: str, epoch: int) -> bool:
        """Whether a node is there, since this epoch."""
        member = self.members.get(name)
        return member is not None and member.epoch == epoch

    def rank(self) -> int:
        """How many nodes come before this one."""
        return sum(1 for name in self.members if name < self.name)

    def reset(self, found: Iterable[Kv], revision: int) -> Iterator[None]:
        """All that there is, in the order of the keys; a step of it each time, in its own turn.

        What was known before holds until all of it is read. Then filters that are wanted by now
        come before others go, so that meanwhile a message goes to all who want it before and after;
        that it is up to this revision is said in the end. Nothing may be applied in between.
        """
        members: dict[str, Member] = {}
        wanted: dict[str, _Wanted] = {}
        taken: list[Said] = []
        others: list[Said] = []
        homes: dict[str, int] = {}
        heirs: dict[str, Heir] = {}
        copies: dict[str, Copy] = {}
        outs: set[str] = set()
        self.reading.again()
        self._reads, came = True, 0
        size = 0
        for kv in found:
            size += len(kv.key) + len(kv.value)
            if size >= _READ:
                size = 0
                yield
            said = self.reading.read(kv)
            if said is None:
                continue
            kind, node, what = said.kind, said.node, said.what
            if kind not in _OWN:
                others.append(said)
            if not said.readable:
                continue
            if kind == "heir":
                heirs[node] = what
            elif kind == "copy":
                copies[node] = what
            elif kind == "out":
                outs.add(node)
            elif kind == "node":
                members[node] = what
            elif kind == "route":
                epoch, chunk = what
                if node in members and epoch == members[node].epoch:
                    wanted.setdefault(node, _Wanted()).take(chunk)
            elif kind == "taken" and node == self.name:
                taken.append(said)
            elif kind == "home":
                homes[node] = what
                came = max(came, kv.changed if node != self.name else 0)
        self._reads = False
        before = {(each.name, each.epoch) for each in self.members.values()}
        gone = before - {(each.name, each.epoch) for each in members.values()}
        self.missed = bool(gone) or came > self.mesh.applied > 0
        given_up = self.homes.keys() - homes.keys()
        given_up |= {name for name in self.heirs if self.is_taken_over(name)}
        self.homes, self.heirs, self.copies, self.outs = homes, heirs, copies, outs
        for name, member in list(self.members.items()):
            new = members.get(name)
            if new is None or new.epoch != member.epoch:
                self._leaves(member)
        for member in members.values():
            self._comes(member)
        for name in given_up - members.keys() - homes.keys():
            self._given_up(name)
        for name in self.mesh.ferries.keys() - members.keys() - homes.keys():
            if name not in self.absent.nodes and not self.is_taken_over(name):
                self.mesh.forget(name)  # of a node that has gone while we were away
        for known in list(self.mesh.nodes.values()):
            yield from self._wants(known, wanted.pop(known.name, _Wanted()).filters)
        self.mesh.applied = revision
        for other in self.mesh.nodes.values():
            self.mesh.tell_seen(other)
        self.follower.everything(others)
        for said in taken:
            self.follower.taken(said.rest, said.what, said.kv.changed)

    def _wants(self, node: Node, wanted: set[str]) -> Iterator[None]:
        """These are the filters of a node."""
        absent, mesh = self.absent, self.mesh
        for at, full_filter in enumerate(wanted, 1):
            absent.told(node.name, full_filter)
            mesh.add(node, full_filter)
            if not at % _PUT:
                yield
        for at, full_filter in enumerate(list(node.peer.filters), 1):
            if full_filter not in wanted and not absent.is_untold(node.name, full_filter):
                mesh.remove(node, full_filter)
            if not at % _PUT:
                yield

    def apply(self, revision: int, events: list[tuple[Kv, bool]]) -> None:
        """What has changed."""
        touched: dict[str, Node] = {}
        taken: list[Said] = []
        for kv, removed in events:
            said = self.reading.read(kv, removed)
            if said is None:
                continue
            kind, name, what = said.kind, said.node, said.what
            gone = removed or not said.readable
            if kind == "node":
                known = self.members.get(name)
                if gone:
                    if known is not None and kv.changed > known.epoch:
                        self._leaves(known)
                    continue
                if known is not None and known.epoch != what.epoch:
                    self._leaves(known)
                self._comes(what)
            elif kind == "route" and not gone:
                node = self.mesh.nodes.get(name)
                epoch, chunk = what
                if node is not None and epoch == node.epoch:
                    self._routes(node, chunk)
                    touched[name] = node
            elif kind == "taken" and not gone and name == self.name:
                taken.append(said)
            elif kind == "home":
                self._home(name, 0 if gone else what)
            elif kind not in _OWN:
                if kind == "heir":
                    self._heir(name, None if gone else what)
                elif kind == "copy" and gone:
                    self.copies.pop(name, None)
                elif kind == "copy":
                    self.copies[name] = what
                elif kind == "out":
                    (self.outs.discard if gone else self.outs.add)(name)
                self.follower.other(said)
        self.mesh.applied = revision
        for node in touched.values():
            self.mesh.tell_seen(node)
        for said in taken:
            self.follower.taken(said.rest, said.what, said.kv.changed)

    def _home(self, name: str, lease: int) -> None:
        if lease:
            self.homes[name] = lease
        elif self.homes.pop(name, 0) and name not in self.members:
            self._given_up(name)

    def _heir(self, name: str, heir: Heir | None) -> None:
        taken = self.is_taken_over(name)
        if heir is None:
            self.heirs.pop(name, None)
        else:
            self.heirs[name] = heir
        if taken and not self.is_taken_over(name):
            if heir is None:
                self._awaited(name)
            elif name in self.members:
                self.absent.end(name)  # it is back, and its heir has had what was kept for it
            else:
                self._given_up(name)

    def _awaited(self, name: str) -> None:
        """Its heir has found nothing that it could take: the node comes back for it, or is."""
        node = self.mesh.nodes.get(name)
        if name not in self.members:
            if name not in self.homes:
                self._given_up(name)
        elif node is not None:
            self.absent.back(node)

    def _given_up(self, name: str) -> None:
        if self.is_taken_over(name):
            return  # when that is done
        self._hand_on(self.absent.nodes.get(name))
        self.follower.given_up(name, self.absent.end(name) + self.mesh.forget(name))

    def tick(self) -> None:
        """A few times a second."""
        if not self._reads:
            self.keys.unreadable.tick(self.mesh.broker.alarms)
        members = self.members
        self.absent.tick(lambda name: name in members and members[name].ready)

    def _routes(self, node: Node, chunk: Chunk) -> None:
        mesh, peer = self.mesh, node.peer
        for kind, filters in chunk:
            if kind == BEGIN:
                peer.fresh = set()
            elif kind == ADD:
                for each in filters:
                    mesh.add(node, each)
                    self.absent.told(node.name, each)
            elif kind == REMOVE:
                for each in filters:
                    mesh.remove(node, each)
            elif kind == END and peer.fresh is not None:
                fresh, peer.fresh = peer.fresh, None
                for full_filter in list(peer.filters):
                    if full_filter not in fresh:
                        mesh.remove(node, full_filter)

    def _comes(self, member: Member) -> None:
        known = self.members.get(member.name)
        self.members[member.name] = member
        self.seen.add(member.name)
        if known is None:
            node = None
            if member.name != self.name:
                node = self.mesh.join(member.name, member.epoch)
                if not self.is_taken_over(member.name):
                    self.absent.back(node)
                else:
                    self.absent.part(member.name)
            self.follower.joined(member, node)

    def _leaves(self, member: Member) -> None:
        del self.members[member.name]
        node = self.mesh.nodes.get(member.name)
        lost = 0
        if node is not None:
            heir = self.heirs.get(member.name)
            is_over = heir is not None and heir.stage == "done" and heir.changed > member.epoch
            if not is_over and (member.name in self.homes or self.is_taken_over(member.name)):
                self.absent.begin(node)
            else:
                self._hand_on(node)
                lost = self.mesh.leave(node)
        self.follower.left(member, node, lost)

    def _hand_on(self, node: Node | None) -> None:
        """A node is awaited no more; where we have given its heir nothing, that has it now."""
        heir = None if node is None else self.heirs.get(node.name)
        by = self.mesh.nodes.get("" if heir is None else heir.by)
        if node is not None and by is not None:
            self.absent.hand_on(node, by)
