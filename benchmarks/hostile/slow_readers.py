"""Subscribers to everything that read nothing, and messages for them."""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import connect, publish, subscribe

__all__ = ["open_attack", "stop"]


def open_attack(port: int, rate: float = 0.0, clients: int = 50, size: int = 100_000) -> Attack:
    """Begin; `clients` subscribe to #, then messages of `size` bytes come."""
    said = publish(b"unread", bytes(size), 1)

    def go_on(attack: Attack) -> None:
        if attack.steps <= clients:
            sock = attack.login(connect(b"slow-%d" % attack.steps))
            attack.say(sock, subscribe([b"unread/#"], qos=attack.steps % 3))
        else:
            attack.say(attack.client(b"writer"), said)

    return Attack(port, rate, go_on).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
