"""One node's flow plane: connections meet sessions, sessions meet the router.

    Channel --open--> Broker --authenticate--> access control (may wait)
                        |
                        +-- sessions  client id -> Session    (EMQ's sm)
                        +-- router    filters -> sessions
                        +-- retainer  topics -> retained messages
                        +-- pubsub    dispatch, subscribe

The broker is the `Server` of the session layer. It knows no transport and no store's implementation;
access control, hooks, the clock and the log are handed in. A client id belongs to one session, and
a session to one connection: a second CONNECT takes it over, if it comes from the same principal.

MQTT 5.0: 3.1.4 (CONNECT actions), 4.1 (session state), 3.1.2.5 and 3.1.3.2.2 (will, will delay).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, Final

from mqttd.broker.alarms import Alarms
from mqttd.broker.bans import Bans
from mqttd.broker.hooks import POINTS
from mqttd.broker.login import Login, module_of
from mqttd.broker.pubsub import PubSub
from mqttd.broker.retainer import Retainer
from mqttd.broker.revision import Revision
from mqttd.broker.router import Router
from mqttd.codec import properties as prop
from mqttd.codec import reasons
from mqttd.codec.packet_types import TYPE_NAMES
from mqttd.codec.packets import (
    Auth,
    Connect,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from mqttd.codec.properties import Properties, encode_properties
from mqttd.codec.reasons import MqttError
from mqttd.codec.serializer import serialize
from mqttd.codec.topic import split_shared, validate_topic_filter, validate_topic_name
from mqttd.session.channel import OPEN, WAITING, Channel
from mqttd.session.guid import Guid
from mqttd.session.limits import Limits
from mqttd.session.message import Delivery, Message
from mqttd.session.mount import Mount, mountpoint
from mqttd.session.server import Edge, Server
from mqttd.session.route import Grant
from mqttd.session.session import Session
from mqttd.session.settings import NEVER, Settings
from mqttd.types import (
    AUTH_IGNORE,
    Action,
    AuthError,
    AuthOk,
    AuthResult,
    ClientInfo,
    Verdict,
)

__all__ = ["Broker"]

_SUBSCRIBE: Final = "subscribe"
_PUBLISH: Final = "publish"

#: What a CONNECT waits for, in this order: see `Broker.advance`.
_CONNECT_HOOKS: Final = 0
_AUTHENTICATE_HOOKS: Final = 1
_ACCESS: Final = 2

_CONNACK: Final = 2

#: What a message out of nothing is compared with: nothing of it is taken for checked.
_NO_MESSAGE: Final = Message(0, "", b"", 0, False, {})

_ACKNOWLEDGED: Final = frozenset(("message.acked", "message.nack"))
#: Hooks that hear of a client when its connection is gone.
_FAREWELLS: Final = frozenset(("client.disconnected", "session.terminated"))


class _Gone(Edge):
    """The edge of a connection that is over."""

    def flush(self, channel: Channel) -> None:
        channel.out = None

    def shut(self, channel: Channel) -> None:
        pass

    def pause(self, channel: Channel) -> None:
        pass

    def resume(self, channel: Channel) -> None:
        pass

    def peer(self, channel: Channel) -> tuple[str, int]:
        return ("", 0)


_GONE: Final = _Gone()


class Broker(Server):
    """The broker of one node.

    Arguments: settings; `access` (see `mqttd.access`), `hooks` (see `broker.hooks`); `clock` gives
    µs since 1970 for message ids; `now` the monotonic milliseconds of the start; `soon(callable)`
    runs something in a later turn; `log(event, fields)` gets one structured event per refusal,
    fault and disconnect.
    """

    def __init__(
        self,
        settings: Settings,
        access: Any,
        hooks: Any,
        clock: Callable[[], int],
        now: int,
        soon: Callable[[Callable[[], None]], object],
        log: Callable[[str, dict[str, object]], None],
        node_id: int = 0,
        process_id: int = 0,
        name: str = "mqttd",
    ) -> None:
        super().__init__(settings, now)
        self.name = name
        self.access: Any = access
        self.hooks: Any = hooks
        #: What an operator should know; the hooks tell of quarantines here.
        self.alarms = Alarms(log)
        hooks.alarms = self.alarms
        self.clock = clock
        self.soon = soon
        self.log = log
        self.started_at: int = now
        self.guid = Guid(node_id, process_id)
        #: Listener -> the MQTT versions it takes, where those are not all.
        self.versions: dict[str, frozenset[int]] = {}
        #: Listener -> template of the mountpoint, where it has one.
        self.mounts: dict[str, str] = {}
        #: Listener -> rates and sizes of its connections, where they are limited.
        self.limits: dict[str, Limits] = {}
        #: Listener -> address rules, where only a PROXY header tells the address.
        self.gates: dict[str, Any] = {}
        #: The event loop is late: new clients are refused.
        self.overloaded: bool = False
        #: How late it was at worst in the last second, in milliseconds.
        self.loop_lag: int = 0
        #: Told of the end of each connection, where flapping is looked for.
        self.flapping: Any = None
        #: Who must stay out; the service puts those of its file here.
        self.bans: Any = Bans()
        self.sessions: dict[str, Session] = {}
        #: QoS 2 deliveries between PUBREC and PUBCOMP, while delivery.completed is listened to.
        self.completing: dict[str, dict[int, Message]] = {}
        self.channels: int = 0
        self.router = Router(self.metrics, settings.shared_strategy)
        self.retainer = Retainer(
            settings.retained_max_messages,
            settings.retained_max_bytes,
            settings.retained_max_payload,
        )
        #: See `hold_acknowledgements`; acknowledgements that were released in this turn.
        self.holder: Callable[[Callable[[], None], str], object] | None = None
        self.released: bool = False
        self.pubsub = PubSub(self, self.router, self.retainer)
        self.revision = Revision(self)
        #: The hook points somebody listens to: an unused point costs one look-up here.
        self.points: set[str] = {point for point in POINTS if hooks.listening(point)}
        self.hooks_changed("", False)

    # -- hooks ---------------------------------------------------------------------------------

    def hooks_changed(self, point: str, listening: bool) -> None:
        """A hook point gained or lost its listeners: precompute what the hot path asks."""
        self.epoch += 1
        if point == "client.authorize":
            self.revision.start()
        if listening:
            self.points.add(point)
        else:
            self.points.discard(point)
        self.tap_publish = "message.publish" in self.points
        self.tap_delivered = (
            "message.delivered" in self.points or "delivery.completed" in self.points
        )
        self.tap_completed = "delivery.completed" in self.points
        self.tap_acked = self.tap_completed or not self.points.isdisjoint(_ACKNOWLEDGED)
        self.tap_dropped = "delivery.dropped" in self.points or "message.dropped" in self.points
        self.fast = (
            self.settings.fast_path
            and self.settings.max_qos == 2
            and not self.settings.upgrade_qos
            and not (self.tap_delivered or self.tap_dropped)
            # An acknowledgement names the message that was published.
            and not (self.tap_publish and self.tap_acked)
        )

    def access_changed(self) -> None:
        """Rules, users or bans changed: grants and subscriptions are asked for again."""
        self.epoch += 1
        self.grant_by_flags = bool(self.access.depends_on_qos_retain)
        self.revision.start()

    def _run(self, point: str, session: Session, *args: object) -> None:
        """Tell a hook point about a client, when somebody listens."""
        if point in self.points:
            self.hooks.run_hooks(point, (self.client_of(session), *args))

    def client_of(self, session: Session) -> ClientInfo:
        """Who a session's client is, for hooks and access control."""
        client = session.client
        if client is not None:
            assert isinstance(client, ClientInfo)
            return client
        channel = session.channel
        host, port, listener, version = "", 0, "", 5 if session.v5 else 4
        if channel is not None:
            host, port = channel.edge.peer(channel)
            listener = channel.listener
            version = channel.version
        return ClientInfo(
            session.client_id, session.username, host, port, listener, version, session.clean
        )

    # -- CONNECT -------------------------------------------------------------------------------

    def next_message_id(self) -> int:
        """A new 128-bit message id."""
        return self.guid.next(self.clock())

    def open(self, channel: Channel, connect: Connect) -> None:
        """Check a CONNECT, authenticate its client, then accept or refuse it."""
        self.channels += 1
        if self.overloaded:
            self.metrics.refused_overload += 1
            self._refuse(channel, connect, reasons.SERVER_BUSY, "the event loop is overloaded")
            return
        versions = self.versions.get(channel.listener)
        if versions is not None and connect.version not in versions:
            code = reasons.UNSUPPORTED_PROTOCOL_VERSION
            self._refuse(channel, connect, code, "this listener does not take this MQTT version")
            return
        shown: Any = channel.edge.identity(channel)
        if shown is not None:
            if shown.username is not None:
                connect.username = shown.username
            if shown.client_id is not None:
                connect.client_id = shown.client_id
        fault = self._connect_fault(connect)
        if fault is not None:
            self._refuse(channel, connect, fault.reason_code, fault.detail)
            return
        if not connect.client_id:
            connect.client_id = f"mqttd-{self.next_message_id():x}"
            channel.assigned = True
        host, port = channel.edge.peer(channel)
        gate = self.gates.get(channel.listener)
        if gate is not None and not gate.allows(host):
            self.metrics.refused_address += 1
            text = "this address may not connect here"
            self._refuse(channel, connect, reasons.NOT_AUTHORIZED, text)
            return
        client = ClientInfo(
            connect.client_id,
            connect.username,
            host,
            port,
            channel.listener,
            connect.version,
            connect.clean_start,
            connect.keep_alive,
        )
        if shown is not None:
            client.cert_common_name = shown.common_name
            client.cert_subject = shown.subject
            client.cert_sans = shown.sans
            client.attributes = shown.attributes
        if self._banned(channel, connect, client):
            return
        if "client.connect" in self.points:
            asked = self.hooks.ask_hooks("client.connect", (client,), connect.properties)
            self._wait_or_advance(channel, connect, client, _CONNECT_HOOKS, asked)
        else:
            self._authenticate(channel, connect, client)

    def _banned(self, channel: Channel, connect: Connect, client: ClientInfo) -> bool:
        """Refuse a client that is banned; says whether it was."""
        ban = self.bans.match(client.client_id, client.username, client.peerhost)
        if ban is None:
            return False
        detail = f"banned: {ban.kind} {ban.value}"
        if ban.reason:
            detail = f"{detail}: {ban.reason}"
        self.metrics.refused_banned += 1
        self._refuse(channel, connect, reasons.BANNED, detail)
        return True

    def _authenticate(self, channel: Channel, connect: Connect, client: ClientInfo) -> None:
        """Hook client.authenticate first, then the chain."""
        if "client.authenticate" in self.points:
            args = (client, connect.password)
            asked = self.hooks.ask_hooks("client.authenticate", args, AUTH_IGNORE)
            self._wait_or_advance(channel, connect, client, _AUTHENTICATE_HOOKS, asked)
        else:
            self._ask_access(channel, connect, client)

    def _ask_access(self, channel: Channel, connect: Connect, client: ClientInfo) -> None:
        method = self._method(connect)
        if method is not None:
            self._begin(channel, connect, client, method)
            return
        result = self.access.authenticate(client, connect.password)
        connect.password = None
        self._wait_or_advance(channel, connect, client, _ACCESS, result)

    def _method(self, connect: Connect) -> str | None:
        """The Authentication Method that CONNECT names."""
        if connect.properties is None:
            return None
        method = connect.properties.get(prop.AUTHENTICATION_METHOD)
        return method if isinstance(method, str) else None

    def _begin(self, channel: Channel, connect: Connect, client: ClientInfo, method: str) -> None:
        """Start the enhanced authentication that CONNECT asks for (4.12)."""
        connect.password = None
        exchange: Any = self.access.begin(client, method)
        if exchange is None:
            self._refuse(
                channel,
                connect,
                reasons.BAD_AUTHENTICATION_METHOD,
                f"authentication method {method[:64]!r} is not offered",
            )
            return
        login = Login(self, channel, method)
        channel.auth = login
        login.begin(connect, client, exchange)

    def auth(self, channel: Channel, packet: Auth) -> None:
        """Serve an AUTH packet: a step of an authentication, or a new one (4.12.1)."""
        login = channel.auth
        if not isinstance(login, Login) or not login.method:
            raise reasons.ProtocolViolation("AUTH without an authentication method")
        login.auth(packet)

    def _wait_or_advance(
        self, channel: Channel, connect: Connect, client: ClientInfo, stage: int, result: Any
    ) -> None:
        """Go on with what was asked at `stage`, at once or when its Deferred fires."""
        if isinstance(result, (tuple, AuthResult)):
            self.advance(channel, connect, client, stage, result)
        else:
            result.addCallback(_Later(self, channel, connect, client, stage))

    def advance(
        self, channel: Channel, connect: Connect, client: ClientInfo, stage: int, result: Any
    ) -> None:
        """One more step of a CONNECT: `result` is what hooks or access control have answered."""
        if stage == _ACCESS:
            self.authenticated(channel, connect, client, result)
            return
        answer = result[1]
        if isinstance(answer, AuthError):
            code = answer.reason_code
            if code not in reasons.CODES_OF[_CONNACK] or code < 0x80:
                code = reasons.NOT_AUTHORIZED
            self._refuse(channel, connect, code, answer.reason)
        elif stage == _CONNECT_HOOKS:
            if answer is None or isinstance(answer, dict):
                connect.properties = answer
            else:
                self._unusable("client.connect", answer)
            self._authenticate(channel, connect, client)
        elif isinstance(answer, AuthOk) and self._method(connect) is not None:
            self._ask_access(channel, connect, client)  # the client expects its method's answer
        elif isinstance(answer, AuthOk):
            connect.password = None
            client.superuser = answer.superuser
            client.attributes = answer.attributes
            self.authenticated(
                channel,
                connect,
                client,
                AuthResult(True, 0, "", answer.superuser, answer.attributes),
            )
        else:
            if answer is not AUTH_IGNORE:
                self._unusable("client.authenticate", answer)
            self._ask_access(channel, connect, client)

    def _unusable(self, point: str, answer: object) -> None:
        """A chain ended with an accumulator that cannot be used: it counts as unchanged."""
        self.hooks.unusable(point, answer)

    def _connect_fault(self, connect: Connect) -> MqttError | None:
        settings = self.settings
        if not connect.client_id:
            if connect.version < 5 and not connect.clean_start:
                return reasons.ClientIdentifierNotValid("empty client id with clean session 0")
            if connect.version == 3:
                return reasons.ClientIdentifierNotValid("empty client id in MQTT 3.1")
        elif len(connect.client_id.encode()) > settings.max_client_id_length:
            return reasons.ClientIdentifierNotValid(
                f"client id longer than {settings.max_client_id_length} bytes"
            )
        will = connect.will
        if will is not None:
            if will.qos > settings.max_qos:
                return reasons.ProtocolViolation(
                    f"will QoS {will.qos} is not offered", reasons.QOS_NOT_SUPPORTED
                )
            if will.retain and not settings.retain_available:
                return reasons.ProtocolViolation(
                    "retained will is not offered", reasons.RETAIN_NOT_SUPPORTED
                )
            try:
                validate_topic_name(will.topic, settings.max_topic_levels)
            except MqttError as error:
                return error
        return None

    def _refuse(self, channel: Channel, connect: Connect, code: int, detail: str) -> None:
        host, port = channel.edge.peer(channel)
        self.log(
            "connect refused",
            {
                "peer": f"{host}:{port}",
                "client_id": connect.client_id,
                "username": connect.username,
                "reason": reasons.name_of(code),
                "detail": detail,
            },
        )
        if channel.state != WAITING:
            return
        properties: Properties | None = None
        if "client.connack" in self.points:
            client = ClientInfo(
                connect.client_id,
                connect.username,
                host,
                port,
                channel.listener,
                connect.version,
                connect.clean_start,
                connect.keep_alive,
            )
            properties = self._connack(client, code, None)
        channel.refuse(code, detail, properties if channel.v5 else None)

    def _connack(
        self, client: ClientInfo, code: int, properties: Properties | None
    ) -> Properties | None:
        """Hook client.connack: the properties that go into the packet."""
        given = dict(properties) if properties is not None else None
        _, changed = self.hooks.run_hooks("client.connack", (client, code), given)
        if changed is None:
            return None
        try:
            encode_properties(changed)
        except Exception:
            self._unusable("client.connack", changed)
            return properties
        result: Properties = changed
        return result

    def advance_later(
        self, channel: Channel, connect: Connect, client: ClientInfo, stage: int, result: Any
    ) -> None:
        """What a CONNECT had to wait for came in a later turn."""
        if channel.state != WAITING:
            return
        self.advance(channel, connect, client, stage, result)
        if channel.state == OPEN:
            channel.resume_input()
        self.perform()

    def authenticated(
        self, channel: Channel, connect: Connect, client: ClientInfo, result: AuthResult
    ) -> None:
        """Authentication is decided: refuse, or see to will and session and accept."""
        if not result.ok:
            self._refuse(channel, connect, result.reason_code, result.reason)
            return
        if client.username != connect.username and self._banned(channel, connect, client):
            return  # the module has proved another user name than the client gave
        expires_at = result.expires_at
        if expires_at is not None and expires_at * 1_000_000 <= self.clock():
            self._refuse(channel, connect, reasons.NOT_AUTHORIZED, "what was shown has expired")
            return
        if channel.listener in self.mounts and not self._mounted(channel, connect, client):
            return
        will = connect.will
        if will is not None and not self.authorize(
            client, Action(_PUBLISH, will.qos, will.retain), will.topic
        ):
            self._refuse(
                channel, connect, reasons.NOT_AUTHORIZED, "no right to the will topic " + will.topic
            )
            return
        old = self.sessions.get(connect.client_id)
        if old is not None and old.username != client.username:
            self._refuse(
                channel,
                connect,
                reasons.NOT_AUTHORIZED,
                "the session of this client id belongs to another user",
            )
            return
        login = channel.auth
        if isinstance(login, Login):
            login.module = result.module
        elif expires_at is not None:
            login = Login(self, channel, "")
            login.module = result.module
            channel.auth = login
        else:
            channel.auth = result
        self._accept(channel, connect, client, old)
        if isinstance(login, Login) and expires_at is not None:
            login.expire(expires_at)

    def _mounted(self, channel: Channel, connect: Connect, client: ClientInfo) -> bool:
        """Put a client's names below the mountpoint of its listener, or refuse it."""
        template = self.mounts[channel.listener]
        try:
            prefix = mountpoint(template, client.client_id, client.username)
            mount = Mount(prefix)
            will = connect.will
            if will is not None:
                will.topic = mount.enter(will.topic)
                mount.enter_properties(will.properties)
        except ValueError as error:
            self._refuse(channel, connect, reasons.NOT_AUTHORIZED, str(error))
            return False
        except MqttError as error:
            self._refuse(channel, connect, error.reason_code, error.detail)
            return False
        client.mountpoint = prefix
        channel.mount = mount
        return True

    def _accept(
        self, channel: Channel, connect: Connect, client: ClientInfo, old: Session | None
    ) -> None:
        metrics = self.metrics
        before: ClientInfo | None = None
        if old is not None:
            known = old.client
            before = known if isinstance(known, ClientInfo) else None
            # Names of another mountpoint are not this client's.
            moved = client.mountpoint != (before.mountpoint if before is not None else "")
            afresh = connect.clean_start or moved
            self._take_over(old, afresh)
            known = old.client
            before = known if isinstance(known, ClientInfo) else None
            if afresh or self.sessions.get(connect.client_id) is not old:
                if self.sessions.get(connect.client_id) is old:
                    self._end_session(old, "session.discarded", "clean start")
                    metrics.sessions_discarded += 1
                old = None
        present = old is not None
        session = old
        if session is None:
            session = Session(self, connect.client_id, client.username)
            self.sessions[connect.client_id] = session
            metrics.sessions_created += 1
        else:
            metrics.sessions_resumed += 1
        self._set_expiry(session, connect)
        self._set_will(session, connect.will, client)
        self.remember(session, client)
        if present:
            self.revision.resumed(session, before, client)
        limits = self.limits.get(channel.listener)
        if limits is not None:
            limits.apply(channel)
        properties = self._connack_properties(connect, channel.assigned, limits)
        login = channel.auth
        if properties is not None and isinstance(login, Login) and login.method:
            properties[prop.AUTHENTICATION_METHOD] = login.method
            if login.data is not None:
                properties[prop.AUTHENTICATION_DATA] = login.data
        if "client.connack" in self.points:
            changed = self._connack(client, reasons.SUCCESS, properties)
            properties = changed if channel.v5 else None
        channel.accept(session, present, properties)
        self._run("session.resumed" if present else "session.created", session)
        if "client.connected" in self.points:
            self.hooks.run_hooks("client.connected", (client,))

    def remember(self, session: Session, client: ClientInfo) -> None:
        """Keep of a client what cannot be found out again, where somebody will ask.

        The address goes with the connection: rules ask for it at a will and a return, hooks at
        the end.
        """
        if (
            session.expiry_interval
            or session.will is not None
            or not self.points.isdisjoint(_FAREWELLS)
            or client.superuser
            or client.attributes is not None
            or client.acl is not None
            or client.cert_subject is not None
            or client.mountpoint
        ):
            session.client = client
        else:
            session.client = None

    def _set_expiry(self, session: Session, connect: Connect) -> None:
        settings = self.settings
        if connect.version == 5:
            expiry = 0
            if connect.properties is not None:
                value = connect.properties.get(prop.SESSION_EXPIRY_INTERVAL)
                expiry = value if isinstance(value, int) else 0
        else:
            expiry = 0 if connect.clean_start else settings.expiry_interval_seconds
        if expiry > settings.max_expiry_interval_seconds:
            expiry = settings.max_expiry_interval_seconds
        session.expiry_interval = expiry
        session.clean = expiry == 0

    def _set_will(self, session: Session, will: Will | None, client: ClientInfo) -> None:
        session.will = None
        session.will_delay = 0
        if will is None:
            return
        properties = dict(will.properties) if will.properties is not None else None
        expiry = 0
        if properties is not None:
            delay = properties.pop(prop.WILL_DELAY_INTERVAL, 0)
            session.will_delay = delay if isinstance(delay, int) else 0
            value = properties.pop(prop.MESSAGE_EXPIRY_INTERVAL, 0)
            expiry = value if isinstance(value, int) else 0
        # Its expiry counts from its publication: kept as seconds until then.
        session.will = Message(
            0,
            will.topic,
            will.payload,
            will.qos,
            will.retain,
            properties or None,
            client.client_id,
            client.username,
            expiry,
        )

    def _connack_properties(
        self, connect: Connect, assigned: bool, limits: Limits | None
    ) -> Properties | None:
        if connect.version != 5:
            return None
        settings = self.settings
        largest = settings.max_packet_size
        if limits is not None and limits.largest:
            largest = limits.largest
        properties: Properties = {
            prop.RECEIVE_MAXIMUM: settings.receive_maximum,
            prop.MAXIMUM_PACKET_SIZE: largest,
        }
        if settings.max_topic_alias:
            properties[prop.TOPIC_ALIAS_MAXIMUM] = settings.max_topic_alias
        if settings.max_qos < 2:
            properties[prop.MAXIMUM_QOS] = settings.max_qos
        if not settings.retain_available:
            properties[prop.RETAIN_AVAILABLE] = 0
        if not settings.wildcard_subscription:
            properties[prop.WILDCARD_SUBSCRIPTION_AVAILABLE] = 0
        if not settings.shared_subscription:
            properties[prop.SHARED_SUBSCRIPTION_AVAILABLE] = 0
        if settings.server_keepalive_seconds:
            properties[prop.SERVER_KEEP_ALIVE] = settings.server_keepalive_seconds
        if assigned:
            properties[prop.ASSIGNED_CLIENT_IDENTIFIER] = connect.client_id
        asked = connect.properties
        if asked is not None:
            expiry = asked.get(prop.SESSION_EXPIRY_INTERVAL)
            if isinstance(expiry, int) and expiry > settings.max_expiry_interval_seconds:
                properties[prop.SESSION_EXPIRY_INTERVAL] = settings.max_expiry_interval_seconds
            if asked.get(prop.REQUEST_RESPONSE_INFORMATION) == 1 and settings.response_information:
                properties[prop.RESPONSE_INFORMATION] = settings.response_information
        return properties

    def _take_over(self, session: Session, clean_start: bool) -> None:
        """Another connection came for this session: end the older one (MQTT-3.1.4-3)."""
        channel = session.channel
        if channel is not None:
            self.metrics.sessions_takenover += 1
            if self.flapping is not None:
                self.flapping.ended(channel.listener, session.client_id, self.now)
            self._run("session.takenover", session)
            self._run("client.disconnected", session, "taken over")
            session.client = self.client_of(session)
            session.detach()
            channel.session = None
            channel.close(reasons.SESSION_TAKEN_OVER, "session taken over")
            if session.expiry_interval == 0:
                # The old connection's session ends with it; the new one starts afresh.
                self._publish_will(session)
                self._end_session(session, "session.terminated", "taken over")
                return
        if session.will is not None and (clean_start or session.will_delay == 0):
            self._publish_will(session)
        session.will = None

    # -- end of connections and sessions -------------------------------------------------------

    def closed(self, channel: Channel) -> None:
        """A connection is gone: will, session end or wait."""
        try:
            self._closed(channel)
        finally:
            # An edge that knows its channel is a cycle with all of its layers, 47 KiB with TLS:
            # what has grown old is not collected (`mqttd.monitor.garbage`), so it ends here.
            channel.edge = _GONE

    def _closed(self, channel: Channel) -> None:
        self.metrics.connections_closed += 1
        login = channel.auth
        if isinstance(login, Login):
            login.close()
        if channel.version:
            self.channels -= 1
        session = channel.session
        if session is None or session.channel is not channel:
            return
        self._run("client.disconnected", session, channel.close_reason)
        if self.flapping is not None:
            self.flapping.ended(channel.listener, session.client_id, self.now)
        session.detach()
        if session.expiry_interval == 0:
            self._publish_will(session)
            self._end_session(session, "session.terminated", channel.close_reason)
            return
        session.clean = False
        self._run("session.disconnected", session)
        if session.will is not None and session.will_delay == 0:
            self._publish_will(session)
        self._await_end(session, self.now)

    def _await_end(self, session: Session, since: int) -> None:
        """Schedule the nearer of will delay and session expiry."""
        session.away_since = since
        at = 0
        if session.expiry_interval != NEVER:
            at = since + session.expiry_interval * 1000
        if session.will is not None:
            will_at = since + session.will_delay * 1000
            if at == 0 or will_at < at:
                at = will_at
        if at:
            self.wheel.schedule(session, at)

    def session_due(self, session: Session) -> None:
        """Will delay or session expiry of a client that is away has passed."""
        if self.sessions.get(session.client_id) is not session:
            return
        since = session.away_since
        if session.expires() and self.now >= since + session.expiry_interval * 1000:
            self.metrics.sessions_expired += 1
            self._publish_will(session)
            self._end_session(session, "session.terminated", "expired")
            return
        if session.will is not None and self.now >= since + session.will_delay * 1000:
            self._publish_will(session)
        self._await_end(session, since)

    def _publish_will(self, session: Session) -> None:
        will = session.will
        if will is None:
            return
        session.will = None
        if session.client is not None and not self.authorize(
            self.client_of(session), Action(_PUBLISH, will.qos, will.retain), will.topic
        ):
            self.metrics.publishes_denied += 1
            self.metrics.dropped_denied += 1
            return
        self.metrics.wills_published += 1
        expires_at = self.now + will.expires_at * 1000 if will.expires_at else 0
        self.publish(
            Message(
                self.next_message_id(),
                will.topic,
                will.payload,
                will.qos,
                will.retain,
                will.properties,
                will.client_id,
                will.username,
                expires_at,
            )
        )

    def _end_session(self, session: Session, point: str, reason: str) -> None:
        self.sessions.pop(session.client_id, None)
        self.wheel.cancel(session)
        self._run(point, session) if point == "session.discarded" else None
        self.pubsub.forget(session)
        lost = session.pending()
        if lost:
            self.metrics.dropped_session_ended += len(lost)
            if "delivery.dropped" in self.points:
                for delivery in lost:
                    self.dropped(session, delivery, "session_ended")
        self.completing.pop(session.client_id, None)
        session.inflight = None
        session.mqueue = None
        session.awaiting_rel = None
        self._run("session.terminated", session, reason)

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
        session = self.sessions.get(client_id)
        if session is None or session.channel is None:
            return False
        self.metrics.clients_kicked += 1
        self.end_channel(session.channel, reason_code, detail)
        self.perform()
        return True

    def revoke_users(self, module: str, names: frozenset[str], by_client_id: bool = False) -> int:
        """End the connections of these users that `module` let in; returns how many.

        They are gone or have new passwords. 5.0 clients get DISCONNECT 0x87; sessions stay, for
        whoever proves to be the same user. With `by_client_id` the names are client identifiers.
        """
        ended: list[Channel] = []
        for session in self.sessions.values():
            channel = session.channel
            if channel is None or module_of(channel.auth) != module:
                continue
            name = session.client_id if by_client_id else session.username
            if name in names:
                ended.append(channel)
        for channel in ended:
            self.metrics.auth_revoked += 1
            self.end_channel(
                channel, reasons.NOT_AUTHORIZED, "the user is gone or has a new password"
            )
        self.perform()
        return len(ended)

    def enforce_bans(self) -> int:
        """End the connections of clients that are banned; returns how many. Sessions stay."""
        ended: list[Channel] = []
        for session in self.sessions.values():
            channel = session.channel
            if channel is None:
                continue
            host, _ = channel.edge.peer(channel)
            if self.bans.match(session.client_id, session.username, host) is not None:
                ended.append(channel)
        for channel in ended:
            self.metrics.clients_kicked += 1
            self.end_channel(channel, reasons.ADMINISTRATIVE_ACTION, "banned")
        self.perform()
        return len(ended)

    def end_channel(self, channel: Channel, reason_code: int, detail: str) -> None:
        """End a connection for a reason of ours, with one log line."""
        host, port = channel.edge.peer(channel)
        session = channel.session
        self.log(
            "disconnected",
            {
                "peer": f"{host}:{port}",
                "client_id": session.client_id if session is not None else "",
                "username": session.username if session is not None else None,
                "reason": reasons.name_of(reason_code),
                "detail": detail,
            },
        )
        channel.close(reason_code, detail)

    # -- publish -------------------------------------------------------------------------------

    def grant(self, channel: Channel, topic: str, qos: int, retain: bool) -> Grant:
        """The channel's right to publish to `topic`, and its route."""
        session = channel.session
        assert session is not None
        action = Action(_PUBLISH, qos, retain)
        allowed = self.authorize(self.client_of(session), action, topic)
        return Grant(self.router.route(topic), topic, allowed, self.epoch)

    def may_still_publish(self, message: Message) -> bool:
        """Whether the publisher of a retained message would be allowed to publish it now."""
        return self.revision.may_still_publish(message)

    def authorize(self, client: ClientInfo, action: Action, topic: str) -> bool:
        """May `client` do this? Hook client.authorize first, then the chain."""
        if "client.authorize" in self.points:
            _, verdict = self.hooks.run_hooks(
                "client.authorize", (client, action, topic), Verdict.IGNORE
            )
            if verdict is Verdict.ALLOW:
                return True
            if verdict is Verdict.DENY:
                self._tell_denied(client, action, topic)
                return False
        if self.access.authorize(client, action, topic):
            return True
        self._tell_denied(client, action, topic)
        return False

    def _tell_denied(self, client: ClientInfo, action: Action, topic: str) -> None:
        if "client.denied" in self.points:
            self.hooks.run_hooks("client.denied", (client, action, topic))

    def publish(self, message: Message) -> int:
        """Hooks, retained store, dispatch. Returns receivers, or minus a reason code."""
        if self.tap_publish:
            changed = self.ask_publish(message)
            if changed is None:
                return self.refusal
            message = changed
        return self.route_message(message)

    def ask_publish(self, message: Message) -> Message | None:
        """Hook message.publish: None stops the message, and `refusal` is what `publish` returns."""
        result: Any = self.hooks.run_hooks("message.publish", (), message)
        changed: object = result[1]
        if changed is message:
            return message
        self.refusal = 0
        if isinstance(changed, int) and 0x80 <= changed <= 0xFF:
            self.refusal = -self._refused(message, changed)
            return None
        if not self._usable(changed, message):
            self.metrics.dropped_hook += 1
            self._message_dropped(message, "hook")
            return None
        assert isinstance(changed, Message)
        return changed

    def route_message(self, message: Message) -> int:
        """`publish` without asking the hooks."""
        if message.retain and message.client_id:
            self.revision.stamp(message)
        receivers = self.pubsub.publish(message)
        if receivers <= 0 and self.tap_dropped:
            self._message_dropped(message, "retained_full" if receivers else "no_subscriber")
        return receivers

    def _refused(self, message: Message, code: int) -> int:
        """A hook refuses a message with a reason code; before MQTT 5.0 no packet can say so."""
        self.metrics.dropped_hook += 1
        self._message_dropped(message, "hook")
        session = self.sessions.get(message.client_id)
        if message.qos and session is not None and not session.v5 and session.channel is not None:
            session.channel.close(code, "message refused by a plugin")
        return code

    def hold_acknowledgements(
        self, hold: Callable[[Callable[[], None], str], object] | None
    ) -> None:
        """Have ``hold(release, client_id)`` called for each acknowledgement of a PUBLISH.

        None ends it.

        The acknowledgement is sent when `release` is called, which must be in the same order.
        """
        self.holder = hold
        self.holding = hold is not None

    def hold(self, channel: Channel, first: int, packet_id: int, code: int) -> None:
        """See `Server.hold`."""
        release = _Release(self, channel, first, packet_id, code)
        session = channel.session
        if self.holder is None or session is None:
            release()
        else:
            self.holder(release, session.client_id)

    def set_congested(self, congested: bool) -> None:
        """Stop reading from publishers, or go on."""
        self.congested = congested
        if not congested:
            self.perform_later()

    def _usable(self, changed: object, message: Message) -> bool:
        """May this go on in place of `message`? What cannot be sent is no message either."""
        if changed is None:
            return False
        try:
            if not isinstance(changed, Message):
                raise TypeError("no Message")
            if changed.topic != message.topic or not changed.topic:
                validate_topic_name(changed.topic, self.settings.max_topic_levels)
            if changed.qos not in (0, 1, 2) or not isinstance(changed.payload, bytes):
                raise TypeError("QoS or payload")
            if changed.properties is not message.properties:
                encode_properties(changed.properties)
        except Exception:
            self._unusable("message.publish", changed)
            return False
        return True

    def _message_dropped(self, message: Message, reason: str) -> None:
        if "message.dropped" in self.points:
            session = self.sessions.get(message.client_id)
            client = self.client_of(session) if session is not None else None
            self.hooks.run_hooks("message.dropped", (client, reason), message)

    def publish_text(self, topic: str, payload: bytes, qos: int = 0, retain: bool = False) -> int:
        """Publish a message of the broker's own (`$SYS`, API) and flush it.

        Hooks see it, but for `$SYS/`: a plugin in quarantine must not hide the broker's figures.
        """
        message = Message(self.next_message_id(), topic, payload, qos, retain)
        if topic.startswith("$SYS/"):
            receivers = self.pubsub.publish(message)
        else:
            receivers = self.publish(message)
        self.perform()
        return receivers

    def send_info(self, client_id: str, info: object) -> bool:
        """Tell a client's channel something: hook client.handle_info says what it is sent for it.

        False if the client is not connected.
        """
        session = self.sessions.get(client_id)
        if session is None or session.channel is None:
            return False
        session.channel.send_info(info)
        return True

    def handle_info(self, session: Session, info: object) -> None:
        """Hook client.handle_info, and deliver the messages it answers with."""
        if "client.handle_info" not in self.points:
            return
        _, messages = self.hooks.run_hooks(
            "client.handle_info", (self.client_of(session), info), []
        )
        if not isinstance(messages, list):
            self._unusable("client.handle_info", messages)
            return
        quiet = not self.dirty
        for message in messages:
            if self._usable(message, _NO_MESSAGE):
                self.pubsub.deliver_to(session, message)
        if quiet and self.dirty:
            self.perform_later()

    # -- subscribe -----------------------------------------------------------------------------

    def subscribe(self, channel: Channel, packet: Subscribe) -> None:
        """Serve a SUBSCRIBE: one reason code per filter in the order asked (MQTT-3.8.4-6)."""
        session = channel.session
        assert session is not None
        settings = self.settings
        identifier = 0
        if packet.properties is not None:
            named = packet.properties.get(prop.SUBSCRIPTION_IDENTIFIER)
            if isinstance(named, list) and named and isinstance(named[0], int):
                identifier = named[0]
        subscriptions: list[Subscription] = packet.subscriptions
        mount = channel.mount
        if mount is not None:
            for subscription in subscriptions:
                subscription.topic_filter = mount.enter_filter(subscription.topic_filter)
        client = self.client_of(session)
        if "client.subscribe" in self.points:
            _, changed = self.hooks.run_hooks(
                "client.subscribe", (client, packet.properties), subscriptions
            )
            # A hook may change filters and QoS, never how many codes the client gets.
            if changed is subscriptions or self._are_subscriptions(changed, len(subscriptions)):
                subscriptions = changed
            else:
                self._unusable("client.subscribe", changed)
        codes: list[int] = []
        granted: list[Subscription] = []
        for subscription in subscriptions:
            code = self._subscribe(session, client, subscription, identifier)
            if code < 0x80:
                granted.append(subscription)
            codes.append(code if channel.v5 or code < 0x80 else 0x80)
        self.metrics.subscribes += 1
        channel.send(serialize(Suback(packet.packet_id, codes, None), channel.version))
        if settings.deny_disconnect and reasons.NOT_AUTHORIZED in codes:
            channel.close(reasons.NOT_AUTHORIZED, "subscribe denied")
            return
        for subscription in granted:
            self._run("session.subscribed", session, subscription)
        if granted and "client.subscribe.after" in self.points:
            self.hooks.run_hooks("client.subscribe.after", (client,), granted)
        if session.replays is not None:
            session.replay()

    def subscribe_client(self, client_id: str, subscription: Subscription) -> int:
        """Subscribe a session on its client's behalf: the reason code a SUBACK would carry.

        Raises KeyError if there is no such session, TopicFilterInvalid for what is no filter.
        """
        session = self.sessions[client_id]
        code = self._subscribe(session, self.client_of(session), subscription, 0)
        if code < 0x80:
            self._run("session.subscribed", session, subscription)
            if session.replays is not None and session.channel is not None:
                session.replay()
            self.perform_later()
        return code

    def _are_subscriptions(self, changed: object, count: int) -> bool:
        if not isinstance(changed, list) or len(changed) != count:
            return False
        for subscription in changed:
            if not isinstance(subscription, Subscription) or subscription.qos not in (0, 1, 2):
                return False
            try:
                _, topic_filter = split_shared(subscription.topic_filter)
                validate_topic_filter(topic_filter, self.settings.max_topic_levels)
            except Exception:
                return False
        return True

    def _subscribe(
        self, session: Session, client: ClientInfo, subscription: Subscription, identifier: int
    ) -> int:
        settings = self.settings
        _, topic_filter = split_shared(subscription.topic_filter)
        validate_topic_filter(topic_filter, settings.max_topic_levels)
        if len(topic_filter) > settings.max_topic_length:
            return reasons.TOPIC_FILTER_INVALID
        if not self.authorize(client, Action(_SUBSCRIBE, subscription.qos), topic_filter):
            self.metrics.subscribes_denied += 1
            return reasons.NOT_AUTHORIZED
        qos = subscription.qos if subscription.qos < settings.max_qos else settings.max_qos
        return self.pubsub.subscribe(session, subscription, qos, identifier)

    def unsubscribe(self, channel: Channel, packet: Unsubscribe) -> None:
        """Serve an UNSUBSCRIBE: always an UNSUBACK (MQTT-3.10.4-4)."""
        session = channel.session
        assert session is not None
        filters: list[str] = packet.topic_filters
        mount = channel.mount
        if mount is not None:
            filters = [mount.enter_filter(topic_filter) for topic_filter in filters]
        if "client.unsubscribe" in self.points:
            _, changed = self.hooks.run_hooks(
                "client.unsubscribe", (self.client_of(session), packet.properties), filters
            )
            if isinstance(changed, list) and len(changed) == len(filters):
                filters = [str(topic_filter) for topic_filter in changed]
            else:
                self._unusable("client.unsubscribe", changed)
        codes: list[int] = []
        for topic_filter in filters:
            if self.pubsub.unsubscribe(session, topic_filter):
                codes.append(0)
                self._run("session.unsubscribed", session, topic_filter)
            else:
                codes.append(reasons.NO_SUBSCRIPTION_EXISTED)
        self.metrics.unsubscribes += 1
        channel.send(serialize(Unsuback(packet.packet_id, codes, None), channel.version))

    # -- told by the session layer -------------------------------------------------------------

    def perform_later(self) -> None:
        """Finish the turn's effects in a later turn."""
        self.soon(self.perform)

    def flush_released(self) -> None:
        """Write the acknowledgements that were released."""
        self.released = False
        self.perform()

    def resume_later(self, session: Session) -> None:
        """Go on with a session's retained messages in a later turn."""
        self.soon(_Drain(self, session))

    def fault(self, channel: Channel, error: MqttError, packet_type: int) -> None:
        """One log line for a peer that broke the rules."""
        host, port = channel.edge.peer(channel)
        session = channel.session
        self.log(
            "protocol fault",
            {
                "peer": f"{host}:{port}",
                "client_id": session.client_id if session is not None else "",
                "packet_type": TYPE_NAMES[packet_type] if packet_type else "unknown",
                "reason": reasons.name_of(error.reason_code),
                "detail": error.detail,
            },
        )

    def refused(self, channel: Channel, reason: str) -> None:
        """One log line for a peer that did not get through the layers below MQTT."""
        host, port = channel.edge.peer(channel)
        self.metrics.connections_refused += 1
        self.log(
            "connection refused",
            {"listener": channel.listener, "peer": f"{host}:{port}", "reason": reason},
        )

    def turned_away(self, listener: str, host: str, port: int) -> None:
        """One log line for an address that the rules of a listener keep out."""
        self.metrics.refused_address += 1
        reason = "this address may not connect here"
        self.log(
            "connection refused",
            {"listener": listener, "peer": f"{host}:{port}", "reason": reason},
        )

    def accept_paused(self, listener: str, why: str, connections: int) -> None:
        """One log line, and an alarm while a listener is full or descriptors are short."""
        name = f"listener full: {listener}"
        if not why:
            self.alarms.clear(name)
            self.log("accept resumed", {"listener": listener, "connections": connections})
            return
        reason = {
            "full": "there are max_connections",
            "rate": "connections come faster than accept_rate",
            "files": "the process has no open file left",
        }[why]
        self.log(
            "accept paused", {"listener": listener, "reason": reason, "connections": connections}
        )
        if why != "rate":
            self.alarms.activate(name, f"{listener} accepts nobody: {reason}")

    def limited(self, channel: Channel) -> None:
        """One log line a minute for a client that sends faster than it may."""
        host, port = channel.edge.peer(channel)
        session = channel.session
        client_id = session.client_id if session is not None else ""
        self.log(
            "rate limited",
            {"listener": channel.listener, "peer": f"{host}:{port}", "client_id": client_id},
        )

    def crashed(self, channel: Channel, error: Exception) -> None:
        """An exception that should not be: one line with its traceback, and the end of this one."""
        self.metrics.crashes += 1
        host, port = channel.edge.peer(channel)
        self.log(
            "internal error",
            {
                "peer": f"{host}:{port}",
                "client_id": channel.session.client_id if channel.session is not None else "",
                "traceback": "".join(traceback.format_exception(error)),
            },
        )
        channel.close(reasons.UNSPECIFIED_ERROR, "internal error")

    def denied(self, channel: Channel, packet: Publish) -> None:
        """Hook message.dropped; the access layer has logged the rule."""
        session = channel.session
        if session is not None and "message.dropped" in self.points:
            message = Message(
                self.next_message_id(),
                packet.topic,
                packet.payload,
                packet.qos,
                packet.retain,
                packet.properties,
                session.client_id,
                session.username,
            )
            self._message_dropped(message, "denied")

    def delivered(self, session: Session, delivery: Delivery) -> None:
        """Hooks message.delivered (and delivery.completed for QoS 0)."""
        message = delivery.get_message(self.next_message_id())
        if "message.delivered" in self.points:
            self.hooks.run_hooks("message.delivered", (self.client_of(session),), message)
        if delivery.qos == 0 and "delivery.completed" in self.points:
            self.hooks.run_hooks("delivery.completed", (self.client_of(session),), message)

    def acked(self, session: Session, delivery: Delivery, packet_id: int) -> None:
        """Hooks message.acked, and delivery.completed, for QoS 2 when PUBCOMP comes."""
        message = delivery.get_message(self.next_message_id())
        if "message.acked" in self.points:
            self.hooks.run_hooks("message.acked", (self.client_of(session),), message)
        if self.tap_completed:
            if delivery.qos == 2:
                self.completing.setdefault(session.client_id, {})[packet_id] = message
            else:
                self.hooks.run_hooks("delivery.completed", (self.client_of(session),), message)

    def completed(self, session: Session, packet_id: int) -> None:
        """Hook delivery.completed: PUBCOMP has come."""
        held = self.completing.get(session.client_id)
        message = held.pop(packet_id, None) if held is not None else None
        if message is not None:
            if not held:
                self.completing.pop(session.client_id, None)
            self.hooks.run_hooks("delivery.completed", (self.client_of(session),), message)

    def nacked(self, session: Session, delivery: Delivery, code: int) -> None:
        """Hook message.nack: the client has answered with an error, and gets it no more."""
        if "message.nack" in self.points:
            message = delivery.get_message(self.next_message_id())
            self.hooks.run_hooks("message.nack", (self.client_of(session), code), message)

    def dropped(self, session: Session, delivery: Delivery, reason: str) -> None:
        """Hook delivery.dropped."""
        if self.tap_dropped and "delivery.dropped" in self.points:
            message = delivery.get_message(self.next_message_id())
            self.hooks.run_hooks("delivery.dropped", (self.client_of(session), reason), message)

    # -- time and figures ----------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Called a few times a second: due timers, expired retained messages, then flush."""
        self.now = now
        self.wheel.advance(now)
        self.retainer.expire(now)
        self.perform()

    def stats(self) -> dict[str, int]:
        """Gauges: what is there now (counters are in `metrics`)."""
        connected = 0
        for session in self.sessions.values():
            if session.channel is not None:
                connected += 1
        return {
            "uptime_seconds": (self.now - self.started_at) // 1000,
            "connections": self.channels,
            "clients_connected": connected,
            "sessions": len(self.sessions),
            "subscriptions": self.router.subscriptions,
            "shared_groups": len(self.router.groups),
            "retained_messages": len(self.retainer),
            "retained_bytes": self.retainer.bytes,
            "backlog_bytes": self.backlog,
            "slow_connections": len(self.slow),
            "alarms": len(self.alarms),
            "plugins_quarantined": self.hooks.quarantined(),
            "loop_lag_ms": self.loop_lag,
        }


class _Later:
    """Callback of a CONNECT that had to wait (a closure mypyc compiles well)."""

    def __init__(
        self, broker: Broker, channel: Channel, connect: Connect, client: ClientInfo, stage: int
    ) -> None:
        self.broker = broker
        self.channel = channel
        self.connect = connect
        self.client = client
        self.stage = stage

    def __call__(self, result: Any) -> None:
        self.broker.advance_later(self.channel, self.connect, self.client, self.stage, result)


class _Drain:
    """Callback that goes on with a session's replay."""

    def __init__(self, broker: Broker, session: Session) -> None:
        self.broker = broker
        self.session = session

    def __call__(self) -> None:
        self.session.drain()
        self.broker.perform()


class _Release:
    """Sends one acknowledgement that was held; many in one turn are flushed together."""

    def __init__(
        self, broker: Broker, channel: Channel, first: int, packet_id: int, code: int
    ) -> None:
        self.broker = broker
        self.channel = channel
        self.first = first
        self.packet_id = packet_id
        self.code = code

    def __call__(self) -> None:
        self.channel.release(self.first, self.packet_id, self.code)
        if not self.broker.released:
            self.broker.released = True
            self.broker.soon(self.broker.flush_released)
