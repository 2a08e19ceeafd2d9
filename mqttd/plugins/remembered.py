"""The file `data/loaded_plugins`: what an operator loaded, and the next start loads again.

Promise: the file is replaced as a whole, and written through to the disk before.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from twisted.logger import Logger

from mqttd.types import PluginError

__all__ = ["Remembered"]

_HEAD: Final = "# Plugins loaded by mqttd-ctl, one a line; loaded again at start.\n"


class Remembered:
    """The names in the file at `path`; an error of the disk is logged."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.log = Logger(namespace="mqttd.plugins")

    def names(self) -> list[str]:
        """The names, in order; raises PluginError if the file cannot be read."""
        try:
            with open(self.path, encoding="utf-8") as file:
                lines = [line.strip() for line in file]
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise PluginError(f"{self.path}: cannot be read: {error}") from None
        return [line for line in lines if line and not line.startswith("#")]

    def add(self, name: str) -> None:
        """Have `name` loaded at the next start."""
        names = self.names()
        if name not in names:
            self._write([*names, name])

    def remove(self, name: str) -> None:
        """Have `name` not loaded at the next start."""
        names = self.names()
        if name in names:
            self._write(each for each in names if each != name)

    def _write(self, names: Iterable[str]) -> None:
        temporary = f"{self.path}.new"
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(_HEAD + "".join(f"{each}\n" for each in names))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        except OSError as error:
            with suppress(OSError):
                os.unlink(temporary)
            self.log.error(
                "{path} cannot be written, what was loaded will not be remembered: {error}",
                path=self.path,
                error=error.strerror,
            )
