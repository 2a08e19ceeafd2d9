"""What a client has written to etcd as filters that come and go, at a node of a cluster."""

from __future__ import annotations

from base64 import b64decode, b64encode
from itertools import count
from pathlib import Path

import pytest

from tests.support import packets as mq
from tests.support.client import RawClient
from tests.support.etcd import Etcd, start_etcd
from tests.support.nodes import asked, start_node

pytestmark = pytest.mark.timeout(120)

#: So often without a wait: 32 MiB at once, of which each filter counts twice.
LEAST = (32 << 20) // (2 * 15 * 60_000)

#: Bytes that are left of it in etcd: what is dead for 1 MiB, and the chunks that are beyond it.
MOST = 2 << 20


def written(etcd: Etcd) -> int:
    """Bytes of all filters in etcd."""
    start, end = (b64encode(key).decode() for key in (b"/mqttd/", b"/mqttd0"))
    found = etcd.ask("/v3/kv/range", {"key": start, "range_end": end})["kvs"]
    routes = [each for each in found if b"/route/" in b64decode(each["key"])]
    return sum(len(b64decode(each["value"])) for each in routes)


def test_who_has_long_filters_come_and_go_without_end_waits(tmp_path: Path) -> None:
    etcd = start_etcd(tmp_path / "etcd")
    node = start_node(tmp_path, etcd, "a")
    try:
        client = RawClient(node.port, mq.V5, deadline=60.0).connect("c")
        for number in count(1):
            names = [f"{number}/{at}/".ljust(60_000, "f") for at in range(15)]
            assert client.subscribe(*names) == [0] * 15
            client.unsubscribe(*names)
            if not number % 10 and asked(node, "metrics")["gauges"]["cluster_filters_paced"]:
                break
        assert number > LEAST
        assert client.subscribe("t") == [0]
        assert written(etcd) < MOST
    finally:
        node.stop()
        etcd.stop()
