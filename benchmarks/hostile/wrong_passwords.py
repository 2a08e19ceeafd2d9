"""Wrong passwords, so many a second, of one user name or of another one each time."""

from __future__ import annotations

from benchmarks.hostile.attack import Attack

__all__ = ["open_attack", "stop"]


def open_attack(port: int, rate: float = 6.0, user: str = "") -> Attack:
    """Begin; `user` "" takes a new name each time."""

    def guess(attack: Attack) -> None:
        name = user or f"user-{attack.steps}"
        attack.dial(_connect(f"c{attack.steps}", name, f"guess-{attack.steps}"))

    return Attack(port, rate, guess, keep=1000).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()


def _connect(client_id: str, user: str, password: str) -> bytes:
    parts = [text.encode() for text in (client_id, user, password)]
    body = b"\0\x04MQTT\x04\xc2\0\x3c" + b"".join(
        len(part).to_bytes(2, "big") + part for part in parts
    )
    assert len(body) < 128
    return bytes((0x10, len(body))) + body
