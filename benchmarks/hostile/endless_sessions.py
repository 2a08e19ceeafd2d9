"""Sessions that never end, each with a will, whose clients leave at once."""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import FOREVER, connect

__all__ = ["open_attack", "stop"]


def open_attack(port: int, rate: float = 0.0, will: int = 60_000, held: int = 500) -> Attack:
    """Begin; a will of so many bytes; `held` of the clients stay connected."""
    payload = bytes(will)

    def begin(attack: Attack) -> None:
        attack.login(connect(b"endless-%d" % attack.steps, expiry=FOREVER, will=payload))

    return Attack(port, rate, begin, keep=held).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
