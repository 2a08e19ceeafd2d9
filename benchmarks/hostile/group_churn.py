"""A shared group that one client joins and leaves ten thousand times a second, of many members."""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import connect, subscribe, unsubscribe

__all__ = ["open_attack", "stop"]


def open_attack(port: int, rate: float = 0.0, members: int = 500, groups: int = 200) -> Attack:
    """Begin; `members` stay in `groups`, one comes and goes."""
    names = [b"$share/churn-%d/honest/+/#" % n for n in range(groups)]
    churn = (subscribe(names, 1, 1) + unsubscribe(names, 2)) * 20

    def join(attack: Attack) -> None:
        if attack.steps <= members:
            attack.say(attack.login(connect(b"stays-%d" % attack.steps)), subscribe(names, 0))
            return
        sock = attack.client(b"churns")
        attack.say(sock, churn)
        attack.swallow()

    return Attack(port, rate, join).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
