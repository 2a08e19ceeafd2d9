"""What a broker with a store says after kill -9: everything it has acknowledged, and nothing twice.

One case for each kind of state (MQTT 5.0, 4.1); bytes against a process that is killed and started
again over the same directory. Its configuration is read again before any client is back: the rules
are by address, and nobody has one then.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mqttd.admin.ctl.client import Client
from tests.faults.operator import ACL, complaints
from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient

LONG = os.environ.get("MQTTD_LONG") == "1"
#: Which version each case is run with; MQTTD_LONG=1: with both.
OLD = [mq.V311, mq.V5] if LONG else [mq.V311]
NEW = [mq.V311, mq.V5] if LONG else [mq.V5]


class Brokers:
    """A broker over one directory, again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings: dict[str, Any] = {"store": {"kind": "sqlite"}}
        self.broker: Broker | None = None
        self.clients: list[RawClient] = []

    def start(self) -> Broker:
        self.broker = start_broker(self.path, acl=ACL, **self.settings)
        control = Client(str(self.path / "data/mqttd.sock"))
        assert control.request("POST", "/config/apply", {})["applied"]
        return self.broker

    def kill(self) -> None:
        assert self.broker is not None
        self.broker.stop(hard=True)
        assert complaints(self.broker.output) == []

    def restart(self) -> Broker:
        self.kill()
        return self.start()

    def client(self, version: int = mq.V5) -> RawClient:
        assert self.broker is not None
        client = RawClient(self.broker.port, version)
        self.clients.append(client)
        return client

    def ctl(self, *argv: str) -> str:
        """What `mqttd-ctl` prints."""
        return subprocess.run(
            [Path(sys.executable).parent / "mqttd-ctl", "-c", self.path / "etc/mqttd.conf", *argv],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
        ).stdout  # fmt: skip

    def settle(self) -> None:
        """What the broker was told up to now is kept: groups are written in their order."""
        self.resume("anchor").subscribe("anchor", qos=1)

    def resume(self, client_id: str, version: int = mq.V5, **fields: Any) -> RawClient:
        """A client with a session that outlives its connection."""
        props = [(mq.SESSION_EXPIRY, 3600)] if version == mq.V5 else []
        return self.client(version).connect(client_id, clean=False, props=props, **fields)


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    made = Brokers(tmp_path)
    made.start()
    yield made
    for client in made.clients:
        client.close()
    made.kill()


@pytest.mark.parametrize("version", OLD)
def test_what_waits_for_an_absent_client_is_there_in_order(brokers: Brokers, version: int) -> None:
    """Queued QoS 1 and 2, and the subscription itself."""
    brokers.resume("away", version).subscribe("t/#", qos=2)
    brokers.clients[-1].reset()
    publisher = brokers.client(version).connect("publisher")
    for number in range(50):
        publisher.publish(f"t/{number % 3}", b"%d" % number, qos=1 + number % 2)
    brokers.restart()
    away = brokers.resume("away", version)
    assert away.resumed
    assert [p.payload for p in away.collect(50)] == [b"%d" % number for number in range(50)]
    away.expect_nothing()
    brokers.client(version).connect("publisher").publish("t/new", b"after", qos=1)
    assert away.message().payload == b"after"


@pytest.mark.parametrize("version", NEW)
def test_what_was_in_flight_comes_again_under_its_id(brokers: Brokers, version: int) -> None:
    """MQTT-4.4.0-1: DUP and the packet id it had; what was acknowledged does not come."""
    receiver = brokers.resume("receiver", version)
    receiver.subscribe("t", qos=2)
    publisher = brokers.client(version).connect("publisher")
    for number in range(6):
        publisher.publish("t", b"%d" % number, qos=1 + number % 2)
    sent = [receiver.expect(mq.PUBLISH) for _ in range(6)]
    for packet in sent[:2]:
        if packet.qos == 1:
            receiver.send(mq.puback(packet.packet_id, version))
        else:
            receiver.send(mq.pubrec(packet.packet_id, version))
            receiver.wait_for(mq.PUBREL)
            receiver.send(mq.pubcomp(packet.packet_id, version))
    receiver.ping()
    publisher.publish("t", b"6", qos=1)  # its PUBACK comes behind those acknowledgements
    receiver.expect(mq.PUBLISH)
    brokers.restart()
    receiver = brokers.resume("receiver", version)
    again = [receiver.expect(mq.PUBLISH) for _ in range(5)]
    assert [(p.payload, p.packet_id, p.dup) for p in again[:4]] == [
        (p.payload, p.packet_id, True) for p in sent[2:]
    ]
    assert again[4].payload == b"6"
    receiver.expect_nothing()


