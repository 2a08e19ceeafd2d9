"""Skips a test that needs something this machine has not, and says the one command that brings it.

With ``CI=true`` nothing may be missing: the hook in ``tests/conftest.py`` turns these skips into
failures, which it knows by how their reason begins.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

import pytest

__all__ = ["PREFIX", "cache_folder", "missing", "must_not_skip", "needs_program"]

PREFIX: Final = "needs "


def missing(what: str, command: str) -> NoReturn:
    """Skip: `what` is not here, and `command` brings it."""
    pytest.skip(f"{PREFIX}{what}: {command}")


def needs_program(program: str, packages: str) -> str:
    """The path of `program`; skips where it is not installed (`packages` are Debian's)."""
    path = shutil.which(program)
    if path is None:
        missing(program, f"apt-get install {packages}")
    return path


def must_not_skip(reason: str, environ: Mapping[str, str] = os.environ) -> bool:
    """True if a skip for this reason counts as a failure here."""
    return environ.get("CI") == "true" and reason.removeprefix("Skipped: ").startswith(PREFIX)


def cache_folder(name: str) -> Path:
    """A folder outside the tree that is kept between runs, for what takes long to fetch."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base, "mqttd-tests", name)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
