"""A broker in memory: the real one, on a clock turned by hand, with no socket and no reactor.

    MemoryBroker -- broker, hooks, access   (the real ones)
         |            ^
         |            +-- StreamEdge --> Wire <-- MemoryClient   (bytes of MQTT, both ways)
         +-- clock (`twisted.internet.task.Clock`)

    >>> node = MemoryBroker()
    >>> alice = node.connect("alice")
    >>> alice.subscribe("a/#", qos=1)
    [1]
    >>> node.connect("bob").publish("a/b", b"hello", qos=1)
    0
    >>> [message.payload for message in alice.messages()]
    [b'hello']
    >>> node.advance(30.0)

Promise: the same calls give the same result, every time. Nothing runs but inside a call of these
classes, each of which returns when the broker has come to rest; time passes in `advance` alone. The
clients speak real MQTT and acknowledge what they get, unless they are told not to.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from zope.interface import implementer

from mqttd.access.chain import AccessControl
from mqttd.broker import local
from mqttd.broker.broker import Broker
from mqttd.codec import reasons
from mqttd.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from mqttd.codec.parser import Parser
from mqttd.codec.properties import Properties
from mqttd.codec.serializer import serialize
from mqttd.config.load import load as load_config
from mqttd.interfaces import IAccessControl
from mqttd.plugins.budget import Budget
from mqttd.plugins.callback import HookCallable
from mqttd.plugins.filters import Patterns
from mqttd.plugins.hooks import Hooks
from mqttd.session.channel import CLOSED, Channel
from mqttd.session.message import Message
from mqttd.session.session import Session
from mqttd.session.settings import Settings
from mqttd.testing.plugin import LoadedPlugin, patient
from mqttd.testing.plugin import load as load_plugin
from mqttd.transports.stream import StreamEdge
from mqttd.types import Action, AuthResult, ClientInfo, Verdict

__all__ = ["MemoryBroker", "MemoryClient", "NotConnected", "Wire"]

#: The time at which a broker in memory starts, in seconds since the epoch.
START: Final = 1_700_000_000.0
#: Seconds between two ticks, as the service gives them.
TICK: Final = 0.25
#: Turns without an end: something puts itself off for ever.
MAX_TURNS: Final = 100_000


class _Clock(Clock):
    """Twisted's clock, which does not turn for ever when something puts itself off for ever."""

    turns = 0

    def callLater(
        self, delay: float, callable: Callable[..., object], *args: object, **kw: object
    ) -> Any:
        """As Clock's; raises AssertionError after `MAX_TURNS` calls without time passing."""
        if delay <= 0:
            self.turns += 1
            if self.turns > MAX_TURNS:
                raise AssertionError(f"the broker does not come to rest: {callable} for ever")
        return super().callLater(delay, callable, *args, **kw)


class _Hooks(Hooks):
    """The real ones; a callback that has no owner may take its time."""

    def hook(
        self,
        point: str,
        callback: HookCallable,
        init_args: Sequence[Any] = (),
        priority: int = 0,
        owner: Budget | None = None,
        topic_filter: Patterns = None,
        client: Patterns = None,
    ) -> None:
        """As `Hooks.hook`."""
        owner = patient("test") if owner is None else owner
        super().hook(point, callback, init_args, priority, owner, topic_filter, client)


class NotConnected(Exception):
    """The connection is over, or was refused; the text says why."""


