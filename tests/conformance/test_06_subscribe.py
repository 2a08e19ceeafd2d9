"""Chapter 6: SUBSCRIBE, UNSUBSCRIBE and topics (checklist rows 79 to 95)."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import Bench
from tests.conformance.rows import row
from tests.conformance.test_05_publish import ALL_PROPS, IF_NEW, NEVER, NO_LOCAL, forwarded
from tests.support import packets as mq
from tests.support.broker import Broker
from tests.support.client import RawClient

BAD_FILTERS = ["a/#/b", "#/a", "a#", "a/b#", "a+", "+a", "a/b+/c", "##", "++", "a/+b", "a/#b"]
BAD_SHARES = [
    "$share/",
    "$share/g",
    "$share/g/",
    "$share//t",
    "$share/g+/t",
    "$share/+/t",
    "$share/#/t",
    "$share/g#/t",
]


@row(79)
@pytest.mark.parametrize("kind", [mq.SUBSCRIBE, mq.UNSUBSCRIBE], ids=mq.name_of)
def test_mqtt_3_8_1_1_closes_on_wrong_flags(bench: Bench, kind: int) -> None:
    """SUBSCRIBE and UNSUBSCRIBE have the flags 0010, and no others are served."""
    topic, v = bench.topic(), bench.version
    publisher = bench.connect()
    for flags in range(16):
        client = bench.connect()
        if kind == mq.SUBSCRIBE:
            packet = mq.subscribe([(topic, 0)], version=v, first=0x80 | flags)
        else:
            client.subscribe(topic)
            packet = mq.unsubscribe([topic], version=v, first=0xA0 | flags)
        client.send(packet)
        if flags == 2:
            client.expect(mq.SUBACK if kind == mq.SUBSCRIBE else mq.UNSUBACK)
            publisher.publish(topic, b"x")
            if kind == mq.SUBSCRIBE:
                client.message(payload=b"x")
            client.expect_nothing()
        else:
            client.expect_close()
        client.close()


@row(80)
def test_mqtt_3_8_3_2_closes_on_empty_list(bench: Bench) -> None:
    """A SUBSCRIBE or UNSUBSCRIBE without a filter is malformed."""
    for packet in (
        mq.subscribe([], version=bench.version),
        mq.unsubscribe([], version=bench.version),
        b"\x82\x00",
        b"\xa2\x00",
    ):
        client = bench.connect()
        client.send(packet)
        client.expect_close()


@row(81)
def test_mqtt_3_8_3_5_closes_on_bad_options(bench: Bench) -> None:
    """QoS 3, reserved option bits and Retain Handling 3 are malformed."""
    if bench.version == mq.V5:
        bad = [0x03, 0x40, 0x80, 0xC0, 0x30, 0x31, 0x3C]
    else:
        bad = [0x03, *(1 << bit for bit in range(2, 8)), 0xFC]
    for options in bad:
        for filters in ([(bench.topic(), options)], [("ok", 0), (bench.topic(), options)]):
            client = bench.connect()
            client.send(mq.subscribe(filters, version=bench.version))
            client.expect_close()


@row(82)
def test_mqtt_3_8_4_1_one_suback_of_the_same_id(bench: Bench) -> None:
    """Each SUBSCRIBE gets one SUBACK, with its id."""
    client, v = bench.connect(), bench.version
    for packet_id in (1, 65535, 300):
        client.send(mq.subscribe([(bench.topic(), 1), (bench.topic("u"), 0)], packet_id, version=v))
        client.expect(mq.SUBACK, packet_id=packet_id, reasons=[1, 0])
    client.expect_nothing()


@row(83)
def test_mqtt_3_8_4_6_one_code_per_filter(bench: Bench) -> None:
    """The codes stand in the order of the filters; a hundred of them, the same one twice too."""
    client = bench.connect()
    filters = [(bench.topic(str(n)), n % 3) for n in range(100)]
    assert client.subscribe(*filters) == [n % 3 for n in range(100)]
    twice = ((bench.topic("x"), 2), (bench.topic("x"), 0))
    assert client.subscribe(*twice) == [2, 0]
    bench.connect().publish(bench.topic("x"), b"x", 2)
    client.message(payload=b"x", qos=0)  # as if asked one after the other
    client.expect_nothing()


@row(83)
def test_mqtt_3_9_3_1_denied_filters_among_others(bench: Bench, guarded: Broker) -> None:
    """A denied filter has its own code, and the others are served."""
    bench = bench.at(guarded)
    client = bench.connect(username="alice", password=b"wonder")
    codes = client.subscribe((bench.topic(), 1), ("secret/a", 2), (bench.topic("u"), 2))
    assert codes == [1, 0x87 if bench.version == 5 else 0x80, 2]
    publisher = bench.connect(username="alice", password=b"wonder")
    publisher.publish("secret/a", b"hidden", 1)
    publisher.publish(bench.topic("u"), b"open", 2)
    client.message(payload=b"open", qos=2)
    client.expect_nothing()


@row(83)
def test_mqtt_3_9_3_1_bad_filter_among_others(bench: Bench) -> None:
    """A filter of bad syntax is refused by its code (0x80, 5.0: 0x8F) or by the close."""
    for bad in BAD_FILTERS:
        client = bench.connect()
        client.send(mq.subscribe([(bench.topic(), 0), (bad, 0)], 3, version=bench.version))
        packet = client.receive()
        if packet is not None and packet.type == mq.SUBACK:
            assert packet.reasons == [0, 0x8F if bench.version == 5 else 0x80]
        else:
            assert packet is None or packet.type == mq.DISCONNECT
            assert packet is None or client.receive() is None


@row(84)
def test_mqtt_3_8_4_3_replaces_subscription(bench: Bench) -> None:
    """The same filter again replaces: new QoS, retained messages again, nothing doubled."""
    publisher = bench.connect()
    publisher.publish(bench.topic(), b"kept", 2, retain=True)
    client = bench.subscriber(bench.topic(), qos=0)
    client.message(payload=b"kept", qos=0, retain=True)
    for qos in (2, 1, 0):
        assert client.subscribe(bench.topic(), qos=qos) == [qos]
        client.message(payload=b"kept", qos=qos, retain=True)
        publisher.publish(bench.topic(), b"live", 2)
        client.message(payload=b"live", qos=qos)
        client.expect_nothing()
    client.unsubscribe(bench.topic())
    publisher.publish(bench.topic(), b"live", 2)
    client.expect_nothing()
    publisher.publish(bench.topic(), b"", retain=True)


@row(84)
def test_mqtt_3_8_4_4_replacing_loses_nothing(bench: Bench) -> None:
    """Messages go on flowing, each once, while a subscription is replaced again and again."""
    client = bench.subscriber(bench.topic(), qos=1)
    publisher, v = bench.connect(), bench.version
    for number in range(200):
        publisher.send(mq.publish(bench.topic(), b"%d" % number, 1, number + 1, version=v))
        client.send(mq.subscribe([(bench.topic(), 1)], number + 1, version=v))
    for _ in range(200):
        publisher.expect(mq.PUBACK)
    got = []
    subacks = 0
    while len(got) < 200 or subacks < 200:
        packet = client.receive()
        assert packet is not None
        if packet.type == mq.PUBLISH:
            got.append(int(packet.payload))
            client.send(mq.puback(packet.packet_id, v))
        else:
            subacks += packet.type == mq.SUBACK
    assert got == list(range(200))


@row(85)
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_mqtt_3_8_4_8_delivers_with_the_lower_qos(bench: Bench, granted: int) -> None:
    """min(QoS of the message, QoS granted), live and retained."""
    client = bench.connect()
    assert client.subscribe(bench.topic("#"), qos=granted) == [granted]
    publisher = bench.connect()
    for qos in (0, 1, 2):
        publisher.publish(bench.topic(), b"x", qos)
        client.message(payload=b"x", qos=min(qos, granted))
        publisher.publish(bench.topic(f"r{qos}"), b"r", qos, retain=True)
        client.message(payload=b"r", qos=min(qos, granted))
        late = bench.subscriber(bench.topic(f"r{qos}"), qos=granted)
        late.message(payload=b"r", qos=min(qos, granted), retain=True)
        publisher.publish(bench.topic(f"r{qos}"), b"", retain=True)
        client.message(payload=b"")


@row(86)
def test_mqtt_3_10_4_1_compares_character_by_character(bench: Bench) -> None:
    """Only the very same filter is taken out."""
    client = bench.subscriber(bench.topic("a/+"), qos=1)
    publisher = bench.connect()
    others = ["a/b", "a/#", "a/+/", "A/+", "/a/+", "a/", "a", "#", "+/+"]
    codes = client.unsubscribe(*(bench.topic(other) for other in others))
    assert codes == ([0x11] * len(others) if bench.version == 5 else [])
    publisher.publish(bench.topic("a/b"), b"x", 1)
    client.message(payload=b"x")
    assert client.unsubscribe(bench.topic("a/+")) == ([0] if bench.version == 5 else [])
    publisher.publish(bench.topic("a/b"), b"y", 1)
    client.expect_nothing()


@row(86)
def test_mqtt_3_10_4_3_finishes_what_is_in_flight(bench: Bench) -> None:
    """After UNSUBSCRIBE nothing new comes, and what began goes on to its end."""
    client, v = bench.durable("s"), bench.version
    client.subscribe(bench.topic(), qos=2)
    publisher = bench.connect()
    publisher.publish(bench.topic(), b"one", 1)
    publisher.publish(bench.topic(), b"two", 2)
    one, two = (client.message(ack=False) for _ in range(2))
    client.unsubscribe(bench.topic())
    publisher.publish(bench.topic(), b"three", 2)
    client.expect_nothing()
    client.send(mq.pubrec(two.packet_id, v))
    client.expect(mq.PUBREL, packet_id=two.packet_id, reason=0)
    client.drop()
    client = bench.durable("s")
    client.message(payload=b"one", dup=True, packet_id=one.packet_id)
    client.expect(mq.PUBREL, packet_id=two.packet_id)
    client.send(mq.pubcomp(two.packet_id, v))
    client.expect_nothing()


@row(87)
def test_mqtt_3_10_4_4_always_answers_unsuback(bench: Bench) -> None:
    """UNSUBACK with the same id, also when nothing matched; 5.0: a code per filter."""
    client, v = bench.connect(), bench.version
    client.subscribe(bench.topic("a"), bench.topic("b"))
    for packet_id, names, codes in (
        (1, ["none"], [0x11]),
        (65535, ["a", "none", "b", "a"], [0, 0x11, 0, 0x11]),
    ):
        client.send(mq.unsubscribe([bench.topic(n) for n in names], packet_id, version=v))
        client.expect(mq.UNSUBACK, packet_id=packet_id, reasons=codes if v == 5 else [])
    client.expect_nothing()
    bench.connect().publish(bench.topic("b"), b"x")
    client.expect_nothing()


@row(88)
def test_mqtt_3_8_3_3_no_local(bench: Bench) -> None:
    """No Local: everybody's messages but one's own, live and through the session."""
    client = bench.durable("s")
    client.subscribe((bench.topic(), NO_LOCAL | 1))
    other = bench.connect()
    for qos in (0, 1, 2):
        client.publish(bench.topic(), b"own", qos)
        other.publish(bench.topic(), b"other", qos)
        client.message(payload=b"other")
        client.expect_nothing()
    client.subscribe((bench.topic(), 1))  # and without it one's own come back
    client.publish(bench.topic(), b"own", 1)
    client.message(payload=b"own")


@row(88)
def test_mqtt_3_8_3_3_no_local_overlapping(bench: Bench) -> None:
    """Another subscription of the same client without No Local still delivers."""
    client = bench.subscriber((bench.topic("a"), NO_LOCAL | 2), (bench.topic("+"), 1))
    client.publish(bench.topic("a"), b"own", 2)
    client.message(payload=b"own", qos=1)
    client.expect_nothing()


@row(88)
def test_mqtt_3_8_3_3_no_local_holds_for_retained(bench: Bench) -> None:
    """What a client has retained itself does not come back to its No Local subscription."""
    client = bench.connect()
    client.publish(bench.topic("own"), b"own", 1, retain=True)
    bench.connect().publish(bench.topic("other"), b"other", 1, retain=True)
    client.subscribe((bench.topic("+"), NO_LOCAL | 1))
    client.message(payload=b"other", retain=True)
    client.expect_nothing()
    client.subscribe((bench.topic("own"), 1))
    client.message(payload=b"own", retain=True)


@row(89)
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_mqtt_3_3_4_3_own_messages_carry_no_local_identifiers(
    bench: Bench, qos: int, retain: bool
) -> None:
    """A client's own message carries the identifiers of the subscriptions that it matches."""
    client = bench.connect()
    other = bench.connect()
    local = NO_LOCAL | 2
    client.subscribe((bench.topic("a/b"), local), props=[(mq.SUBSCRIPTION_ID, 1)])
    client.subscribe((bench.topic("a/+"), 2), props=[(mq.SUBSCRIPTION_ID, 2)])
    client.subscribe((bench.topic("b/b"), local), props=[(mq.SUBSCRIPTION_ID, 3)])
    client.subscribe((bench.topic("b/+"), 2))
    client.subscribe((bench.topic("c/b"), local))
    client.subscribe((bench.topic("c/+"), 2), props=[(mq.SUBSCRIPTION_ID, 4)])
    for name, own, all_ids in (("a/b", [2], [1, 2]), ("b/b", [], [3]), ("c/b", [4], [4])):
        for publisher, ids in ((client, own), (other, all_ids), (client, own)):
            publisher.publish(bench.topic(name), b"x", qos, retain=retain)
            packet = client.message(topic=bench.topic(name), qos=qos)
            assert sorted(packet.all(mq.SUBSCRIPTION_ID)) == ids
    client.expect_nothing()


