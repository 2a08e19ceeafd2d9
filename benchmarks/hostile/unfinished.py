"""Packets of a megabyte of clients that were let in, of which the last byte never comes."""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import connect, publish

__all__ = ["open_attack", "stop"]


def open_attack(port: int, rate: float = 0.0, size: int = 1_000_000, count: int = 5_000) -> Attack:
    """Begin; `count` connections are held."""
    said = publish(b"unfinished", bytes(size))[:-1]

    def begin(attack: Attack) -> None:
        attack.say(attack.login(connect(b"unfinished-%d" % attack.steps)), said)

    return Attack(port, rate, begin, keep=count).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
