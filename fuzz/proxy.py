"""Feeds the PROXY header parser what no proxy should send, and watches that it only ever says no.

    python -m fuzz.proxy --executions 1000000 --seed 1

Headers of both versions, with TLVs, mutated, and plain random bytes. Each must give a header, a
wait for more, or a `ProxyError`; the same taken byte by byte by the layer must come to the same end
and hand on the same bytes; unharmed headers give back what was put in.

The same seed makes the same inputs. A fault prints the input as hex, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import ipaddress
import random
import sys
import time
import traceback

from fuzz.websocket import mutate
from mqttd.transports.proxy import MAX_HEADER, ProxyError, ProxyLayer, parse_header

__all__ = ["main"]

PIECES = [b"\r\n", b" ", b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n", b"\x20", b"\xff\xff", b"65536", b"::"]


def tlv(kind: int, value: bytes) -> bytes:
    """A TLV of the second version."""
    return bytes((kind,)) + len(value).to_bytes(2, "big") + value


def header(rng: random.Random) -> tuple[bytes, str, int, str | None]:
    """A good header, and what it says."""
    six = rng.random() < 0.5
    width = 16 if six else 4
    make = ipaddress.IPv6Address if six else ipaddress.IPv4Address
    host, to = make(rng.randbytes(width)), make(rng.randbytes(width))
    port, other = rng.randrange(65536), rng.randrange(65536)
    if rng.random() < 0.4:
        kind = "TCP6" if six else "TCP4"
        return f"PROXY {kind} {host} {to} {port} {other}\r\n".encode(), str(host), port, None
    tlvs, name = b"", None
    if rng.random() < 0.6:
        name = rng.choice(("device-7", "ü", "x" * 64))
        tlvs = tlv(4, bytes(rng.randrange(9))) + tlv(
            0x20, b"\x07\0\0\0\0" + tlv(0x21, b"TLSv1.3") + tlv(0x22, name.encode())
        )
    body = host.packed + to.packed + port.to_bytes(2, "big") + other.to_bytes(2, "big") + tlvs
    start = b"\r\n\r\n\0\r\nQUIT\n\x21" + (b"\x21" if six else b"\x11")
    return start + len(body).to_bytes(2, "big") + body, str(host), port, name


def execute(rng: random.Random) -> bytes:
    """One input; raises AssertionError for a wrong answer."""
    good, host, port, name = header(rng)
    behind = rng.randbytes(rng.randrange(6))
    data = rng.randbytes(rng.randrange(40)) if rng.random() < 0.1 else mutate(rng, good, PIECES)
    data += behind
    error = ""
    found = None
    try:
        found = parse_header(data)
    except ProxyError as refused:
        error = str(refused)
    if data == good + behind:
        assert found is not None, data.hex()
        same = ipaddress.ip_address(found.host) == ipaddress.ip_address(host)
        assert (same, found.port, found.common_name) == (True, port, name), data.hex()
    if found is not None:
        assert 0 < found.size <= min(len(data), MAX_HEADER), data.hex()
    layer = ProxyLayer(lambda header: header)
    passed = b"".join(layer.received(data[i : i + 1]) for i in range(len(data)) if not layer.ended)
    if found is not None:
        assert layer.done and passed == data[found.size :], data.hex()
    elif error:
        assert layer.ended, data.hex()
    else:
        assert not layer.done and not layer.ended, data.hex()
    return data


def main(argv: list[str] | None = None) -> int:
    """Run; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--executions", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=0.0, help="stop by the clock instead")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    rng = random.Random(options.seed)
    begin = time.monotonic()
    count = 0
    while (
        time.monotonic() - begin < options.seconds
        if options.seconds
        else (count < options.executions)
    ):
        try:
            execute(rng)
        except Exception:
            traceback.print_exc()
            print(f"seed {options.seed}, execution {count}")
            return 1
        count += 1
    print(f"{count} executions in {time.monotonic() - begin:.1f} s, no fault")
    return 0


if __name__ == "__main__":
    sys.exit(main())
