"""Messages of user properties, with QoS 1, to sessions whose clients are away."""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import FOREVER, connect, pairs, publish, subscribe

__all__ = ["open_attack", "stop"]


_EACH = 200


def open_attack(port: int, rate: float = 0.0, size: int = 80_000, each: int = 12) -> Attack:
    """Begin; `size` bytes of properties, of `each` a pair; a session more every so often."""
    said = publish(b"away/news", b"x", 1, properties=pairs(size, each))

    def send(attack: Attack) -> None:
        if attack.steps % _EACH == 1:
            away = attack.login(connect(b"away-%d" % attack.steps, expiry=FOREVER))
            attack.say(away, subscribe([b"away/#"], qos=1))
            away.recv(1)
            attack.hang_up(away)
        attack.say(attack.client(b"writer"), said)
        attack.swallow()

    return Attack(port, rate, send).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
