"""Messages of QoS 0 to topics of 65 KB, another one each time, that nobody subscribed to."""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import publish

__all__ = ["open_attack", "stop"]


def open_attack(port: int, rate: float = 0.0, size: int = 65_000, levels: int = 1) -> Attack:
    """Begin; a topic has `levels` levels and about `size` bytes."""
    rest = b"/".join([b"t" * (size // levels)] * levels)

    def send(attack: Attack) -> None:
        attack.say(attack.client(b"topics"), publish(b"%d/%s" % (attack.steps, rest)))

    return Attack(port, rate, send).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
