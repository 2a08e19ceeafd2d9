"""Tells the interpreter to let threads that wait for its lock have it soon.

Compiled code lets go of the lock between turns alone, and the loop takes it again before a thread
is awake that has waited for less than the switch interval: with 5 ms the store's thread lost its
way to it for a second. Beside 2,000 and 3,000 sessions that expire at once PUBACKs took 0.16 to
1.08 s at most, with 0.5 ms 0.04 to 0.29; what is stored costs as much CPU as before.

For the whole process, so it is done where the process is the broker's own.
"""

from __future__ import annotations

import sys
from typing import Final

__all__ = ["SECONDS", "switch_soon"]

SECONDS: Final = 0.0005


def switch_soon() -> None:
    """Set the interval."""
    sys.setswitchinterval(SECONDS)
