"""`mqttd-ctl top`: rates of counters, and what is shown of them."""

from __future__ import annotations

import json

import pytest

from mqttd.admin.ctl import main as ctl
from mqttd.admin.ctl.top import rates, screen

BEFORE = {
    "counters": {"messages_sent": 100, "dropped_expired": 1, "cpu_seconds": 1.0, "began_anew": 9},
    "gauges": {},
}
AFTER = {
    "counters": {"messages_sent": 1300, "dropped_expired": 1, "dropped_queue_full": 24,
                 "cpu_seconds": 1.5, "began_anew": 3},
    "gauges": {"connections": 2004, "loop_lag_ms": 3},
}  # fmt: skip


def test_a_rate_is_what_a_counter_grew_by_in_a_second() -> None:
    assert rates(BEFORE, AFTER, 2) == {
        "messages_sent": 600, "dropped_expired": 0, "dropped_queue_full": 12, "cpu_seconds": 0.25,
        "began_anew": 0,
    }  # fmt: skip


def test_the_screen_names_what_is_dropped_and_nothing_else() -> None:
    text = screen(AFTER["gauges"], rates(BEFORE, AFTER, 2))
    assert "processor 25 %   loop lag 3 ms" in text and "connections 2,004" in text
    assert "600 messages/s" in text and "dropped in a second: queue_full 12" in text
    assert "expired" not in text
    assert "dropped in a second: nothing" in screen({}, {})


def test_it_asks_again_and_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def request(client: ctl.Client, method: str, path: str, body: object = None) -> ctl.Json:
        asked.append(path)
        return BEFORE if len(asked) == 1 else AFTER

    monkeypatch.setattr(ctl.Client, "request", request)
    assert ctl.main(["--socket", "s", "--json", "top", "--every", "0.1", "--count", "2"]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["rates"]["messages_sent"] > 1000 and second["rates"]["messages_sent"] == 0
    assert asked == ["/metrics"] * 3
    assert ctl.main(["--socket", "s", "top", "--every", "0"]) == 1
    assert "--every 0: expected at least 0.1" in capsys.readouterr().err
