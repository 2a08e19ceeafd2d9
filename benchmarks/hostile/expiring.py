"""Messages that expire a second after they came, all at once.

Retained ones, and those of a queue of a session that is away.
"""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import FOREVER, connect, publish, subscribe

__all__ = ["open_attack", "stop"]


_BATCH = 500
_EXPIRY = b"\x02\0\0\0\1"


def open_attack(port: int, rate: float = 0.0, size: int = 100, retain: bool = True) -> Attack:
    """Begin; messages of `size` bytes."""
    payload = bytes(size)

    def keep(attack: Attack) -> None:
        if attack.steps == 1:
            away = attack.login(connect(b"expiring-away", expiry=FOREVER))
            attack.say(away, subscribe([b"expiring/#"], qos=1))
            away.recv(100)
            attack.hang_up(away)
        first = attack.steps * _BATCH
        attack.say(
            attack.client(b"expiring"),
            b"".join(
                [
                    publish(b"expiring/%d" % (first + n), payload, 1, retain, _EXPIRY)
                    for n in range(_BATCH)
                ]
            ),
        )
        attack.swallow()

    return Attack(port, rate, keep).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
