"""The last lines of the log stay in memory, and no more of them than there is room for."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqttd.config.schema import Log as Settings
from mqttd.monitor.log.service import Log
from mqttd.monitor.log.tail import BYTES, LINES, LONGEST, Tail
from mqttd.monitor.log.targets import FileTarget, JournalTarget, Target


def test_lines_by_their_numbers() -> None:
    tail = Tail()
    assert tail.after(0) == (0, [])
    tail.put(b"one\n")
    tail.put(b"two\n")
    assert tail.after(0) == (2, ["one", "two"])
    assert tail.after(1) == (2, ["two"])
    assert tail.after(2) == (2, [])


def test_it_is_bounded_in_lines_and_bytes() -> None:
    tail = Tail()
    for number in range(LINES + 10):
        tail.put(b"%d\n" % number)
    last, lines = tail.after(0)
    assert (last, len(lines), lines[0]) == (LINES + 10, LINES, "10")
    for _ in range(100):
        tail.put(b"x" * 100_000)
    _, lines = tail.after(0)
    assert len(lines) == BYTES // LONGEST


@pytest.mark.parametrize("kind", ["file", "journal"])
def test_a_log_keeps_lines_also_where_it_writes_entries(tmp_path: Path, kind: str) -> None:
    class Nowhere(JournalTarget):
        def __init__(self) -> None: ...

        def write(self, *what: object) -> None: ...

    target: Target = FileTarget(str(tmp_path / "log"), 0, 0) if kind == "file" else Nowhere()
    log = Log(Settings(), target, lambda: 0.0)
    log.say("info", "mqttd.broker", "connected", {"client_id": "a\nb"})
    assert log.tail.after(0)[1] == [
        '1970-01-01T00:00:00.000Z info  mqttd.broker connected: client_id="a\\nb"'
    ]
