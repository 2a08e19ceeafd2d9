"""One node's flow plane: connections meet sessions, sessions meet the router.

    Channel --CONNECT--> Connecting --authenticate--> access control (may wait)
       |                     |
       |                     +-- registry   client id -> Session    (EMQ's sm)
       |                     '-- wills
       +------SUBSCRIBE--> Subscribing --> pubsub --> router     filters -> sessions
       '------PUBLISH----> Publishing  --> pubsub --> retainer   topics -> retained messages

The broker is the `Server` of the session layer. It knows no transport and no store; access control,
hooks, the clock and the log are handed in. What a channel asks for each message are methods that it
inherits (see `broker.ground` for the steps), the rest are parts that it puts together.

MQTT 5.0: 3.1.4 (CONNECT actions), 4.1 (session state).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from mqttd.broker.connecting import Connecting
from mqttd.broker.ground.drawers import Drawers
from mqttd.broker.ground.ground import Given
from mqttd.broker.ground.seams import Access, HookChains, Log, Ownership, SessionStore
from mqttd.broker.memory.memory import Memory
from mqttd.broker.publish.publishing import Publishing
from mqttd.broker.publish.subscribing import Subscribing
from mqttd.broker.publish.wills import Wills
from mqttd.broker.sessions.alone import Alone, Forgets
from mqttd.broker.sessions.claims import Claims
from mqttd.broker.sessions.endings import Expiry, Revoked
from mqttd.broker.sessions.partings import Partings
from mqttd.broker.sessions.registry import Registry
from mqttd.broker.sessions.revision import Revision
from mqttd.codec import reasons
from mqttd.codec.packets import Auth, Connect, Subscribe, Subscription, Unsubscribe
from mqttd.session.channel.channel import CLOSED, WAITING, Channel
from mqttd.session.ground.connection import Connection
from mqttd.session.ground.guid import Guid
from mqttd.session.ground.settings import Settings
from mqttd.session.publish.general import General
from mqttd.session.publish.publisher import Publisher
from mqttd.session.session import Session
from mqttd.session.state import State
from mqttd.types import ClientInfo

__all__ = ["Broker"]


#: Milliseconds without a packet after which a client is quiet.
_COOL: Final = 5000


class Broker(Publishing):
    """The broker of one node.

    Arguments: settings; `access` (see `mqttd.access`), `hooks` (see `broker.seams`); `clock` gives
    µs since 1970 for message ids; `now` the monotonic milliseconds of the start; `soon(callable)`
    runs something in a later turn; `log(event, fields)` gets one structured event per refusal,
    fault and disconnect; `ownership` and `store` provide `IRegistry` and `ISessionStore`, without
    them this process owns every client id and keeps nothing.
    """

    def __init__(
        self,
        settings: Settings,
        access: Access,
        hooks: HookChains,
        clock: Callable[[], int],
        now: int,
        soon: Callable[[Callable[[], None]], object],
        log: Log,
        node_id: int = 0,
        process_id: int = 0,
        name: str = "mqttd",
        ownership: Ownership | None = None,
        store: SessionStore | None = None,
    ) -> None:
        guid = Guid(node_id, process_id)
        super().__init__(Given(settings, access, hooks, clock, now, soon, log, guid))
        self.name = name
        #: How late the event loop was at worst in the last second, in milliseconds.
        self.loop_lag: int = 0
        self._cooled_at: int = now
        self.drawers = Drawers(self)
        self.wills = Wills(self)
        self.revision = Revision(self)
        self.registry = Registry(
            self,
            self.wills,
            Alone(self.sessions) if ownership is None else ownership,
            Forgets() if store is None else store,
        )
        self.partings = Partings(self, self.wills, self.registry)
        claims = Claims(self, self.registry, self.partings)
        self.connecting = Connecting(self, claims, self.wills, self.revision)
        self.subscribing = Subscribing(self)
        self.expiry = Expiry(self)
        self.memory = Memory(self, self.registry)
        self.memory.others.append(self.drawers.held)

    # -- asked and told by the session layer ---------------------------------------------------

    def open(self, channel: Channel, connect: Connect) -> None:
        """Check a CONNECT, authenticate its client, then accept or refuse it."""
        self.connecting.open(channel, connect)

    def auth(self, channel: Channel, packet: Auth) -> None:
        """Serve an AUTH packet: a step of an authentication, or a new one (4.12.1)."""
        self.connecting.auth(channel, packet)

    def subscribe(self, channel: Channel, packet: Subscribe) -> None:
        """Serve a SUBSCRIBE."""
        self.subscribing.subscribe(channel, packet)

    def unsubscribe(self, channel: Channel, packet: Unsubscribe) -> None:
        """Serve an UNSUBSCRIBE."""
        self.subscribing.unsubscribe(channel, packet)

    def owes(self, channel: General) -> bool:
        """See `Router.owes`: SUBACKs."""
        return channel in self.subscribing.under_way

    def closed(self, channel: Channel) -> None:
        """A connection is gone: will, session end or wait."""
        self.registry.closed(channel)

    def session_due(self, session: State) -> None:
        """Will delay or session expiry of a client that is away has passed."""
        assert isinstance(session, Session)
        self.partings.due(session)

    # -- told by those who decide --------------------------------------------------------------

    def hooks_changed(self, point: str, listening: bool) -> None:
        """A hook point gained or lost its listeners."""
        super().hooks_changed(point, listening)
        if point == "client.authorize":
            self.revision.start()

    def access_changed(self) -> None:
        """Rules, users or bans changed: rights and subscriptions are asked for again."""
        super().access_changed()
        self.revision.start()

    def puts_off(self, channel: Connection) -> bool:
        """See `Turn.puts_off`: where much ends at once."""
        if self.registry.stopping or not isinstance(channel, Channel):
            return False
        return self.partings.puts_off(channel)

    def stop(self) -> None:
        """The process ends: wills go by policy, and sessions keep what they have."""
        self.partings.finish()
        self.registry.handing.finish()
        self.registry.stopping = True
        self.revision.close()
        # Their wills are due while the right to publish them can be asked for.
        self.journal.abandon("server shutting down")

    def settings_changed(self) -> None:
        """The settings have other values: have those who keep some of them hold to these."""
        settings = self.settings
        self.router.take_over(settings)
        self.registry.quota.settings_changed(self.sessions.values())
        self.retainer.max_messages = settings.retained_max_messages
        self.retainer.max_bytes = settings.retained_max_bytes
        self.retainer.max_payload = settings.retained_max_payload
        self.retainer.max_per_user = settings.retained_max_per_user
        self.retainer.max_bytes_per_user = settings.retained_max_bytes_per_user
        self.memory.configure()
        # The gears, and what channels remember of their topics, depend on some of them.
        super().hooks_changed("", False)
        self.router.all_changed()

    @property
    def overloaded(self) -> bool:
        """The event loop is late: new clients are refused."""
        return self.connecting.overloaded

    @overloaded.setter
    def overloaded(self, overloaded: bool) -> None:
        self.connecting.overloaded = overloaded

    # -- clients and their sessions ------------------------------------------------------------

    @property
    def channels(self) -> int:
        """Connections that have sent CONNECT."""
        return self.registry.channels

    def subscribe_client(
        self,
        client_id: str,
        subscription: Subscription,
        told: Callable[[bool], object] | None = None,
    ) -> int:
        """Subscribe a session on its client's behalf: see `Subscribing.subscribe_client`."""
        return self.subscribing.subscribe_client(client_id, subscription, told)

    def unsubscribe_client(self, client_id: str, topic_filter: str) -> bool:
        """End a subscription on its client's behalf; False if there is none."""
        session = self.sessions.get(client_id)
        if session is None or not self.pubsub.unsubscribe(session, topic_filter):
            return False
        self.tell("session.unsubscribed", session, topic_filter)
        self.perform()
        return True

    def kick(
        self,
        client_id: str,
        reason_code: int = reasons.ADMINISTRATIVE_ACTION,
        detail: str = "ended by administrator",
    ) -> bool:
        """End a client's connection; False if it has none.

        A 5.0 client gets DISCONNECT with `reason_code` (0x98 administrative action, 0x87 not
        authorized, ...); `detail` is for the log.
        """
        return self.registry.kick(client_id, reason_code, detail)

    def end_session(self, client_id: str, reason_code: int = reasons.ADMINISTRATIVE_ACTION) -> bool:
        """End a session with all that is kept for it, and its connection; False without one."""
        return self.registry.end_session(client_id, reason_code, "session ended by administrator")

    def revoke_users(self, module: str, names: frozenset[str], by_client_id: bool = False) -> int:
        """End the connections of these users that `module` let in, or was about to.

        Returns how many.

        They are gone or have new passwords. 5.0 clients get DISCONNECT 0x87; sessions stay, for
        whoever proves to be the same user. With `by_client_id` the names are client identifiers.
        """
        revoked = Revoked(self, module, names, by_client_id)
        return self.turn_away(revoked.stays, revoked.detail) + revoked.run()

    def turn_away(self, stays: Callable[[ClientInfo, str], bool], detail: str) -> int:
        """Refuse clients whose claim of a client id is under way, since what let them in is gone.

        ``stays(client, module)`` says whom `module` lets in still. Returns how many are refused.
        """
        refused = 0
        for attempt in list(self.connecting.undecided.values()):
            result = attempt.result
            if result is None or attempt.channel.state != WAITING:
                continue
            if not stays(attempt.client, result.module):
                refused += 1
                self.connecting.refuse(attempt, reasons.NOT_AUTHORIZED, detail)
        self.metrics.auth_revoked += refused
        if refused:
            self.perform()
        return refused

    def enforce_bans(self) -> int:
        """End the connections of clients that are banned; returns how many. Sessions stay."""
        return self.registry.enforce_bans()

    def recover(self, result: object = None) -> object:
        """Take in the sessions that the store has kept; call it before clients are let in.

        Returns a Deferred where the store waits; it fails if the store does.
        """
        stored = self.registry.store.recover()
        if isinstance(stored, Iterable):
            self.registry.recover(stored)
            return None
        return stored.addCallbacks(self.registry.recover, _fail)

    def perform(self) -> None:
        """The end of a turn; what it has taken in is held against the budget."""
        super().perform()
        self.stamp = 0
        if self.memory.budget:
            self.memory.check()

    # -- time and figures ----------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Called a few times a second: due timers, expired retained messages, then flush."""
        self.now = now
        self.wheel.advance(now)
        self.expiry.run()
        self.router.sweep(now)
        if self.asked:
            asked = self.asked
            self.asked = []
            for channel in asked:
                channel.forget_known()
        if self.warm and now - self._cooled_at >= _COOL:
            self._cooled_at = now
            self._cool(now)
        self.memory.check(True)
        self.perform()

    def _cool(self, now: int) -> None:
        """Have clients that have been quiet give back what only busy ones need."""
        still: list[Publisher] = []
        for channel in self.warm:
            if now - channel.last < _COOL and channel.state != CLOSED:
                still.append(channel)
            else:
                channel.cool()
        self.warm = still

    def stats(self) -> dict[str, int]:
        """Gauges: what is there now (counters are in `metrics`)."""
        return {
            "uptime_seconds": (self.now - self.started_at) // 1000,
            "connections": self.channels,
            "clients_connected": self.attached,
            "sessions": len(self.sessions),
            "subscriptions": self.router.subscriptions,
            "topics_cached": len(self.router.table),
            "topics_cached_bytes": self.router.bytes,
            "shared_groups": len(self.router.groups),
            "retained_messages": len(self.retainer),
            "retained_bytes": self.retainer.bytes + self.retainer.held,
            "memory_used_bytes": self.memory.used(),
            "memory_process_growth_bytes": self.memory.growth,
            "memory_unexplained_bytes": self.memory.unexplained(),
            "backlog_bytes": self.backlog,
            "slow_connections": len(self.slow),
            "alarms": len(self.alarms),
            "plugins_quarantined": self.hooks.quarantined(),
            "loop_lag_ms": self.loop_lag,
        }


def _fail(failure: object) -> object:
    """The store could not be read: so it is told to who starts the broker."""
    return failure