@row(88)
def test_mqtt_3_8_3_3_no_local_with_shared_is_an_error(bench: Bench) -> None:
    """MQTT-3.8.3-4: No Local on a shared subscription is a protocol error."""
    client = bench.connect()
    client.send(mq.subscribe([(f"$share/g/{bench.topic()}", NO_LOCAL)], version=5))
    client.expect_close(0x82)


@row(89)
def test_mqtt_3_3_4_3_returns_subscription_identifiers(bench: Bench) -> None:
    """One copy, with the identifiers of all subscriptions that match, and only of those."""
    client = bench.connect()
    client.subscribe((bench.topic("a/b"), 1), props=[(mq.SUBSCRIPTION_ID, 1)])
    client.subscribe((bench.topic("a/+"), 2), props=[(mq.SUBSCRIPTION_ID, 268435455)])
    client.subscribe((bench.topic("#"), 0))
    client.subscribe((bench.topic("c"), 1), props=[(mq.SUBSCRIPTION_ID, 7)])
    publisher = bench.connect()
    for topic, ids in (("a/b", {1, 268435455}), ("a/x", {268435455}), ("c", {7}), ("d", set())):
        publisher.publish(bench.topic(topic), b"x", 1)
        packet = client.message(topic=bench.topic(topic))
        assert sorted(packet.all(mq.SUBSCRIPTION_ID)) == sorted(ids)
    client.expect_nothing()