@pytest.mark.parametrize("version", OLD)
def test_what_was_received_goes_on_with_pubrel(brokers: Brokers, version: int) -> None:
    """QoS 2 out: after PUBREC only PUBREL is sent again, never the message."""
    receiver = brokers.resume("receiver", version)
    receiver.subscribe("t", qos=2)
    brokers.client(version).connect("publisher").publish("t", b"once", qos=2)
    packet = receiver.expect(mq.PUBLISH)
    receiver.send(mq.pubrec(packet.packet_id, version))
    receiver.expect(mq.PUBREL, packet_id=packet.packet_id)
    brokers.restart()
    receiver = brokers.resume("receiver", version)
    receiver.expect(mq.PUBREL, packet_id=packet.packet_id)
    receiver.send(mq.pubcomp(packet.packet_id, version))
    receiver.expect_nothing()
    brokers.client(version).connect("publisher").publish("t", b"next", qos=2)
    assert receiver.message().payload == b"next"


@pytest.mark.parametrize("version", NEW)
def test_an_incoming_id_is_known_together_with_its_message(brokers: Brokers, version: int) -> None:
    """QoS 2 in: sent again after PUBREC it is not delivered again, and PUBREL frees the id."""
    brokers.resume("away", version).subscribe("t", qos=2)
    brokers.clients[-1].reset()
    publisher = brokers.resume("publisher", version)
    publisher.send(mq.publish("t", b"once", 2, 7, version=version))
    publisher.expect(mq.PUBREC, packet_id=7)
    brokers.restart()
    publisher = brokers.resume("publisher", version)
    assert publisher.resumed
    publisher.send(mq.publish("t", b"once", 2, 7, dup=True, version=version))
    publisher.expect(mq.PUBREC, packet_id=7)
    publisher.send(mq.pubrel(7, version))
    publisher.expect(mq.PUBCOMP, packet_id=7, reason=0)
    brokers.restart()
    publisher = brokers.resume("publisher", version)
    publisher.publish("t", b"another", qos=2, packet_id=7)
    away = brokers.resume("away", version)
    assert [p.payload for p in away.collect(2)] == [b"once", b"another"]
    away.expect_nothing()


@pytest.mark.parametrize("version", OLD)
def test_retained_messages_stay_and_deleted_ones_stay_gone(brokers: Brokers, version: int) -> None:
    publisher = brokers.client(version).connect("publisher")
    for number in range(5):
        publisher.publish(f"r/{number}", b"old", qos=1, retain=True)
        publisher.publish(f"r/{number}", b"new %d" % number, qos=number % 3, retain=True)
    publisher.publish("r/3", b"", qos=1, retain=True)
    brokers.restart()
    for again in (True, False):
        reader = brokers.client(version).connect()
        reader.subscribe("r/#", qos=2)
        found = {p.topic: (p.payload, p.qos, p.retain) for p in reader.collect(4)}
        assert found == {f"r/{n}": (b"new %d" % n, n % 3, True) for n in range(5) if n != 3}
        if again:
            brokers.restart()


def test_properties_and_expiry_stay_with_a_message(brokers: Brokers) -> None:
    """MQTT 5.0: user properties, content type, what is left of the Message Expiry Interval."""
    brokers.resume("away").subscribe("t", qos=1, props=[(mq.SUBSCRIPTION_ID, 9)])
    brokers.clients[-1].reset()
    publisher = brokers.client().connect("publisher")
    props = [(mq.CONTENT_TYPE, "x"), (mq.USER_PROPERTY, ("k", "v"))]
    publisher.publish("t", b"long", 1, props=[*props, (mq.MESSAGE_EXPIRY, 1000)])
    publisher.publish("t", b"short", 1, props=[(mq.MESSAGE_EXPIRY, 1)])
    publisher.publish("t", b"plain", 1, props=props)
    brokers.kill()
    time.sleep(2.2)
    brokers.start()
    found = brokers.resume("away").collect(2)
    assert [p.payload for p in found] == [b"long", b"plain"]
    for packet in found:
        assert packet.prop(mq.CONTENT_TYPE) == "x"
        assert packet.prop(mq.SUBSCRIPTION_ID) == 9
    assert 900 < found[0].prop(mq.MESSAGE_EXPIRY) < 1000


@pytest.mark.parametrize("clean", [True, False])
def test_the_will_of_a_client_that_was_connected_is_published(
    brokers: Brokers, clean: bool
) -> None:
    """Its connection has ended without DISCONNECT, whoever ended it (3.1.2.5)."""
    brokers.resume("away").subscribe("will/#", qos=1)
    brokers.clients[-1].reset()
    will = mq.Will("will/me", b"gone", 1)
    if clean:
        brokers.client().connect("mortal", will=will)
    else:
        brokers.resume("mortal", will=will)
    brokers.client().connect("ended well", will=mq.Will("will/not", b"no")).disconnect()
    brokers.client().connect("publisher").publish("will/first", b"1", qos=1)
    brokers.restart()
    away = brokers.resume("away")
    assert [p.payload for p in away.collect(2)] == [b"1", b"gone"]
    away.ping()
    brokers.settle()
    brokers.restart()
    brokers.resume("away").expect_nothing()


