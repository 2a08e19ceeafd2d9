"""Batches of Spark's sink at a broker that is killed with -9: each message is logged once."""

from __future__ import annotations

import contextlib
import json
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mqttd.codec.packets import Publish
from mqttd.codec.serializer import serialize
from mqttd.pipeline.client import Address, Client, ClientError, Refused
from mqttd.pipeline.spark.sink import RELEASE, SinkError, _Staged
from tests.integration.test_cluster_once import SLOW
from tests.integration.test_drain import api
from tests.integration.test_events import ctl, everything, start
from tests.support import packets as mq
from tests.support.broker import Broker
from tests.support.client import RawClient
from tests.support.nodes import STAYS
from tests.support.servers import free_port
from tests.support.waiting import until

LONG = os.environ.get("MQTTD_LONG") == "1"
#: A batch is published faster than it is taken.
LONG_QUEUE = {"max_length": 100_000}
#: And with more rest than it takes otherwise.
RESTS = "from mqttd.pipeline import staging\nstaging.REST = 30.0\n"


def rows(begin: int, count: int, qos: int = 1) -> bytes:
    return b"".join(
        serialize(Publish("out/a", b"%d" % i, qos, packet_id=1), 5)
        for i in range(begin, begin + count)
    )


def logged(path: Path) -> Counter[bytes]:
    return Counter(event.payload for event in everything(path) if event.event == "message.publish")


def size(path: Path) -> int:
    return sum(one.stat().st_size for one in (path / "data/events").glob("*/*.events"))


@pytest.mark.timeout(600 if LONG else 120)
def test_killed_between_stage_and_release_and_in_the_middle_of_batches(tmp_path: Path) -> None:
    chance = random.Random(5)
    broker = start(tmp_path, 'events = ["message.publish"]\n')
    wanted: Counter[bytes] = Counter()
    replayed = broken_off = 0
    try:
        for batch in range(20 if LONG else 3):
            stages: dict[str, int] = {}
            with Client(Address("127.0.0.1", broker.port)) as client:
                task = _Staged(client)
                for part in range(2):
                    stage = f"s{batch}-{part}"
                    for chunk in range(8):
                        number = batch * 4096 + part * 2048 + chunk * 256
                        task.ask(f"put/q/{stage}/{chunk}", rows(number, 256), 4)
                        wanted.update(b"%d" % i for i in range(number, number + 256))
                    stages[stage] = 8
                task.ask("hello", b"")
            broker.stop(hard=True)  # staged, not released
            broker = start(tmp_path, 'events = ["message.publish"]\n')
            before = sum(logged(tmp_path).values())
            began = size(tmp_path)
            text = json.dumps(stages).encode()

            def release(port: int = broker.port, text: bytes = text, batch: int = batch) -> None:
                with Client(Address("127.0.0.1", port), sleep=lambda seconds: None) as client:
                    try:
                        _Staged(client).ask(f"release/q/{batch}", text)
                    except Exception as error:  # it is killed meanwhile
                        print(error)

            driver = threading.Thread(target=release)
            driver.start()
            end = time.monotonic() + 60
            while size(tmp_path) <= began:
                assert time.monotonic() < end, "nothing is logged"
                time.sleep(0.001)
            time.sleep(chance.random() * 0.05)
            broker.stop(hard=True)  # released, perhaps not published to the end
            driver.join(60)
            broken_off += before < sum(logged(tmp_path).values()) < sum(wanted.values())
            broker = start(tmp_path, 'events = ["message.publish"]\n')
            with Client(Address("127.0.0.1", broker.port)) as client:
                answer = _Staged(client).ask(f"release/q/{batch}", text)
            replayed += bool(answer.get("replayed"))
            assert logged(tmp_path) == wanted
        assert replayed == batch + 1
        print(f"{broken_off} of {replayed} batches were broken off in the middle")
        assert broken_off or not LONG
        with Client(Address("127.0.0.1", broker.port)) as client:
            with pytest.raises(SinkError, match="has 0 of 8 chunks here"):
                _Staged(client).ask("release/q/99", b'{"s0-0": 8}')
    finally:
        broker.stop()


