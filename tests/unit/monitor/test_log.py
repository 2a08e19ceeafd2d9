"""The log is written by a thread, and nobody waits for it."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from twisted.internet.error import ReactorNotRunning
from twisted.logger import Logger, LogPublisher

from mqttd.config.schema import Log as Settings
from mqttd.monitor.event_log import EventLog
from mqttd.monitor.log.filter import LogLevelFilter
from mqttd.monitor.log.service import Log, LogError, log_for, target_of
from mqttd.monitor.log.targets import FileTarget, JournalTarget, StreamTarget, Target
from mqttd.monitor.log.writer import Writer

DEADLINE = 20.0


def told(count: int) -> bytes:
    return b"%d dropped\n" % count


class Gate(Target):
    """Takes lines when it is open; `came` holds them."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.busy = threading.Event()
        self.came: list[bytes] = []
        self.error: OSError | None = None

    def write(
        self, lines: Sequence[bytes], late: Callable[[], bool], seconds: float | None = None
    ) -> None:
        self.busy.set()
        assert self.open.wait(DEADLINE)
        if self.error is not None:
            raise self.error
        self.came += lines

    def describe(self) -> str:
        return "a gate"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            pass


def test_what_does_not_fit_is_dropped_counted_and_told() -> None:
    gate = Gate()
    writer = Writer(gate, 1000, told)
    writer.start()
    writer.put(b"first\n")
    assert gate.busy.wait(DEADLINE)  # the thread holds it and waits for its reader
    for _ in range(150):
        writer.put(b"123456789\n")
    assert writer.waiting <= 1000
    assert writer.dropped == 150 - 99
    gate.open.set()
    writer.stop()
    assert len(gate.came) == 100 and writer.written == 100
    writer.put(b"last\n")  # without a thread, at once
    assert gate.came[-1] == b"last\n"


def test_it_is_told_with_the_first_line_that_finds_room() -> None:
    gate = Gate()
    writer = Writer(gate, 25, told)
    writer.start()
    writer.put(b"first\n")
    assert gate.busy.wait(DEADLINE)
    for _ in range(4):
        writer.put(b"123456789\n")
    gate.open.set()
    while writer.waiting:
        threading.Event().wait(0.001)
    writer.put(b"next\n")
    writer.stop()
    assert gate.came[0] == b"first\n" and gate.came[-2:] == [b"3 dropped\n", b"next\n"]


def test_a_pipe_that_nobody_reads_holds_up_nothing(pipe: tuple[int, int]) -> None:
    reads, writes = pipe
    writer = Writer(StreamTarget(writes), 100_000, told)
    writer.start()
    for _ in range(10_000):
        writer.put(b"x" * 99 + b"\n")  # ten times what pipe and queue hold
    assert writer.dropped and writer.waiting <= 100_000
    got = 0
    while got < 100_000:
        got += len(os.read(reads, 65536))
    writer.put(b"and on\n")
    end = b""
    while not end.endswith(b"and on\n"):
        end = os.read(reads, 65536)
    writer.stop()


