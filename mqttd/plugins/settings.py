"""Reads a plugin's own configuration, `etc/plugins/NAME.conf`, into its msgspec Struct.

    NAME.conf --tomllib--> tables --+-- [mqttd] ------------> Limits: what the operator lets it do
                                    `-- all else -----------> the plugin's Struct, or a dict

A key that nobody knows is a mistake, in either.

Promise: nothing of the plugin runs before its configuration is sound; a mistake names the file,
the line, the key, its value (unless it may be a secret) and what was expected. A file that holds a
secret and that everybody may read is warned about.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
import warnings
from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from mqttd.config.schema.toml_text import fault_in
from mqttd.hints import like
from mqttd.plugins.calls.budget import Budget, Policy
from mqttd.types import PluginError

__all__ = ["LIMITS", "Limits", "PluginFileWarning", "is_secret", "read_settings"]


class PluginFileWarning(UserWarning):
    """A file with a secret in it can be read by everybody."""


#: The table that is the broker's, in the file of any plugin.
LIMITS: Final = "mqttd"

_AT: Final = re.compile(r"^(?P<text>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING: Final = re.compile(r"object missing required field `(.*)`")
_PASSWORD_IN_URL: Final = re.compile(r"^[a-z][a-z0-9+.-]*://[^/@\s]*:[^/@\s]+@", re.IGNORECASE)
_SECRET: Final = re.compile(r"pass|secret|token|key|credential", re.IGNORECASE)


_EXAMPLES: Final = {str: '"..."', int: "1", float: "1.0", bool: "true"}

_Seconds = Annotated[float, Meta(gt=0, le=86400)]
_Number = Annotated[int, Meta(ge=1, le=1_000_000)]
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The table `[mqttd]`: what the operator lets a plugin do, with the words of `Budget`.

    What is left out is as the plugin declares it, or else the default.
    """

    policy: Literal["ignore", "deny"] | None = None
    isolation: Literal["none", "process"] | None = None
    workers: Literal["every", "one"] | None = None
    per_call: Annotated[float, Meta(gt=0, le=60)] | None = None
    per_second: Annotated[float, Meta(gt=0, le=1)] | None = None
    error_limit: _Number | None = None
    error_window: _Seconds | None = None
    deadline: _Seconds | None = None
    queue: _Number | None = None
    retry_after: _Seconds | None = None
    retry_most: _Seconds | None = None

    def budget(self, name: str, policy: Policy, per_call: float) -> Budget:
        """The budget of the plugin `name`, which has declared `policy`."""
        given = {
            key: value
            for key in self.__struct_fields__
            if key not in ("policy", "isolation", "workers")
            and (value := getattr(self, key)) is not None
        }
        return Budget(name, self.policy or policy, **{"per_call": per_call, **given})


def read_settings(path: str, schema: type[msgspec.Struct] | None) -> tuple[Any, Limits]:
    """The settings in the file at `path`, and its limits; without a file, the defaults of both.

    The settings are an instance of `schema`, or a dict when it is None. Raises PluginError.
    """
    mode = 0
    try:
        with open(path, encoding="utf-8-sig") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read()
    except FileNotFoundError:
        text = ""
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise PluginError(f"{path}: cannot be read: {reason}") from None
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise PluginError(fault_in(path, text, error)) from None
    if mode & stat.S_IROTH and (secret := _secret_in(tables)):
        warnings.warn(
            f"{path}: mode {mode:04o} lets everybody read {secret}; expected 0600",
            PluginFileWarning,
            stacklevel=2,
        )
    table = tables.pop(LIMITS, {})
    if not isinstance(table, dict):
        raise PluginError(f"{_where(path, text, LIMITS)}: {LIMITS}: expected a table, [{LIMITS}]")
    limits = _read(path, text, table, Limits, f"{LIMITS}.")
    return (tables if schema is None else _read(path, text, tables, schema, "")), limits


def is_secret(key: str, value: object) -> bool:
    """Whether a value, or something in it, is nothing to be shown."""
    return bool(_secret_in({key: value})) or (value is None and bool(_SECRET.search(key)))


