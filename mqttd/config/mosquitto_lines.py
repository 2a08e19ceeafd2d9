"""The lines of a mosquitto.conf and of what it includes, and how they are told of.

lines     settings in their order, those of an `include_dir` in its place
named     a line for people: what is not known here is its key alone, or it may be a secret

Promise: nothing of a line that has no key is ever told.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["Line", "NoConfiguration", "lines", "named"]

_KEY: Final = re.compile(r"[A-Za-z][\w.-]{0,63}", re.ASCII)
#: Settings whose value is, or may be, a secret.
_OF_OTHERS: Final = ("auth_opt_", "plugin_opt_", "bridge_")


class NoConfiguration(ValueError):
    """A file is no mosquitto.conf; the text says what was expected, and nothing of the file."""


@dataclass(slots=True)
class Line:
    """A setting, and where it is."""

    where: str
    key: str
    value: str

    def port(self, text: str) -> int:
        """A port that this line names. Raises NoConfiguration."""
        if not (text.isascii() and text.isdigit() and int(text) < 65536):
            key = named(self, False)
            raise NoConfiguration(f"{self.where}: {key}: expected a port, 0 to 65535")
        return int(text)


def named(line: Line, known: bool) -> str:
    """Its key and value, of what is not known here the key alone."""
    if not _KEY.fullmatch(line.key):
        return "no setting"
    secret = "password" in line.key and line.key != "password_file"
    if secret or not known or line.key.startswith(_OF_OTHERS):
        return line.key
    return f"{line.key} {line.value}".strip()


def lines(path: str, leave: Callable[[Line, str], None]) -> Iterator[Line]:
    """The settings of a file and of those it includes. Raises OSError."""
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, raw in enumerate(file, 1):
            text = raw.strip()
            if not text or text.startswith("#"):
                continue
            key, _, value = text.partition(" ")
            line = Line(f"{path}:{number}", key, value.strip())
            if key != "include_dir":
                yield line
                continue
            folder = os.path.join(os.path.dirname(os.path.abspath(path)), line.value)
            try:
                names = sorted(name for name in os.listdir(folder) if name.endswith(".conf"))
            except OSError as error:
                leave(line, str(error.strerror))
                continue
            for name in names:
                yield from lines(os.path.join(folder, name), leave)