def test_at_the_end_of_the_process_a_reader_has_two_seconds(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqttd.monitor.log.writer._FAREWELL", 0.1)
    monkeypatch.setattr("mqttd.monitor.log.writer._AT_ONCE", 0.1)
    writer = Writer(StreamTarget(pipe[1]), 1_000_000, told)
    writer.start()
    for _ in range(2_000):
        writer.put(b"x" * 99 + b"\n")
    writer.stop()
    writer.put(b"farewell\n")
    assert writer.dropped and writer.fault == "nobody reads it"


def test_a_reader_that_is_gone_costs_the_lines_and_nothing_else(pipe: tuple[int, int]) -> None:
    reads, writes = pipe
    os.close(reads)
    writer = Writer(StreamTarget(writes), 100_000, told)
    writer.start()
    writer.put(b"a line\n")
    writer.stop()
    assert (writer.written, writer.dropped, writer.fault) == (0, 1, "Broken pipe")
    writer.put(b"another\n")
    assert writer.dropped == 2


def test_a_signal_handler_may_log_while_its_thread_does() -> None:
    gate = Gate()
    gate.open.set()
    writer = Writer(gate, 1000, told)
    with writer._lock:
        writer.put(b"from a handler\n")
    assert gate.came == [b"from a handler\n"]


# -- targets


def never() -> bool:
    return False


def test_a_file_is_rotated_and_so_many_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "mqttd.log"
    target = FileTarget(str(path), 100, 2)
    for number in range(8):
        target.write([b"%d" % number * 59 + b"\n"], never)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "mqttd.log",
        "mqttd.log.1",
        "mqttd.log.2",
    ]
    assert [(tmp_path / name).read_bytes()[:1] for name in ("mqttd.log.2", "mqttd.log")] == [
        b"5",
        b"7",
    ]
    assert path.stat().st_mode & 0o777 == 0o640
    target.write([b"%d" % number * 29 + b"\n" for number in range(7)], never)
    assert [file.stat().st_size for file in sorted(tmp_path.iterdir())] == [90, 90, 90]
    again = FileTarget(str(path), 100, 2)  # what is there counts
    again.write([b"8" * 59 + b"\n"], never)
    assert path.read_bytes()[:1] == b"8"


def test_a_file_that_is_moved_away_is_opened_anew(tmp_path: Path) -> None:
    path = tmp_path / "mqttd.log"
    target = FileTarget(str(path), 0, 2)
    target.write([b"one\n"], never)
    path.rename(tmp_path / "moved")
    target.write([b"two\n"], never)
    assert path.read_bytes() == b"two\n" and (tmp_path / "moved").read_bytes() == b"one\n"
    target.turn()
    target.write([b"three\n"], never)
    assert path.read_bytes() == b"three\n" and (tmp_path / "mqttd.log.1").read_bytes() == b"two\n"
    path.rename(tmp_path / "moved")
    target.turn()
    target.write([b"four\n"], never)
    assert path.read_bytes() == b"four\n" and (tmp_path / "mqttd.log.1").read_bytes() == b"two\n"
    assert not (tmp_path / "mqttd.log.2").exists()


