"""Fixtures of the conformance suite: brokers with settings, and a bench to build clients at.

Set MQTTD_CONFORMANCE_PORT to run the suite against a broker that already listens on that port;
tests that need settings of their own are then skipped. Set MQTTD_CONFORMANCE_DOOR to `ssl`, `ws`,
`wss` or `unix` (with `:twisted` behind it for Twisted's transports) to run the whole suite through
such a listener; without it the suite runs over plain TCP, and part 8 through every door. Set
MQTTD_CONFORMANCE_SHARE to `2/4` to run the second of four shares: each test is in one of them.
"""

from __future__ import annotations

import itertools
import os
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher

from tests.conformance.statements import STATEMENTS
from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.doors import Door, dial, doors_of, write_certificates

DOOR = os.environ.get("MQTTD_CONFORMANCE_DOOR", "tcp")
_doors: dict[Path, Door] = {}
_serial = itertools.count(int(time.time() * 10) % 36**5)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "row(number, versions): the checklist row a test covers")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    share, _, shares = os.environ.get("MQTTD_CONFORMANCE_SHARE", "1/1").partition("/")
    others = []
    for item in items.copy():
        if zlib.crc32(item.nodeid.encode()) % int(shares) != int(share) - 1:
            items.remove(item)
            others.append(item)
    config.hook.pytest_deselected(items=others)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "version" not in metafunc.fixturenames:
        return
    versions: tuple[int, ...] = (mq.V311, mq.V5)
    marks = list(metafunc.definition.iter_markers("row"))
    if marks:
        number, chosen = marks[0].args
        versions = chosen or STATEMENTS[number].versions
    metafunc.parametrize("version", versions, ids=[f"v{v if v == 5 else '311'}" for v in versions])


def door_of(broker: Broker) -> Door | None:
    """The door that MQTTD_CONFORMANCE_DOOR names, at this broker; None for plain TCP."""
    kind = DOOR.partition(":")[0]
    if DOOR == "tcp" or broker.directory is None:
        return None
    if broker.directory not in _doors:
        _doors[broker.directory] = doors_of(broker)[f"{kind}:door"]
    return _doors[broker.directory]


class Bench:
    """A place to build clients of one protocol version, with names no other test uses."""

    def __init__(self, broker: Broker, version: int, tag: str | None = None) -> None:
        self.broker = broker
        self.port = broker.port
        self.version = version
        self.tag = tag or _base36(next(_serial))
        self._clients: list[RawClient] = []
        self.door: Door | None = None

    def through(self, door: Door | None) -> Bench:
        """This bench, its clients coming in by a door of the broker."""
        self.door = door
        return self

    def dial(self) -> Any:
        """A connection by the bench's door; None where that is plain TCP."""
        if self.door is None:
            return None
        assert self.broker.directory is not None
        return dial(self.door, self.broker.directory / "etc" / "certs")

    def at(self, broker: Broker) -> Bench:
        """The same bench at another broker."""
        other = Bench(broker, self.version, self.tag).through(door_of(broker))
        other._clients = self._clients
        return other

    def topic(self, name: str = "t") -> str:
        """A topic below this test's own first level."""
        return f"{self.tag}/{name}"

    def client_id(self, name: str) -> str:
        """A client id of letters and digits that is this test's own."""
        return f"{self.tag}{name}"

    def open(self, version: int | None = None) -> RawClient:
        """A connection that has sent nothing yet."""
        client = RawClient(self.port, version or self.version, sock=self.dial())
        self._clients.append(client)
        return client

    def connect(self, name: str = "", version: int | None = None, **fields: Any) -> RawClient:
        """A connected client; with a name it uses this test's client id of that name."""
        client_id = self.client_id(name) if name else self.client_id(_base36(next(_serial)))
        return self.open(version).connect(client_id, **fields)

    def durable(self, name: str, expiry: int = 300, **fields: Any) -> RawClient:
        """Connect to the stored session of `name`, or start one that outlives its connection."""
        props = list(fields.pop("props", ()))
        if (fields.get("version") or self.version) == mq.V5:
            props.append((mq.SESSION_EXPIRY, expiry))
        return self.connect(name, clean=False, props=props, **fields)

    def subscriber(self, *filters: str | tuple[str, int], qos: int = 0, **fields: Any) -> RawClient:
        """A connected client with these subscriptions, all of them granted."""
        client = self.connect(**fields)
        codes = client.subscribe(*filters, qos=qos)
        assert all(code < 0x80 for code in codes), f"refused: {codes}"
        return client

    def let_pass(self, seconds: int) -> None:
        """Let the broker's clock pass that many seconds: those of a delayed will."""
        topic = self.topic("clock")
        watcher = self.subscriber(topic, version=mq.V5)
        will = mq.Will(topic, props=[(mq.WILL_DELAY, seconds)])
        self.durable("clock", seconds + 60, version=mq.V5, will=will).drop()
        watcher.message(deadline=seconds + watcher.deadline, topic=topic)
        watcher.disconnect()

    def close(self) -> None:
        """Close every client."""
        for client in self._clients:
            client.close()