@row(89)
def test_mqtt_3_3_4_4_identifier_changes_with_the_subscription(bench: Bench) -> None:
    """Replacing a subscription replaces its identifier, or takes it away; UNSUBSCRIBE ends it."""
    client = bench.connect()
    publisher = bench.connect()
    for ids in ([5], [6], []):
        props = [(mq.SUBSCRIPTION_ID, identifier) for identifier in ids]
        client.subscribe(bench.topic(), qos=1, props=props)
        publisher.publish(bench.topic(), b"x", 1)
        assert client.message().all(mq.SUBSCRIPTION_ID) == ids
    client.subscribe(bench.topic("+"), qos=1, props=[(mq.SUBSCRIPTION_ID, 9)])
    client.unsubscribe(bench.topic())
    publisher.publish(bench.topic(), b"x", 1)
    assert client.message().all(mq.SUBSCRIPTION_ID) == [9]


@row(89)
def test_mqtt_3_3_4_5_identifiers_with_retained_and_queued(bench: Bench) -> None:
    """Retained messages carry the new subscription's identifier, queued ones the stored one's."""
    publisher = bench.connect()
    publisher.publish(bench.topic("r"), b"kept", 1, retain=True, props=ALL_PROPS)
    client = bench.durable("s")
    client.subscribe(bench.topic("#"), qos=1, props=[(mq.SUBSCRIPTION_ID, 3)])
    packet = client.message(payload=b"kept", retain=True)
    assert packet.all(mq.SUBSCRIPTION_ID) == [3] and forwarded(packet) == ALL_PROPS
    client.drop()
    publisher.publish(bench.topic("q"), b"queued", 1)
    client = bench.durable("s")
    assert client.message(payload=b"queued").all(mq.SUBSCRIPTION_ID) == [3]


