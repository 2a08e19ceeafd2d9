"""What modules of mqttd there are to write lines: a level for another one changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from mqttd.hints import like

__all__ = ["no_modules"]

_TOP: Final = "mqttd"
#: What plugins write is below this, whatever they are called.
_PLUGINS: Final = "mqttd.plugin"


def no_modules(named: Iterable[str]) -> list[str]:
    """Of each name that begins as ours and is no module: that, and the module that is like it.

    >>> no_modules(["mqttd.broker", "mqttd.plugin.spark", "sqlalchemy", "mqttd.brokr"])
    ["there is no module 'mqttd.brokr'; did you mean mqttd.broker?"]
    """
    asked = [name for name in named if name.startswith(f"{_TOP}.") and not _of_plugins(name)]
    there = _there() if asked else set()
    return [
        f"there is no module {name!r}{like(name, there)}" for name in asked if name not in there
    ]


def _of_plugins(name: str) -> bool:
    return name == _PLUGINS or name.startswith(f"{_PLUGINS}.")


def _there() -> set[str]:
    """Modules and packages, from the sources: they are there also where compiled ones run."""
    folder = Path(__file__).parents[2]
    paths = (file.relative_to(folder.parent).with_suffix("") for file in folder.rglob("*.py"))
    names = {".".join(path.parts) for path in paths}
    return names | {name.removesuffix(".__init__") for name in names}
