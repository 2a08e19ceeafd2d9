"""One QoS 2 message sent again and again under all packet ids, with DUP, and released never."""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import publish

__all__ = ["open_attack", "stop"]


def open_attack(port: int, rate: float = 0.0, ids: int = 30, size: int = 100) -> Attack:
    """Begin; under so many ids, of which a client may use a few at a time."""
    once = b"".join([publish(b"dup", bytes(size), 2, packet_id=n + 1) for n in range(ids)])
    again = b"".join(
        [b"\x3c" + publish(b"dup", bytes(size), 2, packet_id=n + 1)[1:] for n in range(ids)]
    )

    def send(attack: Attack) -> None:
        sock = attack.client(b"dup-%d" % (attack.steps % 7))
        attack.say(sock, once + again * 50)
        attack.swallow()

    return Attack(port, rate, send, keep=7).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
