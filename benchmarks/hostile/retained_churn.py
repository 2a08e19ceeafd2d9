"""Retained messages that are set and cleared again, while who subscribes to them does not read."""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import connect, publish, subscribe

__all__ = ["open_attack", "stop"]


def open_attack(port: int, rate: float = 0.0, topics: int = 1_000, size: int = 100) -> Attack:
    """Begin; `topics` of them in a step, set in one and cleared in the next."""
    said = [
        b"".join([publish(b"churn/%d/x" % n, payload, 1, True) for n in range(topics)])
        for payload in (bytes(size), b"")
    ]

    def churn(attack: Attack) -> None:
        if attack.steps <= 3:
            sock = attack.login(connect(b"churn-%d" % attack.steps))
            attack.say(sock, subscribe([b"churn/+/+", b"churn/#"], 1))
            return
        attack.say(attack.client(b"churner"), said[attack.steps % 2])
        attack.client(b"churner").setblocking(False)
        try:
            while attack.client(b"churner").recv(1 << 16):
                pass
        except BlockingIOError:
            attack.client(b"churner").settimeout(5)

    return Attack(port, rate, churn, keep=4).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
