"""For the whole suite: a test that may not be skipped here fails instead."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.support.needs import must_not_skip


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple) and must_not_skip(report.longrepr[2]):
        report.outcome = "failed"
        report.longrepr = f"{report.longrepr[2]}\n(CI=true: nothing may be missing)"
    return report
