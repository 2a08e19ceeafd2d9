"""Lines of the log, as text, as JSON, or as entries of the journal.

    2026-11-22T08:31:02.123Z info  mqttd.broker connected: client_id=lamp peer=10.0.0.7:50112
    {"time": "2026-11-22T08:31:02.123Z", "level": "info", "module": "mqttd.broker", ...}

Names and values that came from clients are text of others: control characters are escaped, and
what is longer than `LONGEST` bytes is cut, as a list is after 32 items, so that a line is a line
whoever connects. A traceback follows its line, indented; in JSON it is a list of lines.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

__all__ = ["LONGEST", "Journal", "Json", "Lines", "Text", "cut", "escaped", "pairs", "plain"]

#: Bytes of one value in a line, of a message, of a line of a traceback; and the last so many of it.
LONGEST: Final = 256
#: Items of a list in a line.
_ITEMS: Final = 32
_MESSAGE: Final = 8192
_TRACE_LINE: Final = 512
_TRACE_LINES: Final = 100

#: Values that need no quotes.
_BARE: Final = re.compile(r"[A-Za-z0-9_.:/@+$%#*,~^!?&;()<>|{}-]{1,256}\Z")
#: Values that are as they are between quotes.
_QUOTABLE: Final = re.compile(r"[ !#-\[\]-~]{0,256}\Z")
#: Control characters, what breaks a line or turns its direction, halves of characters:
#: none of them is printable.
_CONTROL: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

#: syslog's numbers, as the journal has them.
_PRIORITIES: Final = {"debug": 7, "info": 6, "warn": 4, "error": 3, "critical": 2}


def escaped(text: str) -> str:
    """Text without characters that do something to a terminal, or to a line.

    >>> escaped("a\\nb")
    'a\\\\nb'
    """
    return text if text.isprintable() else _CONTROL.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    short = _SHORT.get(character)
    if short is not None:
        return short
    number = ord(character)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def cut(text: str, longest: int = LONGEST) -> str:
    """At most so many bytes of a text, and how many it had.

    >>> cut("a" * 300)[-16:]
    'aa... (300 bytes)'
    """
    if len(text) * 4 <= longest:
        return text
    raw = text.encode("utf-8", "replace")
    if len(raw) <= longest:
        return text
    return f"{raw[:longest].decode('utf-8', 'ignore')}... ({len(raw)} bytes)"


def plain(value: object) -> Any:
    """A value as JSON has it: text and lists cut, callables and errors by their names."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return cut(value)
    if isinstance(value, bytes):
        return cut(value.decode("utf-8", "replace"))
    if isinstance(value, BaseException):
        return cut(f"{type(value).__name__}: {value}")
    if isinstance(value, list | tuple | set | frozenset):
        items = [plain(item) for item in islice(value, _ITEMS)]
        return items if len(value) <= _ITEMS else [*items, f"... ({len(value)})"]
    name = getattr(value, "__qualname__", None)
    if name is not None:
        return f"{getattr(value, '__module__', '')}.{name}".lstrip(".")
    return cut(str(value))


def pairs(fields: Mapping[str, object]) -> str:
    """Fields as ``key=value``, with quotes where a value needs them; None is left out.

    >>> pairs({"client_id": "lamp", "reason": "not now", "username": None})
    'client_id=lamp reason="not now"'
    """
    parts = []
    for key, value in fields.items():
        if isinstance(value, str) and _BARE.match(value):
            parts.append(f"{key}={value}")
        elif isinstance(value, str) and _QUOTABLE.match(value):
            parts.append(f'{key}="{value}"')
        elif type(value) is int or type(value) is float:
            parts.append(f"{key}={value}")
        elif value is not None:
            parts.append(f"{key}={_quoted(plain(value))}")
    return " ".join(parts)


def _quoted(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list):
        return ",".join(_quoted(item) for item in value)
    text = str(value)
    if _BARE.match(text):
        return text
    return '"' + escaped(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


class Lines:
    """Makes lines; one of the classes below."""

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def line(
        self,
        when: float,
        level: str,
        module: str,
        message: str,
        fields: Mapping[str, object] | None = None,
        traceback: str = "",
    ) -> bytes:
        """One entry: of seconds since 1970, with what an event says of itself."""
        return self._line(when, level, module, _message(message, fields, traceback))

    def _line(self, when: float, level: str, module: str, told: str) -> bytes:
        """An entry whose message, fields and traceback are a text."""
        raise NotImplementedError

    def time(self, when: float) -> str:
        """A time as ISO 8601 has it, in UTC."""
        second = int(when)
        if second != self._second:
            self._second = second
            self._text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._text}.{int((when - second) * 1000):03d}Z"


class Text(Lines):
    """For eyes, grep and awk."""

    def _line(self, when: float, level: str, module: str, told: str) -> bytes:
        head = f"{self.time(when)} {level:<5} {module} "
        return (head + told + "\n").encode("utf-8", "replace")


class Json(Lines):
    """For programs: one object a line."""

    def line(
        self,
        when: float,
        level: str,
        module: str,
        message: str,
        fields: Mapping[str, object] | None = None,
        traceback: str = "",
    ) -> bytes:
        """See `Lines.line`; an event's fields stand beside the log's own, which go first."""
        entry: dict[str, Any] = {
            "time": self.time(when),
            "level": level,
            "module": module,
            "message": cut(message, _MESSAGE),
        }
        if fields is not None:
            for key, value in fields.items():
                if value is not None:
                    entry.setdefault(key, plain(value))
        if traceback:
            entry["traceback"] = _trace(traceback)
        return (json.dumps(entry, ensure_ascii=True) + "\n").encode()


class Journal(Lines):
    """For systemd's journal: one datagram an entry, in its native protocol."""

    def _line(self, when: float, level: str, module: str, told: str) -> bytes:
        text = told.encode("utf-8", "replace")
        return (
            f"PRIORITY={_PRIORITIES[level]}\nSYSLOG_IDENTIFIER=mqttd\n"
            f"MQTTD_MODULE={escaped(module)}\n".encode("utf-8", "replace")
            + b"MESSAGE\n"
            + len(text).to_bytes(8, "little")
            + text
            + b"\n"
        )


def _message(message: str, fields: Mapping[str, object] | None, traceback: str) -> str:
    """A message with its fields; further lines, and a traceback, below it and indented."""
    first, *rest = cut(message, _MESSAGE).rstrip("\n").split("\n")
    if fields:
        told = pairs(fields)
        if told:
            first = f"{first}: {told}"
    if traceback:
        rest += _trace(traceback)
    if not rest:
        return escaped(first)
    return "\n    ".join([escaped(first), *[escaped(line) for line in rest]])


def _trace(traceback: str) -> list[str]:
    """The lines of a traceback; what was raised may hold what a client sent."""
    return [cut(line, _TRACE_LINE) for line in traceback.rstrip("\n").split("\n")[-_TRACE_LINES:]]
