"""Feeds connections of a whole broker what nobody should send; nothing else may notice.

    python -m fuzz.channel --executions 1000000 --seed 1
    python -m fuzz.channel --seconds 60

    Stream (CONNECT, then packets good and mutated) -- cut anywhere --> channel --> broker in memory
                                                                                     ^
    honest witness: subscribed to "#", and a message of its own comes through -------+

One execution is one connection: a stream of up to twelve packets, fed in pieces, with time, drops
and readers that do not read between them. Four connections are open at once, under few client ids:
takeovers and resumption happen all the time. A round is one broker with settings of its own (slow
path, small limits, hooks, late authentication, rights) and 100 executions; then all connections
break, time passes, and the broker must be as empty as when it began. What must hold:

* no exception, in whatever turn (`Broker.crashed` would count it)
* what the broker writes reads as packets of the connection's version, up to its last byte
* nothing is kept of a packet beyond what it may have; nothing is owed to who is gone

Rounds are independent: `--seed S --round N` repeats one alone. A fault prints both and what was fed
last, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred

from fuzz.codec import Inputs, Oracle
from mqttd.broker.routing.shared import STRATEGIES
from mqttd.codec import properties as prop
from mqttd.codec.packet_types import TYPE_NAMES
from mqttd.codec.packets import (
    Auth,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from mqttd.codec.parser import Parser
from mqttd.codec.properties import Properties
from mqttd.codec.reasons import MqttError
from mqttd.codec.serializer import serialize
from mqttd.session.channel import channel as channel_module
from mqttd.session.channel.channel import NEW, OPEN
from mqttd.session.ground.settings import NEVER, Settings
from mqttd.types import AuthContinue, AuthResult, ClientInfo
from tests.support import sizes
from tests.support.memory import AllowAll, MemoryBroker, MemoryClient

__all__ = ["EXECUTIONS_PER_ROUND", "Round", "main", "run"]

EXECUTIONS_PER_ROUND = 100
OPEN_AT_ONCE = 4
CLIENT_IDS = ["a", "b", "c", "d", ""]
TOPICS = ["a", "a/b", "a/b/c", "/", "$SYS/x", "b", "é/\U0001f980"]
FILTERS = [
    "#",
    "#",
    "a/#",
    "a",
    "a/+",
    "#",
    "+/b",
    "a/#",
    "$share/g/a/#",
    "$share/g/#",
    "$queue/a",
    "/",
    "$SYS/#",
]
PAYLOADS = [b"", b"x", b"hello", bytes(300), bytes(3000)]
#: The authentication method that is offered.
METHOD = "fuzz"
MAX_PACKET = 4096
MAX_CONNECT = 1024


class Access(AllowAll):
    """Answers late when it is told to, refuses a few, and denies a topic now and then."""

    def __init__(self, rnd: random.Random, late: bool) -> None:
        super().__init__()
        self.random = rnd
        self.late = late
        #: Everybody may come in at once.
        self.kind = False
        self.waiting: list[tuple[Deferred[Any], object]] = []

    def authenticate(
        self, client: ClientInfo, password: bytes | None, gone: object = None
    ) -> AuthResult:
        if self.kind:
            return AuthResult(True)
        refused = self.random.random() < 0.03
        result = AuthResult(False, 0x86, "refused") if refused else AuthResult(True)
        return self.perhaps_later(result)

    def begin(self, client: ClientInfo, method: str) -> Exchange | None:
        return Exchange(self) if method == METHOD else None

    def perhaps_later(self, result: Any) -> Any:
        """The result, or a Deferred of it."""
        if not self.late or self.random.random() < 0.5:
            return result
        waiting: Deferred[Any] = Deferred()
        self.waiting.append((waiting, result))
        return waiting

    def answer(self) -> None:
        """All who wait are answered."""
        waiting, self.waiting = self.waiting, []
        for deferred, result in waiting:
            deferred.callback(result)


class Exchange:
    """An enhanced authentication that goes on, ends well or ends badly, as chance has it."""

    def __init__(self, access: Access) -> None:
        self.access = access

    def step(self, data: bytes) -> object:
        rnd = self.access.random
        if rnd.random() < 0.5:
            return self.access.perhaps_later(AuthContinue(rnd.choice((b"", b"challenge"))))
        ok = rnd.random() < 0.8
        expires_at = rnd.choice((None, 1_700_001_010.0))
        return self.access.perhaps_later(
            AuthResult(ok, 0 if ok else 0x87, expires_at=expires_at, data=b"proof")
        )


class Stream:
    """The bytes of one connection to be, and the pieces they come in."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.random = inputs.random
        #: How many of 100 packets are wrong.
        self.faults = 0
        #: It authenticates by a method.
        self.enhanced = False

    def pieces(self) -> list[bytes]:
        """A stream that mostly begins with a good CONNECT, cut at random places."""
        rnd = self.random
        version = self.inputs.version()
        self.faults = rnd.choice((0, 5, 20, 50))
        self.enhanced = False
        parts = [self.connect(version)]
        while self.enhanced and rnd.random() < 0.6:
            parts.append(serialize(self.auth(version), version))
        if rnd.random() < 0.6:
            parts.append(serialize(self.subscribe(version), version))
        for _ in range(rnd.choice((0, 1, 2, 3, 5, 8, 12))):
            parts.append(self.packet(version))
        data = b"".join(parts)
        if rnd.random() < 0.1:
            data = data[: rnd.randrange(len(data) + 1)]
        if not data or rnd.random() < 0.3:
            return [data]
        return self.inputs.pieces(data)

    def connect(self, version: int) -> bytes:
        rnd = self.random
        dice = 200 * rnd.random()
        if dice < self.faults / 2:
            return self.inputs.data(version, "server")
        properties: Properties = {}
        if version == 5:
            self._maybe(properties, prop.SESSION_EXPIRY_INTERVAL, (0, 1, 100, NEVER))
            self._maybe(properties, prop.RECEIVE_MAXIMUM, (1, 2, 65535))
            self._maybe(properties, prop.MAXIMUM_PACKET_SIZE, (20, 100, 128, 129, 131, 10_000))
            self._maybe(properties, prop.TOPIC_ALIAS_MAXIMUM, (1, 5, 65535))
            self._maybe(properties, prop.REQUEST_PROBLEM_INFORMATION, (0, 1))
            self._maybe(properties, prop.REQUEST_RESPONSE_INFORMATION, (0, 1))
            self.enhanced = rnd.random() < 0.15
            if self.enhanced:
                properties[prop.AUTHENTICATION_METHOD] = rnd.choice((METHOD, METHOD, "other"))
        will = None
        if rnd.random() < 0.3:
            wishes: Properties = {}
            if version == 5:
                self._maybe(wishes, prop.WILL_DELAY_INTERVAL, (0, 1, 50))
                self._maybe(wishes, prop.MESSAGE_EXPIRY_INTERVAL, (0, 1, 50))
            will = Will(
                rnd.choice(TOPICS),
                rnd.choice(PAYLOADS[:3]),
                rnd.randrange(3),
                rnd.random() < 0.2,
                wishes or None,
            )
        packet = Connect(
            rnd.choice(CLIENT_IDS),
            version,
            "MQIsdp" if version == 3 else "MQTT",
            rnd.random() < 0.4,
            rnd.choice((0, 0, 1, 10)),
            will,
            "user" if rnd.random() < 0.05 else None,
            None,
            properties or None,
        )
        return self._spoilt(serialize(packet, version), dice < self.faults)

    def packet(self, version: int) -> bytes:
        """A packet a client may send, one that it may not, or something of no meaning."""
        rnd = self.random
        dice = 100 * rnd.random()
        if dice < self.faults / 2:
            return self.inputs.data(version, "server")
        make = rnd.choice(MAKERS)
        if self.enhanced and dice > 80:
            make = Stream.auth
        elif 99 < dice < 99 + self.faults / 50:
            make = Stream.out_of_place
        packet = make(self, version)
        return self._spoilt(serialize(packet, version), dice < self.faults)

    def publish(self, version: int) -> Packet:
        rnd = self.random
        qos = rnd.randrange(3)
        topic = rnd.choice(TOPICS)
        properties: Properties = {}
        if version == 5:
            self._maybe(properties, prop.MESSAGE_EXPIRY_INTERVAL, (0, 1, 100))
            self._maybe(properties, prop.RESPONSE_TOPIC, ("r", "a/b"))
            if rnd.random() < 0.3:
                properties[prop.TOPIC_ALIAS] = rnd.choice((1, 1, 2, 3, 11))
                topic = rnd.choice((topic, ""))
        payload = rnd.choice(PAYLOADS)
        if rnd.random() < 0.3:
            payload = sizes.fill(
                lambda load: serialize(
                    Publish(topic, load, qos, packet_id=1, properties=properties), version
                ),
                rnd.choice(sizes.around(sizes.BORDERS[0])),
            )
        return Publish(
            topic,
            payload,
            qos,
            rnd.random() < 0.2,
            qos > 0 and rnd.random() < 0.2,
            self._packet_id() if qos else 0,
            properties or None,
        )

    def subscribe(self, version: int) -> Packet:
        rnd = self.random
        properties: Properties = {}
        if version == 5 and rnd.random() < 0.3:
            properties[prop.SUBSCRIPTION_IDENTIFIER] = [rnd.choice(sizes.IDENTIFIERS)]
        wanted = []
        for _ in range(rnd.randrange(1, 4)):
            topic_filter = rnd.choice(FILTERS)
            shared = topic_filter.startswith("$share")
            wanted.append(
                Subscription(
                    topic_filter,
                    rnd.randrange(3),
                    version == 5 and not shared and rnd.random() < 0.2,
                    version == 5 and rnd.random() < 0.2,
                    rnd.randrange(3) if version == 5 else 0,
                )
            )
        return Subscribe(self._packet_id(), wanted, properties or None)

    def unsubscribe(self, version: int) -> Packet:
        filters = [self.random.choice(FILTERS) for _ in range(self.random.randrange(1, 3))]
        return Unsubscribe(self._packet_id(), filters)

    def acknowledgement(self, version: int) -> Packet:
        kind = self.random.choice((Puback, Puback, Pubrec, Pubrel, Pubrel, Pubcomp))
        code = 0
        if version == 5 and self.random.random() < 0.1:
            code = 0x92 if kind in (Pubrel, Pubcomp) else 0x80
        return kind(self._packet_id(), code)

    def ping(self, version: int) -> Packet:
        return Pingreq()

    def disconnect(self, version: int) -> Packet:
        if version < 5:
            return Disconnect()
        properties: Properties = {}
        self._maybe(properties, prop.SESSION_EXPIRY_INTERVAL, (0, 1, NEVER))
        return Disconnect(self.random.choice((0, 4)), properties or None)

    def out_of_place(self, version: int) -> Packet:
        if version == 5 and self.random.random() < 0.5:
            return self.auth(version)
        return Connect("a", version, "MQIsdp" if version == 3 else "MQTT")

    def auth(self, version: int) -> Packet:
        method = METHOD if self.random.random() < 0.95 else "other"
        properties: Properties = {prop.AUTHENTICATION_METHOD: method}
        if self.random.random() < 0.5:
            properties[prop.AUTHENTICATION_DATA] = b"answer"
        return Auth(self.random.choice((0x18, 0x18, 0x19)), properties)

    def _packet_id(self) -> int:
        return self.random.choice((3, 4, 5, 6, 7, 8, *sizes.PACKET_IDS))

    def _maybe(self, properties: Properties, name: int, values: tuple[int | str, ...]) -> None:
        if self.random.random() < 0.3:
            properties[name] = self.random.choice(values)

    def _spoilt(self, wire: bytes, really: bool) -> bytes:
        if not really:
            return wire
        data = bytearray(wire)
        self.inputs.mutate(data)
        return bytes(data)