def test_the_journal_gets_an_entry_a_line(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(path)
        log = Log(Settings(), JournalTarget(path), lambda: 0.0)
        log.say("error", "mqttd.access", "module failed", {"module": "x", "traceback": "a\nb"})
        entry = journal.recv(65536)
    text = b"module failed: module=x\n    a\n    b"
    assert entry == (
        b"PRIORITY=3\nSYSLOG_IDENTIFIER=mqttd\nMQTTD_MODULE=mqttd.access\n"
        b"MESSAGE\n" + len(text).to_bytes(8, "little") + text + b"\n"
    )


def test_where_it_cannot_be_written_the_error_names_the_key(tmp_path: Path) -> None:
    missing = str(tmp_path / "none" / "mqttd.log")
    with pytest.raises(LogError, match=r"log\.file .*none.*: No such file"):
        target_of(Settings(to="file", file=missing))
    with pytest.raises(LogError, match='log.to = "auto" .*No such file'):
        target_of(Settings(), missing)


@pytest.mark.parametrize(
    ("twistd", "kind"),
    [
        (None, LogLevelFilter),
        ({"syslog": True}, LogLevelFilter),
        ({"logger": "mine"}, LogLevelFilter),
        ({"nodaemon": True}, StreamTarget),
        ({"nodaemon": True, "logfile": "-"}, StreamTarget),
        ({"nodaemon": True, "logfile": "here.log"}, FileTarget),
        ({}, FileTarget),
    ],
)
def test_auto_is_what_twistd_was_told(
    twistd: dict[str, Any] | None, kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = log_for(Settings(), twistd)
    assert isinstance(log.writer.target if isinstance(log, Log) else log, kind)


# -- Twisted's lines, and events


def a_log(**keys: Any) -> tuple[Log, Gate]:
    gate = Gate()
    gate.open.set()
    return Log(msgspec.structs.replace(Settings(), **keys), gate, lambda: 0.0), gate


def test_twisted_is_quiet_and_a_failure_has_its_traceback() -> None:
    log, gate = a_log()
    publisher = LogPublisher(log)
    Logger(namespace="twisted.internet.protocol", observer=publisher).info("Starting factory {f}")
    mine = Logger(namespace="mqttd.plugin.x", observer=publisher)
    mine.debug("not this")
    mine.info("this {what}", what="one")
    try:
        raise ValueError("no")
    except ValueError:
        mine.failure("it went wrong")
    first, second = (line.decode().split(" ", 1)[1] for line in gate.came)
    assert first == "info  mqttd.plugin.x this one\n"
    assert second.startswith("error mqttd.plugin.x it went wrong\n    Traceback (most recent")
    assert second.endswith("ValueError: no\n")


def test_a_second_signal_while_it_stops_is_nothing_to_tell() -> None:
    log, gate = a_log()
    try:
        raise ReactorNotRunning("Can't stop reactor that isn't running.")
    except ReactorNotRunning:
        Logger(namespace="twisted", observer=LogPublisher(log)).failure("while calling")
    assert not gate.came


def test_where_it_was_noticed_that_no_file_is_left_to_open_is_nothing_to_tell() -> None:
    log, gate = a_log()
    try:
        raise OSError(errno.EMFILE, "Too many open files", "/dev/null")
    except OSError:
        Logger(namespace="twisted", observer=LogPublisher(log)).failure("Could not reserve one.")
    (line,) = gate.came
    assert line.decode().count("\n") == 1
    assert b"Could not reserve one.: [Errno 24] Too many open files: '/dev/null'" in line


def test_levels_change_while_it_is_written() -> None:
    log, gate = a_log()
    events = EventLog(lambda: 0.0, log.settings)
    events.write_to(log)
    fields: dict[str, object] = {"client_id": "a"}
    assert not events.admits("subscribed")
    log.set_level("mqttd.broker", "debug")
    assert events.admits("subscribed")
    events("subscribed", fields)
    log.set_level("mqttd.broker", "error")
    events("connected", fields)
    told = [line.split(b"mqttd.broker ")[1] for line in gate.came]
    assert told == [b"subscribed: client_id=a\n"]
    other = msgspec.structs.replace(log.settings, connections="off", rate=7)
    log.take_over(other)
    assert events.admits("connected") and not log.levels.modules
    events.take_over(other)
    assert events.rate == 7 and not events.admits("connected")


def test_a_flood_of_one_kind_is_so_many_lines_and_a_count() -> None:
    log, gate = a_log(rate=5)
    now = 0.0
    events = EventLog(lambda: now, log.settings)
    events.write_to(log)
    for _ in range(10_000):
        if events.admits("connected"):
            events("connected", {})
    events("denied", {})
    assert len(gate.came) == 6
    now = 1.0
    events.tick()
    assert b"connected: more_in_one_second=9995\n" in gate.came[-1]
    assert events.suppressed == 9995 and events.admits("connected")
    for _ in range(7):
        if events.admits("connected"):
            events("connected", {})
    events.tell_suppressed()  # the broker stops
    assert b"connected: more_in_one_second=2\n" in gate.came[-1]


def test_a_private_file_is_for_nobody_else_when_it_is_turned_over_too(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.touch(0o644)
    target = FileTarget(str(path), 10, 2, private=True)
    for _ in range(3):
        target.write([b"0123456789\n"], lambda: False)
    assert {entry.stat().st_mode & 0o777 for entry in tmp_path.iterdir()} == {0o600}
    assert len(list(tmp_path.iterdir())) == 3
