"""Connections that take the same few client ids from each other, as fast as it goes.

Their sessions hold some subscriptions and a queue.
"""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import FOREVER, connect, publish, subscribe

__all__ = ["open_attack", "stop"]


def open_attack(port: int, rate: float = 0.0, names: int = 3, filters: int = 1_000) -> Attack:
    """Begin; each session has `filters`."""
    asked = subscribe([b"taken/%d/+" % n for n in range(filters)], qos=1)

    def take(attack: Attack) -> None:
        name = b"fought-over-%d" % (attack.steps % names)
        sock = attack.login(connect(name, expiry=FOREVER))
        if attack.steps <= names:
            attack.say(sock, asked)
        attack.say(sock, publish(b"taken/1/x", bytes(1000), 1))

    return Attack(port, rate, take, keep=50).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
