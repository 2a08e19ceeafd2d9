"""Chooses between the compiled hot path and its sources, once, before either is imported.

    MQTTD_PURE=1                          the .py files, though .so files lie beside them
    a checkout edited since its compile   the .py files: nobody runs what they no longer read
    otherwise                             Python's own order, .so before .py

It is all of them or none: the compiled modules are one group whose calls to each other are C,
and a source module among them would not be the class they expect.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

__all__ = ["choose", "compiled", "edited"]

PACKAGE = Path(__file__).parent
SENTINEL = "mqttd.codec.parser"


class SourceFinder:
    """A meta path finder that sees only the .py files of this package."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None or not name.startswith("mqttd."):
            return None
        for folder in path:
            spec = FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(name, target)
            if spec is not None and spec.loader is not None:
                return spec
        return None


def choose(environ: Mapping[str, str] = os.environ) -> None:
    """Makes the rest of this process import the sources if that is asked for or needed."""
    if environ.get("MQTTD_PURE") == "1" or edited(PACKAGE):
        sys.meta_path.insert(0, SourceFinder)


def compiled() -> bool:
    """True if this process runs the compiled hot path."""
    spec = find_spec(SENTINEL)
    return spec is not None and str(spec.origin).endswith(tuple(EXTENSION_SUFFIXES))


def edited(package: Path) -> bool:
    """True if `package` is a checkout with a source newer than its compiled module, or gone.

    Installed packages are not asked: installers set file times as they like.
    """
    if not (package.parent / "setup.py").exists():
        return False
    for module in package.rglob("*" + EXTENSION_SUFFIXES[0]):
        source = module.with_name(module.name.partition(".")[0] + ".py")
        if not source.exists() or source.stat().st_mtime > module.stat().st_mtime:
            return True
    return False
