"""One filter subscribed to again and again, each time with all retained messages of it."""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import connect, publish, subscribe

__all__ = ["open_attack", "stop"]


def open_attack(
    port: int, rate: float = 0.0, kept: int = 5_000, each: int = 500, reads: bool = True
) -> Attack:
    """Begin; `kept` retained messages, `each` SUBSCRIBE in a step."""
    asked = b"".join([subscribe([b"again/#"], 1, n + 1) for n in range(each)])

    def ask(attack: Attack) -> None:
        if attack.steps == 1:
            sock = attack.login(connect(b"again-keeper"))
            messages = [publish(b"again/%d" % n, bytes(50), 0, True) for n in range(kept)]
            attack.say(sock, b"".join(messages))
            return
        sock = attack.client(b"again")
        sock.settimeout(0.05)
        attack.say(sock, asked)
        if reads:
            attack.swallow(8)

    return Attack(port, rate, ask, keep=20).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
