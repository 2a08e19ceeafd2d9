"""Payloads of a megabyte through every kind of listener, on both transports."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.broker import Broker
from tests.support.client import RawClient
from tests.support.doors import KINDS, TRANSPORTS, dial, doors_of, start_with_doors

SIZES = (65_535, 300_000, 1_000_000, 1_000_001)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    made = start_with_doors(
        tmp_path_factory.mktemp("large"),
        mqtt={"max_packet_size": "4MiB"},
        output={"high_watermark": "64MiB"},
    )
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("name", [f"{kind}:{how}" for kind in KINDS for how in TRANSPORTS])
def test_large_payloads_arrive_as_they_were_sent(broker: Broker, name: str, version: int) -> None:
    """QoS 0, 1 and 2 to two readers, one through the same door and one over plain TCP."""
    door = doors_of(broker)[name]
    plain = doors_of(broker)["tcp:engine"]
    assert broker.directory is not None
    certificates = broker.directory / "etc" / "certs"
    topic = f"large/{name}/{version}"
    payloads = [random.Random(n).randbytes(size) for n, size in enumerate(SIZES)]
    with (
        closing(RawClient(0, version, 20, dial(door, certificates))) as reader,
        closing(RawClient(0, version, 20, dial(plain))) as other,
        closing(RawClient(0, version, 20, dial(door, certificates))) as sender,
    ):
        for who, client in (("reader", reader), ("other", other), ("sender", sender)):
            client.connect(f"{who}-{name}-{version}")
        for client in (reader, other):
            client.subscribe(topic, qos=2)
        for qos in (0, 1, 2):
            got: list[list[bytes]] = [[], []]
            threads = [
                threading.Thread(target=lambda c, to: to.extend(c.payloads(len(SIZES))), args=one)
                for one in zip((reader, other), got, strict=True)
            ]
            for thread in threads:
                thread.start()
            for payload in payloads:
                sender.publish(topic, payload, qos=qos)
            for thread in threads:
                thread.join(30)
            assert got[0] == payloads
            assert got[1] == payloads
