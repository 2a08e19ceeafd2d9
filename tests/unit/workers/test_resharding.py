"""Sessions move where they belong: all of them, once, whoever is killed on the way."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from twisted.logger import LogEvent, Logger, LogLevel, formatEvent

from mqttd.broker.retained.retained import Retained
from mqttd.codec import properties as prop
from mqttd.codec.packets import Publish
from mqttd.codec.parser import Parser
from mqttd.codec.serializer import serialize
from mqttd.mesh.frames import ABOUT, FOLLOWS, MEMBER, frame, packed
from mqttd.others import from_workers
from mqttd.storage.database import StoreError, connect
from mqttd.storage.entries import dump_retained
from mqttd.storage.lines import (
    VERSION,
    BanLine,
    End,
    Header,
    Line,
    MessageLine,
    RetainedLine,
    SessionLine,
    ValueLine,
)
from mqttd.storage.transfer import export_lines, import_lines, retained_line
from mqttd.workers import resharding
from mqttd.workers.place import worker_of
from mqttd.workers.resharding import data_of, reshard

CLIENTS = [f"c{n}" for n in range(40)]
MESSAGES = 3


def fill(data: Path) -> None:
    lines: list[Line] = [Header(version=VERSION, written_at=0, by="test")]
    for name in CLIENTS:
        lines.append(SessionLine(client_id=name, expiry=600, subscriptions=[("a/#", 1, 0)]))
        for n in range(MESSAGES):
            wire = b"\x32\x06\x00\x01a\x00\x01" + b"%d" % n
            lines.append(
                MessageLine(client_id=name, packet_id=0, state="queued", version=4, packet=wire)
            )
    lines.append(BanLine(kind="client_id", value="bad"))
    lines.append(ValueLine(plugin="p", key="k", value=b"v"))
    lines.append(End(lines=len(lines)))
    import_lines(str(data / "store.db"), lines)


def check(data: Path, count: int) -> None:
    """Every session is once at its worker, with its messages in their order."""
    found: Counter[str] = Counter()
    values = 0
    for number in range(1, count + 1):
        payloads: dict[str, list[bytes]] = {}
        bans = 0
        for line in export_lines(os.path.join(data_of(str(data), number, count), "store.db")):
            if isinstance(line, SessionLine):
                assert worker_of(line.client_id, count) == number
                assert [tuple(each) for each in line.subscriptions] == [("a/#", 1, 0)]
                found[line.client_id] += 1
            elif isinstance(line, MessageLine):
                payloads.setdefault(line.client_id, []).append(line.packet[-1:])
            bans += isinstance(line, BanLine)
            values += isinstance(line, ValueLine)
        assert bans == 1
        assert all(each == [b"0", b"1", b"2"] for each in payloads.values())
    assert found == Counter(CLIENTS)
    assert values == 1


def test_sessions_go_where_they_belong_and_back(tmp_path: Path) -> None:
    fill(tmp_path)
    for count in (3, 2, 5, 1):
        assert reshard(str(tmp_path), count) == len(CLIENTS)
        check(tmp_path, count)
        assert reshard(str(tmp_path), count) == -1
        check(tmp_path, count)


def retained(topic: str, payload: bytes) -> RetainedLine:
    name = topic.encode()
    wire = bytes((0x31, 2 + len(name) + len(payload))) + len(name).to_bytes(2, "big") + name
    kept = Retained(wire + payload, 0, False, 0, 0, "")
    return retained_line(dump_retained(kept, 0))


def left(topic: str, stamp: int) -> ValueLine:
    """As a worker notes what changes when the links have ended."""
    value = stamp.to_bytes(8, "big") + topic.encode()
    return ValueLine(plugin="$workers", key=f"left {stamp}", value=value)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_what_changed_after_the_links_had_ended_is_what_all_have(
    tmp_path: Path, count: int
) -> None:
    """As by wills at the end: those of all workers but the first were lost."""
    stores: dict[int, list[Line]] = {
        1: [*map(retained, "abcd", [b"old"] * 4), left("d", 7)],
        2: [retained("a", b"new"), retained("c", b"old"), retained("d", b"6"), left("a", 2),
            left("b", 4), left("d", 6), retained("e", b"new"), left("e", 3)],
        3: [*map(retained, "abcd", [b"old"] * 4), left("b", 3)],
    }  # fmt: skip
    for number, lines in stores.items():
        folder = tmp_path / f"worker-{number}"
        folder.mkdir()
        header = Header(version=VERSION, written_at=0, by="test")
        import_lines(str(folder / "store.db"), [header, *lines, End(lines=len(lines) + 1)])
    (tmp_path / "workers").write_text("3\n")
    reshard(str(tmp_path), count)
    for number in range(1, count + 1):
        path = os.path.join(data_of(str(tmp_path), number, count), "store.db")
        lines = [line for line in export_lines(path) if isinstance(line, RetainedLine)]
        found = {line.topic: line.packet[5:] for line in lines}
        assert found == {"a": b"new", "c": b"old", "d": b"old", "e": b"new"}


def wire(topic: str, payload: bytes, qos: int = 1, **properties: Any) -> bytes:
    """A PUBLISH as it crosses."""
    found = {getattr(prop, name): value for name, value in properties.items()}
    return serialize(Publish(topic, payload, qos, False, False, 1, found or None), 5)


def kept(key: str, value: bytes) -> ValueLine:
    return ValueLine(plugin="$workers", key=key, value=value)


def for_worker(number: int, messages: dict[int, bytes]) -> ValueLine:
    """A row of messages under their numbers, as a worker keeps them for another."""
    fields = [part for at, data in messages.items() for part in (at.to_bytes(8, "big"), data)]
    return kept(f"for {number} {max(messages):x}", packed(fields))


def taken(number: int, last: int, book: int) -> ValueLine:
    return kept(f"from {number}", last.to_bytes(8, "big") + book.to_bytes(8, "big"))


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("book", [7, 8])
def test_what_was_acknowledged_and_not_taken_yet_reaches_its_sessions(
    tmp_path: Path, count: int, book: int
) -> None:
    """A worker that did not live had messages waiting for it; `book`: 8 is not that of store 1."""
    member = frame(MEMBER, packed([b"$share/g/a", b"who"]))
    own = frame(ABOUT, packed([b"self", b"\0", (5).to_bytes(16, "big")]))
    flag = frame(FOLLOWS, b"\0\x01a")
    one = [
        kept("book", (7).to_bytes(8, "big")),
        for_worker(2, {3: wire("a", b"3"), 4: wire("a", b"4", 2)}),
        for_worker(2, {5: member + wire("a", b"5"), 6: own + wire("a", b"6")}),
        for_worker(2, {7: flag + wire("a", b"7", MESSAGE_EXPIRY_INTERVAL=60), 8: wire("b", b"8")}),
        for_worker(3, {9: wire("a", b"9")}),
    ]
    two: list[Line] = [
        SessionLine(client_id="qos 1", expiry=600, subscriptions=[("a", 1, 0)]),
        MessageLine(client_id="qos 1", packet_id=0, state="queued", version=5,
                    packet=wire("a", b"0")),
        SessionLine(client_id="self", expiry=600,
                    subscriptions=[("+", 2 | 4 | 8, 3), ("#", 1 | 4, 9), ("c", 1, 0)]),
        SessionLine(client_id="member", expiry=600, subscriptions=[("$share/g/a", 1, 0)]),
        SessionLine(client_id="qos 0", expiry=600, subscriptions=[("a", 0, 0)]),
        taken(1, 3, book),
    ]  # fmt: skip
    for number, lines in {1: one, 2: two}.items():
        folder = tmp_path / f"worker-{number}"
        folder.mkdir()
        header = Header(version=VERSION, written_at=0, by="test")
        import_lines(str(folder / "store.db"), [header, *lines, End(lines=len(lines) + 1)])
    (tmp_path / "workers").write_text("3\n")
    before = time.time() * 1000
    assert reshard(str(tmp_path), count) == 4
    found: dict[str, list[MessageLine]] = {}
    for number in range(1, count + 1):
        path = os.path.join(data_of(str(tmp_path), number, count), "store.db")
        for line in export_lines(path):
            if isinstance(line, MessageLine):
                assert line.packet_id == 0 and line.version == 5
                found.setdefault(line.client_id, []).append(line)
            assert not isinstance(line, ValueLine)
    again = ["3"] * (book != 7)
    got = {name: [publish_of(line) for line in lines] for name, lines in found.items()}
    assert {name: [packet.payload.decode() for packet in those] for name, those in got.items()} == {
        "qos 1": ["0", *again, "4", "6", "7"],
        "self": [*again, "4", "7", "8"],
        "member": ["5"],
    }
    assert {packet.qos for packet in got["qos 1"]} == {1}
    last = {packet.payload: packet for packet in got["self"]}
    assert last[b"4"].qos == 2 and last[b"7"].retain and not last[b"4"].retain
    assert last[b"4"].properties == {prop.SUBSCRIPTION_IDENTIFIER: [3, 9]}
    expires_at = {line.expires_at for line in found["self"]} - {0}
    assert all(before + 59_000 < at < time.time() * 1000 + 61_000 for at in expires_at)
    assert len(expires_at) == 1


def publish_of(line: MessageLine) -> Publish:
    (packet,) = Parser(5, role="client").feed(line.packet)
    assert isinstance(packet, Publish)
    return packet


def test_a_directory_that_is_new_has_nothing_to_move(tmp_path: Path) -> None:
    assert reshard(str(tmp_path), 3) == -1
    assert reshard(str(tmp_path), 1) == -1


@pytest.mark.parametrize("step", range(12))
def test_whoever_is_killed_on_the_way_goes_on_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    fill(tmp_path)
    assert reshard(str(tmp_path), 2) == len(CLIENTS)
    left = step
    real = os.replace

    class Killed(BaseException):
        pass

    def replace(source: str, target: str) -> None:
        nonlocal left
        if not left:
            raise Killed
        left -= 1
        real(source, target)

    monkeypatch.setattr(resharding.os, "replace", replace)
    try:
        reshard(str(tmp_path), 3)
    except Killed:
        monkeypatch.undo()
        reshard(str(tmp_path), 3)
    check(tmp_path, 3)


def test_a_store_that_cannot_be_read_is_told_and_stays(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"no store")
    with pytest.raises(StoreError):
        reshard(str(tmp_path), 2)
    assert (tmp_path / "store.db").read_bytes() == b"no store"


def test_what_is_damaged_is_told_once_and_stays(tmp_path: Path) -> None:
    """It was passed over without a word, and the file that it is in goes with the next change."""
    fill(tmp_path)
    path = str(tmp_path / "store.db")
    base = connect(path)
    base.execute("UPDATE block SET words = zeroblob(16) WHERE id = (SELECT max(id) FROM block)")
    base.close()
    left: list[str] = []
    assert reshard(str(tmp_path), 3, left) == len(CLIENTS)
    assert left == [f"{path}: block 1: its words are damaged"]
    assert reshard(str(tmp_path), 1, left) == len(CLIENTS)
    assert len(left) == 1


def test_what_is_damaged_is_logged_when_a_broker_starts(tmp_path: Path) -> None:
    fill(tmp_path)
    reshard(str(tmp_path), 2)
    base = connect(str(tmp_path / "worker-1/store.db"))
    base.execute("UPDATE block SET words = zeroblob(16)")
    base.close()
    events: list[LogEvent] = []
    from_workers(str(tmp_path), Logger(observer=events.append))
    told = [formatEvent(event) for event in events if event["log_level"] is LogLevel.error]
    assert len(told) == 1
    assert "worker-1/store.db: block 1" in told[0] and "store.db.before" in told[0]


def test_roles_and_bans_in_files_are_the_first_worker_s(tmp_path: Path) -> None:
    (tmp_path / "roles.json").write_text("roles")
    reshard(str(tmp_path), 2)
    assert (tmp_path / "worker-1/roles.json").read_text() == "roles"
    reshard(str(tmp_path), 3)
    reshard(str(tmp_path), 1)
    assert (tmp_path / "roles.json").read_text() == "roles"
    assert not (tmp_path / "worker-1/roles.json").exists()


def test_plugins_that_were_loaded_by_hand_are_every_worker_s(tmp_path: Path) -> None:
    (tmp_path / "loaded_plugins").write_text("guard\n")
    reshard(str(tmp_path), 3)
    for worker in (1, 2, 3):
        assert (tmp_path / f"worker-{worker}/loaded_plugins").read_text() == "guard\n"
    for worker in (1, 2, 3):
        path = tmp_path / f"worker-{worker}/loaded_plugins"
        path.write_text("guard\nother\n")
        os.utime(path, (time.time() + worker, time.time() + worker))
    reshard(str(tmp_path), 3)
    reshard(str(tmp_path), 1)
    assert (tmp_path / "loaded_plugins").read_text() == "guard\nother\n"
    (tmp_path / "loaded_plugins").write_text("")
    os.utime(tmp_path / "loaded_plugins", (time.time() + 10, time.time() + 10))
    reshard(str(tmp_path), 2)
    assert (tmp_path / "worker-2/loaded_plugins").read_text() == ""