class Wire:
    """A transport that keeps what is written; a peer that reads only what it wants to.

    `room` is how many bytes it takes before it asks to stop (None: no end). Like Twisted's
    transports it takes what is written all the same, and calls the edge back when it has room.
    """

    def __init__(self, room: int | None = None) -> None:
        self.edge: StreamEdge | None = None
        self.room = room
        self.waiting = bytearray()
        self.closed = False
        self.reading = True
        self.stopped = False
        self.writes = 0
        #: The most bytes that ever waited here.
        self.peak = 0
        #: Where a wire with something to read puts itself.
        self.unread: dict[Wire, MemoryClient] | None = None
        self.client: MemoryClient | None = None

    # What a StreamEdge asks of a transport.

    def write(self, data: bytes) -> None:
        """Keep what the broker writes."""
        self.writes += 1
        if self.closed:
            return
        self.waiting += data
        self.peak = max(self.peak, len(self.waiting))
        if self.unread is not None and self.client is not None:
            self.unread[self] = self.client
        if self.room is not None and len(self.waiting) > self.room and not self.stopped:
            self.stopped = True
            assert self.edge is not None
            self.edge.pauseProducing()

    def loseConnection(self) -> None:
        """The broker closes."""
        self.closed = True

    def pauseProducing(self) -> None:
        """The broker reads no more for now."""
        self.reading = False

    def resumeProducing(self) -> None:
        """The broker reads again."""
        self.reading = True

    # What the peer does.

    def read(self, limit: int | None = None) -> bytes:
        """Take what has come, at most `limit` bytes; the edge hears of the room."""
        taken = bytes(self.waiting if limit is None else self.waiting[:limit])
        del self.waiting[: len(taken)]
        if self.stopped and not self.waiting:
            self.stopped = False
            if not self.closed and self.edge is not None:
                self.edge.resumeProducing()
        return taken