def _secret_in(value: object, above: str = "") -> str:
    """The first key, dotted, whose text may be a secret, or an address with a password; else ""."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            name = f"{above}.{key}" if above else str(key)
            if isinstance(inner, str):
                named = _SECRET.search(key) is not None and not key.endswith("file")
                if inner and (named or _PASSWORD_IN_URL.search(inner)):
                    return name
            elif found := _secret_in(inner, name):
                return found
    elif isinstance(value, list):
        for inner in value:
            if isinstance(inner, str) and _PASSWORD_IN_URL.search(inner):
                return above
            if found := _secret_in(inner, above):
                return found
    return ""


def _read(
    path: str, text: str, tables: Mapping[str, Any], schema: type[_Struct], above: str
) -> _Struct:
    """`tables`, whose keys are below `above`, as an instance of `schema`."""
    unknown = _unknown(tables, schema, above)
    if unknown is not None:
        key, known = unknown
        hint = like(key.rpartition(".")[2], known) or f"; there are: {', '.join(known) or 'none'}"
        raise PluginError(f"{_where(path, text, key)}: {key}: unknown key{hint}")
    try:
        return msgspec.convert(tables, schema)
    except msgspec.ValidationError as error:
        raise PluginError(_explain(path, text, tables, schema, str(error), above)) from None


def _explain(
    path: str,
    text: str,
    tables: Mapping[str, Any],
    schema: type[msgspec.Struct],
    message: str,
    above: str,
) -> str:
    """msgspec's "Expected `int`, got `str` - at `$.a.b`" as one of our lines."""
    found = _AT.match(message)
    assert found is not None
    what = found["text"][:1].lower() + found["text"][1:]
    key = (found["path"] or "$").removeprefix("$").removeprefix(".")
    if (missing := _MISSING.fullmatch(what)) is not None and not key:
        # msgspec tells one of them.
        fields = [part for part in msgspec.structs.fields(schema) if part.required]
        lines = [_line(part) for part in fields if part.encode_name not in tables]
        if not os.path.exists(path):
            what = f"there is no such file, and it is needed: no default for `{missing[1]}`"
        return f"{path}: {what}; expected lines such as: {'; '.join(lines)}"
    if not key:
        return f"{path}: {what}"
    value: Any = tables
    for step in re.findall(r"[^.\[\]]+", key):
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list) and step.isdigit():
            value = value[int(step)]
    if choices := _choices(schema, key):
        what = f"expected {' or '.join(json.dumps(choice) for choice in choices)}"
        words = [choice for choice in choices if isinstance(choice, str)]
        what += like(str(value), words, json.dumps)
    shown = "..." if _SECRET.search(key) else json.dumps(value, default=str, ensure_ascii=False)
    return f"{_where(path, text, key)}: {above}{key} = {shown[:80]}: {what}"


def _line(part: Any) -> str:
    """A line that gives a field of a schema some value, to show how that looks."""
    kind = part.type
    while (origin := get_origin(kind)) in (Annotated, Union, UnionType):
        kind = get_args(kind)[0]
    if origin is Literal:
        return f"{part.encode_name} = {json.dumps(get_args(kind)[0])}"
    kind = origin or kind
    if isinstance(kind, type) and issubclass(kind, (msgspec.Struct, Mapping)):
        return f"[{part.encode_name}]"
    return f"{part.encode_name} = {_EXAMPLES.get(kind, '[...]')}"


def _choices(schema: type[msgspec.Struct], key: str) -> list[Any]:
    """The values that a key may have, where they are counted out; else none."""
    kind: Any = schema
    for step in re.findall(r"[^.\[\]]+", key):
        fields = {}
        for inner in (kind, *get_args(kind)):
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                fields = {part.encode_name: part.type for part in msgspec.structs.fields(inner)}
        if step not in fields:
            return []
        kind = fields[step]
    found: list[Any] = []
    for inner in (kind, *get_args(kind)):
        if get_origin(inner) is Literal:
            found += get_args(inner)
    return found


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
