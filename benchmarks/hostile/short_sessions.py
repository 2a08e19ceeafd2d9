"""Sessions that end a second after their client has gone, thousands of them at once."""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import connect, subscribe

__all__ = ["open_attack", "stop"]


def open_attack(port: int, rate: float = 0.0, filters: int = 50, crowd: int = 1_000) -> Attack:
    """Begin; `crowd` clients of `filters` each leave together."""

    def come(attack: Attack) -> None:
        name = b"short-%d" % attack.steps
        sock = attack.login(connect(name, expiry=1))
        attack.say(sock, subscribe([b"short/%s/%d/+" % (name, n) for n in range(filters)], 1))
        if attack.steps % crowd == 0:
            for each in attack.held():
                attack.hang_up(each)

    return Attack(port, rate, come, keep=crowd).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
