"""Retained messages of a byte, of topics of many levels or of 65 KB."""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import publish

__all__ = ["open_attack", "stop"]


_BATCH = 20


def open_attack(port: int, rate: float = 0.0, levels: int = 126, size: int = 1) -> Attack:
    """Begin; a topic has a number and `levels` levels of `size` bytes."""
    rest = b"/".join([b"l" * size] * levels)

    def keep(attack: Attack) -> None:
        sock = attack.client(b"keeper")
        first = attack.steps * _BATCH
        for number in range(first, first + _BATCH):
            attack.say(sock, publish(b"%d/%s" % (number, rest), b"x", 1, retain=True))
        attack.swallow()

    return Attack(port, rate, keep).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
