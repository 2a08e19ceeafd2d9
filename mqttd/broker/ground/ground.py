"""What every part of a broker stands on: its clock and ids, later turns, its sessions, its log.

    Server            what the session layer asks                 mqttd.session.channel.channel
      Ground          clock, ids, later turns, sessions, log
        Reports       the log's lines about connections
          Taps        hooks: who listens where, and telling them
            Rights    who may do what, and until when that holds
              Publishing   messages and their acknowledgements
                Broker     the parts: connecting, registry, wills, subscribing, revision

Each step adds one thing and knows those above it in this picture; the parts of a broker are handed
the step they need. They are one object, because a channel calls it for every message: a part
between the two would be one more call each time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from mqttd.broker.ground.losses import Losses
from mqttd.broker.ground.room import Room
from mqttd.broker.ground.seams import Access, HookChains, Log
from mqttd.broker.ground.turns import Job, Turns
from mqttd.broker.routing.router import Router
from mqttd.session.channel.channel import NEW, Channel, Server
from mqttd.session.channel.framing import ALLOWANCE
from mqttd.session.ground.connection import Edge
from mqttd.session.ground.guid import Guid
from mqttd.session.ground.message import Message
from mqttd.session.ground.settings import Settings
from mqttd.session.publish.general import General
from mqttd.session.session import Session
from mqttd.session.state import State
from mqttd.types import ClientInfo

__all__ = ["Given", "Ground"]

#: Bytes of topics that aliases stand for in a turn of those who have rested, as a turn reads.
_NAMED: Final = 4 << 20

#: Connections that are looked at for one that has not sent its CONNECT.
_LOOKED_AT: Final = 64


class Given:
    """What a broker is handed; see `broker.Broker`."""

    def __init__(
        self,
        settings: Settings,
        access: Access,
        hooks: HookChains,
        clock: Callable[[], int],
        now: int,
        soon: Callable[[Callable[[], None]], object],
        log: Log,
        guid: Guid,
    ) -> None:
        self.settings = settings
        self.access: Access = access
        self.hooks: HookChains = hooks
        self.clock = clock
        self.now = now
        self.soon = soon
        self.log: Log = log
        self.guid = guid


class Ground(Server):
    """The clock, the ids and the sessions of one broker."""

    def __init__(self, given: Given) -> None:
        self.router = Router(given.settings)
        super().__init__(given.settings, given.now, self.router)
        self.router.metrics = self.metrics
        self.clock = given.clock
        self.soon = given.soon
        self.log = given.log
        #: Whether a line of this kind is wanted now: asked before much is collected for it.
        self.tells: Callable[[str], bool] = getattr(given.log, "admits", _silent)
        self.guid = given.guid
        self.started_at: int = given.now
        #: Keepers in other processes to whom the message that is handled now went.
        self.crossed: tuple[object, ...] = ()
        #: The clock as of this turn, once somebody has asked; 0: nobody has.
        self.stamp: int = 0
        #: What takes more than a turn.
        self.turns = Turns(given.soon, self.perform, self)
        #: Queues of sessions; a thousand of them are in nobody else's way.
        self.drains = Turns(given.soon, self.perform)
        #: Large messages that wait for memory.
        self.room = Room(self, given.soon, self.go_on, given.log)
        #: What has come and was put off below the channels.
        self.steps = Turns(given.soon, self.perform)
        self.losses = Losses(self, self.turns)
        #: Connections that have had their turn, and go on in a later one.
        self.rested: deque[Channel] = deque()
        self._rests: bool = False
        #: Client id -> session, whether a client is there or away. The registry's to change.
        self.sessions: dict[str, Session] = {}

    def next_message_id(self) -> int:
        """A new 128-bit message id."""
        return self.guid.next(self.instant())

    def name_message(self, message: Message) -> None:
        """Give a message a new id, as `next_message_id`."""
        half = self.guid.reserve(self.instant(), 1)
        message.named(self.guid.timestamp, half)

    def instant(self) -> int:
        """Microseconds since 1970; what is read in one turn of the loop has come at one time."""
        if not self.stamp:
            self.stamp = self.clock()
        return self.stamp

    def perform_later(self) -> None:
        """Finish the turn's effects in a later turn."""
        self.soon(self.perform)

    def resume_later(self, session: State) -> None:
        """Go on with a session's retained messages in a later turn."""
        self.soon(_Drain(self, session))

    def drain_later(self, session: State) -> None:
        """Go on with a session's queue in a later turn, in line with others."""
        self.drains.add(_Slice(self, session))

    def await_room(self, waiting: object) -> None:
        """Go on with a session's large messages when memory has room for them."""
        assert isinstance(waiting, State)
        self.room.wait(waiting)

    def go_on(self, session: State) -> None:
        """A part of what waits for a session; what is left gets in line again."""
        session.put_off = False
        self.drained = 0
        try:
            session.drain()
        except Exception as error:  # as in the edges: it must end this connection only
            if session.channel is None:
                raise
            self.crashed(session.channel, error)

    def since(self) -> int:
        """What is added to `now` to get milliseconds since 1970: `now` is of this machine alone."""
        return self.clock() // 1000 - self.now

    def step_later(self, edge: Edge) -> None:
        """Have an edge go on in later turns, in line with others."""
        self.steps.add(_Step(edge))

    def lose_later(self, numbers: list[int]) -> None:
        """What a session that is over had in the journal is lost, a part of it a turn."""
        self.losses.add(numbers)

    def end_work_later(self, channel: General) -> None:
        """Have a connection go on in a later turn, behind those that wait for theirs."""
        assert isinstance(channel, Channel)
        self.rested.append(channel)
        self._work_later()

    def _work_later(self) -> None:
        """One call for all that have rested, whoever comes to them meanwhile."""
        if self.rested and not self._rests:
            self._rests = True
            self.soon(self._end_work)

    def _end_work(self) -> None:
        """Those who have had their turn get another, as far as one turn goes."""
        self._rests = False
        spent = 0
        named = self.topics.named + _NAMED
        for _ in range(len(self.rested)):
            channel = self.rested.popleft()
            try:
                channel.end_work()
            except Exception as error:  # as in the edges: it must end this connection only
                self.crashed(channel, error)
            spent += self.topics.work
            if spent > ALLOWANCE or self.topics.named > named:
                break
        self._work_later()
        self.perform()

    def crowded(self) -> None:
        """Those who have not been let in hold more than they may: the oldest go."""
        self.crowd_out(self.settings.memory_unauthenticated)

    def crowd_out(self, most: int) -> None:
        """The oldest of those who have not been let in go until the others hold `most` bytes."""
        while self.account.unauthenticated > most and self.strangers:
            oldest: Channel | None = None
            seen = 0
            for stranger in self.strangers:
                assert isinstance(stranger, Channel)
                if oldest is None:
                    oldest = stranger
                if stranger.state == NEW:
                    oldest = stranger  # who has sent a CONNECT is asked for first
                    break
                seen += 1
                if seen == _LOOKED_AT:
                    break
            assert oldest is not None
            oldest.make_room()

    def is_new(self, client_id: str) -> bool:
        """Whether a client would begin a session; it is counted as refused for that."""
        if client_id in self.sessions:
            return False
        self.metrics.memory_refused += 1
        return True

    def client_of(self, session: State, remember: bool = True) -> ClientInfo:
        """Who a session's client is, for hooks and access control.

        remember: more questions will come, and the kernel is asked for the address once.
        """
        client = session.client
        if client is not None:
            assert isinstance(client, ClientInfo)
            return client
        channel = session.channel
        host, port, listener, version = "", 0, "", 5 if session.v5 else 4
        if channel is not None:
            if isinstance(channel, Channel):
                known = channel.known
                if known is not None:
                    assert isinstance(known, ClientInfo)
                    return known
            host, port = channel.edge.peer(channel)
            listener = channel.listener
            version = channel.version
        made = ClientInfo(
            session.client_id, session.username, host, port, listener, version, session.clean
        )
        if remember and isinstance(channel, Channel):
            channel.know(made)
        return made

    def channel_of(self, session: State) -> Channel | None:
        """The connection of a session's client, None while it is away."""
        channel = session.channel
        return channel if isinstance(channel, Channel) else None


def _silent(event: str) -> bool:
    """A log that is only told what it must be."""
    return False


class _Slice(Job):
    """A part of what waits in a session's queue."""

    def __init__(self, ground: Ground, session: State) -> None:
        self.ground = ground
        self.session = session

    def slice(self) -> bool:
        """See `Job.slice`."""
        self.ground.go_on(self.session)
        return False


class _Step(Job):
    """What was put off below a channel."""

    def __init__(self, edge: Edge) -> None:
        self.edge = edge

    def slice(self) -> bool:
        """See `Job.slice`."""
        return self.edge.step()


class _Drain:
    """Callback that goes on with a session's replay."""

    def __init__(self, server: Server, session: State) -> None:
        self.server = server
        self.session = session

    def __call__(self) -> None:
        self.session.put_off = False
        self.session.drain()
        self.server.perform()
