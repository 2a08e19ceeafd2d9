"""The wills of a node's clients, where others find them when it is gone: in etcd, under no lease.

    will kept or gone --many at once--> will/<node>/<epoch>/<client id>
    a node is gone   --each that is left, one after the other--> will/<node>/<its epoch>/ read
                     --delay over--> removed, if still there --> whoever has removed it publishes it
    a node starts    --> what nodes that are not there have left, its own of before too

A will without delay is due when the node is gone; one with a delay is not, when its client is
somewhere by then, or its node is back, which has it with the session: `mqttd.cluster.wills.before`.
Where others take over the sessions of a node, that is said by who has it then.

One that is there already is not written again; who changes wills all the time has the last ones
written, `_RATE` bytes a second. What is more than a node may have in etcd, or a user
(`mqttd.cluster.wills.written`), is published by its own node alone, and lost when that is killed.

Promise: published once. What a node has not written when it is killed is lost, comes although its
client has said DISCONNECT, or again where the node had just published it: what a turn of the loop
has brought is sent to etcd in the next one, behind nothing else. Neither CONNACK nor who hears a
will waits for it. MQTT 5.0, 3.1.2.5, 3.1.3.2.2.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.task import deferLater
from twisted.logger import Logger

from mqttd.broker.broker import Broker
from mqttd.broker.publish.wills import Testament
from mqttd.cluster.etcd.client import (
    Answer,
    Etcd,
    EtcdError,
    Kv,
    absent,
    end_of,
    equals,
    get,
    put,
    remove,
)
from mqttd.cluster.etcd.keys import Keys
from mqttd.cluster.etcd.ordered import Ordered
from mqttd.cluster.etcd.pace import Pace
from mqttd.cluster.wills.before import Before
from mqttd.cluster.wills.written import Whose, Written
from mqttd.net.fair import house_of
from mqttd.session.ground.settings import NEVER
from mqttd.session.session import Session
from mqttd.storage.entries import dump_will, load_will

__all__ = ["Heirs"]

#: Changes, and bytes of them, in one request: etcd takes 128, and 1.5 MiB with base64.
_MANY: Final = 100
_BYTES: Final = 512 << 10
#: Bytes a second of one user's wills, or of an address without names: etcd writes them to
#: its disk, where the leases of all nodes wait behind them.
_RATE: Final = 1 << 20
#: Wills of one user that were put off and are looked at again at once.
_FEW: Final = 1000
#: Wills of nodes that are gone that are read, and published if they are due, together.
_PAGE: Final = 32
#: Requests side by side: more only where etcd does not answer.
_LANES: Final = 8
#: Seconds between two tries, and before the next node looks after a dead one.
_AGAIN: Final = 0.5
_TURN: Final = 0.3
#: Seconds for etcd to have all that has changed when we go, and between two looks at that.
_END: Final = 10.0
_SOON: Final = 0.05
#: Seconds between two lines about wills that are not written.
_QUIET: Final = 10.0
#: Seconds until wills that cannot be read are looked at again.
_LOOK: Final = 60.0

#: What MQTT has for seconds.
_Seconds = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class _Left(msgspec.Struct, array_like=True):
    """A will as it is written."""

    username: str | None
    #: Seconds: until it is due after its client was last there, and until it expires after that.
    delay: _Seconds
    expiry: _Seconds
    packet: bytes


class _Found(NamedTuple):
    """A will of a node that is gone."""

    key: bytes
    changed: int
    node: str
    client_id: str
    delay: int
    will: Testament


class Heirs:
    """The wills of the node `name`, and of those that are gone.

    `is_there` says whether a node is a member in this epoch, `rank` how many are before us,
    `is_member` whether it is one at all.
    """

    def __init__(
        self,
        etcd: Etcd,
        keys: Keys,
        name: str,
        reactor: Any,
        is_there: Callable[[str, int], bool],
        rank: Callable[[], int],
        is_member: Callable[[str], bool],
    ) -> None:
        self.etcd = etcd
        self.keys = keys
        self.name = name
        self.reactor = reactor
        self.is_there = is_there
        self.rank = rank
        self.is_member = is_member
        self.broker: Broker
        self.log = Logger(namespace="mqttd.cluster")
        #: Those of ours that our store has kept, or etcd.
        self.before = Before(etcd, keys, name)
        #: Whether others have the sessions of a node by now.
        self.is_taken_over: Callable[[str], bool] = lambda name: False
        #: Wills of nodes that were gone which this one has published.
        self.published = 0
        self._epoch = 0
        self._ordered: Ordered
        self._pending: dict[str, None] = {}
        #: What etcd has of ours, or is about to.
        self.written = Written()
        self.pace = Pace(_RATE)
        self._put_off_of: dict[Whose, dict[str, None]] = {}
        self._quiet = 0.0
        #: Clients whose wills are being written, and whether the next are about to be.
        self._under_way: set[str] = set()
        self._called = False
        self._lanes = 0
        self._due: set[Any] = set()
        #: Whether those that cannot be read are to be looked at again.
        self._looks = False

    # -- ours ----------------------------------------------------------------------------------

    def serve(self, broker: Broker) -> None:
        """This is the broker; its wills wait until the others are met."""
        self.broker = broker
        broker.will_changed = self.changed
        broker.wills.hold()

    def begin(self, epoch: int, lease: int) -> None:
        """We are a member: nothing is written yet."""
        again, self._epoch = self._epoch, epoch
        self._ordered = Ordered(self.etcd, self.keys, self.name, epoch, lease)
        sessions = self.broker.sessions
        self._pending = {name: None for name, each in sessions.items() if each.will is not None}
        if again and self.broker.wills.held is None:
            # While we were gone others may have published those of clients that were away.
            away = [name for name in self._pending if sessions[name].channel is None]
            self._later(0, self._settle, list(filter(self.written.knows, away)))
        self.written.clear()
        self._go()

    async def settle(self) -> None:
        """Let go of what others have published of what our store has kept. Raises EtcdError.

        Before any session goes to another node: so a will that goes along is nobody's else.
        """
        sessions = self.broker.sessions
        client_ids = [name for name, each in sessions.items() if each.will is not None]
        await self.before.settle(self.broker, self._epoch, client_ids)

    async def _settle(self, client_ids: list[str]) -> None:
        """As `settle`, in the midst of our life, of what was written before."""
        await self.before.settle(self.broker, self._epoch, client_ids)
        async for some in self._of_the_gone(self.keys.wills_ever(self.name)):
            for found in some:
                if found.delay and found.key not in self.before.over:
                    self._see_to(found)
        await self.before.clear()

    def changed(self, client_id: str) -> None:
        """A client has another will, or none."""
        self._pending[client_id] = None
        self._go()

    def end(self, alone: bool) -> Deferred[Any]:
        """We go: others publish what has a delay, each in its time, if they are there."""
        return Deferred.fromCoroutine(self._end(alone))

    async def _end(self, alone: bool) -> None:
        sessions, settings = self.broker.sessions, self.broker.settings
        late = [name for name, each in sessions.items() if each.will is not None]
        given = late and self._epoch and not alone and settings.wills_at_stop != "keep"
        ends = self.reactor.seconds() + _END
        while given and (self._pending or self._lanes):
            if self.reactor.seconds() >= ends:
                given = False
            await deferLater(self.reactor, _SOON)
        epoch, self._epoch = self._epoch, 0
        for call in self._due:
            if call.active():
                call.cancel()
        if given:
            self.before.keep([name for name in late if not self.written.knows(name)])
        elif epoch:
            await self.etcd.remove_all(self.keys.wills_of(self.name, epoch))
            self.before.keep(None)

    def _go(self) -> None:
        if self._epoch and self._pending and not self._called and self._lanes < _LANES:
            self._called = True
            self.reactor.callLater(0, self._start)

    def _start(self) -> None:
        """Write what has changed, whatever is under way of others: an end must not wait."""
        self._called = False
        there: list[str] = []
        then: list[dict[str, Any]] = []
        size = 0
        for client_id in list(self._pending):
            if len(then) >= _MANY or not self._epoch:
                break
            if client_id in self._under_way:
                continue  # in the order of its changes
            value, whose = self._value(client_id)
            is_new = value and not self.written.has(client_id, value)
            if is_new and self.pace.wait(whose, self.reactor.seconds()):
                self._put_off(client_id, whose)
                value = b""  # what is there is not its will any more
            if then and size + len(value) > _BYTES:
                break
            del self._pending[client_id]
            change = self.written.change(client_id, value, whose)
            if value and not change:
                self._left_out()
            if change is None:
                continue
            key = self.keys.will(self.name, self._epoch, client_id)
            if change:
                self.pace.charge(whose, len(key) + len(value), self.reactor.seconds())
                then.append(put(key, value))
                size += len(value)
            else:
                then.append(remove(key))
                if waits := self.written.again():
                    self._pending[waits] = None
            there.append(client_id)
        if there:
            self._lanes += 1
            self._under_way.update(there)
            written = Deferred.fromCoroutine(self._write(self._ordered, then, there))
            written.addErrback(lambda failure: self.log.failure("wills are not written", failure))
        if self._pending and self._pending.keys() - self._under_way:
            self._go()

    def _put_off(self, client_id: str, whose: Whose) -> None:
        """Its user has had much written: this one, or what it is by then, is looked at again."""
        self.pace.refused += 1
        if not self._put_off_of:
            self._later(_AGAIN, self._look_again)
        self._put_off_of.setdefault(whose, {})[client_id] = None

    async def _look_again(self) -> None:
        waiting, self._put_off_of = self._put_off_of, {}
        for whose, clients in waiting.items():
            for client_id in list(clients)[:_FEW]:
                del clients[client_id]
                self._pending[client_id] = None
            if clients:
                self._put_off_of[whose] = clients
        if self._put_off_of:
            self._later(_AGAIN, self._look_again)
        self._go()

    def _left_out(self) -> None:
        """A will is not written, if it is not there already."""
        now = self.reactor.seconds()
        if self.written.left_out and now >= self._quiet:
            self._quiet = now + _QUIET
            text = (
                "{count} wills are not in etcd, and lost if this node is killed: they are too"
                " large, or more than half of {most} bytes are of one user, or of one address"
            )
            self.log.warn(text, count=len(self.written.left_out), most=self.written.most)

    async def _write(self, to: Ordered, then: list[dict[str, Any]], there: list[str]) -> None:
        try:
            while self._epoch == to.epoch:
                try:
                    await to.change(then)
                    break
                except EtcdError:
                    await deferLater(self.reactor, _AGAIN)
        finally:
            self._lanes -= 1
            self._under_way.difference_update(there)
            self._go()

    def _value(self, client_id: str) -> tuple[bytes, Whose]:
        """The will of a client, empty if it has none, and whose that is."""
        session = self.broker.sessions.get(client_id)
        will = None if session is None else session.will
        if session is None or will is None:
            return b"", (None, "")
        whose = (session.username, "")
        if session.username is None and isinstance(will, Testament):
            whose = (None, house_of(will.peerhost))
        delay = session.will_delay
        if session.expiry_interval != NEVER and session.expiry_interval < delay:
            delay = session.expiry_interval
        left = _Left(session.username, delay, will.expires_at, dump_will(will))
        return msgspec.msgpack.encode(left), whose

    # -- of those that are gone ----------------------------------------------------------------

    def left(self, name: str, epoch: int) -> None:
        """A node is gone: see to its wills, one survivor after the other."""
        self._later(_TURN * self.rank(), self._inherit, self.keys.wills_of(name, epoch))

    async def sweep(self) -> None:
        """See to what nodes have left that are not there; this one, too. Raises EtcdError."""
        over = set(self.before.over)
        async for some in self._of_the_gone(self.keys.wills):
            for found in some:
                if found.key not in over:
                    self._see_to(found)
        self._later(_AGAIN, self.before.clear)

    def release(self) -> None:
        """The others are met: those wills of before that nobody has seen to are due."""
        wills, theirs = self.broker.wills, self.before.theirs
        held = wills.held or {}
        for published in (True, False):
            wills.held = {each: held[each] for each in held if (each in theirs) is published}
            wills.release(published)
        theirs.clear()
        self.before.forget()

    def _later(self, seconds: float, what: Callable[..., Any], *about: object) -> None:
        def now() -> None:
            self._due.discard(call)
            self._try(what, *about)

        call = self.reactor.callLater(seconds, now)
        self._due.add(call)

    def _try(self, what: Callable[..., Any], *about: object) -> Deferred[Any]:
        done: Deferred[Any] = Deferred.fromCoroutine(what(*about))
        return done.addErrback(self._not_done, what, about)

    def _not_done(self, failure: Any, what: Callable[..., Any], about: tuple[object, ...]) -> None:
        if failure.check(EtcdError) is None:
            self.log.failure("a will of a node that is gone", failure)
        elif self._epoch:
            self._later(_AGAIN, what, *about)

    async def _inherit(self, prefix: bytes) -> None:
        async for some in self._of_the_gone(prefix):
            due: list[Deferred[Any]] = []
            for found in some:
                if found.delay:
                    self._see_to(found)
                else:
                    due.append(self._try(self._claim, found))
            await DeferredList(due)

    async def _of_the_gone(self, prefix: bytes) -> AsyncIterator[list[_Found]]:
        """What can be read below it, some at a time: all together may be many bytes."""
        async for page in self.etcd.pages_of(prefix, end_of(prefix), _PAGE):
            read = [self._read(kv) for kv in page.found]
            yield [found for found in read if found is not None]

    def _read(self, kv: Kv) -> _Found | None:
        """None where its node is there, and where it cannot be read: it stays, for who can."""
        try:
            node, epoch, client_id = self.keys.parts_of_will(kv.key)
            if self.is_there(node, epoch) or (node, epoch) == (self.name, self._epoch):
                return None
            left = msgspec.msgpack.decode(kv.value, type=_Left)
            will = load_will(left.packet, client_id, left.username, left.expiry)
            return _Found(kv.key, kv.changed, node, client_id, left.delay, will)
        except Exception as error:  # of whatever it has in it
            expected = "expected a node's name, epoch and client id; a will"
            self.keys.unreadable.note(kv, f"{expected} ({type(error).__name__})")
            if not self._looks:
                self._looks = True
                self._later(_LOOK, self._look_at_unreadable)
            return None

    async def _look_at_unreadable(self) -> None:
        """Whether they are there yet: nobody tells of them."""
        unreadable = self.keys.unreadable
        keys = [key for key in unreadable.keys if key.startswith(self.keys.wills)]
        for at in range(0, len(keys), _MANY):
            some = keys[at : at + _MANY]
            answer = await self.etcd.transaction([], [get(key) for key in some])
            found = {kv.key: kv for kv in answer.found}
            for key in some:
                kv = found.get(key)
                if kv is None or kv.changed != unreadable.keys.get(key, (0, ""))[0]:
                    unreadable.forget(key)
                if kv is not None and (now := self._read(kv)) is not None:
                    self._see_to(now)
        self._looks = bool(keys)
        if keys:
            self._later(_LOOK, self._look_at_unreadable)

    def _see_to(self, found: _Found) -> None:
        self._later(found.delay, self._claim, found)

    async def _claim(self, found: _Found) -> None:
        key, changed, node, client_id, delay, will = found
        if self.broker.wills.held is not None:
            self._later(_AGAIN, self._claim, found)  # this node has not let clients in
            return
        own = get(self.keys.own(client_id))
        if delay and self.is_taken_over(node):
            answer = await self.etcd.transaction([], [own])
            owner = self._owner(answer)
            if owner != self.name and self.is_member(owner):
                return  # it sees to that
        when = [equals(key, changed)]
        if delay and node != self.name and not self.is_taken_over(node):
            when.append(absent(self.keys.node(node)))  # else it is back, and has the will itself
        answer = await self.etcd.transaction(when, [remove(key), own])
        owner = self._owner(answer)
        if not answer.done or (delay and self._is_back(node, client_id, owner)):
            return
        session = Session(self.broker, client_id, will.username)
        session.restore_will(will, 0)
        self.broker.wills.publish(session)
        session.forget()
        self.published += 1
        self.broker.perform_later()

    def _owner(self, answer: Answer) -> str:
        """Who has the client id that was asked for; empty: nobody."""
        return self.keys.owner(answer.found[0]).node if answer.found else ""

    def _is_back(self, node: str, client_id: str, owner: str) -> bool:
        """Whether the client of a will has been somewhere since; a session may be here without."""
        if owner != self.name or not (node == self.name or self.is_taken_over(node)):
            return bool(owner) and self.is_member(owner)
        session = self.broker.sessions.get(client_id)
        return session is not None and (session.channel is not None or session.last_reason != "")
