"""`[log] level`: what matters less is not written."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.logger import Logger, LogPublisher

from mqttd.config.schema import Log as Settings
from mqttd.monitor.log.filter import LogLevelFilter

LEVELS = ["debug", "info", "warn", "error", "critical"]


def say_everything(log: Logger) -> None:
    for level in LEVELS:
        getattr(log, level)("a line")


@pytest.mark.parametrize("level", LEVELS)
def test_less_important_lines_are_not_written(level: str) -> None:
    written: list[Any] = []
    publisher = LogPublisher(written.append)
    log = Logger(namespace="any", observer=publisher)
    service = LogLevelFilter(Settings(level=level), publisher)
    service.startService()
    say_everything(log)
    assert [event["log_level"].name for event in written] == LEVELS[LEVELS.index(level) :]
    written.clear()
    log.info("ready", always=True)
    assert len(written) == 1
    service.stopService()
    written.clear()
    say_everything(log)
    assert len(written) == len(LEVELS), "the log is as it was before"