MAKERS: list[Callable[[Stream, int], Packet]] = [
    *[Stream.publish] * 8,
    *[Stream.subscribe] * 4,
    *[Stream.acknowledgement] * 6,
    Stream.unsubscribe,
    Stream.ping,
    Stream.disconnect,
]


class Connection:
    """One connection under test, and what its pieces are."""

    def __init__(self, client: MemoryClient, pieces: list[bytes]) -> None:
        self.client = client
        self.pieces = pieces
        self.parser: Parser | None = None
        self.fed = b""

    @property
    def done(self) -> bool:
        return not self.pieces or self.client.closed

    def read(self, limit: int | None, counts: Counter[str]) -> None:
        """The peer reads; what it reads must be packets."""
        data = self.client.wire.read(limit)
        if not data:
            return
        if self.parser is None:
            version = self.client.channel.version or 4
            self.parser = Parser(version, 1 << 20, "client")
        try:
            packets = self.parser.feed(data)
        except MqttError as error:
            raise AssertionError(f"the broker wrote {data.hex()}: {error!r}") from error
        for packet in packets:
            counts[f"wrote {TYPE_NAMES[packet.type]}"] += 1
            answer = answer_to(packet)
            if answer is not None and not self.client.closed:
                self.pieces.append(serialize(answer, self.parser.version))

    def finish(self, counts: Counter[str]) -> None:
        """The last byte has been read."""
        while self.client.wire.waiting:
            self.read(None, counts)
        assert self.parser is None or not self.parser.buffered, "the broker ended within a packet"


