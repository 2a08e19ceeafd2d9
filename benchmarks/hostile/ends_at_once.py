"""Clients with thousands of filters each, that end all at the same time."""

from __future__ import annotations

import socket

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import connect, subscribe

__all__ = ["open_attack", "stop"]


_BATCH = 1_000


def open_attack(port: int, rate: float = 0.0, clients: int = 30, each: int = 10_000) -> Attack:
    """Begin; over and over."""
    batches = each // _BATCH
    held: list[socket.socket] = []

    def go_on(attack: Attack) -> None:
        client, batch = divmod((attack.steps - 1) % (clients * batches), batches)
        if not client and not batch:
            while held:
                attack.hang_up(held.pop())
        if not batch:
            held.append(attack.login(connect(b"ending-%d" % client)))
        first = batch * _BATCH
        names = [b"ends/%d/%d/+" % (client, first + n) for n in range(_BATCH)]
        attack.say(held[-1], subscribe(names))
        attack.swallow()

    return Attack(port, rate, go_on).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
