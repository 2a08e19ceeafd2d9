"""The suite's own promises: every row has its tests, named after the row, and the page says so."""

from __future__ import annotations

import re

import pytest

from tests.conformance import ledger
from tests.conformance.statements import STATEMENTS

ROWS = list(STATEMENTS)
ENTRIES = list(ledger.entries())


@pytest.mark.parametrize("number", ROWS)
def test_every_row_has_a_test_in_each_version(number: int) -> None:
    """A statement counts in every version that numbers it."""
    tested = {v for entry in ENTRIES if entry.row == number for v in entry.versions}
    assert tested >= set(STATEMENTS[number].versions), STATEMENTS[number].text


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_tests_are_named_after_their_row(entry: ledger.Entry) -> None:
    """test_mqtt_<identifier>_<what>, with an identifier of the row the test is marked with."""
    statement = STATEMENTS[entry.row]
    prefixes = [re.sub(r"[.-]", "_", i) for i in statement.v311 + statement.v5]
    rest = entry.name.removeprefix("test_mqtt_")
    assert any(re.match(f"{prefix}_(?!\\d+_)", rest) for prefix in prefixes), prefixes


def test_page_is_up_to_date() -> None:
    """docs/reference/conformance.md is what the generator writes."""
    assert ledger.main(["--check"]) == 0
