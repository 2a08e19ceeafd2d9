"""A message that comes through thousands of subscriptions, each with an identifier.

`{a,+}^levels` of each session; each delivery names them all.
"""

from __future__ import annotations

from itertools import product

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import connect, packet, publish, text

__all__ = ["open_attack", "stop"]


_BATCH = 500


def open_attack(port: int, rate: float = 0.0, sessions: int = 10, levels: int = 12) -> Attack:
    """Begin; `sessions` subscribe, then messages come."""
    names = [b"/".join(words) for words in product((b"a", b"+"), repeat=levels)]
    batches = [names[at : at + _BATCH] for at in range(0, len(names), _BATCH)]
    asked = [
        b"".join(_subscribe(name, at * _BATCH + n + 1) for n, name in enumerate(batch))
        for at, batch in enumerate(batches)
    ]
    said = publish(b"/".join([b"a"] * levels), b"x" * 100)

    def go_on(attack: Attack) -> None:
        session, batch = divmod(attack.steps - 1, len(asked))
        if session < sessions:
            name = b"identified-%d" % session
            sock = attack.login(connect(name)) if not batch else attack.last()
            attack.say(sock, asked[batch])
            attack.swallow()
        else:
            attack.say(attack.client(b"identified"), said)

    return Attack(port, rate, go_on).open()


def _subscribe(name: bytes, identifier: int) -> bytes:
    """A SUBSCRIBE with a Subscription Identifier."""
    number = bytes((identifier & 0x7F | 0x80, identifier >> 7 & 0x7F))
    return packet(0x82, b"\0\1" + b"\x03\x0b" + number + text(name) + b"\0")


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
