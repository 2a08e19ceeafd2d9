"""Waiting for what is sure to come: never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["until"]


def until(true: Callable[[], Any], what: str = "it", deadline: float = 60.0) -> Any:
    """What `true` gives, once it is true; AssertionError naming `what` after `deadline` seconds."""
    end = time.monotonic() + deadline
    while not (found := true()):
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(0.02)
    return found