def _base36(number: int) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    text = ""
    while number:
        number, digit = divmod(number, 36)
        text = digits[digit] + text
    return text or "0"


@pytest.fixture(scope="session")
def external_port() -> int:
    """The port of a broker that runs already, or 0."""
    return int(os.environ.get("MQTTD_CONFORMANCE_PORT", "0"))


@pytest.fixture(scope="session")
def broker_with(
    external_port: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Broker]]:
    """Brokers with settings, one process for each set of settings in a session."""
    running: dict[str, Broker] = {}
    kind, _, transport = DOOR.partition(":")

    def start(**overrides: Any) -> Broker:
        if external_port:
            pytest.skip("needs a broker with settings of its own")
        key = repr(sorted(overrides.items()))
        broker = running.get(key)
        if broker is None or (broker.process and broker.process.poll() is not None):
            folder = tmp_path_factory.mktemp("broker")
            if kind != "tcp" or transport:
                write_certificates(folder / "etc" / "certs")
                where = {"path": str(folder / "s")} if kind == "unix" else {"bind": "127.0.0.1:0"}
                door = {kind: {"door": {**where, "transport": transport or "engine"}}}
                overrides = {**overrides, "listener": {**overrides.get("listener", {}), **door}}
            broker = running[key] = start_broker(folder, **overrides)
        return broker

    yield start
    for broker in running.values():
        broker.stop()


@pytest.fixture(scope="session")
def broker(external_port: int, request: pytest.FixtureRequest) -> Broker:
    """The broker most tests share: default settings, everybody may do everything."""
    if external_port:
        return Broker(external_port)
    started: Broker = request.getfixturevalue("broker_with")()
    return started


@pytest.fixture
def ours(external_port: int) -> None:
    """For tests of what the standard leaves open and mqttd has decided and documented."""
    if external_port:
        pytest.skip("a decision of mqttd's own")


@pytest.fixture
def bench(broker: Broker, version: int) -> Iterator[Bench]:
    """A bench at the shared broker."""
    made = Bench(broker, version).through(door_of(broker))
    yield made
    made.close()


@pytest.fixture(scope="session")
def small(broker_with: Callable[..., Broker]) -> Broker:
    """A broker with low limits."""
    return broker_with(
        mqtt={"max_packet_size": "4KiB", "max_topic_alias": 3, "connect_timeout": "1s"},
        session={"receive_maximum": 5},
        mqueue={"max_length": 10},
        sys={"interval": "1s"},
    )


@pytest.fixture(scope="session")
def guarded(broker_with: Callable[..., Broker]) -> Broker:
    """A broker with passwords (alice / wonder) and topics nobody may use."""
    return broker_with(
        acl='{deny, all, publish, ["denied/#"]}.\n'
        '{deny, all, subscribe, ["secret/#"]}.\n'
        "{allow, all}.\n",
        files={"users.conf": f"alice:{PasswordHasher(time_cost=1).hash('wonder')}\n"},
        auth={"chain": ["username"], "anonymous": "never"},
    )


@pytest.fixture(scope="session")
def impatient(broker_with: Callable[..., Broker]) -> Broker:
    """A broker that retries after a second."""
    return broker_with(session={"retry_interval": "1s"})


@pytest.fixture(scope="session")
def server_kept(broker_with: Callable[..., Broker]) -> Broker:
    """A broker with a keep alive of its own, one second."""
    return broker_with(mqtt={"server_keepalive": "1s"})


@pytest.fixture(scope="session")
def modest(broker_with: Callable[..., Broker]) -> Broker:
    """A broker that offers neither QoS 2 nor retained messages."""
    return broker_with(mqtt={"max_qos": 1, "retain_available": False})
