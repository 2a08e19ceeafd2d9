"""The heir of a node that is gone: one at a time, as etcd says, and how far it is.

    begin       `all/heir/<node>` is ours, if the node is not there, and nobody is its heir who is
    go_on       the stage, if we are still the heir
    give_up     nobody is: the node has its store, if it comes back for it
    clear       what is left of the node goes, but for what is its own again

Promise: who was the heir and is so no more, or no member, is told when it asks next.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from twisted.internet.task import deferLater
from twisted.logger import Logger

from mqttd.cluster.etcd.client import EtcdError, Json, absent, created, equals, get, put, remove
from mqttd.cluster.etcd.keys import Heir
from mqttd.cluster.replication.share import Share
from mqttd.nats.client import NatsError
from mqttd.nats.jetstream import JetStream

__all__ = ["Heirship"]

T = TypeVar("T")

#: Seconds before etcd is asked again.
_AGAIN: Final = 0.5


class Heirship:
    """That of the node `name`; its sessions are in `stream`, in messages of `subject`."""

    def __init__(self, cluster: Share, jetstream: JetStream, name: str) -> None:
        self.cluster = cluster
        self.jetstream = jetstream
        self.name = name
        self.log = Logger(namespace="mqttd.cluster")
        self.stopped = False
        #: That of this node when it began, and the revision of etcd in which it said its stage.
        self.epoch = cluster.membership.epoch
        self.changed = 0
        self.stream = self.subject = ""
        #: The lease under which all of the node waits.
        self.home = 0

    async def begin(self) -> bool:
        """Be the heir, if nobody is."""
        cluster, keys = self.cluster, self.cluster.keys
        heir, copy = keys.heir(self.name), keys.copy(self.name)
        self.home = cluster.view.home_of(self.name)
        found = {kv.key: kv for kv in (
            await cluster.etcd.transaction([], [get(heir), get(copy)])).found}  # fmt: skip
        then: list[Json] = []
        before = keys.heir_in(found.get(heir))
        when = [equals(heir, found[heir].changed) if heir in found else absent(heir)]
        if before and before.stage != "done":
            by = cluster.view.members.get(before.by)
            if by and by.epoch == before.epoch and before.by != cluster.name:
                return False
            self.stream, self.subject = before.stream, before.subject
        elif said := keys.copy_in(found.get(copy)):
            self.stream, self.subject = said.stream, said.subject
            when += [absent(keys.node(self.name)), equals(copy, found[copy].changed)]
            then = [remove(copy)]
        else:
            return False
        return await self._say("read", when, then)

    async def _say(self, stage: str, when: list[Json], then: list[Json]) -> bool:
        """We are the heir, if nothing has changed, and this far."""
        cluster, keys = self.cluster, self.cluster.keys
        said = Heir(self.stream, self.subject, cluster.name, self.epoch, stage)
        mine = created(keys.node(cluster.name), self.epoch)
        written = put(keys.heir(self.name), said.dump())
        answer = await cluster.etcd.transaction([mine, *when], [written, *then])
        if answer.done:
            self.changed = answer.revision
        return answer.done

    async def go_on(self, stage: str) -> None:
        """As `_say`, if we are still the heir; however often that has to be asked."""
        heir = self.cluster.keys.heir(self.name)
        while True:
            self.check()
            try:
                if await self._say(stage, [equals(heir, self.changed)], []):
                    return
                found = (await self.cluster.etcd.transaction([], [get(heir)])).found
            except EtcdError:
                await deferLater(self.cluster.reactor, _AGAIN)
                continue
            now = self.cluster.keys.heir_in(found[0] if found else None)
            if now is None or (now.by, now.epoch) != (self.cluster.name, self.epoch):
                raise EtcdError("another node has begun to take them over")
            self.changed = now.changed

    def check(self) -> None:
        """Raises EtcdError where we are no heir any more."""
        if self.stopped or self.cluster.membership.epoch != self.epoch:
            raise EtcdError("this node is no member any more")

    async def asked(self, ask: Callable[[], Awaitable[T]], always: bool = False) -> T:
        """What etcd says, however often it has to be asked, while this node is a member, or
        `always`."""
        while True:
            if self.stopped or not always:
                self.check()
            try:
                return await ask()
            except EtcdError:
                await deferLater(self.cluster.reactor, _AGAIN)

    async def keep_home(self) -> None:
        """What the node had stays its own meanwhile; it may be back, with another lease."""
        if self.home > 0:
            with suppress(EtcdError):
                await self.cluster.etcd.lease_keep(self.home)

    async def give_up(self) -> None:
        """Be the heir of nothing: the node has its store, if it comes back for it."""
        heir = self.cluster.keys.heir(self.name)
        when, then = [equals(heir, self.changed)], [remove(heir)]
        await self.asked(partial(self.cluster.etcd.transaction, when, then))
        with suppress(NatsError):
            await self.jetstream.remove(self.stream)

    async def clear(self) -> None:
        """What is left of the node."""
        view, home = self.cluster.view, self.home
        try:
            if home > 0 and (self.name not in view.members or view.home_of(self.name) != home):
                await self.cluster.etcd.lease_revoke(home)
            await self.jetstream.remove(self.stream)
        except (EtcdError, NatsError) as error:
            self.log.warn("{stream} stays: {error}", stream=self.stream, error=str(error))
