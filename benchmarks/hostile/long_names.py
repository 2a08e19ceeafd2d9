"""CONNECTs that are refused, whose names fill the log."""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import connect

__all__ = ["open_attack", "stop"]


def open_attack(port: int, rate: float = 0.0, size: int = 12_000) -> Attack:
    """Begin; client id and user name have `size` bytes, the password is wrong."""
    name = b"n" * size

    def knock(attack: Attack) -> None:
        attack.dial(connect(b"%d-%s" % (attack.steps, name), user=name, password=b"guess"))

    return Attack(port, rate, knock, keep=200).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
