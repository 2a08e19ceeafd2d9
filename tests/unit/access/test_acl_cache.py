"""Cached decisions: a remembered answer is never given to a question it does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqttd.codec.packets import Puback, Publish
from tests.unit.admin.node import MemoryClient, make_broker

NO_RETAIN = '{deny, all, {publish, [{retain, true}]}, ["t"]}.\n{allow, all}.\n'
ONLY_QOS_0 = '{allow, all, {publish, [{qos, 0}]}, ["t"]}.\n{allow, all, subscribe}.\n'


def codes(client: MemoryClient) -> list[int]:
    return [packet.reason_code for packet in client.received() if isinstance(packet, Puback)]


def test_qos_0_first_then_retained_on_one_topic(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, NO_RETAIN)
    client, reader = MemoryClient(broker, "c"), MemoryClient(broker, "r")
    reader.subscribe("t")
    client.send(Publish("t", b"1", 0, False))
    client.send(Publish("t", b"2", 0, True))
    client.send(Publish("t", b"3", 0, False))
    got = [packet.payload for packet in reader.received() if isinstance(packet, Publish)]
    assert got == [b"1", b"3"]
    assert len(broker.retainer) == 0
    assert broker.metrics.publishes_denied == 1


@pytest.mark.parametrize("version", [5])
def test_the_other_way_round_and_with_other_qos(tmp_path: Path, version: int) -> None:
    broker = make_broker(tmp_path, ONLY_QOS_0)
    client, reader = MemoryClient(broker, "c"), MemoryClient(broker, "r")
    reader.subscribe("t", 1)
    for qos in (1, 0, 1, 0):
        client.send(Publish("t", b"%d" % qos, qos, False, packet_id=7 if qos else 0))
    assert codes(client) == [0x87, 0x87]
    got = [packet.payload for packet in reader.received() if isinstance(packet, Publish)]
    assert got == [b"0", b"0"]


def test_rules_without_flags_are_asked_once_per_topic(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, "{allow, all}.\n")
    client = MemoryClient(broker, "c")
    for qos in (0, 0, 0):
        client.send(Publish("t", b"x", qos, False))
    assert broker.access.describe()[-1]["hit"] == 1
    broker.access_changed()
    client.send(Publish("t", b"x", 0, False))
    assert broker.access.describe()[-1]["hit"] == 2


def test_rules_that_begin_to_ask_for_flags_are_obeyed_at_once(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, "{allow, all}.\n")
    client = MemoryClient(broker, "c")
    client.send(Publish("t", b"x", 0, False))
    (tmp_path / "acl.conf").write_text(NO_RETAIN)
    broker.access.reload_acl()
    broker.access_changed()
    client.send(Publish("t", b"x", 0, False))
    client.send(Publish("t", b"x", 0, True))
    assert len(broker.retainer) == 0


def test_every_refusal_is_told_with_its_rule(tmp_path: Path) -> None:
    broker = make_broker(tmp_path, '{deny, all, publish, ["t"]}.\n')
    told: list[str] = []
    broker.access.authorization.on_deny = lambda client, action, topic, rule: told.append(rule)
    client = MemoryClient(broker, "c")
    for _ in range(3):
        client.send(Publish("t", b"x", 0, False))
    assert told == [f'{tmp_path}/acl.conf:1 {{deny, all, publish, ["t"]}}'] * 3
