"""A broker with a store, in memory but for the file: when acknowledgements go, and what is written.

The writer is a list here: a group is written when the test says so.
"""

from __future__ import annotations

import gc
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.codec import properties as prop
from mqttd.codec.frame import size_at
from mqttd.codec.packets import (
    Connack,
    Connect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from mqttd.session.channel.listener import Listener
from mqttd.session.ground.settings import Settings
from mqttd.session.promise import Promise
from mqttd.session.session import Session
from mqttd.storage.blocks import Group
from mqttd.storage.database import connect
from mqttd.storage.durability import FSYNC, NONE, OS, UNSAID, Durability
from mqttd.storage.journal import StoreJournal
from mqttd.storage.ledger import RELEASED, Ledger
from mqttd.storage.recovery import read
from mqttd.storage.restore import restore
from mqttd.storage.writer import write
from mqttd.types import ClientInfo, Verdict
from tests.support.account import audit
from tests.support.memory import MemoryBroker, MemoryClient


class Kept:
    """A broker, and groups that wait to be written."""

    def __init__(self, path: Path, durability: Durability) -> None:
        self.base: sqlite3.Connection = connect(str(path))
        self.node = MemoryBroker()
        self.ledger = Ledger()
        self.waiting: list[Group] = []
        self.fsyncs: list[bool] = []
        broker = self.node.broker
        self.journal = StoreJournal(
            self.ledger, broker, self.waiting.append, lambda: 1000, 0, durability
        )
        broker.journal = self.journal
        self.node.wait = self.write

    def write(self) -> bool:
        """The writer has written one group, if one waits."""
        if not self.waiting:
            return False
        group = self.waiting.pop(0)
        self.fsyncs.append(group.fsync)
        write(self.base, group)
        self.journal.written(group)
        self.journal.release_all()
        self.node.broker.perform()
        return True

    def settle(self) -> None:
        while self.waiting:
            self.write()

    def client(self, client_id: str, kept: bool) -> MemoryClient:
        properties = {prop.SESSION_EXPIRY_INTERVAL: 1000} if kept else None
        client = self.node.connect(client_id, 5, False, properties=properties)
        self.settle()
        return client

    def subscriber(self, client_id: str, topic_filter: str, qos: int, kept: bool) -> MemoryClient:
        client = self.client(client_id, kept)
        client.send(Subscribe(1, [Subscription(topic_filter, qos)]))
        self.settle()
        client.take()
        return client

    def living(self) -> int:
        return len(read(self.base, Ledger()).records.get(1, []))


def make(path: Path, default: int = OS, topics: dict[str, int] | None = None) -> Kept:
    return Kept(path / "store.db", Durability(default, topics or {}))


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = make(tmp_path)
    yield made
    made.base.close()


def publish(
    client: MemoryClient, topic: str, qos: int, packet_id: int, retain: bool = False
) -> None:
    client.send(Publish(topic, b"x", qos, retain, False, packet_id, None))


def kinds(packets: list[Packet]) -> list[type]:
    return [type(packet) for packet in packets]


def test_a_message_that_nobody_keeps_is_acknowledged_at_once(kept: Kept) -> None:
    kept.subscriber("live", "t", 1, kept=False)
    publisher = kept.client("publisher", kept=False)
    publish(publisher, "t", 1, 1)
    assert kinds(publisher.take()) == [Puback]
    assert kept.waiting == []


def test_an_acknowledgement_waits_until_the_message_is_written(kept: Kept) -> None:
    """And those behind it wait too, in their order; live deliveries do not."""
    live = kept.subscriber("live", "#", 1, kept=False)
    kept.subscriber("away", "kept", 1, kept=True).drop()
    kept.settle()
    publisher = kept.client("publisher", kept=False)
    publish(publisher, "kept", 1, 1)
    publish(publisher, "free", 1, 2)
    assert publisher.take() == []
    assert len(live.published()) == 2
    kept.write()
    assert [packet.packet_id for packet in publisher.take()] == [1, 2]


def test_a_promise_that_is_kept_leaves_nothing_to_the_collector(kept: Kept) -> None:
    """Those that were circles grew old, and nobody looks for old ones."""
    kept.subscriber("away", "t", 1, kept=True).drop()
    kept.settle()
    publisher = kept.client("publisher", kept=False)

    def there() -> int:
        return sum(isinstance(one, Promise) for one in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = there()
        for number in range(1, 11):
            publish(publisher, "t", 1, number)
            kept.write()
        assert len(publisher.take()) == 10
        assert there() == before + 1  # the journal has the last one yet
    finally:
        gc.enable()


def test_what_several_turns_bring_for_one_group_is_promised_together(kept: Kept) -> None:
    """One promise for each group and connection, however many turns the disk takes."""
    kept.subscriber("away", "kept", 1, kept=True).drop()
    kept.settle()
    publisher = kept.client("publisher", kept=False)
    other = kept.client("other", kept=False)
    asked: list[object] = []
    publish(publisher, "kept", 1, 1)
    promises = publisher.channel.promises
    assert promises is not None
    for number in range(2, 5):
        publish(publisher, "kept", 1, number)
        publish(other, "kept", 1, number)
        asked.append(len(kept.journal._waiting.promises))
    assert asked == [2, 2, 2]
    publish(publisher, "free", 1, 5)  # waits behind them, for nothing of its own
    publish(publisher, "kept", 1, 6)
    assert len(kept.waiting) == 1 and len(promises) == 6
    kept.write()
    assert [packet.packet_id for packet in publisher.take()] == [1]
    publish(publisher, "kept", 1, 7)  # the group is under way: the next one's
    kept.write()
    assert [packet.packet_id for packet in publisher.take()] == [2, 3, 4, 5, 6]
    assert [packet.packet_id for packet in other.take()] == [2, 3, 4]
    kept.settle()
    assert [packet.packet_id for packet in publisher.take()] == [7]
    assert len(promises) == 0


def connecting(kept: Kept, client_id: str, clean: bool, **fields: object) -> MemoryClient:
    """A client that has sent CONNECT and PINGREQ."""
    client = kept.node.client(5)
    connect = Connect(client_id, version=5, clean_start=clean, **fields)  # type: ignore[arg-type]
    client.send(connect)
    client.send(Pingreq())
    return client


KEPT = {prop.SESSION_EXPIRY_INTERVAL: 1000}


@pytest.mark.parametrize(
    ("clean", "fields"),
    [(False, {"properties": KEPT}), (True, {"properties": KEPT}), (True, {}),
     (True, {"will": Will("w", b"", 0, False)})],
    ids=["goes on", "anew", "is over", "will"],
)  # fmt: skip
def test_connack_waits_for_what_it_says(kept: Kept, clean: bool, fields: dict[str, object]) -> None:
    """A session that begins, goes on or has ended, a will; and all that is behind CONNACK."""
    kept.subscriber("c", "t", 1, kept=True).drop()
    kept.settle()
    client = connecting(kept, "c", clean, **fields)
    assert client.take() == []
    publish(kept.client("publisher", kept=False), "t", 0, 0)
    kept.settle()
    connack, pong, *rest = client.take()
    assert isinstance(connack, Connack) and connack.session_present is not clean
    assert isinstance(pong, Pingresp)
    assert kinds(rest) == ([] if clean else [Publish])


def test_connack_that_promises_nothing_waits_for_nothing(kept: Kept) -> None:
    kept.subscriber("away", "t", 1, kept=True).drop()
    publisher = kept.client("publisher", kept=False)
    publish(publisher, "t", 1, 1)
    assert kept.waiting
    client = connecting(kept, "c", True)
    assert kinds(client.take()) == [Connack, Pingresp]


@pytest.mark.parametrize("before", [True, False])
def test_a_disk_that_takes_nothing_keeps_nobody_out(kept: Kept, before: bool) -> None:
    """Who waits when that begins, and who comes while it is so."""
    if before:
        kept.journal.fail(True)
    client = connecting(kept, "c", False, properties=KEPT)
    if not before:
        assert client.take() == []
        kept.journal.fail(True)
        kept.node.broker.perform()
    assert kinds(client.take()) == [Connack, Pingresp]
    kept.journal.fail(False)
    kept.settle()
    assert connecting(kept, "other", False, properties=KEPT).take() == []


def test_the_next_group_gathers_while_one_is_written(kept: Kept) -> None:
    kept.subscriber("away", "t", 1, kept=True).drop()
    kept.settle()
    publisher = kept.client("publisher", kept=False)
    for number in range(1, 6):
        publish(publisher, "t", 1, number)
    assert len(kept.waiting) == 1
    kept.write()
    assert [packet.packet_id for packet in publisher.take()] == [1]
    assert len(kept.waiting) == 1
    kept.write()
    assert [packet.packet_id for packet in publisher.take()] == [2, 3, 4, 5]
    assert kept.waiting == []


def test_a_qos_2_delivery_goes_out_when_it_is_known_under_which_id(kept: Kept) -> None:
    subscriber = kept.subscriber("there", "t", 2, kept=True)
    publisher = kept.client("publisher", kept=False)
    publish(publisher, "t", 2, 1)
    assert subscriber.take() == []
    kept.write()
    (message,) = subscriber.published()
    subscriber.send(Pubrec(message.packet_id, 0, None))
    assert subscriber.take() == []
    kept.write()
    assert kinds(subscriber.take()) == [Pubrel]


@pytest.mark.parametrize("fast", [True, False])
def test_what_is_new_at_qos_0_goes_behind_what_is_retained_of_its_topic(
    kept: Kept, fast: bool
) -> None:
    """That waits behind SUBACK until it is written (MQTT-4.6.0-5)."""
    publisher = kept.client("publisher", kept=False)
    publisher.send(Publish("t", b"old", 0, True))
    subscriber = kept.client("subscriber", kept=True)
    subscriber.take()
    subscriber.send(Subscribe(1, [Subscription("t", 1, retain_as_published=not fast)]))
    publisher.send(Publish("t", b"new", 0))
    publisher.send(Publish("t", b"newer", 0))
    assert subscriber.take() == []
    kept.settle()
    suback, *messages = subscriber.take()
    assert isinstance(suback, Suback)
    assert [m.payload for m in messages if isinstance(m, Publish)] == [b"old", b"new", b"newer"]
    # And then nothing waits any more, nor goes one by one.
    publisher.send(Publish("t", b"newest", 0))
    assert [m.payload for m in subscriber.published()] == [b"newest"]
    assert subscriber.channel.special is False


def test_other_options_of_a_subscription_turn_nothing_round(kept: Kept) -> None:
    """What went one by one, and waits behind SUBACK, is not overtaken by what goes as it came."""
    publisher = kept.client("publisher", kept=False)
    subscriber = kept.client("subscriber", kept=True)
    subscriber.take()
    subscriber.send(Subscribe(1, [Subscription("t", 0, retain_as_published=True)]))
    publisher.send(Publish("t", b"one", 0))
    subscriber.send(Subscribe(2, [Subscription("t", 0)]))
    publisher.send(Publish("t", b"two", 0))
    kept.settle()
    assert [m.payload for m in subscriber.published()] == [b"one", b"two"]


def test_a_retained_message_is_waited_for(kept: Kept) -> None:
    publisher = kept.client("publisher", kept=False)
    publish(publisher, "r", 1, 1, retain=True)
    assert publisher.take() == []
    kept.write()
    assert kinds(publisher.take()) == [Puback]


@pytest.mark.parametrize(
    ("default", "topics", "waits", "fsync"),
    [
        (NONE, {}, False, False),
        (OS, {}, True, False),
        (FSYNC, {}, True, True),
        (OS, {"t": FSYNC}, True, True),
        (OS, {"other": FSYNC}, True, False),
        (FSYNC, {"t": NONE}, False, False),
        (NONE, {"#": OS, "t": FSYNC}, True, True),
    ],
)
def test_what_is_promised_depends_on_the_topic(
    tmp_path: Path, default: int, topics: dict[str, int], waits: bool, fsync: bool
) -> None:
    """`durability.default` and `durability.topics`."""
    kept = make(tmp_path, default, topics)
    kept.subscriber("away", "t", 1, kept=True).drop()
    kept.settle()
    publisher = kept.client("publisher", kept=False)
    publish(publisher, "t", 1, 1)
    assert (publisher.take() == []) is waits
    kept.fsyncs.clear()
    kept.settle()
    assert kept.fsyncs == [fsync]
    kept.base.close()


def test_what_was_acknowledged_leaves_nothing(kept: Kept) -> None:
    """Rows go when nothing of them lives."""
    subscriber = kept.subscriber("there", "t", 1, kept=True)
    publisher = kept.client("publisher", kept=False)
    for number in range(1, 30):
        publish(publisher, "t", 1, number)
    kept.settle()
    assert kept.living() == 29
    for message in subscriber.published():
        subscriber.send(Puback(message.packet_id, 0, None))
    kept.settle()
    assert kept.living() == 0
    assert kept.base.execute("SELECT count(*) FROM block").fetchone()[0] == 0


@pytest.mark.parametrize(
    ("listener", "topic", "waits", "fsync"),
    [
        (UNSAID, "t/x", True, False),
        (NONE, "t/x", False, False),
        (FSYNC, "t/x", True, True),
        (NONE, "t/alarm", True, True),
        (FSYNC, "t/noise", False, False),
    ],
)
def test_a_listener_promises_what_its_topics_leave_open(
    tmp_path: Path, listener: int, topic: str, waits: bool, fsync: bool
) -> None:
    """A filter of `durability.topics` comes before the listener, the default behind it."""
    kept = make(tmp_path, OS, {"t/alarm": FSYNC, "t/noise": NONE})
    kept.subscriber("away", "t/#", 1, kept=True).drop()
    kept.settle()
    publisher = kept.client("publisher", kept=False)
    channel = kept.node.broker.sessions["publisher"].channel
    assert channel is not None
    kept.journal.listeners = {channel.listener: Listener(channel.listener, durability=listener)}
    kept.fsyncs.clear()
    publish(publisher, topic, 1, 1)
    assert (publisher.take() == []) == waits
    kept.settle()
    assert kept.fsyncs == [fsync]


def test_a_puback_for_what_is_released_leaves_it_as_it_was(kept: Kept) -> None:
    """It was kept as a message anew, whose bytes are none: after a restart its client crashed."""
    subscriber = kept.subscriber("there", "t", 2, kept=True)
    publish(kept.client("publisher", kept=False), "t", 2, 1)
    kept.settle()
    (message,) = subscriber.published()
    subscriber.send(Pubrec(message.packet_id, 0, None))
    kept.settle()
    subscriber.send(Puback(message.packet_id, 0, None))
    kept.settle()
    assert subscriber.closed
    (record,) = read(kept.base, Ledger()).records[1]
    assert (record.kind, record.packet_id) == (RELEASED, message.packet_id)
    node = MemoryBroker()
    node.broker.journal = StoreJournal(
        Ledger(), node.broker, lambda group: None, lambda: 1000, 0, Durability(NONE, {})
    )
    restored = restore(node.broker, node.broker.journal, kept.base, read(kept.base, Ledger()))
    assert (restored.sessions, restored.messages, restored.unreadable) == (1, 1, 0)
    back = node.connect("there", 5, False, properties={prop.SESSION_EXPIRY_INTERVAL: 1000})
    node.broker.perform()
    assert not back.closed
    assert not node.broker.sessions["there"].pending()


def test_a_record_of_a_message_that_is_none_is_unreadable(kept: Kept) -> None:
    kept.subscriber("away", "t", 1, kept=True).drop()
    kept.settle()
    kept.journal.sent(1, 1, b"\x62\x02\x00\x00", False)
    kept.node.broker.perform()
    kept.settle()
    node = MemoryBroker()
    node.broker.journal = StoreJournal(
        Ledger(), node.broker, lambda group: None, lambda: 1000, 0, Durability(OS, {})
    )
    restored = restore(node.broker, node.broker.journal, kept.base, read(kept.base, Ledger()))
    assert restored.unreadable == 1
    assert not node.broker.sessions["away"].pending()


def test_what_is_retained_is_there_again_whatever_the_limits_are_now(kept: Kept) -> None:
    publisher = kept.client("publisher", kept=False)
    for number in range(3):
        publish(publisher, f"r/{number}", 1, 1, retain=True)
        kept.settle()
    settings = Settings()
    settings.retained_max_messages = settings.retained_max_bytes = 1
    node = MemoryBroker(settings)
    node.broker.journal = StoreJournal(
        Ledger(), node.broker, lambda group: None, lambda: 1000, 0, Durability(OS, {})
    )
    restored = restore(node.broker, node.broker.journal, kept.base, read(kept.base, Ledger()))
    assert restored.retained == len(node.broker.retainer) == 3
    audit(node.broker, [])


def test_wills_that_are_put_back_are_charged_for_as_others_are(kept: Kept) -> None:
    """They were given back and never taken, and one without a session left a session's weight."""
    will = Will("w", b"x" * 1000, 1, False, {prop.WILL_DELAY_INTERVAL: 500})
    for client_id, lasting in (("there", 1000), ("short", 0)):
        client = kept.node.client(5)
        properties = {prop.SESSION_EXPIRY_INTERVAL: lasting}
        client.send(
            Connect(
                client_id, version=5, username="u", password=b"", properties=properties, will=will
            )
        )
        kept.settle()
    node = MemoryBroker()
    node.broker.journal = StoreJournal(
        Ledger(), node.broker, lambda group: None, lambda: 1000, 0, Durability(OS, {})
    )
    restore(node.broker, node.broker.journal, kept.base, read(kept.base, Ledger()))
    assert node.broker.metrics.wills_published == 1
    assert list(node.broker.sessions) == ["there"]
    audit(node.broker, [])
    node.broker.end_session("there", 0x98)
    audit(node.broker, [])
    assert not node.broker.account.sessions and not node.broker.account.purses


@pytest.mark.parametrize("ended", [False, True], ids=["open", "ended before"])
def test_a_stop_does_not_wait_for_who_has_no_connack(kept: Kept, ended: bool) -> None:
    """Their wills were due when access control was closed, denied, and lost."""
    watcher = kept.subscriber("watcher", "w", 1, kept=False)
    client = kept.node.client(5)
    will = Will("w", b"gone", 1, False, None)
    client.send(Connect("c", version=5, properties=KEPT, will=will))
    if ended:
        client.send(Pingreq(), Connect("c", version=5))
    assert client.take() == [] and kept.waiting
    kept.node.broker.stop()
    kept.node.broker.perform()
    kept.node.access.denied.add("w")
    assert [packet.payload for packet in watcher.published()] == [b"gone"]
    kept.settle()
    assert client.read() == b"" and client.wire.closed
    assert kept.node.broker.channels == 1
    audit(kept.node.broker, [watcher.channel])


@pytest.mark.parametrize("lasting", [0, 1000], ids=["due at once", "due later"])
@pytest.mark.parametrize("old", [False, True], ids=["", "written without its origin"])
@pytest.mark.parametrize("denied", [False, True])
def test_the_right_to_a_will_that_was_kept_is_asked_for_again(
    kept: Kept, lasting: int, old: bool, denied: bool
) -> None:
    will = Will("w", b"x", 1, False, {prop.WILL_DELAY_INTERVAL: 5} if lasting else None)
    properties = {prop.SESSION_EXPIRY_INTERVAL: lasting}
    kept.node.connect("c", 5, will=will, properties=properties, username="u")
    kept.settle()
    if old:
        ((packet,),) = kept.base.execute("SELECT packet FROM will").fetchall()
        bare = packet[: size_at(packet, 0, len(packet))]
        assert len(bare) < len(packet)
        kept.base.execute("UPDATE will SET packet = ?", (bare,))
    node = MemoryBroker()
    if denied:
        node.access.denied.add("w")
    asked: list[ClientInfo] = []
    node.hooks.hook(
        "client.authorize",
        lambda client, action, topic, acc: asked.append(client) or Verdict.IGNORE,
    )
    node.broker.journal = StoreJournal(
        Ledger(), node.broker, lambda group: None, lambda: 1000, 0, Durability(OS, {})
    )
    restore(node.broker, node.broker.journal, kept.base, read(kept.base, Ledger()))
    node.advance(10_000)
    assert node.broker.metrics.wills_published == (0 if denied else 1)
    assert node.broker.metrics.publishes_denied == (1 if denied else 0)
    (client,) = asked
    before = kept.node.broker.client_of(kept.node.broker.sessions["c"])
    assert (client.client_id, client.username) == ("c", "u")
    assert before.peerhost and client.peerhost == ("" if old else before.peerhost)
    assert client.listener == ("" if old else before.listener)


def test_a_will_whose_right_came_with_the_authentication_is_not_asked_about(kept: Kept) -> None:
    """As for retained messages: nobody knows it any more."""
    client = ClientInfo("c", "u", "192.0.2.1", 1, "tcp:default", 5, superuser=True)
    session = Session(kept.node.broker, "c", "u")
    kept.node.broker.wills.keep(session, Will("w", b"x", 1, False, None), client)
    kept.node.broker.perform()
    kept.settle()
    node = MemoryBroker()
    node.access.denied.add("w")
    node.broker.journal = StoreJournal(
        Ledger(), node.broker, lambda group: None, lambda: 1000, 0, Durability(OS, {})
    )
    restore(node.broker, node.broker.journal, kept.base, read(kept.base, Ledger()))
    assert node.broker.metrics.wills_published == 1


def test_publishers_wait_for_a_disk_that_cannot_follow(kept: Kept) -> None:
    """128 MiB of retained messages waited for the disk beside those that were held."""
    sender = kept.client("s", False)
    publish(sender, "first", 1, 1, retain=True)
    unwritten = 0
    for i in range(40):
        if sender.channel.paused:
            break
        sender.send(Publish(f"t/{i}", b"x" * 900_000, 1, True, packet_id=i + 2))
        unwritten = kept.journal.unwritten
        assert kept.node.broker.memory.used() >= unwritten > 900_000 * i
    assert sender.channel.paused and 16 << 20 < unwritten < 32 << 20
    kept.write()  # the first; what has gathered is at work now, and takes more
    assert kept.node.broker.congested and kept.journal.unwritten > unwritten
    kept.write()
    assert not sender.channel.paused and kept.journal.unwritten == 0
    audit(kept.node.broker, [sender.channel])


def test_who_has_nothing_kept_does_not_wait_for_a_disk_that_cannot_follow(kept: Kept) -> None:
    """Messages that somebody had kept held up all publishers, those of QoS 0 to nobody too."""
    sender, other = kept.client("s", False), kept.client("o", False)
    for number in range(1, 41):
        if sender.channel.paused:
            break
        sender.send(Publish(f"t/{number}", b"x" * 900_000, 1, True, packet_id=number))
    assert sender.channel.paused and kept.node.broker.congested
    other.send(Publish("live/t", b"", 1, packet_id=1), Publish("live/t", b""))
    assert not other.channel.paused and len(other.take()) == 1
    kept.node.broker.set_congested(True, "event log")
    other.send(Publish("live/t", b""))
    assert other.channel.paused, "not the store alone"
    kept.node.broker.set_congested(False, "event log")
    kept.settle()
    kept.node.run_soon()
    assert not sender.channel.paused and not other.channel.paused


def test_who_only_pings_does_not_wait_for_a_disk_that_cannot_follow(kept: Kept) -> None:
    """A thousand sessions came back while a disk stood still: others had no PINGRESP."""
    sender, other = kept.client("s", False), kept.client("o", False)
    kept.node.broker.set_congested(True)
    sender.send(Publish("t", b""))
    assert sender.channel.paused
    for _ in range(2):
        other.send(Pingreq())
        assert not other.channel.paused
        assert len(other.take()) == 1
    # Those that were sent until we looked come together, with the begin of another.
    for data, count in (b"\xc0\0" * 2 + b"\xc0", 2), (b"\0" + b"\xc0\0" * 3, 4):
        other.feed(data)
        assert not other.channel.paused
        assert len(other.take()) == count
    other.send(Pingreq(), Publish("t", b""))
    assert other.channel.paused
    kept.node.broker.set_congested(False)
    kept.node.run_soon()
    assert not sender.channel.paused


def test_nobody_waits_for_a_disk_that_takes_nothing(kept: Kept) -> None:
    """What would have to be kept is refused then, and all else goes on."""
    sender = kept.client("s", False)
    for i in range(20):
        sender.send(Publish(f"t/{i}", b"x" * 900_000, 1, True, packet_id=i + 1))
    assert sender.channel.paused
    kept.journal.stuck = True
    kept.journal.weigh()
    kept.node.broker.perform()
    kept.node.run_soon()
    assert not sender.channel.paused and kept.journal.unwritten > 900_000


def test_publishers_wait_for_what_is_deleted_as_for_what_is_written(kept: Kept) -> None:
    ledger, broker = kept.ledger, kept.node.broker
    numbers = []
    for _ in range(40_000):
        numbers.append(ledger.note(1, RELEASED, 1, b""))
        assert ledger.close() is not None
    for number in numbers:
        kept.journal.forget(number)
    assert len(ledger.group.drops) == 40_000
    broker.perform()
    assert broker.congested
    unwritten = kept.journal.unwritten
    assert unwritten < 1 << 20, "it takes no memory"
    kept.settle()
    assert not broker.congested
