"""What mosquitto has kept, taken over: files that the installed mosquitto has written."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mqttd.storage.database import StoreError
from mqttd.storage.mosquitto import MosquittoFile
from tests.support import packets as mq
from tests.support.broker import start_broker
from tests.support.client import RawClient
from tests.support.ctl import run as ctl
from tests.support.needs import needs_program
from tests.support.servers import free_port
from tests.support.waiting import until

Connect = Callable[..., RawClient]

CONF = """
listener {port} 127.0.0.1
allow_anonymous true
persistence true
persistence_location {folder}/
max_inflight_messages 5
user {user}
"""


@pytest.fixture
def clients() -> Iterator[list[RawClient]]:
    made: list[RawClient] = []
    yield made
    for client in made:
        client.close()


@pytest.fixture
def site(tmp_path: Path, clients: list[RawClient]) -> Callable[[Callable[[Connect], None]], Path]:
    """Runs mosquitto, has a function use it, and gives the file that it leaves."""
    program = needs_program("mosquitto", "mosquitto")

    def run(use: Callable[[Connect], None]) -> Path:
        port = free_port()
        folder = tmp_path / "mosquitto"
        folder.mkdir()
        conf = tmp_path / "mosquitto.conf"
        user = "root" if os.geteuid() == 0 else ""
        text = CONF.format(port=port, folder=folder, user=user)
        conf.write_text(text if user else text.replace("user \n", ""))
        process = subprocess.Popen(
            [program, "-c", conf], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            until(lambda: _listens(port), "mosquitto")

            def connect(client_id: str, version: int = mq.V311, **fields: Any) -> RawClient:
                client = RawClient(port, version)
                clients.append(client)
                return _connect(client, client_id, **fields)

            use(connect)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
        return folder / "mosquitto.db"

    return run


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _connect(client: RawClient, client_id: str, **fields: Any) -> RawClient:
    """With a session that stays."""
    props = [(mq.SESSION_EXPIRY, 3600)] if client.version == mq.V5 else []
    # The same user for all: beside one, mosquitto 2.0 writes the name of another for nobody.
    return client.connect(
        client_id, clean=False, props=props, username="bob", password=b"x", **fields
    )


def use(connect: Connect) -> list[int]:
    """Something of everything that mosquitto keeps; the packet ids that `window` was sent."""
    away, away5 = connect("away"), connect("away5", mq.V5)
    away.subscribe(("a/#", 2))
    away5.subscribe(("a/+", 1), ("other", 2))
    for client in (away, away5):
        client.disconnect()
        client.close()
    window = connect("window")
    window.subscribe(("w", 2))
    publisher = connect("publisher")
    for number in range(20):
        publisher.publish(f"a/{number % 2}", b"%d" % number, qos=1 + number % 2)
    publisher.publish("a/kept", b"retained", qos=1, retain=True)
    publisher.publish("gone", b"x", qos=1, retain=True)
    publisher.publish("gone", b"", qos=1, retain=True)
    new = connect("new", mq.V5)
    new.publish(
        "a/5", b"five", qos=1, props=[(mq.USER_PROPERTY, ("k", "v")), (mq.MESSAGE_EXPIRY, 3000)]
    )
    # Three in flight: one is nobody's business any more, one has its PUBREC, one waits.
    for number in range(8):
        publisher.publish("w", b"w%d" % number, qos=2)
    sent = [window.expect(mq.PUBLISH) for _ in range(5)]
    window.send(mq.pubrec(sent[0].packet_id))
    window.wait_for(mq.PUBREL)
    window.send(mq.pubcomp(sent[0].packet_id))
    window.wait_for(mq.PUBLISH)
    window.send(mq.pubrec(sent[1].packet_id))
    window.wait_for(mq.PUBREL)
    # One of QoS 2 came and was not released.
    half = connect("half")
    half.send(mq.publish("a/half", b"half", 2, 77))
    half.expect(mq.PUBREC, packet_id=77)
    for client in (window, half):
        client.drop()
    return [packet.packet_id for packet in sent]


def test_what_mosquitto_kept_is_delivered_here(
    site: Callable[[Callable[[Connect], None]], Path], tmp_path: Path, clients: list[RawClient]
) -> None:
    """Queues in their order, what was in flight under its id, retained messages, subscriptions."""
    ids: list[int] = []
    file = site(lambda connect: ids.extend(use(connect)))
    broker = start_broker(tmp_path, store={"kind": "sqlite"}, auth={"anonymous": "any"})
    config = tmp_path / "etc/mqttd.conf"
    busy = ctl(config, "import", str(file))
    assert busy.returncode == 1 and "in use by a running mqttd: stop it first" in busy.stderr
    broker.stop()
    store = tmp_path / "data/store.db"
    there = ctl(config, "import", str(file))
    assert there.returncode == 1 and "store.db is there already" in there.stderr
    store.unlink()
    before = file.read_bytes()
    taken = ctl(config, "import", str(file))
    assert taken.returncode == 0, taken.stderr
    assert "session" in taken.stdout and "1 retained message" in taken.stdout
    assert file.read_bytes() == before
    broker = start_broker(tmp_path, store={"kind": "sqlite"}, auth={"anonymous": "any"})
    try:

        def client(client_id: str, version: int = mq.V311, **fields: Any) -> RawClient:
            made = RawClient(broker.port, version)
            clients.append(made)
            _connect(made, client_id, **fields)
            assert made.resumed
            return made

        numbers = [b"%d" % number for number in range(20)]
        away = client("away")
        packets = away.collect(23)
        payloads = [p.payload for p in packets]
        assert payloads == [*numbers, b"retained", b"five", b"half"]
        assert [p.qos for p in packets] == [1 + number % 2 for number in range(20)] + [1, 1, 2]
        away.expect_nothing()

        away5 = client("away5", mq.V5)
        packets = away5.collect(23)
        assert [p.payload for p in packets] == payloads
        assert {p.qos for p in packets} == {1}
        five = dict(packets[21].props)
        assert five[mq.USER_PROPERTY] == ("k", "v") and 2900 < five[mq.MESSAGE_EXPIRY] <= 3000

        window = client("window")
        found = [window.receive() for _ in range(7)]
        packets = [packet for packet in found if packet is not None]
        assert [p.type for p in packets if p.type != mq.PUBLISH] == [mq.PUBREL]
        flying = [p for p in packets if p.type == mq.PUBLISH]
        assert [p.payload for p in flying] == [b"w%d" % number for number in range(2, 8)]
        assert [p.packet_id for p in flying[:3]] == ids[2:5]
        assert all(p.dup for p in flying[:3])

        half = client("half")
        half.send(mq.pubrel(77))
        half.expect(mq.PUBCOMP, packet_id=77)

        reader = RawClient(broker.port, mq.V311)
        clients.append(reader)
        reader.connect("reader").subscribe(("#", 1))
        assert reader.message().payload == b"retained"
        reader.expect_nothing()
        # The subscriptions live.
        reader.publish("other", b"new", qos=1)
        assert away5.message().payload == b"new"
    finally:
        broker.stop()


def test_a_file_that_was_cut_off_or_changed_is_refused(
    site: Callable[[Callable[[Connect], None]], Path], tmp_path: Path
) -> None:
    """Wherever it was cut but between two chunks, which cannot be seen; never half an import."""
    ids: list[int] = []
    file = site(lambda connect: ids.extend(use(connect)))
    data = file.read_bytes()
    ends = {23}
    at = 23
    while at < len(data):
        at += 8 + int.from_bytes(data[at + 4 : at + 8], "big")
        ends.add(at)
    cut = tmp_path / "cut.db"
    refused = 0
    for size in range(1, len(data), 7):
        if size in ends and size > 23:
            continue
        cut.write_bytes(data[:size])
        with pytest.raises(StoreError, match=r"cut\.db: byte \d+: "):
            MosquittoFile(str(cut))
        refused += 1
    assert refused > 50
    cut.write_bytes(data[:22] + b"\x09" + data[23:])
    with pytest.raises(StoreError, match="version 9: expected 5 or 6"):
        MosquittoFile(str(cut))
    for at in range(23, len(data), 11):  # whatever becomes of it, it is told as it should be
        cut.write_bytes(data[:at] + bytes((data[at] ^ 0xFF,)) + data[at + 1 :])
        try:
            list(MosquittoFile(str(cut)).lines())
        except StoreError as error:
            assert "cut.db: byte " in str(error)
