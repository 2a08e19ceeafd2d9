"""Filters of 128 levels in sessions that never end and are left alone."""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import FOREVER, subscribe

__all__ = ["open_attack", "stop"]


_BATCH = 500


def open_attack(port: int, rate: float = 0.0, levels: int = 128, each: int = 10_000) -> Attack:
    """Begin; a session has `each` filters of `levels` levels, then comes another one."""
    rest = b"/".join([b"l"] * (levels - 2))

    def ask(attack: Attack) -> None:
        first = attack.steps * _BATCH
        sock = attack.client(b"deep-%d" % (first // each), expiry=FOREVER)
        attack.say(sock, subscribe([b"%d/%s/+" % (first + n, rest) for n in range(_BATCH)]))
        attack.swallow()
        if (first + _BATCH) % each < _BATCH:
            attack.hang_up(sock)

    return Attack(port, rate, ask).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
