"""Feeds the WebSocket layer what no client should send, and watches that it only ever says no.

    python -m fuzz.websocket --executions 1000000 --seed 1
    python -m fuzz.websocket --seconds 60 --target upgrade

    frames    good frames, mutated, and plain random bytes, whole and cut at random places: the same
              payload, the same answers and the same end, no exception, and no more kept than a
              header and a control frame; unharmed frames give back what was put in
    upgrade   HTTP requests, mutated: an answer, an open WebSocket or a wait for more, no exception

The same seed makes the same inputs. A fault prints the input as hex, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections.abc import Callable

from mqttd.transports.frames import WebSocketLayer
from mqttd.transports.websocket import WebSite
from tests.support.doors import frame

__all__ = ["TARGETS", "main"]

SITE = WebSite("/mqtt", (), True)
REQUEST = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost:8083\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Origin: http://localhost:8083\r\nSec-WebSocket-Protocol: mqtt, mqttv3.1\r\n"
    b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n\r\n"
)
PAGE = b"GET / HTTP/1.1\r\nHost: localhost:8083\r\nAccept-Encoding: gzip\r\n\r\n"
PIECES = [b"\r\n", b":", b" ", b"\n", b"\r", b"\0", b"\xff", b"\x85", b"?redirect=http://[",
          b"HTTP/1.1", b"//", b",", b";", b'"', b"x" * 300]  # fmt: skip


class Oracle(Exception):
    """The layer gave an answer, and it was wrong."""


def mutate(rng: random.Random, data: bytes, pieces: list[bytes]) -> bytes:
    """Some bytes changed, cut, doubled or put in."""
    changed = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 2, 4, 8))):
        at = rng.randrange(len(changed) + 1)
        kind = rng.randrange(5)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(changed):
            changed[at] = rng.randrange(256)
        elif kind == 2:
            del changed[at : at + rng.randrange(1, 9)]
        elif kind == 3:
            changed[at:at] = rng.choice(pieces)
        else:
            changed[at:at] = changed[at : at + rng.randrange(1, 20)]
    return bytes(changed)


def run(data: bytes, steps: list[int]) -> tuple[bytes, bytes, str]:
    """Payload, answers and end of a stream of frames taken in steps."""
    layer = WebSocketLayer(None)
    payload, said, pos = b"", b"", 0
    for step in steps:
        payload += layer.received(data[pos : pos + step])
        said += layer.answer
        layer.answer = b""
        pos += step
        if len(layer.head) > 14 or len(layer.control) > 125:
            raise Oracle("more is kept than a header and a control frame")
        if layer.ended:
            break
    return payload, said, layer.ended


def frames(rng: random.Random) -> bytes:
    """One stream of frames."""
    sent: list[bytes] = []
    data = b""
    for _ in range(rng.randrange(1, 5)):
        payload = rng.randbytes(rng.choice((0, 1, 2, 5, 40, 125, 126, 200, 1000, 5000)))
        kind = rng.randrange(8)
        mask = rng.randbytes(4)
        if kind < 5:
            data += frame(0x82, payload, mask)
            sent.append(payload)
        elif kind == 5:
            cut = rng.randrange(len(payload) + 1)
            data += frame(0x02, payload[:cut], mask) + frame(0x80, payload[cut:], mask)
            sent.append(payload)
        else:
            data += frame(0x89 + (kind == 7), payload[:125], mask)
    good = data
    data = rng.randbytes(rng.randrange(60)) if rng.random() < 0.1 else mutate(rng, data, [b"\x88"])
    whole = run(data, [len(data)])
    if data == good and (whole[0] != b"".join(sent) or whole[2]):
        raise Fault(data, Oracle(f"good frames gave {whole[0]!r}, {whole[2]!r}"))
    steps = []
    while sum(steps) < len(data):
        steps.append(rng.choice((1, 2, 3, 13, 100)))
    if run(data, steps) != whole:
        raise Fault(data, Oracle(f"cut at {steps} it is something else"))
    return data


def upgrade(rng: random.Random) -> bytes:
    """One request."""
    data = mutate(rng, rng.choice((REQUEST, REQUEST, PAGE)), PIECES)
    layer = WebSocketLayer(SITE.upgrade())
    cut = rng.randrange(len(data) + 1)
    layer.received(data[:cut])
    if not layer.ended and layer.upgrade is not None:
        layer.received(data[cut:])
    answered = layer.answer.startswith(b"HTTP/1.1 ")
    if not (answered or layer.ended or layer.shaking):
        raise Fault(data, Oracle("neither an answer, nor an end, nor a wait"))
    return data


class Fault(Exception):
    """An input that broke something."""

    def __init__(self, data: bytes, error: Exception) -> None:
        super().__init__(str(error))
        self.data = data


TARGETS: dict[str, Callable[[random.Random], bytes]] = {"frames": frames, "upgrade": upgrade}
#: Inputs of one round: HTTP is the slower, and the smaller part.
SHARES = {"frames": 20, "upgrade": 1}


def main(argv: list[str] | None = None) -> int:
    """Run; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--executions", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=0.0, help="stop by the clock instead")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", choices=TARGETS, action="append")
    options = parser.parse_args(argv)
    names = options.target or list(TARGETS)
    plan = [name for name in names for _ in range(SHARES[name])]
    rng = random.Random(options.seed)
    begin = time.monotonic()
    count = 0
    while (
        time.monotonic() - begin < options.seconds
        if options.seconds
        else (count < options.executions)
    ):
        for name in plan:
            try:
                TARGETS[name](rng)
            except Exception as error:
                traceback.print_exc()
                data = error.data if isinstance(error, Fault) else b""
                print(f"seed {options.seed}, execution {count}, {name}: {data.hex()}")
                return 1
            count += 1
    spent = time.monotonic() - begin
    print(f"{count} executions of {', '.join(names)} in {spent:.1f} s, no fault")
    return 0


if __name__ == "__main__":
    sys.exit(main())
