"""A peer's own plugin that does nothing, for the rows with a hook on every message.

    noop_flashmq.cpp    flashmq_plugin.h, beside the program or in its sources there  ---c++--->
    noop_mosquitto.c    mosquitto_broker.h, of mosquitto-dev and libmosquitto-dev      ---cc-->

    build/load/noop_flashmq.so, build/load/noop_mosquitto.so

A callback is compared with a callback: in Python here, in C and in C++ there. Where a header or a
compiler is missing there is no plugin: the peer runs plain, and its version says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from benchmarks.load import BUILD_LIMIT, BUILT, SOURCES

__all__ = ["flashmq_noop", "mosquitto_noop"]

#: Where FlashMQ's header is, from the folder of its program.
_BESIDE: Final = (".", "..", "src/flashmq", "../src/flashmq")


def flashmq_noop(program: Path | None) -> Path | None:
    """The plugin for this FlashMQ, or for the one on $PATH; or None."""
    found = program or shutil.which("flashmq")
    if found is None:
        return None
    folder = Path(found).resolve().parent
    for place in (*(folder / beside for beside in _BESIDE), Path("/usr/include/flashmq")):
        if (place / "flashmq_plugin.h").is_file():
            return _built("noop_flashmq.cpp", ("-std=c++17", f"-I{place}"))
    return None


def mosquitto_noop() -> Path | None:
    """The plugin for mosquitto, or None."""
    return _built("noop_mosquitto.c", ("-std=c11",))


@cache
def _built(source: str, flags: Sequence[str]) -> Path | None:
    compiler = shutil.which(
        os.environ.get("CXX", "c++") if source.endswith("cpp") else os.environ.get("CC", "cc")
    )
    if compiler is None:
        return None
    made = (BUILT / source).with_suffix(".so")
    made.parent.mkdir(parents=True, exist_ok=True)
    command = [
        compiler, *flags, "-O2", "-fPIC", "-shared", "-o", str(made), str(SOURCES / source)
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, timeout=BUILD_LIMIT)
    return made if done.returncode == 0 else None
