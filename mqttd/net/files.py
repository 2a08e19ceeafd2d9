"""How many files this process may have open, and how many connections that makes."""

from __future__ import annotations

import resource

__all__ = ["RESERVE", "connections_of", "file_limit", "raise_file_limit"]

#: Descriptors kept for the log, the stores, the API and what plugins open.
RESERVE = 256


def raise_file_limit() -> int:
    """Take all the open files the system allows; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            pass  # more than the kernel gives anybody
    return file_limit()


def file_limit() -> int:
    """The open files that this process may have."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return soft if soft != resource.RLIM_INFINITY else 1_048_576


def connections_of(files: int) -> int:
    """Connections a listener without a limit of its own may have, of so many open files."""
    return files - min(RESERVE, max(files // 4, 32))
