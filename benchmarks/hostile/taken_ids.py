"""Client ids, one after the other, taken for ever by a stranger."""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import FOREVER, connect

__all__ = ["open_attack", "stop"]


def open_attack(port: int, rate: float = 0.0, size: int = 20) -> Attack:
    """Begin; ids of about `size` bytes."""
    rest = b"i" * size

    def take(attack: Attack) -> None:
        attack.hang_up(attack.login(connect(b"%d-%s" % (attack.steps, rest), expiry=FOREVER)))

    return Attack(port, rate, take).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
