"""The fast path against its slow twins: the same streams, cut anywhere, give the same output.

    story --> broker with everything on        --> bytes of every client --+
          --> broker without `fast_path`       -->                         +-- must be equal
          --> broker without `coalesce_runs`   -->                         |
          --> broker that always looks ahead,  -->                         |
              at the first words of topics too                             |
          --> broker without `cache_grants`    -->                         |
          --> broker whose deliveries are kept -->                         |
          --> broker with none of them         -->                       --+

A story is a list of steps of a few clients of 3.1, 3.1.1 and 5.0: bursts of packets, cut into
chunks; acknowledgements of what was received; lost connections and resumed ones; time.

Packet ids of PUBLISH, PUBREL: compared as they are but for `fast_path`. The fast path keeps the
publisher's packet id where it is free at the receiver, which a `Message` does not carry; so there
each id is replaced by the number of the delivery that it stands for.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mqttd.codec import properties as prop
from mqttd.codec.packets import (
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
)
from mqttd.codec.properties import Properties
from mqttd.codec.serializer import serialize
from mqttd.pipeline.log.columns import Columns
from mqttd.pipeline.log.decode import decode_block
from mqttd.pipeline.log.packed import pack
from mqttd.session.channel.listener import Listener
from mqttd.session.ground.message import Message
from mqttd.session.ground.settings import Settings
from mqttd.types import OK, STOP, HookResult
from tests.support import sizes
from tests.support.memory import MemoryBroker, MemoryClient

CLIENTS = 4

TOPICS = ["a", "a", "a/b", "a/b", "b", "$x/a"]
LONG_TOPICS = ["a/" + sizes.text(length - 2) for length in sizes.TEXT_LENGTHS if length > 2]
FILTERS = ["a", "a/b", "a/#", "+/b", "#", "b", "$x/#", "$share/g/a/#", "$share/h/a"]
PROPERTIES: list[Properties] = [
    {prop.CONTENT_TYPE: "text"},
    {prop.USER_PROPERTY: [("k", "v"), ("k", "w")]},
    {prop.USER_PROPERTY: [("long", "x" * 130)]},
    {prop.MESSAGE_EXPIRY_INTERVAL: 2},
    {prop.RESPONSE_TOPIC: "b", prop.CORRELATION_DATA: b"\x00\x01"},
    {prop.RESPONSE_TOPIC: "b/#"},
    {prop.PAYLOAD_FORMAT_INDICATOR: 1},
    {prop.SUBSCRIPTION_IDENTIFIER: [3]},
]

#: Settings that change what the paths have to do.
TWISTS: list[dict[str, Any]] = [
    {},
    {},
    {"upgrade_qos": True},
    {"max_inflight": 2, "mqueue_max_length": 3},
    {"max_inflight": 2, "mqueue_max_bytes": 60, "mqueue_store_qos0": False},
    {"topic_cache_entries": 1},
    {"topic_cache_bytes": 1500},
    {"max_topic_alias": 1},
    {"outbound_topic_alias": True},
    {"max_awaiting_rel": 2, "receive_maximum": 2},
    {"retain_available": False},
    {"max_packet_size": 64},
    {"max_qos": 1},
    {"max_qos": 0},
    {"mountpoint": "below/%c/"},
    {"mountpoint": "below/"},
]


@dataclass
class Step:
    """One step of one client. `kind`: burst, ack, drop, wait."""

    client: int
    kind: str
    packets: list[Packet] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    #: burst: bytes in place of packets; wait: milliseconds; ack: how many.
    raw: bytes = b""
    amount: int = 0


@dataclass
class Story:
    """Who the clients are (one list of CONNECT arguments each), and what they do."""

    twist: dict[str, Any]
    connects: list[dict[str, Any]]
    steps: list[Step]
    #: The packet id that the broker gave last to each.
    last_id: int = 0


@st.composite
def publishes(draw: st.DrawFn) -> list[Packet]:
    """One PUBLISH, a run of them that differ in the payload at most, or a span: in length, too."""
    qos = draw(st.sampled_from([0, 0, 0, 1, 1, 2]))
    topic = draw(st.sampled_from(LONG_TOPICS if draw(st.integers(0, 7)) == 0 else TOPICS))
    properties = None
    if draw(st.integers(0, 2)) == 0:
        properties = dict(draw(st.sampled_from(PROPERTIES)))
    if draw(st.integers(0, 5)) == 0:
        # With an expiry, an alias or an identifier beside it the block may be over the border.
        block = draw(sizes.near(sizes.BORDERS[0]))
        properties = {**(properties or {}), prop.CORRELATION_DATA: b"c" * (block - 3)}
    if draw(st.integers(0, 4)) == 0:
        properties = dict(properties or {})
        properties[prop.TOPIC_ALIAS] = draw(st.sampled_from([1, 1, 1, 2, 2, 0, 3]))
        topic = draw(st.sampled_from([topic, ""]))
    retain = draw(st.integers(0, 5)) == 0
    run = draw(st.sampled_from([1, 1, 2, 5]))
    spread = draw(st.sampled_from([0, 0, 1, 130]))
    remaining = 0
    if draw(st.integers(0, 2)) == 0:
        remaining = draw(sizes.near())
        spread = draw(st.sampled_from([0, 0, 1]))
    made: list[Packet] = []
    for i in range(run):
        payload = draw(st.sampled_from([b"", b"x", b"yz", b"p" * 50]))
        if run > 1:
            payload = b"%03d" % i + b"." * (i % 3 * spread)
        packet_id = draw(packet_ids) if qos else 0
        dup = bool(qos) and draw(st.integers(0, 5)) == 0
        if remaining:
            payload = sizes.fill(
                lambda load: serialize(Publish(topic, load, qos, False, False, 1, properties), 5),
                remaining + i % 3 * spread,
                payload[:3],
            )
        made.append(Publish(topic, payload, qos, retain, dup, packet_id, properties))
    return made


#: Few, so that they meet; some of those that end where a byte does.
packet_ids = st.one_of(st.integers(1, 6), st.integers(1, 6), st.sampled_from(sizes.PACKET_IDS))


@st.composite
def subscribes(draw: st.DrawFn) -> list[Packet]:
    identifier = draw(st.sampled_from([0] * 9 + [200] + sizes.IDENTIFIERS))
    filters = draw(st.lists(st.sampled_from(FILTERS), min_size=1, max_size=3))
    plain = draw(st.booleans())
    asked = [
        Subscription(
            topic_filter,
            draw(st.integers(0, 2)),
            not plain and not topic_filter.startswith("$share") and draw(st.booleans()),
            not plain and draw(st.booleans()),
            draw(st.integers(0, 2)),
        )
        for topic_filter in filters
    ]
    properties: Properties | None = None
    if identifier:
        properties = {prop.SUBSCRIPTION_IDENTIFIER: [identifier]}
    return [Subscribe(9, asked, properties)]


@st.composite
def others(draw: st.DrawFn) -> list[Packet]:
    packet_id = draw(packet_ids)
    return [
        draw(
            st.sampled_from(
                [
                    Pingreq(),
                    Pubrel(packet_id),
                    Pubrel(packet_id),
                    Pubrel(packet_id),
                    Unsubscribe(10, [draw(st.sampled_from(FILTERS))]),
                ]
            )
        )
    ]


@st.composite
def steps(draw: st.DrawFn) -> Step:
    client = draw(st.integers(0, CLIENTS - 1))
    cuts = draw(st.lists(st.integers(1, 30), max_size=4))
    kind = draw(st.sampled_from(["burst"] * 8 + ["ack"] * 3 + ["drop", "wait", "raw"]))
    if kind == "ack":
        return Step(client, "ack", cuts=cuts, amount=draw(st.integers(1, 5)))
    if kind == "drop":
        # amount: the version it comes back with
        return Step(client, "drop", amount=draw(st.sampled_from([3, 4, 5])))
    if kind == "wait":
        return Step(client, "wait", amount=draw(st.sampled_from([300, 1500, 40_000])))
    if kind == "raw":
        return Step(client, "burst", cuts=cuts, raw=draw(st.binary(min_size=1, max_size=12)))
    group = st.one_of(publishes(), publishes(), subscribes(), others())
    groups = draw(st.lists(group, min_size=1, max_size=5))
    return Step(client, "burst", [packet for group in groups for packet in group], cuts)


@st.composite
def connects(draw: st.DrawFn) -> dict[str, Any]:
    version = draw(st.sampled_from([3, 4, 4, 5, 5]))
    arguments: dict[str, Any] = {"version": version, "clean": draw(st.booleans())}
    if version == 5:
        properties: Properties = {}
        if draw(st.booleans()):
            properties[prop.SESSION_EXPIRY_INTERVAL] = 1000
        if draw(st.integers(0, 3)) == 0:
            properties[prop.RECEIVE_MAXIMUM] = draw(st.integers(1, 3))
        if draw(st.integers(0, 3)) == 0:
            properties[prop.TOPIC_ALIAS_MAXIMUM] = draw(st.integers(1, 2))
        if draw(st.integers(0, 3)) == 0:
            properties[prop.MAXIMUM_PACKET_SIZE] = draw(
                st.one_of(st.sampled_from([12, 20, 60]), sizes.near())
            )
        arguments["properties"] = properties or None
    return arguments


@st.composite
def stories(draw: st.DrawFn) -> Story:
    return Story(
        dict(draw(st.sampled_from(TWISTS))),
        draw(st.lists(connects(), min_size=CLIENTS, max_size=CLIENTS)),
        [
            # Whatever else happens, somebody listens.
            Step(0, "burst", draw(subscribes())),
            Step(1, "burst", draw(subscribes())),
            *draw(st.lists(steps(), min_size=1, max_size=12)),
        ],
        draw(last_ids),
    )


#: 255 comes next, 65,535 after it, or 1 after the last one.
last_ids = st.sampled_from([0, 0, 0, 254, 65_533, 65_535])


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """`data` in pieces of these lengths, over and over; in one piece without any."""
    if not cuts:
        return [data]
    found = []
    at = 0
    turn = 0
    while at < len(data):
        found.append(data[at : at + cuts[turn % len(cuts)]])
        at += len(found[-1])
        turn += 1
    return found


class Stage:
    """Plays a story on one broker and keeps what every client received."""

    def __init__(
        self,
        story: Story,
        hook: Callable[..., Any] | None = None,
        kept: Columns | None = None,
        **switches: bool,
    ) -> None:
        configured = Settings()
        twist = story.twist | switches
        mountpoint = twist.pop("mountpoint", "")
        for name, value in twist.items():
            assert hasattr(configured, name), name
            setattr(configured, name, value)
        self.node = MemoryBroker(configured)
        self.node.access.free = True  # so that first words may decide, where it looks ahead
        if mountpoint:
            self.node.broker.listeners["memory"] = Listener("memory", mountpoint=mountpoint)
        if hook is not None:
            self.node.hooks.hook("message.publish", hook)
        if kept is not None:
            self.node.broker.add_notes(kept)
            self.node.broker.add_deliveries(kept, True, True)
        self.story = story
        self.output: list[bytearray] = [bytearray() for _ in range(CLIENTS)]
        #: Received packets, one list per connection, packet ids by order of delivery.
        self.packets: list[list[Any]] = [[] for _ in range(CLIENTS)]
        self.unanswered: list[list[Packet]] = [[] for _ in range(CLIENTS)]
        self.numbers: list[dict[int, int]] = [{} for _ in range(CLIENTS)]
        self.delivered = [0] * CLIENTS
        #: Those whose acknowledgements ended a packet of no meaning: it has the path's ids in it.
        self.swallowing: set[int] = set()
        self.clients = [self._connect(i) for i in range(CLIENTS)]

    def _connect(self, i: int, version: int = 0) -> MemoryClient:
        arguments = dict(self.story.connects[i])
        if version and version != arguments["version"]:
            arguments["version"] = version
            arguments["clean"] = False
            arguments["properties"] = {prop.SESSION_EXPIRY_INTERVAL: 1000} if version == 5 else None
        self.unanswered[i] = []
        client = self.node.connect(f"client-{i}", **arguments)
        session = self.node.session(f"client-{i}")
        if session is not None and not session.next_id:
            session.next_id = self.story.last_id
        return client

    def play(self) -> Stage:
        for step in self.story.steps:
            if step.kind == "wait":
                self.node.advance(step.amount)
            elif step.kind == "drop":
                if not self.clients[step.client].closed:
                    self.clients[step.client].drop()
                self.collect()
                self.clients[step.client] = self._connect(step.client, step.amount)
            else:
                self.burst(step)
            self.collect()
        return self

    def burst(self, step: Step) -> None:
        client = self.clients[step.client]
        if step.kind == "ack":
            waiting = self.unanswered[step.client]
            if client.channel.rest is not None:
                self.swallowing.add(step.client)
            packets = waiting[: step.amount]
            del waiting[: step.amount]
        else:
            packets = step.packets
        data = step.raw or b"".join([wire_of(packet, client.version) for packet in packets])
        for piece in pieces(data, step.cuts):
            if not client.closed:
                client.feed(piece)
                self.node.run_soon()

    def collect(self) -> None:
        for i, client in enumerate(self.clients):
            data = client.read()
            self.output[i] += data
            for packet in client.parser.feed(data):
                self.received(i, packet)

    def received(self, i: int, packet: Packet) -> None:
        numbers = self.numbers[i]
        shown: Any = packet
        if isinstance(packet, Publish) and packet.properties:
            # Those of different names have no order (2.2.2.2); those of one name keep theirs.
            packet.properties = dict(sorted(packet.properties.items()))
        if isinstance(packet, Publish) and packet.qos:
            if not packet.dup or packet.packet_id not in numbers:
                self.delivered[i] += 1
                numbers[packet.packet_id] = self.delivered[i]
            kind = Puback if packet.qos == 1 else Pubrec
            self.unanswered[i].append(kind(packet.packet_id))
            shown = Publish(
                packet.topic,
                packet.payload,
                packet.qos,
                packet.retain,
                packet.dup,
                numbers[packet.packet_id],
                packet.properties,
            )
        elif isinstance(packet, Pubrel):
            self.unanswered[i].append(Pubcomp(packet.packet_id))
            shown = Pubrel(numbers.get(packet.packet_id, packet.packet_id), packet.reason_code)
        self.packets[i].append(repr(shown))

    def state(self) -> list[Any]:
        """What must not depend on the path either: who is open, and what each session holds."""
        found: list[Any] = []
        for i, client in enumerate(self.clients):
            session = self.node.session(f"client-{i}")
            reason = "" if i in self.swallowing else client.channel.close_reason
            found.append((client.closed, reason, session is None))
            if session is not None:
                queued = session.queued()
                found.append(
                    (
                        len(session.inflight or ()),
                        sorted(session.awaiting_rel or ()),
                        [(d.topic(), d.qos, len(d.wire)) for d in queued],
                    )
                )
        return found


def wire_of(packet: Packet, version: int) -> bytes:
    """The bytes, valid or not in this version (3.x knows no aliases: the topic is empty then)."""
    if version < 5 and isinstance(packet, Publish) and not packet.topic:
        packet = Publish(
            "a", packet.payload, packet.qos, packet.retain, packet.dup, packet.packet_id
        )
    return serialize(packet, version)


def with_bytes(stage: Stage) -> object:
    return [bytes(output) for output in stage.output]


def with_numbers(stage: Stage) -> object:
    return stage.packets


def with_ids_where_told(stage: Stage) -> object:
    """Where an id is taken, its receiver may get one that another has got: `last_id` tells."""
    return with_numbers(stage) if stage.story.last_id else with_bytes(stage)


VARIANTS: list[tuple[dict[str, Any], Callable[[Stage], object]]] = [
    ({"coalesce_runs": False}, with_ids_where_told),
    ({"look_ahead": 0}, with_bytes),
    ({"topic_cache_selective": 0}, with_bytes),
    ({"cache_grants": False}, with_bytes),
    ({"fast_path": False}, with_numbers),
    ({"fast_path": False, "coalesce_runs": False, "cache_grants": False}, with_numbers),
]


@pytest.mark.parametrize(
    ("switches", "view"), VARIANTS, ids=["runs", "ahead", "once", "grants", "fast", "all"]
)
@settings(max_examples=100, deadline=None)
@given(story=stories())
@pytest.mark.slow
def test_every_path_gives_the_same_bytes(
    story: Story, switches: dict[str, Any], view: Callable[[Stage], object]
) -> None:
    """Whether a message took the short way cannot be seen from outside."""
    fast = Stage(story).play()
    slow = Stage(story, **switches).play()
    assert view(fast) == view(slow)
    assert fast.state() == slow.state()


#: What counts bytes of names, and what stands in the way of another mountpoint.
_NAMED = ("mountpoint", "mqueue_max_bytes", "topic_cache_bytes")


@settings(max_examples=300, deadline=None)
@given(story=stories().filter(lambda story: not story.twist.keys() & set(_NAMED)))
@pytest.mark.slow
def test_a_mountpoint_is_not_seen_from_below(story: Story) -> None:
    """Where all live below the same one, their tree is as the whole one, `$` in it included."""
    fast = Stage(story).play()
    below = Stage(story, mountpoint="below/").play()
    assert with_numbers(fast) == with_numbers(below)


def changes(message: Message) -> HookResult:
    """Something of everything that a callback may do."""
    return {
        b"x": OK(message.replace(payload=b"changed")),
        b"yz": OK(message.replace(qos=0)),
        b"001": STOP(None),
        b"002": OK(message.replace(topic="b")),
    }.get(message.payload, OK)


@pytest.mark.parametrize("hook", [lambda message: None, changes], ids=["noop", "changes"])
@settings(max_examples=100, deadline=None)
@given(story=stories())
@pytest.mark.slow
def test_every_path_gives_the_same_bytes_to_hooks_too(
    story: Story, hook: Callable[..., Any]
) -> None:
    """A callback at message.publish sees each message, and what it answers holds on every path."""
    fast = Stage(story, hook).play()
    slow = Stage(story, hook, fast_path=False).play()
    assert with_numbers(fast) == with_numbers(slow)
    assert fast.state() == slow.state()
    dropped = [stage.node.broker.metrics.dropped_hook for stage in (fast, slow)]
    assert dropped[0] == dropped[1]


def events_of(kept: Columns) -> dict[tuple[str, str | None], list[Any]]:
    """Deliveries and acknowledgements by client, with the number of the publish they are of."""
    numbers: dict[bytes | None, int] = {}
    found: dict[tuple[str, str | None], list[Any]] = {}
    for one in decode_block(pack(kept.take(), 0), "n") if kept.count else ():
        if one.event == "message.publish":
            numbers[one.message_id] = len(numbers)
        else:
            # What is sent to a new subscriber may have an id of its own.
            number = -1 if one.retain else numbers[one.message_id]
            row = (number, one.topic, one.qos, one.retain, one.payload_size)
            found.setdefault((one.event, one.client_id), []).append(row)
    return found


@settings(max_examples=100, deadline=None)
@given(story=stories())
@pytest.mark.slow
def test_who_keeps_deliveries_is_not_seen(story: Story) -> None:
    """The same goes out, and the same is kept by the fast path as by the slow one."""
    columns = [Columns(1 << 30, lambda: None, lambda: None) for _ in range(2)]
    plain = Stage(story).play()
    fast = Stage(story, kept=columns[0]).play()
    slow = Stage(story, kept=columns[1], fast_path=False).play()
    assert with_numbers(plain) == with_numbers(fast) == with_numbers(slow)
    assert plain.state() == fast.state() == slow.state()
    assert events_of(columns[0]) == events_of(columns[1])


def test_a_broker_without_hooks_takes_the_fast_path() -> None:
    """The comparison above would say nothing if nobody took it."""
    node = MemoryBroker()
    subscriber = node.connect("s")
    subscriber.send(Subscribe(1, [Subscription("a", 2)]))
    publisher = node.connect("p")
    publisher.send(Publish("a", b"1", 1, packet_id=7))
    publisher.send(Publish("a", b"2", 1, packet_id=8))
    assert node.broker.metrics.routes_built == 1
    assert len(node.broker.router.table) == 1
    assert [packet.packet_id for packet in subscriber.published()] == [7, 8]


def test_a_message_queued_for_3_1_1_keeps_its_properties_for_5_0() -> None:
    """A session that comes back with MQTT 5.0 gets what MQTT 3.1.1 would not have shown it."""
    node = MemoryBroker()
    node.connect("s", clean=False).send(Subscribe(1, [Subscription("a", 1)]))
    sender = node.connect("p", version=5)
    sender.send(Publish("a", b"1", 1, packet_id=7, properties={prop.CONTENT_TYPE: "text"}))
    returned = node.connect("s", version=5, clean=False)
    assert [packet.properties for packet in returned.published()] == [{prop.CONTENT_TYPE: "text"}]


@pytest.mark.parametrize("qos", [0, 1])
def test_upgrade_qos_holds_on_every_path(qos: int) -> None:
    """With `upgrade_qos` a subscriber gets the QoS it asked for, whoever publishes."""
    configured = Settings()
    configured.upgrade_qos = True
    node = MemoryBroker(configured)
    subscriber = node.connect("s")
    subscriber.send(Subscribe(1, [Subscription("a", 2)]))
    node.connect("p").send(Publish("a", b"1", qos, packet_id=7 if qos else 0))
    assert [packet.qos for packet in subscriber.published()] == [2]


def fingerprint(count: int) -> str:
    """What `count` stories, always the same, gave every client, as one hash."""
    seen = hashlib.sha256()

    @settings(max_examples=count, derandomize=True, database=None, deadline=None,
              phases=[Phase.generate], suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(story=stories())
    def play(story: Story) -> None:
        for output in Stage(story).play().output:
            seen.update(b"|" + bytes(output))

    play()
    return seen.hexdigest()


@pytest.mark.slow
def test_compiled_and_pure_give_the_same_bytes() -> None:
    """The compiled modules are the `.py` files: a client cannot tell which of them run."""
    program = (
        "import mqttd, sys; from tests.unit.session.test_differential import fingerprint;"
        "assert not mqttd.compiled(); print(fingerprint(int(sys.argv[1])))"
    )
    pure = subprocess.run(
        [sys.executable, "-c", program, "150"], env={**os.environ, "MQTTD_PURE": "1"},
        cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert pure.returncode == 0, pure.stderr
    assert pure.stdout.strip() == fingerprint(150)
