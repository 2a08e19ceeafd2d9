"""What a line of the log looks like, whoever's names stand in it."""

from __future__ import annotations

import json

import pytest

from mqttd.monitor.log.levels import Levels
from mqttd.monitor.log.lines import _CONTROL, Journal, Json, Text, escaped, pairs

WHEN = 1_800_000_000.25
TRACE = 'Traceback (most recent call last):\n  File "x.py", line 1\nValueError: no\n'


def test_a_line_says_when_how_important_who_and_what() -> None:
    line = Text().line(WHEN, "info", "mqttd.broker", "connected", {"client_id": "lamp", "x": None})
    assert line == b"2027-01-15T08:00:00.250Z info  mqttd.broker connected: client_id=lamp\n"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("lamp", "lamp"),
        ("10.0.0.7:50112", "10.0.0.7:50112"),
        ("two words", '"two words"'),
        ("", '""'),
        ('say "a\\b"', '"say \\"a\\\\b\\""'),
        ("a=b", '"a=b"'),
        ("a\nb\x1b[31m\u202e", '"a\\nb\\x1b[31m\\u202e"'),
        ("\ud800", '"\\ud800"'),
        ("grün", '"grün"'),
        (True, "true"),
        (1.5, "1.5"),
        (-7, "-7"),
        ("x " * 128, '"' + "x " * 128 + '"'),
        ("x " * 129, '"' + "x " * 128 + '... (258 bytes)"'),
        ("two\x7fwords", '"two\\x7fwords"'),
        (["a/#", "b"], "a/#,b"),
        (ValueError("not so"), '"ValueError: not so"'),
        (pairs, "mqttd.monitor.log.lines.pairs"),
    ],
)
def test_values_are_told_without_python(value: object, told: str) -> None:
    assert pairs({"key": value}) == f"key={told}"


def test_what_is_printable_needs_no_second_look() -> None:
    """Every character that is escaped is one that is not printable."""
    characters = list(map(chr, range(0x110000)))
    control = [each for each in characters if _CONTROL.match(each)]
    assert len(control) > 2000 and not any(each.isprintable() for each in control)
    assert all(escaped(f"a{each}") != f"a{each}" for each in control)


@pytest.mark.parametrize("lines", [Text(), Json(), Journal()])
def test_names_of_clients_are_cut(lines: Text | Json | Journal) -> None:
    fields: dict[str, object] = {"client_id": "ü" * 30_000, "detail": "x" * 60_000}
    line = lines.line(WHEN, "info", "mqttd.broker", "connect refused", fields)
    assert len(line) < 1800
    assert b"(60000 bytes)" in line


@pytest.mark.parametrize("lines", [Text(), Json(), Journal()])
def test_lists_of_clients_are_cut(lines: Text | Json | Journal) -> None:
    """A SUBSCRIBE may have thousands of filters, each of 64 KB."""
    told = lines.line(
        0, "info", "m", "subscribed", {"filters": [f"{n}/" * 99 for n in range(9999)]}
    )
    assert len(told) < 10_000
    assert b"31/31/" in told
    assert b"32/32/" not in told
    assert b"(9999)" in told


def test_a_traceback_is_lines_below_it() -> None:
    line = Text().line(WHEN, "error", "mqttd.plugins", "callback failed", {"a": 1}, TRACE)
    head, *rest = line.decode().rstrip("\n").split("\n")
    assert head.endswith("callback failed: a=1")
    assert rest == ["    " + text for text in TRACE.rstrip().split("\n")]
    entry = json.loads(Json().line(WHEN, "error", "m", "callback failed", {"a": 1}, TRACE))
    assert entry["traceback"] == TRACE.rstrip().split("\n") and entry["a"] == 1


def test_a_json_line_keeps_its_own_keys() -> None:
    line = Json().line(WHEN, "warn", "mqttd", "alarm raised", {"level": "x", "text": "a\nb\u2028"})
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "time": "2027-01-15T08:00:00.250Z",
        "level": "warn",
        "module": "mqttd",
        "message": "alarm raised",
        "text": "a\nb\u2028",
    }


def test_more_lines_of_a_message_are_indented() -> None:
    line = Text().line(WHEN, "info", "mqttd.plugin.x", "one\ntwo\x07\n")
    assert line.decode().endswith(" one\n    two\\x07\n")


def test_a_module_has_the_level_of_the_longest_name() -> None:
    levels = Levels(
        "info", {"mqttd.access": "warn", "mqttd.access.auth.jwt": "debug", "ldap3": "info"}
    )
    for module, level, written in (
        ("mqttd", "info", True),
        ("mqttd", "debug", False),
        ("mqttd.accessible", "info", True),
        ("mqttd.access.chain", "info", False),
        ("mqttd.access.auth.jwt.keys", "debug", True),
        ("twisted.internet.tcp", "info", False),
        ("twisted.internet.tcp", "warn", True),
        ("ldap3.core", "info", True),
        ("stdout", "info", True),
    ):
        assert levels.admits(module, level) is written, (module, level)
    levels.set("mqttd.access", None)
    levels.set("", "error")
    assert levels.admits("mqttd.access.auth.jwt", "debug") and not levels.admits(
        "mqttd.access", "warn"
    )
    with pytest.raises(ValueError, match="loud"):
        levels.set("mqttd", "loud")
    with pytest.raises(ValueError, match="for all"):
        levels.set("", None)
