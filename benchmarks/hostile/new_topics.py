"""New topics again and again, while wildcard subscriptions come and go."""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import publish, subscribe, unsubscribe

__all__ = ["open_attack", "stop"]


_BATCH = 1_000


def open_attack(port: int, rate: float = 0.0, count: int = 150_000, filters: int = 100) -> Attack:
    """Begin; `count` topics, round and round; so many filters change after each thousand."""

    def go_on(attack: Attack) -> None:
        first = attack.steps * _BATCH
        names = [b"new/%d/t" % ((first + n) % count) for n in range(_BATCH)]
        sock = attack.client(b"new")
        attack.say(sock, b"".join([publish(name) for name in names]))
        changed = [b"new/+/%d" % n for n in range(filters)]
        attack.say(sock, subscribe(changed) + unsubscribe(changed))
        attack.swallow()

    return Attack(port, rate, go_on).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
