"""Sessions whose wills are all due at once, and go to some who read nothing.

The connections are cut together.
"""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import connect, subscribe

__all__ = ["open_attack", "stop"]


def open_attack(port: int, rate: float = 0.0, crowd: int = 500, size: int = 60_000) -> Attack:
    """Begin; wills of `size` bytes."""
    will = bytes(size)
    held: list[bytes] = []

    def go_on(attack: Attack) -> None:
        if attack.steps <= 10:
            sock = attack.login(connect(b"mourner-%d" % attack.steps))
            attack.say(sock, subscribe([b"wills/#"], qos=1))
            return
        name = b"willing-%d" % (attack.steps % crowd)
        attack.login(connect(name, will=will))
        held.append(name)
        if len(held) >= crowd:
            held.clear()
            for sock in list(attack.held())[10:]:
                attack.hang_up(sock)

    return Attack(port, rate, go_on).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