@row(89)
def test_mqtt_3_3_4_3_identifier_0_closes(bench: Bench) -> None:
    """0 is not a Subscription Identifier."""
    client = bench.connect()
    client.send(mq.subscribe([(bench.topic(), 0)], version=5, props=[(mq.SUBSCRIPTION_ID, 0)]))
    client.expect_close()


@row(90)
@pytest.mark.parametrize("bad", BAD_FILTERS)
def test_mqtt_4_7_1_1_wildcards_are_whole_levels(bench: Bench, bad: str) -> None:
    """A filter with a wildcard out of place is refused: by its code, or by the close."""
    client = bench.connect()
    client.send(mq.subscribe([(bad, 0)], 3, version=bench.version))
    packet = client.receive()
    if packet is not None and packet.type == mq.SUBACK:
        assert packet.reasons[0] >= 0x80
    else:
        assert packet is None or (packet.type == mq.DISCONNECT and client.receive() is None)


MATCHES = {
    "a/#": ["a", "a/", "a/b", "a/b/c", "a//"],
    "#": ["", "a", "a/b", "/", "a/b/c", "/a", "b"],
    "a/+": ["a/b", "a/", "a/c"],
    "+/b": ["a/b", "/b", "c/b"],
    "+": ["a", "b", ""],
    "a/+/c": ["a/b/c", "a//c"],
    "+/+": ["a/b", "/b", "a/", "/", "/a", "c/b", "a/c"],
    "/+": ["/b", "/", "/a"],
    "+/#": ["", "a", "a/b", "/", "a/b/c", "/a", "b"],
    "a/+/#": ["a/b", "a/", "a/b/c", "a//", "a//c", "a/c"],
    "a/b": ["a/b"],
}
NAMES = sorted({n for names in MATCHES.values() for n in names} | {"A/b", "a/b/", "ab", "b/b"})


