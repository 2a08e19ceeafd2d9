"""A process that works for the writer and ends when that does, even by kill -9.

One that lived on would write files that the next writer's children write, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from typing import Final

__all__ = ["PARENT", "begin"]

#: In the environment: the process that started this one.
PARENT: Final = "MQTTD_PARENT"
_PR_SET_PDEATHSIG: Final = 1


def begin() -> None:
    """Work at low priority, and only while the one that started this is there.

    Elsewhere than on Linux that is only looked at once, now.
    """
    os.nice(10)
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = os.environ.get(PARENT)
    if parent is not None and parent != str(os.getppid()):
        sys.exit("the writer has ended")
