"""Readers that take no packet of more than a few bytes, and messages of many sizes to them."""

from __future__ import annotations

from benchmarks.hostile.attack import Attack
from benchmarks.hostile.wire import packet, publish, subscribe, text, varint

__all__ = ["open_attack", "stop"]


def open_attack(port: int, rate: float = 0.0, clients: int = 200, qos: int = 1) -> Attack:
    """Begin; each of `clients` takes another size."""
    said = b"".join([publish(b"tiny/%d" % n, bytes(n * 7 % 900), qos) for n in range(300)])

    def send(attack: Attack) -> None:
        if attack.steps <= clients:
            sock = attack.login(_connect(b"tiny-%d" % attack.steps, 10 + attack.steps * 3))
            attack.say(sock, subscribe([b"tiny/#"], qos))
            return
        attack.say(attack.client(b"tiny-writer"), said)
        attack.swallow(clients)

    return Attack(port, rate, send, keep=clients + 1).open()


def _connect(name: bytes, largest: int) -> bytes:
    mine = b"\x27" + largest.to_bytes(4, "big")
    return packet(0x10, b"\0\x04MQTT\x05\0\0\0" + varint(len(mine)) + mine + text(name))


def stop(attack: Attack) -> Attack:
    """End it."""
    return attack.stop()