def matches(name: str, topic_filter: str) -> bool:
    """Section 4.7, word for word, for topics that do not begin with a dollar sign."""
    words, pattern = name.split("/"), topic_filter.split("/")
    for index, part in enumerate(pattern):
        if part == "#":
            return True
        if index >= len(words) or part not in ("+", words[index]):
            return False
    return len(words) == len(pattern)


@row(90)
@pytest.mark.parametrize("topic_filter", MATCHES)
def test_mqtt_4_7_1_2_matching(bench: Bench, topic_filter: str) -> None:
    """Which topics a filter matches: live subscriptions and retained messages agree."""
    expected = [name for name in NAMES if matches(name, topic_filter)]
    assert set(expected) >= set(MATCHES[topic_filter])
    live = bench.subscriber(bench.topic(topic_filter))
    publisher = bench.connect()
    for name in NAMES:
        publisher.publish(bench.topic(name), b"=" + name.encode(), retain=True)
    if topic_filter in ("#", "a/#"):  # the parent level matches too
        publisher.publish(bench.tag, b"parent")
    got = [live.message(retain=False).payload.decode()[1:] for _ in expected]
    assert got == expected
    if topic_filter == "#":
        live.message(topic=bench.tag)
    live.expect_nothing()
    late = bench.subscriber(bench.topic(topic_filter))
    assert sorted(late.message(retain=True).payload.decode()[1:] for _ in expected) == expected
    late.expect_nothing()
    for name in NAMES:
        publisher.publish(bench.topic(name), b"", retain=True)


@row(91)
def test_mqtt_4_7_2_1_dollar_topics_need_a_dollar(bench: Bench) -> None:
    """`#` and `+/...` do not match topics that begin with `$`, live or retained."""
    dollar = f"${bench.topic('a')}"
    first = dollar.split("/")[0]
    hidden = bench.connect()
    hidden.subscribe(*((f, NEVER if bench.version == 5 else 0) for f in ("#", "+/a", "+/#")))
    seen = bench.subscriber(dollar, qos=1)
    seen_wild = bench.subscriber(f"{first}/#", qos=1)
    seen_plus = bench.subscriber(f"{first}/+", qos=1)
    publisher = bench.connect()
    publisher.publish(dollar, b"x", 1, retain=True)
    for client in (seen, seen_wild, seen_plus):
        client.message(topic=dollar, payload=b"x")
    hidden.ping()
    late = bench.subscriber("+/a", "#", qos=1)
    late.ping()
    for client in (hidden, late):
        topics = {p.topic for p in client._aside}
        assert dollar not in topics, f"{dollar} came to a wildcard subscription"
    bench.subscriber(f"{first}/#").message(topic=dollar, retain=True)
    publisher.publish(dollar, b"", 1, retain=True)


@row(91)
def test_mqtt_4_7_2_1_sys_topics_by_name(bench: Bench, small: Broker) -> None:
    """`$SYS/#` gets what the broker tells about itself, `#` does not."""
    bench = bench.at(small)
    everything = bench.subscriber("#")
    packet = bench.subscriber("$SYS/#").message()
    assert packet.topic.startswith("$SYS/")
    everything.ping()
    assert not [p for p in everything._aside if p.topic.startswith("$")]


