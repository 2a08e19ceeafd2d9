"""UNSUBSCRIBE of as many filters as a packet holds, none of which is there.

Over and over, or each with a SUBSCRIBE of the same before it.
"""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import subscribe, unsubscribe

__all__ = ["open_attack", "stop"]


def open_attack(port: int, rate: float = 0.0, count: int = 9_000, there: bool = False) -> Attack:
    """Begin; `count` filters a packet."""
    names = [b"u/%d/+" % n for n in range(count)]
    said = subscribe(names) + unsubscribe(names) if there else unsubscribe(names)

    def ask(attack: Attack) -> None:
        attack.say(attack.client(b"unsubscribes", clean=True), said)
        attack.swallow()

    return Attack(port, rate, ask).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
