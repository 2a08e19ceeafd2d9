"""Packet ids of QoS 2 that are never released.

Each session sends as many as there are, then comes another one, which never ends.
"""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import FOREVER, publish

__all__ = ["open_attack", "stop"]


_BATCH = 500


def open_attack(port: int, rate: float = 0.0, each: int = 60_000, size: int = 10) -> Attack:
    """Begin; `each` ids of a session, messages of `size` bytes."""
    payload = bytes(size)

    def go_on(attack: Attack) -> None:
        first = attack.steps * _BATCH
        sock = attack.client(b"unreleased-%d" % (first // each), expiry=FOREVER)
        ids = [(first + n) % each + 1 for n in range(_BATCH)]
        attack.say(sock, b"".join([publish(b"u", payload, 2, packet_id=one) for one in ids]))
        attack.swallow()
        if (first + _BATCH) % each < _BATCH:
            attack.hang_up(sock)

    return Attack(port, rate, go_on).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