class Keen:
    """A subscriber whose session outlives the broker, as QoS 2 wants it of who receives."""

    def __init__(self, name: str = "keen") -> None:
        self.name = name
        self.found: Counter[bytes] = Counter()
        self._open: set[int] = set()

    def connect(self, broker: Broker) -> None:
        self.client = RawClient(broker.port, mq.V5, deadline=30.0)
        self.client.connect(self.name, clean=False, props=STAYS)

    def read(self, count: int) -> None:
        """Until it has so many."""
        while len(self.found) < count:
            self._take(self.client.receive())

    def read_all(self, count: int) -> None:
        """Until it has so many, and what else the broker has sent by then."""
        self.read(count)
        self.client.send(mq.pingreq())
        while (packet := self.client.receive()) is not None and packet.type != mq.PINGRESP:
            self._take(packet)

    def _take(self, packet: mq.Packet | None) -> None:
        assert packet is not None, f"the broker closed after {len(self.found)} messages"
        if packet.type == mq.PUBREL:
            self._open.discard(packet.packet_id)
            self.client.send(mq.pubcomp(packet.packet_id, mq.V5))
        elif packet.type == mq.PUBLISH:
            if packet.packet_id not in self._open:
                self._open.add(packet.packet_id)
                self.found[packet.payload] += 1
            self.client.send(mq.pubrec(packet.packet_id, mq.V5))


def stage(broker: Broker, chunks: int) -> dict[str, int]:
    """Numbers from 0 on at QoS 2, 256 in each chunk."""
    with Client(Address("127.0.0.1", broker.port)) as client:
        task = _Staged(client)
        for chunk in range(chunks):
            task.ask(f"put/q/s/{chunk}", rows(chunk * 256, 256, 2))
    return {"s": chunks}


def release(broker: Broker, stages: dict[str, int]) -> dict[str, Any]:
    with Client(Address("127.0.0.1", broker.port), sleep=lambda seconds: None) as client:
        return _Staged(client).ask("release/q/0", json.dumps(stages).encode())


def test_a_release_that_waits_for_receivers_has_its_time(tmp_path: Path) -> None:
    """Who takes nothing is waited for longer than a short timeout lasts."""
    broker = start(tmp_path)
    try:
        mute = RawClient(broker.port, mq.V5, deadline=30.0)
        mute.connect("mute")
        mute.subscribe("out/#", qos=1)
        text = json.dumps(stage(broker, 8)).encode()
        with Client(Address("127.0.0.1", broker.port), timeout=1.0) as client:
            with pytest.raises(SinkError, match="does not answer for batch 0 of query q"):
                _Staged(client).ask("release/q/0", text)
        with Client(Address("127.0.0.1", broker.port), timeout=1.0) as client:
            assert _Staged(client).ask("release/q/0", text, least=RELEASE)["replayed"]
        assert json.loads(ctl(tmp_path, "spark", "stage").stdout)["held_seconds"] > 4
    finally:
        broker.stop()


def numbers(count: int) -> Counter[bytes]:
    return Counter(b"%d" % i for i in range(count))


