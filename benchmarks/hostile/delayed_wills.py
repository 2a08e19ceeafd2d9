"""Wills with a delay: called off by a takeover, put off again, and then all due at once."""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import packet, text, varint

__all__ = ["open_attack", "stop"]


def open_attack(port: int, rate: float = 0.0, names: int = 500, size: int = 1_000) -> Attack:
    """Begin; of so many clients, each will due a second after its client has gone."""

    def come(attack: Attack) -> None:
        sock = attack.login(_connect(b"delayed-%d" % (attack.steps % names), bytes(size)))
        if attack.steps % 2:
            attack.hang_up(sock)

    return Attack(port, rate, come, keep=names).open()


def _connect(name: bytes, payload: bytes) -> bytes:
    mine = b"\x11" + (2).to_bytes(4, "big")
    of_will = b"\x18" + (1).to_bytes(4, "big")
    body = varint(len(mine)) + mine + text(name)
    body += varint(len(of_will)) + of_will + text(b"wills/" + name) + text(payload)
    return packet(0x10, b"\0\x04MQTT\x05\x0c\0\0" + body)


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
