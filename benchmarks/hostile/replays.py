"""Retained messages that a client asks for again and again and never acknowledges."""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import connect, publish, subscribe

__all__ = ["open_attack", "stop"]


def open_attack(port: int, rate: float = 0.0, count: int = 200_000, size: int = 10_000) -> Attack:
    """Begin; `size` is that of the retained message, `count` the filters of a SUBSCRIBE."""
    kept = publish(b"replayed", bytes(size), 1, retain=True)
    said = subscribe([b"#"] * count, qos=1)

    def ask(attack: Attack) -> None:
        if attack.steps == 1:
            attack.say(attack.login(connect(b"keeper")), kept)
        attack.say(attack.client(b"replays", receive_maximum=1, clean=True), said)
        attack.swallow()

    return Attack(port, rate, ask).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
