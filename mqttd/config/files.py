"""Where a configuration is looked for, and the one that the package brings.

    --config FILE                     alone, if it is given
    etc/mqttd.conf                    of the current directory
    $XDG_CONFIG_HOME/mqttd/mqttd.conf (~/.config/mqttd/mqttd.conf)
    /etc/mqttd/mqttd.conf

`mqttd-ctl init DIR` writes the shipped files. Promise: what is there already is never written over.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import resources
from typing import Final

__all__ = ["SHIPPED", "find", "initialize", "places", "shipped"]

#: What `initialize` writes. A checkout has them in ``etc``, too, where somebody may have changed
#: them: these are not read.
SHIPPED: Final = ("mqttd.conf", "acl.conf")

_NAME: Final = "mqttd.conf"


def places(environ: Mapping[str, str]) -> list[str]:
    """The files that are looked for where none is named, in this order."""
    home = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME", ""), ".config")
    users = [os.path.join(home, "mqttd", _NAME)] if os.path.isabs(os.path.expanduser(home)) else []
    return [os.path.join("etc", _NAME), *users, os.path.join("/etc/mqttd", _NAME)]


def find(environ: Mapping[str, str]) -> str | None:
    """The first of these that is there."""
    return next((path for path in places(environ) if os.path.exists(path)), None)


def shipped(name: str) -> str:
    """The text of one of the `SHIPPED` files."""
    if name == _NAME:
        from mqttd.config.reference import conf_text

        return conf_text()
    return (resources.files("mqttd.config") / name).read_text("utf-8")


def initialize(directory: str, data: str | None = None) -> tuple[list[str], list[str]]:
    """Write the shipped files and make a data directory; returns what is new and what was there.

    Without `data` they are ``DIR/etc/*.conf`` and ``DIR/data``; with it ``DIR/*.conf``, which name
    that directory. Raises OSError.
    """
    folder = os.path.join(directory, "etc") if data is None else directory
    data_dir = os.path.join(directory, "data") if data is None else data
    fresh: list[str] = []
    kept: list[str] = []
    for path, mode in ((folder, 0o755), (data_dir, 0o700)):
        (kept if os.path.isdir(path) else fresh).append(path)
        os.makedirs(path, mode=mode, exist_ok=True)
    for name in SHIPPED:
        path = os.path.join(folder, name)
        text = shipped(name)
        if name == _NAME and data is not None:
            line = '#data_dir = "../data"\n'
            assert line in text
            text = text.replace(line, f'data_dir = "{os.path.abspath(data)}"\n', 1)
        try:
            with open(path, "x", encoding="utf-8") as file:
                file.write(text)
            fresh.append(path)
        except FileExistsError:
            kept.append(path)
    return fresh, kept
