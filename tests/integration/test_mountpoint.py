"""A listener with a mountpoint beside one without: both sides of the same tree."""

from __future__ import annotations

from pathlib import Path

from tests.support import packets as mq
from tests.support.broker import start_broker
from tests.support.client import RawClient
from tests.support.doors import dial, doors_of


def test_clients_of_a_mounted_listener_live_below_their_prefix(tmp_path: Path) -> None:
    devices = {"bind": "127.0.0.1:0", "mountpoint": "dev/%c/"}
    broker = start_broker(
        tmp_path,
        listener={"tcp": {"devices": devices}, "ws": {"devices": devices}},
        acl='{allow, all, pubsub, ["dev/%c/#"]}.\n{allow, {client, "boss"}, pubsub, ["#"]}.\n'
        "{deny, all}.\n",
    )
    try:
        doors = doors_of(broker)
        boss = RawClient(broker.port, mq.V5).connect("boss")
        boss.subscribe("dev/+/state", qos=1)
        for kind, name in (("tcp", "lamp"), ("ws", "door")):
            device = RawClient(0, mq.V5, sock=dial(doors[f"{kind}:devices"])).connect(name)
            device.subscribe("cmd/+", qos=1)
            device.publish("state", b"on", 1)
            assert boss.message().topic == f"dev/{name}/state"
            boss.publish(f"dev/{name}/cmd/dim", b"5", 1)
            assert device.message().topic == "cmd/dim"
            device.close()
        RawClient(0, mq.V5, sock=dial(doors["tcp:devices"])).connect("a/b", reason=0x87).close()
    finally:
        broker.stop()
