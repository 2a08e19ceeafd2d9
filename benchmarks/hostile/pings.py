"""PINGREQ after PINGREQ, and nobody reads the answers.

Two bytes each.
"""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import connect

__all__ = ["open_attack", "stop"]


def open_attack(port: int, rate: float = 0.0, clients: int = 20) -> Attack:
    """Begin."""
    said = b"\xc0\0" * 50_000

    def go_on(attack: Attack) -> None:
        if attack.steps <= clients:
            sock = attack.login(connect(b"pings-%d" % attack.steps))
            sock.settimeout(0.05)
        else:
            attack.say(attack.some(attack.steps), said)

    return Attack(port, rate, go_on).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
