"""Sessions in thousands of shared groups each, and then a message of a megabyte to all."""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import connect, publish, subscribe

__all__ = ["open_attack", "stop"]


_BATCH = 1_000


def open_attack(
    port: int, rate: float = 0.0, sessions: int = 20, each: int = 10_000, size: int = 1_000_000
) -> Attack:
    """Begin; `sessions` take `each` groups, and read nothing after that."""
    said = publish(b"shared", bytes(size))
    first = [subscribe([b"$share/g%d/shared" % (start + n) for n in range(_BATCH)])
             for start in range(0, each, _BATCH)]  # fmt: skip

    def go_on(attack: Attack) -> None:
        session, batch = divmod(attack.steps - 1, len(first))
        if session < sessions:
            name = b"groups-%d" % session
            sock = attack.login(connect(name)) if not batch else attack.last()
            attack.say(sock, first[batch])
            attack.swallow()
        else:
            attack.say(attack.client(b"groups"), said)

    return Attack(port, rate, go_on).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
