"""Where the keys stand in the text of a TOML file, and what is wrong with one that is none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

__all__ = ["fault_in", "line_numbers"]

_HEADER: Final = re.compile(r"\s*\[\[?([^\[\]]+)\]")
_KEY: Final = re.compile(r"""\s*([A-Za-z0-9_."'-][A-Za-z0-9_."'\s-]*)=""")
_TABLE_TWICE: Final = re.compile(r"Cannot declare \((.+?),?\) twice(.*)")
_PLACE: Final = re.compile(r"at line (\d+)")
#: A line of mosquitto.conf, one of emqx.conf, a value that lacks its quotes.
_MOSQUITTO: Final = re.compile(r"\s*[a-z][a-z0-9_.]*[ \t]+[^\s=#]")
_HOCON: Final = re.compile(r"\s*[A-Za-z_][\w.]*\s*\{|\s*\}\s*$")
_BARE: Final = re.compile(r"\s*[\w.\"'-]+\s*=\s*([^\s\"'\[{#][^#\n]*?)\s*(?:#.*)?$")
_KEY_TWICE: Final = re.compile(r"Cannot overwrite a value \(at (?:line (\d+)|end of document)")


def line_numbers(text: str) -> dict[str, int]:
    """Dotted path of a key or table -> the first line that names it, as far as lines can tell."""
    lines: dict[str, int] = {}
    for path, number in _named(text):
        lines.setdefault(path, number)
    return lines


def fault_in(path: str, text: str, error: Exception) -> str:
    """What is wrong with the text of the file at `path`, which `tomllib` could not read.

    What happens most is said in words: a key or a table that stands there twice.
    """
    said = str(error)
    if isinstance(error, RecursionError):
        said = "nested too deeply"
    elif (found := _TABLE_TWICE.match(said)) is not None:
        table = ".".join(name.strip(" '\"") for name in found[1].split(","))
        said = f"the table [{table}] is there already, its keys go there{found[2]}"
    elif (found := _KEY_TWICE.match(said)) is not None:
        # The last key that was begun; the place that is told is where its value ends.
        keys = list(_named("\n".join(text.split("\n")[: int(found[1])] if found[1] else [text])))
        key, line = keys[-1] if keys else ("", 0)
        for other, first in reversed(keys[:-1]):
            if other == key:
                return f"{path}:{line}: {key}: is there already, in line {first}; leave one of them"
    elif (found := _PLACE.search(said)) is not None:
        said += _meant(text.split("\n")[int(found[1]) - 1])
    return f"{path}: not valid TOML: {said}"


def _meant(line: str) -> str:
    """What may help with a line that is none of TOML, "" where nothing is known of its like."""
    if _HOCON.match(line) is not None:
        return (
            "; this looks like an emqx.conf: tables are [listener.tcp.default] here, and"
            " docs/howto/coming-from-emqx.md has the keys"
        )
    if _MOSQUITTO.match(line) is not None:
        return (
            "; a line is `key = value` here; of a mosquitto.conf `mqttd-ctl import FILE --into DIR`"
            " makes a configuration"
        )
    if (found := _BARE.match(line)) is not None:
        if found[1].lower() in ("true", "false", "yes", "no", "on", "off"):
            return "; it is either true or false, in these letters"
        return f'; what is no number stands in quotes: "{found[1]}"'
    return ""


def _named(text: str) -> Iterator[tuple[str, int]]:
    """Dotted path and line of each key and table, as far as lines can tell."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if (header := _HEADER.match(line)) is not None:
            table = _dotted(header[1])
            yield table, number
        elif (key := _KEY.match(line)) is not None:
            path = _dotted(key[1])
            yield f"{table}.{path}" if table else path, number


def _dotted(key: str) -> str:
    """A TOML key without the blanks and quotes around its parts."""
    return ".".join(part.strip().strip("\"'") for part in key.split("."))
