"""Who connects to the address of a node and says nothing keeps no node out, and takes little."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tests.support.etcd import Etcd
from tests.support.nodes import asked, start_node

pytestmark = pytest.mark.timeout(120)


def hello() -> bytes:
    """The first bytes of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(incoming, outgoing).do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def test_half_handshakes_keep_no_node_out(etcd: Etcd, tmp_path: Path) -> None:
    authority = Authority()
    settings = {}
    for name in ("a", "b"):
        folder = tmp_path / "tls" / name
        authority.write(folder)
        authority.node(name).write(folder, "node")
        settings[name] = {
            "certificate": str(folder / "node.crt"),
            "private_key": str(folder / "node.key"),
            "ca_file": str(folder / "ca.crt"),
        }
    nodes = {"b": start_node(tmp_path, etcd, "b", cluster=settings["b"])}
    strangers: list[socket.socket] = []
    try:
        status = asked(nodes["b"], "cluster", "status")
        port = int(status["nodes"][0]["address"].rpartition(":")[2])
        before = nodes["b"].resident_kib()
        first = hello()
        # A hundred of the address of the nodes, and two of each of a hundred others.
        for number in range(300):
            host = "127.0.0.1" if number < 100 else f"127.1.0.{number // 2}"
            stranger = socket.create_connection(("127.0.0.1", port), 10, (host, 0))
            strangers.append(stranger)
            try:
                stranger.sendall(first)
            except ConnectionError:
                pass  # closed by now
        nodes["a"] = start_node(tmp_path, etcd, "a", cluster=settings["a"])
        assert nodes["a"].says("node b is linked")
        assert nodes["b"].says("node strangers refused")
        counted = asked(nodes["b"], "metrics")["gauges"]
        assert counted["cluster_strangers_refused"] + counted["cluster_strangers_ended"] >= 200
        assert nodes["b"].resident_kib() - before < 32 << 10
        for stranger in strangers:
            stranger.close()
        linked = [each["linked"] for each in asked(nodes["a"], "cluster", "status")["nodes"]]
        assert linked == [False, True]
        assert "Traceback" not in nodes["b"].output
    finally:
        for stranger in strangers:
            stranger.close()
        for name, node in nodes.items():
            node.stop()
            print(f"--- {name}\n{node.output[-4000:]}")