class Round:
    """One broker and the connections that it suffers."""

    def __init__(self, seed: int, number: int, counts: Counter[str]) -> None:
        self.inputs = Inputs(seed * 1_000_003 + number)
        self.random = self.inputs.random
        self.counts = counts
        self.stream = Stream(self.inputs)
        self.access = Access(self.random, self.random.random() < 0.3)
        if self.random.random() < 0.3:
            self.access.denied = {"a/b", "a/#"}
        self.node = MemoryBroker(self._settings(), self.access)
        if self.random.random() < 0.2:
            for point in ("message.publish", "message.delivered", "message.acked"):
                self.node.hooks.hook(point, keep)
        self.open: list[Connection] = []
        self.shown = ""

    def _settings(self) -> Settings:
        rnd = self.random
        s = Settings()
        s.max_packet_size = MAX_PACKET
        s.max_connect_size = MAX_CONNECT
        s.max_topic_alias = rnd.choice((0, 1, 10))
        s.max_qos = rnd.choice((2, 2, 2, 1, 0))
        s.retain_available = rnd.random() < 0.9
        s.wildcard_subscription = rnd.random() < 0.9
        s.shared_subscription = rnd.random() < 0.9
        s.shared_strategy = rnd.choice(list(STRATEGIES))
        s.max_inflight = rnd.choice((1, 2, 100))
        s.receive_maximum = rnd.choice((1, 3, 1000))
        s.max_awaiting_rel = rnd.choice((2, 1000))
        s.retry_interval = rnd.choice((0, 1000))
        s.await_rel_timeout = rnd.choice((1000, 300_000))
        s.max_expiry_interval_seconds = 1000
        s.expiry_interval_seconds = 1000
        s.upgrade_qos = rnd.random() < 0.2
        s.mqueue_max_length = rnd.choice((1, 3, 1000))
        s.mqueue_max_bytes = rnd.choice((100, 1 << 20))
        s.mqueue_store_qos0 = rnd.random() < 0.5
        s.mqueue_priorities = {"a/#": 3} if rnd.random() < 0.2 else None
        s.retained_max_messages = rnd.choice((2, 1000))
        s.retained_expiry = 1
        s.high_watermark, s.low_watermark = rnd.choice(((1 << 20, 1 << 18), (500, 100)))
        s.backlog = rnd.choice((256 << 20, 2000))
        s.server_keepalive_seconds = rnd.choice((0, 0, 5))
        s.response_information = rnd.choice(("", "r/"))
        s.deny_disconnect = rnd.random() < 0.2
        s.topic_cache_entries = rnd.choice((2, 1024))
        s.topic_cache_bytes = rnd.choice((2000, 1 << 20))
        s.outbound_topic_alias = rnd.random() < 0.5
        s.fast_path = rnd.random() < 0.8
        s.coalesce_runs = rnd.random() < 0.9
        s.cache_grants = rnd.random() < 0.9
        return s

    def play(self, executions: int) -> None:
        """So many connections come and go; raises Oracle when something gives way."""
        try:
            begun = 0
            while begun < executions or self.open:
                while begun < executions and len(self.open) < OPEN_AT_ONCE:
                    room = self.random.choice((None, None, 0, 200))
                    client = self.node.client(4, room)
                    self.open.append(Connection(client, self.stream.pieces()))
                    begun += 1
                self._step()
            self._end()
        except Exception as error:
            raise Oracle(self.shown) from error

    def _step(self) -> None:
        rnd = self.random
        connection = rnd.choice(self.open)
        dice = rnd.random()
        if dice < 0.005:
            self.node.advance(rnd.choice((300, 300, 2000, 20_000)))
        elif dice < 0.1:
            self.access.answer()
        elif dice < 0.14:
            self.node.run_soon()
        if dice > 0.3:
            connection.read(rnd.choice((None, 7, 100)), self.counts)
        if connection.done or dice > 0.99:
            self.open.remove(connection)
            self.counts["closed by the broker" if connection.client.closed else "dropped"] += 1
            connection.client.drop()
            connection.finish(self.counts)
            return
        if not connection.client.wire.reading and dice > 0.2:
            return  # a real transport would deliver nothing now; now and then, it still does
        piece = connection.pieces.pop(0)
        connection.fed += piece
        channel = connection.client.channel
        self.shown = f"{connection.fed.hex()} and then {len(connection.pieces)} pieces more"
        connection.client.feed(piece)
        rest = channel.rest
        if rest is not None and channel.state in (NEW, OPEN):
            most = MAX_CONNECT if channel.state == NEW else MAX_PACKET
            assert len(rest) <= most, f"{len(rest)} bytes are kept"

    def _end(self) -> None:
        """Everybody is gone, and time passes: so must what they left behind."""
        broker = self.node.broker
        self.shown = "the end of the round"
        self.access.answer()
        self.node.run_soon()
        witness(self.node, self.access)
        self.node.jump(2_000_000)
        self.node.jump(2_000_000)
        for name, value in broker.metrics.snapshot().items():
            if value:
                self.counts[name] += value
        for second in range(1, 200):  # in which nobody publishes
            broker.router.sweep(self.node.now + second * 1000)
        stats = broker.stats()
        stats.pop("uptime_seconds")
        left = {name: value for name, value in stats.items() if value}
        assert not left, f"left behind: {left}"
        assert not broker.metrics.crashes
        assert not (broker.dirty or broker.closing or broker.thirsty or broker.stalled)


