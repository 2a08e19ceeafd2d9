"""PROXY headers that never end, name another address each time, or come a byte at a time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Final

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import connect

__all__ = ["header_for", "open_attack", "stop"]

_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n\x21\x11"
#: Of a CONNECT of 64 KiB, all but the end.
_BEGUN: Final = connect(b"x", user=b"u" * 60_000)[:-1]


def header_for(address: str) -> bytes:
    """What a proxy says of a client."""
    return f"PROXY TCP4 {address} 127.0.0.1 40000 1883\r\n".encode()


def open_attack(port: int, rate: float = 0.0, kind: str = "forged", crowd: int = 10_000) -> Attack:
    """Begin; `crowd` connections are held."""
    steps: dict[str, Callable[[Attack], None]] = {
        "half": _half, "forged": _Forged(), "slow": _slow, "endless": _endless,
    }  # fmt: skip
    return Attack(port, rate, steps[kind], keep=crowd).open()


def _half(attack: Attack) -> None:
    attack.dial(b"PROXY TCP4 192.0.2.7 127.0.0.1 4")


def _endless(attack: Attack) -> None:
    """65,535 bytes are announced, and they come until nobody takes them any more."""
    sock = attack.dial(_SIGNATURE + b"\xff\xff" + b"\x7f\0\0\1" * 3)
    for _ in range(16):
        attack.say(sock, b"\x04\x0f\xfd" + bytes(4093))


def _slow(attack: Attack) -> None:
    """Of many headers, one byte each."""
    said = b"PROXY TCP4 192.0.2.7 127.0.0.1 40000 1883"
    if attack.steps % 10 == 1 or not attack.held():
        attack.dial(said[:1])
    for sock in attack.held()[-500:]:
        attack.say(sock, said[attack.steps % len(said) :][:1])


class _Forged:
    """Each connection is of another house, and does not end its CONNECT."""

    def __init__(self) -> None:
        self._next = count(1)

    def __call__(self, attack: Attack) -> None:
        number = next(self._next)
        address = f"{number >> 16 & 63 | 64}.{number >> 8 & 255}.{number & 255}.1"
        attack.dial(header_for(address) + _BEGUN)


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
