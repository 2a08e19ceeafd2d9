"""Replay: what is sent, where, in which order and when; and the broker's half of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqttd.codec.properties import CONTENT_TYPE, USER_PROPERTY, Properties, encode_properties
from mqttd.pipeline.feed import encode
from mqttd.pipeline.log.reader import DataLoss, LogReader
from mqttd.pipeline.log.schema import Event
from mqttd.pipeline.log.writer import Writer
from mqttd.pipeline.replay import Replayed, parse_speed, recorded, replay
from mqttd.testing import MemoryBroker
from mqttd_plugins.spark import spark
from tests.unit.pipeline.logs import NODE, START, delete_first, fill, written


class List:
    """A target that remembers; its time passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.got: list[Any] = []
        self.flushed = 0

    def publish(self, topic: str, payload: bytes, qos: int, retain: bool, properties: Any) -> None:
        self.got.append((round(self.now, 6), topic, payload, qos, retain, properties))

    def flush(self) -> None:
        self.flushed = len(self.got)

    def sleep(self, seconds: float) -> None:
        assert self.flushed == len(self.got)
        self.now += seconds

    def run(
        self, found: Any, topic_filter: str | None = None, prefix: str = "", **more: Any
    ) -> Replayed:
        return replay(
            iter(found),
            self,
            topic_filter,
            prefix,
            clock=lambda: self.now,
            sleep=self.sleep,
            **more,
        )


def event(at: float, topic: str = "a/b", payload: bytes | None = b"x", **more: Any) -> Event:
    return Event(0, NODE, "message.publish", START + round(at * 1e6), topic=topic, qos=1,
                 payload=payload, **more)  # fmt: skip


@pytest.mark.parametrize(
    ("speed", "times"), [("1x", [0, 1, 3]), ("10x", [0, 0.1, 0.3]), ("max", [0, 0, 0])]
)
def test_messages_come_at_the_pace_they_were_recorded_with(speed: str, times: list[float]) -> None:
    to = List()
    done = to.run([event(5), event(6), event(8)], None, "again/", speed=parse_speed(speed))
    assert [one[0] for one in to.got] == times
    assert {one[1] for one in to.got} == {"again/a/b"} and to.flushed == done.sent == 3


def test_only_what_matches_and_has_a_payload_is_sent_the_rest_is_counted() -> None:
    gap = Event(0, NODE, "log.gap", START, lost=7)
    to = List()
    found = [event(0), event(0, "c"), gap, event(0, payload=None), event(0, retain=True)]
    done = to.run(found, "a/#", speed=0.0)
    assert done == Replayed(sent=2, without_payload=1, lost=7)
    assert [one[4] for one in to.got] == [False, False]
    to.run([event(0, retain=True)], speed=0.0, retain=True)
    assert to.got[-1][4] is True


def test_properties_travel_along() -> None:
    given: Properties = {USER_PROPERTY: [("k", "v")], CONTENT_TYPE: "text/plain"}
    to = List()
    to.run([event(0, properties=encode_properties(given))])
    assert to.got[0][5] == given


@pytest.mark.parametrize("text", ["", "x", "0x", "-1x", "fast", "1e3x", "nan"])
def test_a_wrong_speed_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="expected a speed such as"):
        parse_speed(text)


def test_a_range_is_read_from_the_log_nodes_merged_by_time(tmp_path: Path) -> None:
    log = written(tmp_path, 3)
    other = Writer(str(log), "other")
    fill(other, 2)
    other.close()
    reader = LogReader(str(log))
    found = list(recorded(reader))
    assert [one.timestamp for one in found] == sorted(one.timestamp for one in found)
    assert len(found) == 50
    assert [one.seq for one in recorded(reader, "5", "8", NODE)] == [5, 6, 7]
    with pytest.raises(ValueError, match="offsets count per node, and there are mqttd, other"):
        list(recorded(reader, "5"))
    with pytest.raises(ValueError, match="expected an offset or a time"):
        list(recorded(reader, "yesterday"))


def test_a_range_that_is_gone_stops_it(tmp_path: Path) -> None:
    log = written(tmp_path, 30, 100, segment_bytes=10_000)
    delete_first(log / NODE)
    with pytest.raises(DataLoss, match="deleted by retention"):
        list(recorded(LogReader(str(log)), "0", "10"))


# -- in the broker


def test_a_feed_reaches_subscribers_or_one_client_only(tmp_path: Path) -> None:
    import json

    broker = MemoryBroker()
    loaded = broker.load(spark, {"path": str(tmp_path / "log")})
    try:
        alice, bob = broker.connect("alice"), broker.connect("bob")
        for client in (alice, bob):
            client.subscribe("again/#", qos=1)
        given: Properties = {USER_PROPERTY: [("k", "v")]}
        text = json.dumps([encode("again/a", b"\0x", 1, False, given)])
        assert loaded.command("feed", "", text) == "1"
        broker.settle()
        for client in (alice, bob):
            (got,) = client.messages()
            assert (got.topic, got.payload, got.properties) == ("again/a", b"\0x", given)
        loaded.command("feed", "alice", json.dumps([encode("a", b"1", 1, False, None)] * 3))
        broker.settle()
        assert [one.topic for one in alice.messages()] == ["a"] * 3
        assert bob.messages() == []
        with pytest.raises(Exception, match="client 'carol' is not connected"):
            loaded.command("feed", "carol", text)
    finally:
        log = loaded.plugin.log
        loaded.plugin.unload()
        assert log.join(30)