def test_a_session_that_ended_is_not_there(brokers: Brokers) -> None:
    """Clean start, and expiry 0 at DISCONNECT."""
    for name in ("discarded", "expired"):
        brokers.resume(name).subscribe("t", qos=1)
    brokers.clients[-1].disconnect(props=[(mq.SESSION_EXPIRY, 0)])
    brokers.client().connect("discarded", clean=True).disconnect()
    brokers.resume("other").subscribe("t", qos=1)
    brokers.client().connect("publisher").publish("t", b"x", qos=1)
    brokers.restart()
    assert not brokers.resume("discarded").resumed
    assert not brokers.resume("expired").resumed
    assert brokers.resume("other").resumed


def test_a_session_expires_while_the_broker_is_down(brokers: Brokers) -> None:
    short = brokers.client().connect("short", clean=False, props=[(mq.SESSION_EXPIRY, 1)])
    short.subscribe("t", qos=1)
    short.reset()
    brokers.resume("long").subscribe("t", qos=1)
    brokers.kill()
    time.sleep(2.2)  # what is kept knows whole seconds
    brokers.start()
    assert brokers.resume("long").resumed
    assert not brokers.resume("short").resumed


def test_a_newer_schema_is_refused_and_left_as_it_is(brokers: Brokers) -> None:
    brokers.kill()
    store = brokers.path / "data" / "store.db"
    base = sqlite3.connect(store)
    base.execute("PRAGMA user_version = 99")
    base.commit()
    base.close()
    before = store.read_bytes()
    with pytest.raises(RuntimeError, match="has version 99 of the store"):
        brokers.start()
    assert store.read_bytes() == before
    assert [path.name for path in store.parent.glob("store.db*")] == ["store.db"]


def _garbage(data: bytes) -> bytes:
    return b"\xa5" * len(data)


def _cut(data: bytes) -> bytes:
    return data[:5000]


def _middle(data: bytes) -> bytes:
    return data[:8192] + b"\xa5" * 4096 + data[12288:]


@pytest.mark.parametrize("damage", [_garbage, _cut, _middle] if LONG else [_middle])
def test_a_damaged_file_is_set_aside_and_the_broker_starts(
    brokers: Brokers, damage: Callable[[bytes], bytes]
) -> None:
    brokers.resume("away").subscribe("t", qos=1)
    assert brokers.broker is not None
    brokers.broker.stop()
    store = brokers.path / "data" / "store.db"
    damaged = damage(store.read_bytes())
    store.write_bytes(damaged)
    broker = brokers.start()
    assert broker.says("store damaged")
    aside = list(store.parent.glob("store.db.damaged-*"))
    assert len(aside) == 1
    assert aside[0].read_bytes() == damaged
    assert not brokers.resume("away").resumed


def test_a_stop_loses_nothing_either(brokers: Brokers) -> None:
    """SIGTERM: what was told is written."""
    brokers.resume("away").subscribe("t", qos=1)
    brokers.clients[-1].reset()
    brokers.client().connect("publisher").publish("t", b"x", qos=1)
    assert brokers.broker is not None
    brokers.broker.stop()
    brokers.start()
    assert brokers.resume("away").message().payload == b"x"


def test_delayed_messages_come_after_a_restart_at_their_time(brokers: Brokers) -> None:
    """What the plugin keeps by `handle.store`, acknowledged or not, and what was due meanwhile."""
    brokers.kill()
    brokers.settings["plugins"] = {"load": ["delayed"]}
    brokers.start()
    brokers.resume("away").subscribe("t/#", qos=1)
    brokers.clients[-1].reset()
    publisher = brokers.client().connect("publisher")
    for seconds, qos, topic in ((3, 1, "c"), (1, 2, "a"), (600, 1, "later"), (2, 1, "b")):
        publisher.publish(f"$delayed/{seconds}/t/{topic}", topic.encode(), qos=qos)
    brokers.restart()
    away = brokers.resume("away")
    assert [p.topic for p in away.collect(3)] == ["t/a", "t/b", "t/c"]
    brokers.settle()
    brokers.restart()  # what was published is not published again
    away = brokers.resume("away")
    away.expect_nothing()
    status = brokers.ctl("delayed", "status")
    assert status.startswith("1 messages wait"), status


def test_bans_are_there_after_a_restart(brokers: Brokers) -> None:
    """With their end and their reason; so is what the file of an earlier version named."""
    brokers.kill()
    old = brokers.path / "data" / "bans.json"
    old.write_text('[{"kind": "username", "value": "old", "reason": "of before"}]')
    brokers.start()
    assert brokers.ctl("bans", "add", "client_id", "eve", "--reason", "rude").startswith("banned")
    assert "2" in brokers.ctl("bans", "add", "peerhost", "192.0.2.0/24", "--for", "1d")
    brokers.ctl("bans", "add", "client_id", "mallory")
    assert brokers.ctl("bans", "del", "client_id", "mallory").startswith("lifted")
    before = brokers.ctl("bans", "list", "--json")
    brokers.restart()
    assert brokers.ctl("bans", "list", "--json") == before
    listed = brokers.ctl("bans", "list")
    assert [name in listed for name in ("eve", "rude", "192.0.2.0/24", "old", "mallory")] == [
        True, True, True, True, False,
    ]  # fmt: skip
    assert not old.exists()
    brokers.client().connect("eve", reason=0x8A)
    brokers.client().connect("mallory")
