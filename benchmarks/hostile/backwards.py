"""A subscriber that acknowledges sixty thousand messages from the last to the first."""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import connect, packet, publish, subscribe

__all__ = ["open_attack", "stop"]


def open_attack(port: int, rate: float = 0.0, qos: int = 1, each: int = 5_000) -> Attack:
    """Begin; `each` messages in a step."""
    said = b"".join([publish(b"backwards", bytes(10), qos, packet_id=n + 1) for n in range(each)])
    answers = b"".join(
        [packet(0x40 if qos == 1 else 0x50, n.to_bytes(2, "big")) for n in range(65_535, 0, -1)]
    )

    def go_on(attack: Attack) -> None:
        if attack.steps == 1:
            reader = attack.login(connect(b"backwards-reader", receive_maximum=65_535))
            attack.say(reader, subscribe([b"backwards"], qos))
            return
        attack.say(attack.client(b"backwards-writer"), said)
        attack.swallow()
        if attack.steps % 12 == 0:
            attack.say(attack.some(0), answers)

    return Attack(port, rate, go_on, keep=2).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
