"""A plugin's configuration as a form: what its schema knows, what its file says, and changing that.

    NAME.conf --> fields: name, schema, value, whether the file gives it; secrets are never told
    changes   --> the same file, line by line, with its comments --> sound? --> replaced whole

Only keys of the top level are changed here; a file in which such a key cannot be found on a line of
its own is left to an editor. Promise: a file that would not be sound is not written.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from mqttd.plugins.settings import is_secret, read_settings
from mqttd.secrets.files import replace_file
from mqttd.types import PluginError

__all__ = ["Editor", "Value", "edited"]

#: What a key may be given; None takes it out of the file.
Value = str | int | float | bool | list[str | int] | None

_TABLE: Final = re.compile(r"\s*\[")
_KEY: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


class Editor:
    """The file at `path`, read into `struct`; both methods read files, and belong into a thread."""

    def __init__(self, path: str, struct: type[msgspec.Struct] | None) -> None:
        self.path = path
        self.struct = struct

    def fields(self) -> list[dict[str, Any]]:
        """Every key of the schema with its value now. Raises PluginError."""
        struct = self.struct
        settings, _ = read_settings(self.path, struct)
        if struct is None:
            return []
        given = _tables(self.path)
        schema = msgspec.json.schema(struct)
        known = schema["$defs"][schema["$ref"].rsplit("/", 1)[1]]["properties"]
        found = []
        for part in msgspec.structs.fields(struct):
            name = part.encode_name
            value = msgspec.to_builtins(getattr(settings, part.name), enc_hook=str)
            secret = is_secret(name, value)
            about = {key: said for key, said in known[name].items() if key != "default"}
            found.append(
                {
                    "name": name,
                    "schema": about,
                    "required": part.required,
                    "secret": secret,
                    "value": None if secret else value,
                    "given": name in given,
                }
            )
        return found

    def change(self, changes: Mapping[str, Value]) -> None:
        """Change keys in the file, which is made if need be. Raises PluginError, OSError."""
        path = self.path
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except FileNotFoundError:
            text = ""
        text = edited(text, changes)
        folder = os.path.dirname(path)
        os.makedirs(folder, mode=0o750, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".check-", dir=folder) as trial:
            beside = os.path.join(trial, os.path.basename(path))
            with open(beside, "w", encoding="utf-8", opener=_private) as file:
                file.write(text)
            try:
                read_settings(beside, self.struct)
            except PluginError as error:
                raise PluginError(str(error).replace(beside, path)) from None
        replace_file(path, text, like=path if os.path.exists(path) else None)


def edited(text: str, changes: Mapping[str, Value]) -> str:
    """A file's text with other values of these keys. Raises PluginError.

    >>> edited("# how many\\nmany = 3  # or so\\n", {"many": 4})
    '# how many\\nmany = 4\\n'
    """
    try:
        wanted = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PluginError(f"the file is not valid TOML: {error}") from None
    lines = text.splitlines(keepends=True)
    top = next((at for at, line in enumerate(lines) if _TABLE.match(line)), len(lines))
    for key, value in changes.items():
        if not _KEY.fullmatch(key):
            raise PluginError(f"{key[:80]!r}: expected the name of a key")
        place = re.compile(rf"\s*(?:{re.escape(key)}|\"{re.escape(key)}\")\s*=")
        at = next((n for n, line in enumerate(lines[:top]) if place.match(line)), None)
        line = [] if value is None else [f"{key} = {_toml(value)}\n"]
        if at is not None:
            lines[at : at + 1] = line
        else:
            if lines and not lines[top - 1].endswith("\n") and top:
                lines[top - 1] += "\n"
            lines[top:top] = line
        top += len(line) - (at is not None)
        wanted.pop(key, None)
        if value is not None:
            wanted[key] = value
    result = "".join(lines)
    try:
        found = tomllib.loads(result)
    except tomllib.TOMLDecodeError:
        found = None
    if found != wanted:
        raise PluginError("this file has to be changed with an editor: a value is not on one line")
    return result


def _tables(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        return {}


def _toml(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, list):
        return "[" + ", ".join(_toml(one) for one in value) + "]"
    return repr(value)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
