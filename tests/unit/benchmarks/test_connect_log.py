"""What is read out of the log of clients that came and went."""

from __future__ import annotations

from pathlib import Path

from benchmarks.connect_log import SETTINGS, Logging, volume
from mqttd.config.load import load
from mqttd.monitor.log.lines import Text


def test_lines_and_those_only_counted_are_told_apart() -> None:
    text = Text()
    log = b"".join(
        [
            text.line(1.0, "info", "mqttd", "mqttd ready: tcp"),
            text.line(1.5, "info", "mqttd.broker", "connected", {"client_id": "a"}),
            text.line(1.6, "info", "mqttd.broker", "connected", {"client_id": "b"}),
            text.line(1.6, "info", "mqttd.broker", "disconnected by client", {"client_id": "a"}),
            text.line(2.0, "info", "mqttd.broker", "connected", {"more_in_one_second": 40}),
            text.line(2.1, "warn", "mqttd.broker", "protocol fault", {"peer": "x"}),
        ]
    ).decode()
    found = volume(log)
    assert (found.lines, found.counted, found.most) == (3, 40, 2)
    assert 0 < found.size < len(log)


def test_each_setting_is_a_configuration(tmp_path: Path) -> None:
    found = {}
    for name in SETTINGS:
        folder = tmp_path / name.replace(" ", "-")
        folder.mkdir()
        for file, text in Logging(name).configuration(1883).items():
            (folder / file).write_text(text)
        found[name] = load(str(folder / "mqttd.conf"), {}).log
    assert found["off"].connections == "off"
    assert (found["as shipped"].connections, found["as shipped"].rate) == ("info", 100)
    assert found["every line"].rate == 100_000