@row(92)
def test_mqtt_4_7_3_1_refuses_empty_topics_and_filters(bench: Bench) -> None:
    """A topic name or filter has at least one character (U+0000 is row 2)."""
    v = bench.version
    for packet in (
        mq.publish("", b"x", version=v),
        mq.publish("", b"x", 1, version=v),
        mq.subscribe([("", 0)], 3, version=v),
        mq.unsubscribe([""], 3, version=v),
        mq.publish("a\0b", b"x", version=v),
        mq.subscribe([("a\0b", 0)], 3, version=v),
    ):
        client = bench.connect()
        client.send(packet)
        answer = client.receive()
        if answer is not None and answer.type == mq.SUBACK:
            assert answer.reasons == [0x8F if v == 5 else 0x80]
            continue
        assert answer is None or answer.type == mq.DISCONNECT
        assert answer is None or client.receive() is None


@row(92)
def test_mqtt_4_7_3_3_longest_topic(bench: Bench) -> None:
    """65,535 bytes are a topic; so are 256 levels (ours), and not one more."""
    long = bench.topic("x" * 65535)[:65535]
    wide = bench.topic("\u20ac" * 30000)
    wide = wide.encode()[: len(bench.tag) + 1 + 3 * 21000].decode()
    for topic in (long, wide):
        client = bench.subscriber(topic, qos=1)
        client.publish(topic, b"x", 1)
        client.message(topic=topic, payload=b"x")


@row(92)
def test_mqtt_4_7_3_3_deepest_topic(bench: Bench, ours: None) -> None:
    """Ours: 256 levels are served, 257 refused by themselves, in names and in filters."""
    deep = bench.topic("/" * 254)
    assert deep.count("/") == 255
    client = bench.subscriber(deep, bench.topic("#"), qos=1)
    client.publish(deep, b"x", 1)
    client.message(topic=deep, payload=b"x")
    client.expect_nothing()
    refused = 0x8F if bench.version == 5 else 0x80
    codes = client.subscribe((deep + "/", 0), (f"$share/g/{deep}/", 0), (deep + "+/#", 0), ("a", 1))
    assert codes == [refused, refused, refused, 1]
    assert client.unsubscribe(deep + "/") == ([0x11] if bench.version == 5 else [])
    for qos in (0, 1, 2):
        answer = client.publish(deep + "/", b"x", qos)
        assert answer is None or answer.reason == (0x90 if bench.version == 5 else 0)
    if bench.version == 5:
        client.send(mq.publish(deep + "/", b"x", 1, 77, version=5, props=[(mq.TOPIC_ALIAS, 1)]))
        client.expect(mq.PUBACK, packet_id=77, reason=0x90)
    client.publish(deep, b"y", 2)
    client.message(topic=deep, payload=b"y")
    client.expect_nothing()


@row(92)
def test_mqtt_4_7_3_3_deepest_will(bench: Bench, ours: None) -> None:
    """A will with more levels refuses its CONNECT, which can have no other."""
    client = bench.open()
    will = mq.Will(bench.topic("/" * 255))
    client.send(mq.connect(bench.client_id("a"), bench.version, will=will))
    client.expect(mq.CONNACK, reason=0x90 if bench.version == 5 else 5)
    assert client.receive() is None


@row(93)
def test_mqtt_4_7_3_4_does_not_normalise(bench: Bench) -> None:
    """Topics that look alike are different: case, empty levels, spaces, composed letters."""
    names = ["a", "A", "/a", "a/", "a/b", "a//b", " a", "a ", "\u00e9", "e\u0301", "a/./b", "%61"]
    clients = {name: bench.subscriber(bench.topic(name), qos=1) for name in names}
    publisher = bench.connect()
    for name in names:
        publisher.publish(bench.topic(name), name.encode(), 1, retain=True)
    for name, client in clients.items():
        client.message(topic=bench.topic(name), payload=name.encode())
        client.expect_nothing()
    for name in names:
        late = bench.subscriber(bench.topic(name))
        late.message(payload=name.encode(), retain=True)
        late.expect_nothing()
        publisher.publish(bench.topic(name), b"", retain=True)


