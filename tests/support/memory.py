"""A broker in memory: clients connected by bytes, a clock turned by hand, no socket and no reactor.

    MemoryBroker -- broker (the real one)  <-- StreamEdge --> Wire (a transport that records)
         |                                                      |
         +-- clock, tasks, log                              MemoryClient (what its peer would be)

Barer than `mqttd.testing.MemoryBroker`, with which it shares wire and peer: turns happen when told,
nothing is answered by itself, and access control is a stand-in.

The classes under test may be compiled, and a compiled class takes no interpreted subclass: so the
edge is the real `StreamEdge`, and what is made up here is only the transport below it.

    >>> node = MemoryBroker()
    >>> alice = node.connect("alice")
    >>> alice.send(Subscribe(1, [Subscription("a/#", 1)]))
    >>> [packet.reason_codes for packet in alice.take()]
    [[1]]
"""

from __future__ import annotations

from collections.abc import Callable

from mqttd.broker.broker import Broker
from mqttd.broker.ground.seams import Ownership, SessionStore
from mqttd.codec.packets import Connack, Connect, Packet, Publish, Will
from mqttd.codec.parser import Parser
from mqttd.codec.properties import Properties
from mqttd.plugins.calls.hooks import Hooks
from mqttd.session.ground.refusal import Refusal
from mqttd.session.ground.settings import Settings
from mqttd.session.session import Session
from mqttd.testing.wire import Peer, Wire
from mqttd.types import Action, AuthResult, ClientInfo

__all__ = ["AllowAll", "MemoryBroker", "MemoryClient", "Wire"]

START_MS = 1_000_000


class AllowAll:
    """Access control that lets everybody do everything, but what tests put into `denied`."""

    depends_on_qos_retain = False

    def __init__(self) -> None:
        #: Topics (or filters) that nobody may use.
        self.denied: set[str] = set()
        #: No rule looks at topics: they need not be asked about one by one.
        self.free = False

    def authenticate(
        self, client: ClientInfo, password: bytes | None, gone: object = None
    ) -> AuthResult:
        return AuthResult(True)

    def begin(self, client: ClientInfo, method: str) -> object:
        return None  # no enhanced authentication is offered

    def class_of(self, client: ClientInfo) -> int:
        return 0

    def constant(self, number: int) -> bool:
        return self.free

    def judge(self, number: int, qos: int, retain: bool, topic: str) -> int:
        return 0 if topic in self.denied else 1

    def realms(self, client: ClientInfo) -> list[str]:
        return []

    def listening(self, client: ClientInfo) -> list[str]:
        return []

    def refusal(self, client: ClientInfo, action: Action, topic: str) -> Refusal | None:
        return None

    def authorize(self, client: ClientInfo, action: Action, topic: str) -> bool:
        return topic not in self.denied


class MemoryClient(Peer):
    """One connection that answers nothing by itself: the test takes bytes or packets."""

    def __init__(
        self,
        node: MemoryBroker,
        version: int = 4,
        room: int | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        super().__init__(node.broker, version, room, (host, 40000))
        self.node = node
        self.parser = Parser(version, role="client")
        self.connack: Connack | None = None

    @property
    def session(self) -> Session:
        """The session behind this connection."""
        session = self.channel.session
        assert session is not None
        return session

    def read(self, limit: int | None = None) -> bytes:
        """The bytes the broker wrote since the last time."""
        return self.wire.read(limit)

    def take(self, limit: int | None = None) -> list[Packet]:
        """The packets the broker wrote since the last time."""
        return self.parser.feed(self.wire.read(limit))

    def published(self) -> list[Publish]:
        """The PUBLISH packets among those."""
        return [packet for packet in self.take() if isinstance(packet, Publish)]


class MemoryBroker:
    """The broker with what it is normally given by the service.

    `settings` default to the documented ones. `now` (ms) moves by `advance` only; what the broker
    put off runs with `run_soon`. Log events are in `events`.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        access: AllowAll | None = None,
        ownership: Ownership | None = None,
        store: SessionStore | None = None,
    ) -> None:
        self.settings = Settings() if settings is None else settings
        self.access = AllowAll() if access is None else access
        self.hooks = Hooks()
        self.tasks: list[Callable[[], None]] = []
        self.events: list[tuple[str, dict[str, object]]] = []
        #: Has happen what a CONNACK waits for; says whether there was something.
        self.wait: Callable[[], bool] = lambda: False
        self.broker = Broker(
            self.settings,
            self.access,
            self.hooks,
            self._microseconds,
            START_MS,
            self._soon,
            self._log,
            ownership=ownership,
            store=store,
        )
        self.hooks.listeners_changed.append(self.broker.hooks_changed)

    def _microseconds(self) -> int:
        return 1_700_000_000_000_000 + self.now * 1000

    def _soon(self, task: Callable[[], None]) -> None:
        self.tasks.append(task)

    def _log(self, event: str, fields: dict[str, object]) -> None:
        self.events.append((event, fields))

    @property
    def now(self) -> int:
        """The broker's time in milliseconds."""
        return self.broker.now

    def advance(self, milliseconds: int) -> None:
        """Time passes, in ticks of a quarter second as the service gives them."""
        end = self.broker.now + milliseconds
        while self.broker.now < end:
            self.broker.tick(min(self.broker.now + 256, end))
            self.run_soon()

    def jump(self, milliseconds: int) -> None:
        """Time passes all at once: a suspended machine."""
        self.broker.tick(self.broker.now + milliseconds)
        self.run_soon()

    def run_soon(self) -> None:
        """Later turns happen, until nothing is put off any more."""
        while self.tasks:
            tasks = self.tasks
            self.tasks = []
            for task in tasks:
                task()

    def client(
        self, version: int = 4, room: int | None = None, host: str = "127.0.0.1"
    ) -> MemoryClient:
        """A connection that has sent nothing yet."""
        return MemoryClient(self, version, room, host)

    def connect(
        self,
        client_id: str,
        version: int = 4,
        clean: bool = True,
        keep_alive: int = 0,
        will: Will | None = None,
        properties: Properties | None = None,
        username: str | None = None,
        room: int | None = None,
        host: str = "127.0.0.1",
    ) -> MemoryClient:
        """A connection whose CONNECT was answered; `connack` holds the answer.

        What came after CONNACK is left for `take`.
        """
        client = self.client(version, room, host)
        client.send(
            Connect(
                client_id,
                version=version,
                protocol_name="MQIsdp" if version == 3 else "MQTT",
                clean_start=clean,
                keep_alive=keep_alive,
                will=will,
                username=username,
                properties=properties,
            )
        )
        while not client.wire.waiting and self.wait():
            pass
        end = 2 + client.wire.waiting[1]  # a CONNACK of ours is shorter than 128 bytes
        (connack,) = client.take(end)
        assert isinstance(connack, Connack)
        client.connack = connack
        return client

    def session(self, client_id: str) -> Session | None:
        """The session of a client id, connected or not."""
        return self.broker.sessions.get(client_id)