class MemoryClient:
    """One connection as its peer sees it; made by `MemoryBroker.connect`.

    Attributes: `connack` (None while authentication is under way), `disconnect_packet` (the
    broker's DISCONNECT, 5.0), `received` (every packet but PUBLISH, oldest first), `acknowledge`
    (False: PUBLISH packets are not answered), `reading` (False: nothing is taken off the wire).
    """

    def __init__(
        self, node: MemoryBroker, version: int, room: int | None, peer: tuple[str, int]
    ) -> None:
        self.node = node
        self.version = version
        self.connack: Connack | None = None
        self.disconnect_packet: Disconnect | None = None
        self.received: list[Packet] = []
        self.acknowledge = True
        self.wire = Wire(room)
        edge = StreamEdge(node.broker, self.wire, *peer)
        self.wire.edge = edge
        self.wire.unread, self.wire.client = node.unread, self
        self.channel = Channel(node.broker, edge, -1, "memory")
        edge.channel = self.channel
        node.broker.metrics.connections_accepted += 1
        self._parser = Parser(version, role="client")
        self._messages: list[Publish] = []
        self._answers: dict[int, Packet] = {}
        self._reading = True
        self._packet_id = 0

    def __repr__(self) -> str:
        session = self.channel.session
        return f"<MemoryClient {session.client_id if session is not None else 'closed'}>"

    @property
    def closed(self) -> bool:
        """Whether the connection is over."""
        return self.channel.state == CLOSED

    @property
    def session(self) -> Session:
        """The broker's session behind this connection; raises NotConnected."""
        session = self.channel.session
        if session is None:
            raise NotConnected(self._why())
        return session

    @property
    def reading(self) -> bool:
        """Whether it takes what the broker writes; set it to False to be a slow client."""
        return self._reading

    @reading.setter
    def reading(self, value: bool) -> None:
        self._reading = value
        if value:
            self.node.unread[self.wire] = self
            self.node.settle()

    # -- whole exchanges -----------------------------------------------------------------------

    def subscribe(self, *filters: str | Subscription, qos: int = 0) -> list[int]:
        """Subscribe to filters, all with `qos` (or as a `Subscription` says).

        Returns the reason codes of SUBACK. Retained messages are among `messages` then.
        """
        asked = [Subscription(f, qos) if isinstance(f, str) else f for f in filters]
        answer = self._ask(lambda packet_id: Subscribe(packet_id, asked))
        assert isinstance(answer, Suback), f"expected SUBACK, got {answer}"
        return list(answer.reason_codes)

    def unsubscribe(self, *filters: str) -> list[int]:
        """Unsubscribe; returns the reason codes of UNSUBACK (none in 3.x)."""
        answer = self._ask(lambda packet_id: Unsubscribe(packet_id, list(filters)))
        assert isinstance(answer, Unsuback), f"expected UNSUBACK, got {answer}"
        return list(answer.reason_codes)

    def publish(
        self,
        topic: str,
        payload: bytes = b"",
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> int:
        """Publish, and see the exchange of QoS 1 or 2 to its end.

        Returns the reason code of PUBACK or PUBREC, 0 for QoS 0; raises NotConnected when the
        broker ends the connection instead.
        """
        if qos == 0:
            self.send(Publish(topic, payload, 0, retain, properties=properties))
            return 0
        answer = self._ask(
            lambda packet_id: Publish(topic, payload, qos, retain, False, packet_id, properties)
        )
        assert isinstance(answer, Puback | Pubrec), f"expected PUBACK or PUBREC, got {answer}"
        if isinstance(answer, Pubrec) and answer.reason_code < 0x80:
            done = self._ask(lambda packet_id: Pubrel(packet_id), answer.packet_id)
            assert isinstance(done, Pubcomp), f"expected PUBCOMP, got {done}"
        return answer.reason_code

    def messages(self) -> list[Publish]:
        """The messages received since the last time, as PUBLISH packets."""
        messages = self._messages
        self._messages = []
        return messages

    def disconnect(self, reason_code: int = 0, properties: Properties | None = None) -> None:
        """Send DISCONNECT; the broker closes."""
        self.send(Disconnect(reason_code, properties))

    def drop(self) -> None:
        """The connection breaks without a word: the will is published."""
        self.channel.end("connection lost")
        self.node.broker.perform()
        self.node.settle()

    # -- packets and bytes ---------------------------------------------------------------------

    def send(self, *packets: Packet) -> None:
        """These packets arrive at the broker in one chunk; raises NotConnected."""
        if self.closed:
            raise NotConnected(self._why())
        self.feed(b"".join([serialize(packet, self.version) for packet in packets]))

    def feed(self, data: bytes) -> None:
        """Bytes arrive at the broker: one turn, and all that follows from it."""
        self.channel.feed(data)
        self.node.broker.perform()
        self.node.settle()

    def take(self) -> None:
        """Read what the broker wrote and answer it (the broker in memory calls this)."""
        if not self._reading:
            return
        answers: list[Packet] = []
        for packet in self._parser.feed(self.wire.read()):
            if isinstance(packet, Publish):
                self._messages.append(packet)
                if packet.qos and self.acknowledge:
                    packet_id = packet.packet_id
                    answers.append(Puback(packet_id) if packet.qos == 1 else Pubrec(packet_id))
                continue
            self.received.append(packet)
            if isinstance(packet, Pubrel):
                if self.acknowledge:
                    answers.append(Pubcomp(packet.packet_id))
            elif isinstance(packet, Connack):
                self.connack = packet
            elif isinstance(packet, Disconnect):
                self.disconnect_packet = packet
            elif isinstance(packet, Puback | Pubrec | Pubcomp | Suback | Unsuback):
                self._answers[packet.packet_id] = packet
        if answers and not self.closed:
            self.channel.feed(b"".join([serialize(packet, self.version) for packet in answers]))
            self.node.broker.perform()

    def _ask(self, make: Any, packet_id: int = 0) -> Packet:
        if not packet_id:
            self._packet_id = packet_id = self._packet_id % 65535 + 1
        self._answers.pop(packet_id, None)
        asked: Packet = make(packet_id)
        self.send(asked)
        answer = self._answers.pop(packet_id, None)
        if answer is None:
            if self.closed:
                raise NotConnected(self._why())
            raise AssertionError(f"no answer to {asked}")
        return answer

    def _why(self) -> str:
        if self.connack is not None and self.connack.reason_code:
            code = self.connack.reason_code
            name = reasons.name_of(code) if self.version == 5 else "return code"
            return f"refused: {name} ({code:#x})"
        return f"the connection is over: {self.channel.close_reason}"


class MemoryBroker:
    """The broker with what the service normally gives it.

    settings: limits of the flow plane, the documented defaults otherwise. Everybody may connect
    and do everything, until a module is registered with `access.register_mod` or a hook says
    otherwise; `deny` forbids single topics.

    Attributes: `broker`, `hooks`, `access` (`mqttd.access.chain.AccessControl`), `clock`,
    `settings`, `events` (what was logged, as pairs of event and fields), `faults` (callbacks and
    modules that failed, as pairs of where and exception).
    """

    __test__ = False  # for pytest, which collects by name

    def __init__(self, settings: Settings | None = None, node_id: int = 0) -> None:
        self.clock: Any = _Clock()
        self.clock.rightNow = START
        self.settings = Settings() if settings is None else settings
        self.events: list[tuple[str, dict[str, object]]] = []
        self.faults: list[tuple[str, BaseException]] = []
        self.unread: dict[Wire, MemoryClient] = {}
        self.hooks = Hooks(on_error=self._hook_failed, clock=self.clock)
        self.config = _open_config()
        self.access = _Access(self.config, self.clock, on_error=self._module_failed)
        self._denied = _Denied()
        self.broker = Broker(
            self.settings,
            self.access,
            self.hooks,
            lambda: int(self.clock.seconds() * 1_000_000),
            self.now,
            lambda later: self.clock.callLater(0, later),
            lambda event, fields: self.events.append((event, fields)),
            node_id=node_id,
            name="memory",
        )
        self.hooks.listeners_changed.append(self.broker.hooks_changed)
        self.broker.access_changed()
        self._settling = False
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    @property
    def now(self) -> int:
        """The broker's time in milliseconds."""
        return int(round(self.clock.seconds() * 1000))

    # -- clients -------------------------------------------------------------------------------

    def client(
        self,
        version: int = 5,
        room: int | None = None,
        peer: tuple[str, int] = ("127.0.0.1", 40000),
    ) -> MemoryClient:
        """A connection that has sent nothing yet.

        `room` is how many bytes its network takes while it does not read.
        """
        return MemoryClient(self, version, room, peer)

    def connect(
        self,
        client_id: str = "",
        version: int = 5,
        clean_start: bool = True,
        username: str | None = None,
        password: bytes | None = None,
        keep_alive: int = 0,
        will: Will | None = None,
        properties: Properties | None = None,
        room: int | None = None,
        peer: tuple[str, int] = ("127.0.0.1", 40000),
    ) -> MemoryClient:
        """A connection that has sent CONNECT; its `connack` holds the answer.

        A refused one is returned too: `closed`, with the reason code in `connack`. With
        `properties={SESSION_EXPIRY_INTERVAL: 60}` the session outlives the connection.
        """
        client = self.client(version, room, peer)
        client.send(
            Connect(
                client_id,
                version,
                "MQIsdp" if version == 3 else "MQTT",
                clean_start,
                keep_alive,
                will,
                username,
                password,
                properties,
            )
        )
        return client

    # -- this process --------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        payload: bytes = b"",
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> int:
        """Publish as the broker itself; returns the number of receivers."""
        receivers = local.publish(self.broker, topic, payload, qos, retain, properties)
        self.settle()
        return receivers

    def subscribe(self, topic_filter: str, qos: int = 2) -> list[Message]:
        """A list that grows by each `Message` on `topic_filter` from now on."""
        heard: list[Message] = []
        local.subscribe(self.broker, "test", topic_filter, heard.append, qos, 0, 0)
        self.settle()
        return heard

    def hook(
        self,
        point: str,
        callback: HookCallable,
        priority: int = 0,
        topic_filter: Patterns = None,
        client: Patterns = None,
    ) -> None:
        """As `hooks.hook`."""
        self.hooks.hook(point, callback, (), priority, topic_filter=topic_filter, client=client)

    def session(self, client_id: str) -> Session | None:
        """The session of a client id, connected or not."""
        return self.broker.sessions.get(client_id)

    def deny(self, *topics: str) -> None:
        """From now on nobody may publish or subscribe to exactly these topics or filters."""
        if not self._denied.topics:
            self.access.register_mod("acl", "denied by the test", self._denied, 0)
        self._denied.topics.update(topics)
        self.broker.access_changed()

    # -- plugins -------------------------------------------------------------------------------

    def load(
        self,
        plugin: Any,
        config: Mapping[str, Any] | str = "",
        directory: str | None = None,
        budget: Budget | None = None,
    ) -> LoadedPlugin:
        """Load a plugin: its declaration, or what makes an `IPlugin`, or one.

        config: a mapping, or the text of its TOML file; directory: where its files are, a
        temporary one otherwise; budget: what it may use, as good as anything otherwise.

        Raises what a real load would: what `load` of the plugin raises, PluginError for a
        mistake in the text, `zope.interface.Invalid` for a plugin that is none.
        """
        if directory is None:
            if self._directory is None:
                self._directory = tempfile.TemporaryDirectory(prefix="mqttd-testing-")
            directory = self._directory.name
        return load_plugin(self.broker, self.clock, self.settle, plugin, config, directory, budget)

    # -- time ----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Everything happens that is due now, until the broker rests.

        Raises AssertionError when that has no end.
        """
        if self._settling:
            return
        self._settling = True
        try:
            self.clock.turns = 0
            while True:
                while self.unread:
                    wire = next(iter(self.unread))
                    self.unread.pop(wire).take()
                calls = self.clock.calls
                if not calls or calls[0].getTime() > self.clock.seconds():
                    return
                self.clock.advance(0)
        finally:
            self._settling = False

    def advance(self, seconds: float) -> None:
        """Time passes: timers of plugins and of the broker run, each at its own time."""
        end = self.clock.seconds() + seconds
        while True:
            left = end - self.clock.seconds()
            if left <= 1e-6:
                break
            self.clock.advance(min(TICK, left))
            self.broker.tick(self.now)
            self.hooks.tick()
            self.settle()

    # -- reports -------------------------------------------------------------------------------

    def _hook_failed(
        self, point: str, callback: HookCallable, error: BaseException, owner: Budget
    ) -> None:
        self.faults.append((point, error))

    def _module_failed(self, kind: str, name: str, error: Exception) -> None:
        self.faults.append((f"{kind} {name}", error))


class _Access(AccessControl):
    """The real one, which lets everybody in until there is a module to ask."""

    def authenticate(
        self, client: ClientInfo, password: bytes | None
    ) -> AuthResult | Deferred[AuthResult]:
        """As `AccessControl.authenticate`."""
        if any(entry["kind"] == "auth" for entry in self.describe()):
            return super().authenticate(client, password)
        return AuthResult(True)


@implementer(IAccessControl)
class _Denied:
    """Access control that forbids a set of topics."""

    depends_on_qos_retain = False

    def __init__(self) -> None:
        self.topics: set[str] = set()

    def init(self, opts: Mapping[str, object]) -> None:
        """Take no options."""

    def check_acl(self, client: ClientInfo, action: Action, topic: str) -> Verdict:
        """Deny what is in the set."""
        return Verdict.DENY if topic in self.topics else Verdict.IGNORE

    def reload_acl(self) -> None:
        """There is no file."""

    def description(self) -> str:
        """One line."""
        return "forbids what the test forbids"


def _open_config() -> Any:
    """The default configuration, where everybody may do everything and nothing is on disk."""
    config = load_config(None, {})
    replace = msgspec.structs.replace
    return replace(
        config,
        auth=replace(config.auth, chain=()),
        acl=replace(config.acl, file=os.devnull, nomatch="allow"),
        sys=replace(config.sys, interval=0.0),
    )