@row(94)
@pytest.mark.parametrize("bad", BAD_SHARES)
def test_mqtt_4_8_2_1_refuses_bad_shares(bench: Bench, bad: str) -> None:
    """An empty name, a wildcard in it, or no filter: refused by its code or by the close."""
    client = bench.connect()
    client.send(mq.subscribe([(bad, 0)], 3, version=5))
    packet = client.receive()
    if packet is not None and packet.type == mq.SUBACK:
        assert packet.reasons[0] >= 0x80
    else:
        assert packet is None or (packet.type == mq.DISCONNECT and client.receive() is None)


@row(94)
def test_mqtt_4_8_2_2_parses_shares(bench: Bench) -> None:
    """The name is all up to the second slash, the filter all that follows, wildcards too."""
    client = bench.connect()
    share = f"$share/{bench.tag} g\u00e9/{bench.topic('+/#')}"
    assert client.subscribe(share, qos=1) == [1]
    publisher = bench.connect()
    publisher.publish(bench.topic("a/b"), b"x", 1)
    client.message(topic=bench.topic("a/b"), payload=b"x")
    assert client.unsubscribe(bench.topic("+/#")) == [0x11]
    assert client.unsubscribe(share) == [0]
    publisher.publish(bench.topic("a/b"), b"x", 1)
    client.expect_nothing()


def members(bench: Bench, count: int, qos: int = 2, filter_name: str = "#") -> list[RawClient]:
    share = f"$share/g{bench.tag}/{bench.topic(filter_name)}"
    clients = [bench.connect(f"m{n}") for n in range(count)]
    for client in clients:
        client.subscribe(share, qos=qos)
    return clients


def waiting(client: RawClient) -> list[mq.Packet]:
    """The messages on their way to a client (unacknowledged), up to a PINGRESP."""
    client.send(mq.pingreq())
    found = []
    while (packet := client.receive()) is not None and packet.type != mq.PINGRESP:
        found.append(packet)
    return found


@row(95)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_4_8_2_4_one_member_gets_each_message(bench: Bench, qos: int) -> None:
    """Each message goes to one member; everybody outside the group, and other groups, as ever."""
    group = members(bench, 3)
    outside = bench.subscriber(bench.topic("#"), qos=2)
    other_group = bench.subscriber(f"$share/o{bench.tag}/{bench.topic('#')}", qos=2)
    publisher = bench.connect()
    for number in range(30):
        publisher.publish(bench.topic(str(number)), b"%d" % number, qos)
    everything = [b"%d" % number for number in range(30)]
    assert [p.payload for p in outside.collect(30)] == everything
    assert [p.payload for p in other_group.collect(30)] == everything
    got = [packet for client in group for packet in waiting(client)]
    assert sorted(int(p.payload) for p in got) == list(range(30))
    assert all(p.qos == qos for p in got)


@row(95)
def test_mqtt_4_8_2_3_granted_qos_of_the_member(bench: Bench) -> None:
    """Each member gets its messages with its own granted QoS."""
    share = f"$share/g{bench.tag}/{bench.topic()}"
    group = [bench.subscriber((share, qos)) for qos in (0, 1, 2)]
    publisher = bench.connect()
    for number in range(30):
        publisher.publish(bench.topic(), b"%d" % number, 2)
    total = 0
    for qos, client in enumerate(group):
        packets = waiting(client)
        assert all(p.qos == qos for p in packets)
        total += len(packets)
    assert total == 30


@row(95)
def test_mqtt_4_8_2_5_qos_2_stays_with_its_member(bench: Bench) -> None:
    """A QoS 2 message that one member began is finished by that member, even after it left."""
    share = f"$share/g{bench.tag}/{bench.topic()}"
    clients = {name: bench.durable(name) for name in ("a", "b")}
    for client in clients.values():
        client.subscribe(share, qos=2)
    publisher = bench.connect()
    publisher.publish(bench.topic(), b"x", 2)
    taken = {name: waiting(client) for name, client in clients.items()}
    owner = next(name for name, packets in taken.items() if packets)
    other = "b" if owner == "a" else "a"
    assert not taken[other]
    (packet,) = taken[owner]
    clients[owner].send(mq.pubrec(packet.packet_id, 5))
    clients[owner].expect(mq.PUBREL, packet_id=packet.packet_id)
    clients[owner].drop()
    clients[other].expect_nothing()
    back = bench.durable(owner)
    back.expect(mq.PUBREL, packet_id=packet.packet_id)
    back.send(mq.pubcomp(packet.packet_id, 5))
    back.expect_nothing()
    clients[other].expect_nothing()