def answer_to(packet: Packet) -> Packet | None:
    """What the standard has a client answer to this."""
    if isinstance(packet, Publish):
        return (None, Puback(packet.packet_id), Pubrec(packet.packet_id))[packet.qos]
    if isinstance(packet, Pubrec):
        return Pubrel(packet.packet_id) if packet.reason_code < 0x80 else None
    return Pubcomp(packet.packet_id) if isinstance(packet, Pubrel) else None


def witness(node: MemoryBroker, access: Access) -> None:
    """An honest client notices nothing: what it publishes comes back to it."""
    access.kind = True
    client = node.client(4)
    client.send(Connect("witness"), Subscribe(1, [Subscription("w", 0)]), Publish("w", b"seen"))
    assert b"seen" in client.wire.read(), "the witness sees nothing"
    client.drop()


def keep(*args: object) -> None:
    """A callback that listens and changes nothing."""


def run(
    seed: int, executions: int, deadline: float = float("inf"), first: int = 0
) -> tuple[int, Counter[str]]:
    """Rounds until the count or the deadline is reached; raises Oracle with the round in it."""
    counts: Counter[str] = Counter()
    done = 0
    number = first
    while done < executions and time.monotonic() < deadline:
        amount = min(EXECUTIONS_PER_ROUND, executions - done)
        try:
            Round(seed, number, counts).play(amount)
        except Oracle as fault:
            raise Oracle(f"--seed {seed} --round {number}: {fault}") from fault.__cause__
        done += amount
        number += 1
    return done, counts


def main(arguments: list[str] | None = None) -> int:
    """Run and print the counts; the exit status is 1 after a fault."""
    options = argparse.ArgumentParser(
        prog="python -m fuzz.channel", description=__doc__.split("\n")[0]
    )
    options.add_argument("--executions", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--round", type=int, help="this round alone")
    options.add_argument("--seconds", type=float, default=float("inf"))
    chosen = options.parse_args(arguments)
    compiled = not str(channel_module.__file__).endswith(".py")
    print(f"seed {chosen.seed}, {'compiled' if compiled else 'pure Python'} channel", flush=True)
    started = time.monotonic()
    executions = chosen.executions if chosen.round is None else EXECUTIONS_PER_ROUND
    try:
        done, counts = run(chosen.seed, executions, started + chosen.seconds, chosen.round or 0)
    except Oracle:
        traceback.print_exc()
        print("FAULT")
        return 1
    for what, count in sorted(counts.items()):
        print(f"  {count:>12}  {what}")
    print(f"{done} executions, 0 faults, {done / (time.monotonic() - started):.0f}/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
