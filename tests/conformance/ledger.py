"""The ledger: every row of the checklist with the tests that hold the broker to it.

    python -m tests.conformance.ledger            write docs/reference/conformance.md
    python -m tests.conformance.ledger --check    exit with 1 if that page is out of date

Tests are found by their `row` marker, so the page cannot name one that does not exist.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.conformance.statements import CHAPTERS, STATEMENTS, Statement

__all__ = ["PAGE", "Entry", "entries", "main", "page"]

HERE: Final = Path(__file__).parent
PAGE: Final = HERE.parents[1] / "docs" / "reference" / "conformance.md"

HEAD: Final = """\
# Conformance ledger

<!-- Written by `python -m tests.conformance.ledger`; change the tests, not this page. -->

Every statement the broker is held to, and the tests that hold it to it. The tests talk raw bytes
over a socket to a running broker; they are named after the identifiers of the two OASIS standards
(MQTT 3.1.1 with errata 01, and MQTT 5.0) and run for both versions where both have one. The wording
is ours; where a word matters, the standard decides. "–" means that a version has no such numbered
statement, not that anything goes.

Run them with `pytest tests/conformance`. With `MQTTD_CONFORMANCE_PORT=1883` they run against a
broker that already listens on that port of 127.0.0.1, without the tests that need settings of their
own.

Where the standard leaves a choice, ours is:

- a PUBLISH that 3.1.1 gives us no way to refuse (the access rules deny it) is acknowledged and
  dropped; 5.0 says 0x87;
- client ids may have up to 256 bytes of UTF-8;
- a packet may have up to 1 MiB, which CONNACK announces to 5.0 clients; topics up to 65,535 bytes
  and 256 levels; one beyond that is refused by itself, 0x90 or 0x8F, 0x80 in a SUBACK of 3.1.1;
- overlapping subscriptions of one client get one copy of a message, with the highest QoS granted
  and all their Subscription Identifiers;
- messages for a shared subscription go to members that are connected, as long as there is
  one; what a member has not acknowledged when its session ends goes to another, QoS 2 messages
  that were sent to it excepted;
- sessions of 3.1.1 clients with clean session 0 are kept for `session.expiry_interval`;
- an absent client's queue holds `mqueue.max_length` messages.
"""


@dataclass(frozen=True)
class Entry:
    """One test: its row, its file and name, and the protocol levels it runs in."""

    row: int
    file: str
    name: str
    versions: tuple[int, ...]


def entries() -> Iterator[Entry]:
    """All tests with a row marker, in the order of the files."""
    for path in sorted(HERE.glob("test_*.py")):
        module = importlib.import_module(f"tests.conformance.{path.stem}")
        for name, function in vars(module).items():
            if not name.startswith("test_") or function.__module__ != module.__name__:
                continue
            for mark in getattr(function, "pytestmark", []):
                if mark.name == "row":
                    number, chosen = mark.args
                    yield Entry(number, path.name, name, chosen or STATEMENTS[number].versions)


def _identifiers(ids: tuple[str, ...]) -> str:
    return ", ".join(ids) or "–"


def _tests(statement: Statement, found: list[Entry]) -> str:
    lines = []
    for entry in found:
        short = re.sub(r"^test_", "", entry.name)
        only = "" if len(entry.versions) > 1 else f" ({'5.0' if 5 in entry.versions else '3.1.1'})"
        note = only if len(statement.versions) > 1 else ""
        lines.append(f"`{short}`{note}")
    return "<br>".join(lines) or "none yet"


def page() -> str:
    """The whole page as Markdown."""
    by_row: dict[int, list[Entry]] = {number: [] for number in STATEMENTS}
    for entry in entries():
        by_row[entry.row].append(entry)
    parts = [HEAD]
    for chapter, title in CHAPTERS.items():
        rows = [s for s in STATEMENTS.values() if s.chapter == chapter]
        files = sorted({e.file for s in rows for e in by_row[s.number]})
        parts.append(f"\n## {chapter}. {title}\n\n")
        if files:
            names = ", ".join(f"`tests/conformance/{name}`" for name in files)
            parts.append(f"In {names}.\n\n")
        parts.append("| # | 3.1.1 | 5.0 | The broker … | Tests |\n")
        parts.append("| --- | --- | --- | --- | --- |\n")
        for statement in rows:
            cells = (
                str(statement.number),
                _identifiers(statement.v311),
                _identifiers(statement.v5),
                statement.text.replace("|", "\\|"),
                _tests(statement, by_row[statement.number]),
            )
            parts.append("| " + " | ".join(cells) + " |\n")
    return "".join(parts)


def main(arguments: list[str]) -> int:
    """Write the page, or compare it; returns the exit status."""
    text = page()
    if "--check" in arguments:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
            return 0
        print(f"{PAGE.name} is out of date: run python -m tests.conformance.ledger")
        return 1
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