@row(95)
def test_mqtt_4_8_2_5_qos_2_ends_with_its_session(bench: Bench) -> None:
    """If that member's session ends before the message does, nobody else gets the message."""
    group = members(bench, 2)
    publisher = bench.connect()
    publisher.publish(bench.topic(), b"x", 2)
    taken = [waiting(client) for client in group]
    owner, other = group if taken[0] else reversed(group)
    owner.drop()
    other.expect_nothing()


@row(95)
def test_mqtt_4_8_2_5_qos_1_goes_to_another(bench: Bench, ours: None) -> None:
    """Ours: QoS 1 messages a member left behind with its session go to another member."""
    group = members(bench, 2)
    publisher = bench.connect()
    for number in range(6):
        publisher.publish(bench.topic(), b"%d" % number, 1)
    leaver, stayer = group
    left = waiting(leaver)
    own = waiting(stayer)
    assert len(left) + len(own) == 6
    leaver.drop()
    got = {stayer.message(qos=1).payload for _ in left}
    assert got == {p.payload for p in left}
    stayer.expect_nothing()


@row(95)
def test_mqtt_4_8_2_5_only_shared_messages_go_to_another(bench: Bench, ours: None) -> None:
    """What a leaving member had by an ordinary subscription is not the group's."""
    share = f"$share/g{bench.tag}/{bench.topic()}"
    leaver = bench.subscriber(share, bench.topic(), qos=1)
    stayer = bench.subscriber(share, qos=1)
    publisher = bench.connect()
    for number in range(6):
        publisher.publish(bench.topic(), b"%d" % number, 1)
    own = waiting(stayer)
    assert len(waiting(leaver)) == 12 - len(own)
    leaver.drop()
    stayer.send(*(mq.puback(p.packet_id, 5) for p in own))
    for _ in range(6 - len(own)):
        stayer.message(qos=1)
    stayer.expect_nothing()


@row(95)
def test_mqtt_4_8_2_3_beside_an_ordinary_subscription(bench: Bench) -> None:
    """Shared and ordinary subscriptions are apart: a client with both gets a copy for each."""
    share = f"$share/g{bench.tag}/{bench.topic()}"
    client = bench.subscriber(share, bench.topic("#"), bench.topic("+"), qos=1)
    publisher = bench.connect()
    publisher.publish(bench.topic(), b"x", 1)
    assert client.payloads(2) == [b"x", b"x"]
    client.expect_nothing()


@row(95)
@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt_4_8_2_6_dropped_when_the_member_refuses(bench: Bench, qos: int) -> None:
    """A message one member answers with an error code goes to nobody else."""
    group = members(bench, 2)
    publisher = bench.connect()
    for number in range(6):
        publisher.publish(bench.topic(), b"%d" % number, qos)
    taken = [waiting(client) for client in group]
    assert sum(map(len, taken)) == 6
    answer = mq.puback if qos == 1 else mq.pubrec
    for client, packets in zip(group, taken, strict=True):
        client.send(*(answer(p.packet_id, 5, 0x80) for p in packets))
    for client in group:
        client.expect_nothing()


@row(95)
def test_mqtt_4_8_2_3_no_retained_messages(bench: Bench) -> None:
    """A shared subscription gets no retained messages, new or renewed."""
    publisher = bench.connect()
    publisher.publish(bench.topic(), b"kept", 1, retain=True)
    share = f"$share/g{bench.tag}/{bench.topic('#')}"
    client = bench.subscriber(share, qos=1)
    client.expect_nothing()
    client.subscribe((share, IF_NEW | 1))
    client.expect_nothing()
    publisher.publish(bench.topic(), b"live", 1, retain=True)
    client.message(payload=b"live", retain=False)
    publisher.publish(bench.topic(), b"", retain=True)


@row(95)
def test_mqtt_4_8_2_4_present_members_first(bench: Bench, ours: None) -> None:
    """Ours: while a member is there, nothing waits for one that is away."""
    share = f"$share/g{bench.tag}/{bench.topic()}"
    away = bench.durable("away")
    away.subscribe(share, qos=1)
    present = bench.subscriber(share, qos=1)
    away.drop()
    publisher = bench.connect()
    for number in range(10):
        publisher.publish(bench.topic(), b"%d" % number, 1)
    assert [p.payload for p in present.collect(10)] == [b"%d" % n for n in range(10)]
    present.disconnect()
    publisher.publish(bench.topic(), b"for the absent", 1)
    bench.durable("away").message(payload=b"for the absent")
