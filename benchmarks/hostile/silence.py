"""Connections that say nothing, or one byte: they take the places of a listener."""

from __future__ import annotations

from benchmarks.hostile.attack import Attack

__all__ = ["open_attack", "stop"]


def open_attack(port: int, count: int = 10_000, rate: float = 0.0, said: bytes = b"\x10") -> Attack:
    """Begin; `count` connections are held, each has sent `said`."""

    def connect(attack: Attack) -> None:
        attack.dial(said)

    return Attack(port, rate, connect, keep=count).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
