"""All filters of {a,+}^13 in many sessions, and topics that thousands of them match."""

from __future__ import annotations

from itertools import product

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import connect, publish, subscribe

__all__ = ["open_attack", "stop"]


_BATCH = 1_024


def open_attack(port: int, rate: float = 0.0, sessions: int = 30, levels: int = 13) -> Attack:
    """Begin; new topics once all sessions have subscribed."""
    filters = [b"/".join(one) for one in product((b"a", b"+"), repeat=levels)]
    asked = [subscribe(filters[at : at + _BATCH]) for at in range(0, len(filters), _BATCH)]
    begun = b"a/" * (levels - 1)

    def go_on(attack: Attack) -> None:
        session, batch = divmod(attack.steps - 1, len(asked))
        if session < sessions:
            name = b"tangled-%d" % session
            sock = attack.login(connect(name)) if not batch else attack.last()
            attack.say(sock, asked[batch])
        else:
            attack.say(attack.client(b"tangled"), publish(begun + b"%d" % attack.steps))
        attack.swallow()

    return Attack(port, rate, go_on).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
