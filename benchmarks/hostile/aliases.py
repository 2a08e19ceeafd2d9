"""Topic aliases, each for a topic of 65 KB, as many as a connection may have."""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import publish

__all__ = ["open_attack", "stop"]


def open_attack(port: int, rate: float = 0.0, size: int = 65_000, each: int = 10_000) -> Attack:
    """Begin; a connection takes `each` aliases, then comes another one, and all are held."""
    rest = b"t" * size

    def take(attack: Attack) -> None:
        client, number = divmod(attack.steps, each)
        if not number:
            attack.another()
        alias = b"\x23" + (number + 1).to_bytes(2, "big")
        sock = attack.client(b"aliases-%d" % client)
        attack.say(sock, publish(b"a/%d/%s" % (number, rest), properties=alias))

    return Attack(port, rate, take).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
