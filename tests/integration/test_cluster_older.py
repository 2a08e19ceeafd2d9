"""An etcd that has forgotten what it had told: begun anew, or restored from a copy of before."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import packets as mq
from tests.support.broker import Broker
from tests.support.client import RawClient
from tests.support.etcd import Etcd, start_etcd
from tests.support.nodes import STAYS, asked, let_in, start_nodes
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    started = start_etcd(tmp_path / "etcd", 1)
    yield started
    started.stop()


def is_told(node: Broker) -> bool:
    alarms = {each["name"]: each["text"] for each in asked(node, "alarms")["alarms"]}
    return "stop all nodes, then start all" in alarms.get("cluster_etcd_older", "")


def bumped(etcd: Etcd, copy: Path) -> None:
    """The copy is restored as etcd's manual has it for those who watch: its revisions go on behind
    those that were told."""
    command = etcd.members[0].command
    same = ("--name", "--data-dir", "--initial-advertise-peer-urls", "--initial-cluster",
            "--initial-cluster-token")  # fmt: skip
    said = [each for name in same for each in (name, command[command.index(name) + 1])]
    program = shutil.which("etcdutl")
    assert program is not None
    subprocess.run(
        [program, "snapshot", "restore", copy / "member/snap/db", "--skip-hash-check",
         "--bump-revision", "1000000000", "--mark-compacted", *said],
        check=True, capture_output=True,
    )  # fmt: skip


#: Debian 12 has no etcdutl, Debian 13 has.
needs_etcdutl = pytest.mark.skipif(shutil.which("etcdutl") is None, reason="there is no etcdutl")


@pytest.mark.parametrize(
    "restored", ["copied", pytest.param("bumped", marks=needs_etcdutl), ""],
    ids=["restored", "bumped", "empty"],
)  # fmt: skip
def test_nobody_has_a_session_anew_by_an_etcd_that_has_forgotten_whose_it_is(
    etcd: Etcd, tmp_path: Path, restored: str
) -> None:
    """It was given again at another node, of which the first never heard: a client had two, with
    everything twice, and what filters it had at the first nobody knew any more."""
    member = etcd.members[0].folder / "data"
    wanted: dict[str, dict[str, Any]] = {"a": {}, "b": {}}
    store = {"kind": "sqlite"}
    nodes = start_nodes(tmp_path, etcd, wanted, store=store)
    a, b = nodes.values()
    try:
        assert a.says("node b is linked") and b.says("node a is linked")
        if restored:
            etcd.stop()
            shutil.copytree(member, tmp_path / "copy")
            etcd.start()
            until(lambda: all(asked(each, "cluster", "status")["state"] == "member"
                              for each in (a, b)), "that both are members")  # fmt: skip
        mine = let_in(a, "mine")
        mine.subscribe("mine/#", qos=1)
        other = RawClient(b.port, mq.V5).connect("other")
        etcd.stop()
        shutil.rmtree(member)
        if restored == "copied":
            shutil.copytree(tmp_path / "copy", member)
        elif restored == "bumped":
            bumped(etcd, tmp_path / "copy")
        etcd.start()
        until(lambda: is_told(a) and is_told(b), "that both nodes say so")
        with pytest.raises(AssertionError):
            RawClient(b.port, mq.V5).connect("mine", clean=False, props=STAYS)
        other.publish("mine/1", b"heard", qos=1)
        assert mine.payloads(1) == [b"heard"]
        mine.close()
        other.publish("mine/2", b"waits", qos=1)
        other.close()
    finally:
        for node in nodes.values():
            node.stop()
            assert not any(word in node.output for word in ("Traceback", "Unhandled"))
    nodes = start_nodes(tmp_path, etcd, wanted, store=store)
    a, b = nodes.values()
    try:
        again = let_in(b, "mine")
        assert again.payloads(1) == [b"waits"]
        again.close()
        assert not is_told(a) and not is_told(b)
    finally:
        for node in nodes.values():
            node.stop()
