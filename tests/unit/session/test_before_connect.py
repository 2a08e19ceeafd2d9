"""What is kept of a connection before its CONNECT is complete."""

from __future__ import annotations

import sys

import pytest

from mqttd.codec.packets import Disconnect
from tests.support.memory import MemoryBroker

#: A CONNECT of 60,000 bytes; 64 KiB may come before authentication.
HEAD = b"\x10\xdd\xd4\x03\x00\x04MQTT\x05\x02\x00\x00\x00"


@pytest.mark.parametrize("drip", [1, 7, 500, 59_000])
def test_a_connect_that_drips_is_kept_and_nothing_more(drip: int) -> None:
    client = MemoryBroker().client(5)
    client.feed(HEAD)
    sent = len(HEAD)
    while sent < 59_000:
        client.feed(bytes(drip))
        sent += drip
        rest = client.channel.rest
        assert rest is not None and len(rest) == sent
        assert sys.getsizeof(rest.start) <= sent + 100 and client.channel.unfinished() == sent
    assert not client.closed


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(b"\x10\x81\x80\x04", id="a CONNECT of more than 64 KiB"),
        pytest.param(b"\x10\xff\xff\xff\xff", id="a length without end"),
        pytest.param(b"\x30", id="another packet, by its first byte"),
    ],
)
def test_what_cannot_become_a_connect_is_not_waited_for(wire: bytes) -> None:
    client = MemoryBroker().client(5)
    for byte in wire:
        client.feed(bytes([byte]))
    assert client.closed and client.channel.rest is None
    assert not any(isinstance(packet, Disconnect) for packet in client.take())
