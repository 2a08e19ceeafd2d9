"""Nodes of a cluster for tests, what is asked of them, and clients that go from one to another."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.ctl import told
from tests.support.etcd import Etcd
from tests.support.waiting import until

__all__ = ["LASTS", "STAYS", "Nodes", "asked", "let_in", "start_node", "start_nodes"]

Nodes = dict[str, Broker]
#: Of a node that nobody kills: a machine that pauses does not end its membership.
LASTS = {"lease": "30s"}
#: Of a session that outlasts its connection.
STAYS = [(mq.SESSION_EXPIRY, 600)]


def start_node(folder: Path, etcd: Etcd, name: str, **more: Any) -> Broker:
    """One node; `cluster` is more of that table, all else other tables."""
    cluster = {
        "kind": "etcd",
        "endpoints": etcd.endpoints,
        "bind": "127.0.0.1:0",
        "lease": "2s",
        **more.pop("cluster", {}),
    }
    return start_broker(folder / name, node={"name": name}, cluster=cluster, **more)


def start_nodes(folder: Path, etcd: Etcd, wanted: dict[str, dict[str, Any]], **more: Any) -> Nodes:
    """Nodes by their names and what is theirs of `[cluster]`, side by side."""
    with ThreadPoolExecutor(len(wanted)) as pool:
        begun = {
            name: pool.submit(start_node, folder, etcd, name, cluster=cluster, **more)
            for name, cluster in wanted.items()
        }
    try:
        return {name: each.result() for name, each in begun.items()}
    except BaseException:
        for each in begun.values():
            if each.exception() is None:
                each.result().stop()
        raise


def asked(broker: Broker, *words: str) -> Any:
    """What `mqttd-ctl` says, as JSON."""
    return json.loads(told(broker, "--json", *words))


def let_in(node: Broker, name: str) -> RawClient:
    """A client at a node, however often it is refused because its session is not there yet."""
    found: list[RawClient] = []

    def tried() -> bool:
        client = RawClient(node.port, mq.V5, deadline=20.0)
        try:
            found.append(client.connect(name, clean=False, props=STAYS))
        except AssertionError:
            client.close()
        return bool(found)

    until(tried, f"that {name} is let in")
    return found[0]
