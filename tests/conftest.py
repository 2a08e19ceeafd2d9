"""For the whole suite: what may not be skipped fails, and a slow machine is no fault of a test."""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import os
from collections.abc import Generator

import pytest
from hypothesis import settings

from mqttd._pure import PACKAGE, edited
from tests.support.needs import must_not_skip

settings.register_profile("mqttd", deadline=None)
settings.load_profile("mqttd")

# pytest asks for Twisted's version before each of some thousand tests, and reads a file for it.
importlib.metadata.version = functools.cache(importlib.metadata.version)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes seconds comes last: a red test shows early."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


def pytest_collection_finish() -> None:
    """Thousands of tests and what they import stay to the end: no collection looks at them."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was compiled and is older than its source was not run; nothing else would say so."""
    if os.environ.get("MQTTD_PURE") != "1" and edited(PACKAGE):
        terminalreporter.write_line(
            "mqttd ran uncompiled: sources are newer than compiled modules; scripts/venv compiles"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple) and must_not_skip(report.longrepr[2]):
        report.outcome = "failed"
        report.longrepr = f"{report.longrepr[2]}\n(CI=true: nothing may be missing)"
    return report
