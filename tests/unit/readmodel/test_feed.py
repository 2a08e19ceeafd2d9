"""The feed of events: who reads gets them, who does not is overtaken, and nobody costs nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock

from mqttd.monitor.event_log import EventLog
from mqttd.readmodel import feed as module
from mqttd.readmodel.feed import KINDS, PIECE, Feed
from mqttd.readmodel.figures import Figures
from tests.unit.admin.node import make_broker

ALL = frozenset(KINDS)


class Told:
    """A feed beside its log of events."""

    def __init__(self, tmp_path: Path) -> None:
        self.clock = Clock()
        self.events = EventLog(self.clock.seconds)
        listeners = self.events.listeners
        figures = Figures(make_broker(tmp_path))
        self.feed = Feed(figures, listeners.append, listeners.remove, self.clock)


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path)


def parsed(data: bytes) -> list[tuple[str, Any]]:
    found = []
    for block in data.decode().split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        found.append((fields["event"], json.loads(fields["data"])))
    return found


def test_a_reader_gets_its_kinds_from_when_it_came(told: Told) -> None:
    told.events("connected", {"client_id": "before"})
    reader = told.feed.read(frozenset(("clients",)))
    told.events("connected", {"client_id": "a"})
    told.events("denied", {"client_id": "a"})
    told.events("something else", {"client_id": "a"})
    assert parsed(reader.take()) == [("clients", {"event": "connected", "client_id": "a"})]
    assert reader.take() == b""


def test_events_are_told_whatever_the_log_writes(told: Told) -> None:
    told.events.levels["connected"] = "off"
    assert not told.events.admits("connected")
    reader = told.feed.read(ALL)
    reader.take()
    assert told.events.admits("connected")
    told.events("connected", {"client_id": "\ud800\n\n"})
    (one,) = parsed(reader.take())
    assert one[1]["client_id"] == "\ud800\n\n"


def test_figures_come_once_a_second_while_somebody_reads(told: Told) -> None:
    assert not told.clock.getDelayedCalls()
    reader = told.feed.read(frozenset(("counters",)))
    for _ in range(3):
        told.clock.advance(1)
    found = parsed(reader.take())
    assert [kind for kind, _ in found] == ["counters"] * 3
    assert found[-1][1]["gauges"]["sessions"] == 0 and "bytes_received" in found[-1][1]["counters"]
    reader.close()
    assert not told.clock.getDelayedCalls() and not told.events.listeners


def test_one_that_does_not_read_is_overtaken_and_told(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EVENTS", 10)
    slow, fast = told.feed.read(ALL), told.feed.read(ALL)
    slow.take(), fast.take()
    for number in range(25):
        told.events("connected", {"client_id": str(number)})
        fast.take()
    assert len(told.feed._ring) == 10
    lost, *rest = parsed(slow.take())
    assert lost == ("lost", {"events": 15}) and len(rest) == 10


def test_who_goes_on_behind_an_event_of_another_process_is_told_that_some_are_lost(
    told: Told,
) -> None:
    told.clock.advance(1000)  # numbers begin with the time of the start
    listeners = told.events.listeners
    feed = Feed(told.feed.figures, listeners.append, listeners.remove, told.clock)
    late = feed.read(ALL, 1)
    told.events("connected", {"client_id": "a"})
    (lost, *_, one) = parsed(late.take())
    assert lost == ("lost", {"events": None}) and one[1]["client_id"] == "a"
    assert late.take() == b""


def test_what_is_kept_is_bounded_in_bytes(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BYTES", 1000)
    told.feed.read(ALL)
    for _ in range(50):
        told.events("connected", {"client_id": "x" * 300})
    assert told.feed._bytes <= 1000
    assert told.feed._bytes == sum(len(entry) for _, _, entry in told.feed._ring)


def test_a_reader_that_comes_back_goes_on_where_it_was(told: Told) -> None:
    first, other = told.feed.read(frozenset(("clients",))), told.feed.read(ALL)
    told.events("connected", {"client_id": "a"})
    place = int(first.take().split(b"id: ")[1].split(b"\n")[0])
    first.close()
    told.events("connected", {"client_id": "b"})
    again = told.feed.read(frozenset(("clients",)), place)
    assert parsed(again.take()) == [("clients", {"event": "connected", "client_id": "b"})]
    assert told.feed.read(ALL, place + 10**9).take() == b""
    other.close()


def test_a_reader_is_given_so_much_at_once_and_the_rest_after_it(told: Told) -> None:
    """Two hundred streams that are read slowly had a MiB each waiting."""
    reader = told.feed.read(frozenset(("clients",)))
    for number in range(900):
        told.events("connected", {"client_id": f"{number}", "text": "x" * 1000})
        told.events("denied", {"client_id": "left out"})
    pieces = []
    while data := reader.take():
        pieces.append(data)
    assert len(pieces) > 6 and max(map(len, pieces)) <= PIECE
    found = [told["client_id"] for _, told in parsed(b"".join(pieces))]
    assert found == [str(number) for number in range(900)]
    told.events("connected", {"client_id": "x" * 2 * PIECE})
    assert len(reader.take()) > PIECE and not reader.take()
