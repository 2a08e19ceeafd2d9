"""Shared groups of thousands of members that are all away, for the topics of everybody."""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import FOREVER, connect, subscribe

__all__ = ["open_attack", "stop"]


def open_attack(port: int, rate: float = 0.0, members: int = 10_000, groups: int = 5) -> Attack:
    """Begin; each member is in all `groups`."""
    asked = subscribe([b"$share/away-%d/honest/#" % n for n in range(groups)], 1)

    def leave(attack: Attack) -> None:
        name = b"away-%d" % (attack.steps % members)
        sock = attack.login(connect(name, expiry=FOREVER, receive_maximum=1))
        if attack.steps <= members:
            attack.say(sock, asked)
            sock.recv(100)
        attack.hang_up(sock)

    return Attack(port, rate, leave).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
