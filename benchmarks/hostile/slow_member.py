"""A shared group one of whose members takes what it gets and acknowledges nothing.

Members come and go as well.
"""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import connect, publish, subscribe

__all__ = ["open_attack", "stop"]


def open_attack(port: int, rate: float = 0.0, members: int = 10, size: int = 100_000) -> Attack:
    """Begin; messages of `size` bytes to a group of `members`."""
    said = publish(b"shared/slow", bytes(size), 1)

    def go_on(attack: Attack) -> None:
        if attack.steps <= members or attack.steps % 200 == 0:
            sock = attack.login(connect(b"member-%d" % (attack.steps % (2 * members))))
            attack.say(sock, subscribe([b"$share/g/shared/slow"], qos=1))
        else:
            attack.say(attack.client(b"shared-writer"), said)
            if attack.steps % 20 == 0:
                attack.swallow(members // 2)

    return Attack(port, rate, go_on, keep=4 * members).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
