"""Reads a plugin's own configuration, `etc/plugins/NAME.conf`, into its msgspec Struct.

    NAME.conf --tomllib--> tables --unknown keys?--> msgspec.convert --> Struct (or a dict)

Promise: nothing of the plugin runs before its configuration is sound; a mistake names the file,
the line, the key, its value (unless it may be a secret) and what was expected.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final, get_args

import msgspec

from mqttd.types import PluginError

__all__ = ["read_settings"]

_AT: Final = re.compile(r"^(?P<text>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_SECRET: Final = re.compile(r"pass|secret|token|key|credential", re.IGNORECASE)


def read_settings(path: str, schema: type[msgspec.Struct] | None) -> Any:
    """The settings in the file at `path`; without a file, the defaults of `schema`.

    Returns an instance of `schema`, or a dict when it is None. Raises PluginError.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
    except FileNotFoundError:
        text = ""
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise PluginError(f"{path}: cannot be read: {reason}") from None
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise PluginError(f"{path}: not valid TOML: {error}") from None
    if schema is None:
        return tables
    unknown = _unknown(tables, schema, "")
    if unknown is not None:
        key, known = unknown
        close = difflib.get_close_matches(key.rpartition(".")[2], known, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(known) or 'none'}"
        raise PluginError(f"{_where(path, text, key)}: {key}: unknown key; {hint}")
    try:
        return msgspec.convert(tables, schema)
    except msgspec.ValidationError as error:
        raise PluginError(_explain(path, text, tables, str(error))) from None


def _explain(path: str, text: str, tables: Mapping[str, Any], message: str) -> str:
    """msgspec's "Expected `int`, got `str` - at `$.a.b`" as one of our lines."""
    found = _AT.match(message)
    assert found is not None
    what = found["text"][:1].lower() + found["text"][1:]
    key = (found["path"] or "$").removeprefix("$").removeprefix(".")
    if not key:
        return f"{path}: {what}"
    value: Any = tables
    for step in re.findall(r"[^.\[\]]+", key):
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list) and step.isdigit():
            value = value[int(step)]
    shown = "..." if _SECRET.search(key) else json.dumps(value, default=str, ensure_ascii=False)
    return f"{_where(path, text, key)}: {key} = {shown[:80]}: {what}"


def _unknown(
    tables: Mapping[str, Any], schema: type[msgspec.Struct], above: str
) -> tuple[str, list[str]] | None:
    """The first key that the schema does not have, and those it has there."""
    fields = {part.encode_name: part.type for part in msgspec.structs.fields(schema)}
    for key, value in tables.items():
        if key not in fields:
            return f"{above}{key}", list(fields)
        for inner in (fields[key], *get_args(fields[key])):
            is_struct = isinstance(inner, type) and issubclass(inner, msgspec.Struct)
            if is_struct and isinstance(value, Mapping):
                below = _unknown(value, inner, f"{above}{key}.")
                if below is not None:
                    return below
    return None


def _where(path: str, text: str, key: str) -> str:
    """`path:line` of the first line that sets the key, as far as lines can tell."""
    last = re.findall(r"[^.\[\]]+", key)
    names = [name for name in last if not name.isdigit()]
    for name in reversed(names):
        pattern = re.compile(
            rf"\s*(?:\[+\s*(?:[\w.\"'-]+\.)?)?[\"']?{re.escape(name)}[\"']?\s*[=\].]"
        )
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.match(line):
                return f"{path}:{number}"
    return path
