"""ClientHellos, whole ones or the first three bytes, so many a second, and then silence."""

from __future__ import annotations

import contextlib
import ssl

from benchmarks.hostile.attack import Attack

__all__ = ["hello", "open_attack", "stop"]


def open_attack(port: int, rate: float = 150.0, whole: bool = True) -> Attack:
    """Begin."""
    said = hello() if whole else b"\x16\x03\x01"

    def greet(attack: Attack) -> None:
        attack.dial(said)

    return Attack(port, rate, greet).open()


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()


def hello() -> bytes:
    """A ClientHello."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()
