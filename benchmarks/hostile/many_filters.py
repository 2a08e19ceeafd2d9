"""One SUBSCRIBE of a megabyte with the same short filter again and again."""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import subscribe

__all__ = ["open_attack", "stop"]


def open_attack(port: int, rate: float = 0.0, count: int = 260_000, name: bytes = b"#") -> Attack:
    """Begin; each SUBSCRIBE has `count` filters and is answered before the next."""
    said = subscribe([name] * count)

    def ask(attack: Attack) -> None:
        sock = attack.client(b"many", clean=True)
        attack.say(sock, said)
        attack.swallow()

    return Attack(port, rate, ask).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
