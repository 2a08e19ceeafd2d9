"""Retained messages that are all user properties, each of another topic."""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import pairs, publish

__all__ = ["open_attack", "stop"]


def open_attack(port: int, rate: float = 0.0, size: int = 900_000, each: int = 12) -> Attack:
    """Begin; `size` bytes of properties, of `each` a pair."""
    properties = pairs(size, each)

    def keep(attack: Attack) -> None:
        topic = b"kept/%d" % attack.steps
        said = publish(topic, b"x", 1, retain=True, properties=properties)
        attack.say(attack.client(b"keeper"), said)
        attack.swallow()

    return Attack(port, rate, keep).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