@pytest.mark.parametrize("logged_late", [True, False])
def test_a_batch_that_is_broken_off_comes_once_at_qos_2(tmp_path: Path, logged_late: bool) -> None:
    """The broker is killed when its log lacks what its store has, or the other way round."""
    conf = 'events = ["message.publish"]\n' + ("flush_after = 5.0\n" if logged_late else "")
    slowly = tmp_path / "slowly"
    program = RESTS + SLOW.format(path=str(slowly))
    broker = start(tmp_path, conf, program=program, mqueue=LONG_QUEUE)
    keen = Keen()
    stages: dict[str, int] = {}

    def begun() -> None:
        with contextlib.suppress(Exception):  # it is killed meanwhile
            release(broker, stages)

    try:
        keen.connect(broker)
        keen.client.subscribe("out/#", qos=2)
        stages |= stage(broker, 16)
        driver = threading.Thread(target=begun)
        driver.start()
        keen.read(300)
        if not logged_late:
            slowly.touch()
            until(lambda: sum(logged(tmp_path).values()) > 2000, "it is not logged")
        broker.stop(hard=True)
        driver.join(60)
        slowly.unlink(missing_ok=True)
        assert (sum(logged(tmp_path).values()) < 300) is logged_late
        broker = start(tmp_path, conf, mqueue=LONG_QUEUE)
        keen.connect(broker)
        assert release(broker, stages).get("replayed")
        keen.read_all(4096)
        assert keen.found == numbers(4096)
        assert logged(tmp_path) == numbers(4096)
    finally:
        broker.stop(hard=True)


def test_a_batch_is_answered_when_the_store_has_it(tmp_path: Path) -> None:
    slowly = tmp_path / "slowly"
    conf = 'events = ["message.publish"]\n'
    program = RESTS + SLOW.format(path=str(slowly))
    broker = start(tmp_path, conf, program=program, mqueue=LONG_QUEUE)
    keen = Keen()
    try:
        keen.connect(broker)
        keen.client.subscribe("out/#", qos=2)
        keen.client.disconnect()
        stages = stage(broker, 16)
        answers: list[dict[str, Any]] = []
        driver = threading.Thread(target=lambda: answers.append(release(broker, stages)))
        driver.start()
        until(lambda: sum(logged(tmp_path).values()) > 100, "nothing is logged")
        slowly.touch()
        until(lambda: sum(logged(tmp_path).values()) == 4096, "it is not logged")
        driver.join(1.0)
        assert not answers
        slowly.unlink()
        driver.join(60)
        assert answers == [{"ok": True, "published": 4096}]
        broker.stop(hard=True)
        broker = start(tmp_path, conf, mqueue=LONG_QUEUE)
        keen.connect(broker)
        keen.read_all(4096)
        assert keen.found == numbers(4096)
    finally:
        slowly.unlink(missing_ok=True)
        broker.stop(hard=True)


def test_addresses_are_tried_in_turn(tmp_path: Path) -> None:
    broker = start(tmp_path)
    pauses: list[float] = []
    nobody, there = Address("127.0.0.1", free_port()), Address("127.0.0.1", broker.port)
    client = Client([nobody, there], sleep=pauses.append)
    try:
        client.publish("t", b"", 1)
        client.flush()
        assert client.address == there and not pauses
    finally:
        broker.stop()
    with pytest.raises(ClientError, match="cannot be reached") as told:
        client.ping()
    assert str(there) in str(told.value) and str(nobody) in str(told.value)
    assert len(pauses) == 5, "once all were tried"


def test_who_is_sent_away_goes_to_the_next_address(tmp_path: Path) -> None:
    """The broker is drained, as a node is that leaves: it lets nobody in."""
    (tmp_path / "other").mkdir()
    broker, other = start(tmp_path), start(tmp_path / "other")
    leaves, there = (Address("127.0.0.1", one.port) for one in (broker, other))
    pauses: list[float] = []
    client = Client([leaves, there], sleep=pauses.append)
    try:
        client.publish("t", b"", 1)
        client.flush()
        assert client.address == leaves
        api(broker).request("POST", "/drain", {"rate": 1000, "exit": False})
        until(lambda: api(broker).get("/drain")["left"] == 0, "its clients stay")
        client.publish("t", b"", 1)
        client.flush()
        assert client.address == there and not pauses
        with pytest.raises(Refused, match="Use another server"):
            Client([leaves], sleep=pauses.append).ping()
        with pytest.raises(Refused, match="Use another server"):
            Client([leaves, leaves], sleep=pauses.append).ping()
    finally:
        broker.stop()
        other.stop()
