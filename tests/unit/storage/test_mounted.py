"""Wildcards of a mounted client do not match `$`, wherever its session goes on."""

from __future__ import annotations

from pathlib import Path

from mqttd.broker.broker import Broker
from mqttd.broker.sessions.records import Record, record_of, restore, subscribe_all
from mqttd.codec import properties as prop
from mqttd.codec.packets import Subscription
from mqttd.session.channel.listener import Listener
from mqttd.session.session import Session
from mqttd.types import SessionState
from tests.unit.storage.test_workers import Worker


def reached(broker: Broker) -> list[str]:
    """The last words of topics whose messages it gets."""
    return [word for word in ("x", "$x") if broker.router.of(f"dev/{word}").sessions]


def test_over_a_restart_a_handover_and_on_its_way(tmp_path: Path) -> None:
    first = Worker(tmp_path)
    first.node.broker.listeners["memory"] = Listener("memory", mountpoint="dev/")
    expiry = {prop.SESSION_EXPIRY_INTERVAL: 1000}
    first.node.connect("lamp", 5, False, properties=expiry)
    first.settle()
    assert first.node.broker.subscribe_client("lamp", Subscription("dev/#", 1)) == 1
    first.settle()
    assert reached(first.node.broker) == ["x"]
    first.stop()

    again = Worker(tmp_path)
    broker = again.node.broker
    assert reached(broker) == ["x"]
    session = broker.sessions["lamp"]
    record = record_of(broker, session)
    again.stop()

    elsewhere, between = (Worker(tmp_path / name).node.broker for name in "ab")
    restore(elsewhere, "lamp", SessionState(record, (), 0), Record(record))
    assert reached(elsewhere) == ["x"]
    subscribe_all(between, Session(between, "lamp", None), Record(record))
    assert reached(between) == ["x"]
