"""PUBREL, PUBREC, PUBCOMP and PUBACK for packet ids that nobody has heard of, by the ten thousand.

The answers are read, or not.
"""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import connect, packet

__all__ = ["open_attack", "stop"]

_KINDS = (0x62, 0x50, 0x70, 0x40)


def open_attack(port: int, rate: float = 0.0, clients: int = 5, reads: bool = False) -> Attack:
    """Begin; from so many clients."""
    said = b"".join([packet(_KINDS[n % 4], (n + 1).to_bytes(2, "big")) for n in range(10_000)])

    def flood(attack: Attack) -> None:
        if attack.steps <= clients:
            attack.login(connect(b"unknown-%d" % attack.steps)).settimeout(0.05)
            return
        attack.say(attack.some(attack.steps), said)
        if reads:
            attack.swallow()

    return Attack(port, rate, flood, keep=clients).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
