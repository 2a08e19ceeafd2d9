"""What every part of a broker stands on: its clock and ids, later turns, its sessions, its log.

    Server            what the session layer asks                 mqttd.session.channel
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

from collections.abc import Callable

from mqttd.broker.router import Router
from mqttd.broker.seams import Access, HookChains, Log
from mqttd.session.channel import Channel, Server
from mqttd.session.guid import Guid
from mqttd.session.session import Session
from mqttd.session.settings import Settings
from mqttd.session.state import State
from mqttd.types import ClientInfo

__all__ = ["Given", "Ground"]


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
        #: Client id -> session, whether a client is there or away. The registry's to change.
        self.sessions: dict[str, Session] = {}

    def next_message_id(self) -> int:
        """A new 128-bit message id."""
        return self.guid.next(self.clock())

    def perform_later(self) -> None:
        """Finish the turn's effects in a later turn."""
        self.soon(self.perform)

    def resume_later(self, session: State) -> None:
        """Go on with a session's retained messages in a later turn."""
        self.soon(_Drain(self, session))

    def client_of(self, session: State) -> ClientInfo:
        """Who a session's client is, for hooks and access control."""
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
        if isinstance(channel, Channel):
            # The kernel is asked for the address once, not for every question.
            channel.known = made
            channel.warm_up()
        return made

    def channel_of(self, session: State) -> Channel | None:
        """The connection of a session's client, None while it is away."""
        channel = session.channel
        return channel if isinstance(channel, Channel) else None


def _silent(event: str) -> bool:
    """A log that is only told what it must be."""
    return False


class _Drain:
    """Callback that goes on with a session's replay."""

    def __init__(self, server: Server, session: State) -> None:
        self.server = server
        self.session = session

    def __call__(self) -> None:
        self.session.drain()
        self.server.perform()
