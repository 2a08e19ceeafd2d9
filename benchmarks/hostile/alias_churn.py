"""Few topic aliases, each set anew to another long topic with every message.

Nobody is subscribed; each topic is new.
"""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import publish

__all__ = ["open_attack", "stop"]


def open_attack(port: int, rate: float = 0.0, size: int = 65_000, aliases: int = 10) -> Attack:
    """Begin; topics of about `size` bytes."""
    rest = b"t" * size

    def send(attack: Attack) -> None:
        alias = b"\x23" + (attack.steps % aliases + 1).to_bytes(2, "big")
        named = publish(b"%d/%s" % (attack.steps, rest), properties=alias)
        again = publish(b"", b"x", properties=alias) * 100
        attack.say(attack.client(b"alias-churn"), named + again)

    return Attack(port, rate, send).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
