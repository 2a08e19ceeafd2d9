"""The HTTP interface behind TLS: hellos, handshakes, half requests, what a stranger may send."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.client_hellos import hello

__all__ = ["open_attack", "stop"]

_HEAD: Final = b"POST /api/v1/publish HTTP/1.1\r\nHost: localhost\r\n"
_DEEP: Final = b'{"topic":' + b"[" * 60_000


def open_attack(port: int, rate: float = 0.0, kind: str = "hellos") -> Attack:
    """Begin."""
    said = hello()

    def hellos(attack: Attack) -> None:
        attack.dial(said)

    def three(attack: Attack) -> None:
        attack.dial(said[:3])

    def shaken(attack: Attack) -> None:
        """A whole handshake, and nothing more."""
        _greet(attack)

    def heads(attack: Attack) -> None:
        """Headers without an end."""
        _say(attack, _greet(attack), b"GET / HTTP/1.1\r\n" + b"X: " + b"x" * 15_000)

    def bodies(attack: Attack) -> None:
        """A body as large as a stranger's may be, but for its end; the JSON is deep."""
        body = b"Content-Length: %d\r\n\r\n" % (len(_DEEP) + 1) + _DEEP
        _say(attack, _greet(attack), _HEAD + body)

    def requests(attack: Attack) -> None:
        """Requests without a token, a hundred in a row."""
        _say(attack, _greet(attack), b"GET /api/v1/status HTTP/1.1\r\nHost: x\r\n\r\n" * 100)

    steps: dict[str, Callable[[Attack], None]] = {
        "hellos": hellos, "three": three, "shaken": shaken, "heads": heads, "bodies": bodies,
        "requests": requests,
    }  # fmt: skip
    return Attack(port, rate, steps[kind], keep=2_000).open()


def _greet(attack: Attack) -> tuple[ssl.SSLObject, ssl.MemoryBIO]:
    """A connection with TLS on it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing)
    sock = attack.dial()
    sock.settimeout(5)
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            attack.say(sock, outgoing.read())
            came = sock.recv(1 << 16)
            if not came:
                raise ConnectionError("turned away") from None
            incoming.write(came)
        else:
            attack.say(sock, outgoing.read())
            return tls, outgoing


def _say(attack: Attack, greeted: tuple[ssl.SSLObject, ssl.MemoryBIO], said: bytes) -> None:
    tls, outgoing = greeted
    tls.write(said)
    attack.say(attack.last(), outgoing.read())


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
