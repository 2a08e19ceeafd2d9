"""Batches of Spark's sink at a broker of several workers, whose first is killed with -9."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqttd.codec.packets import Publish
from mqttd.codec.serializer import serialize
from mqttd.pipeline.client import Address, Client
from mqttd.pipeline.log.reader import LogReader, events
from mqttd.pipeline.spark.sink import SinkError, _Staged
from tests.integration.test_spark_workers import all_there, kill
from tests.integration.test_staging import LONG_QUEUE, RESTS, Keen, release, rows, stage
from tests.integration.test_workers import id_at, pid_of
from tests.support.broker import Broker, start_broker
from tests.support.ctl import told as ctl
from tests.support.etcd import start_etcd
from tests.support.nodes import Nodes, start_node
from tests.support.waiting import until

FILES = {"plugins/spark.conf": 'events = ["message.publish"]\n'}


def start(tmp_path: Path, workers: int, **more: Any) -> Broker:
    more = {"files": FILES, **more}
    return start_broker(tmp_path, node={"workers": workers}, plugins={"load": ["spark"]}, **more)


def logged(tmp_path: Path) -> Counter[bytes]:
    log = LogReader(str(tmp_path / "data/events"))
    return Counter(
        event.payload or b""
        for node, bounds in log.bounds().items()
        for event in events(log, node, *bounds)
        if event.event == "message.publish"
    )


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    started = start(tmp_path, 2)
    yield started
    started.stop()


def at(broker: Broker, worker: int) -> Client:
    return Client(Address("127.0.0.1", broker.port), id_at(worker, 2))


def numbers(begin: int, end: int) -> Counter[bytes]:
    return Counter(b"%d" % number for number in range(begin, end))


def test_tasks_at_all_workers_stage_one_batch(broker: Broker, tmp_path: Path) -> None:
    heard = at(broker, 2)
    heard.subscribe("out/#", 2)
    for number in (1, 2):
        with at(broker, number) as client:
            assert _Staged(client).hello()
            _Staged(client).ask(f"put/q/s{number}/0", rows(number * 100, 100))
    stages = json.dumps({"s1": 1, "s2": 1}).encode()
    for number in (2, 1):
        with at(broker, number) as client:
            answer = _Staged(client).ask("release/q/0", stages)
            assert bool(answer.get("replayed")) is (number == 1)
    assert logged(tmp_path) == numbers(100, 300)
    found = [heard.receive(30) for _ in range(200)]
    assert [each.payload for each in found if each] == [b"%d" % n for n in range(100, 300)]
    heard.close()
    told = json.loads(ctl(broker, "spark", "stage"))
    assert told["queries"] == [{"query": "q", "batch": 0, "rows": 200, "published": True}]
    with at(broker, 2) as client:
        with pytest.raises(SinkError, match="has 0 of 1 chunks here"):
            _Staged(client).ask("release/q/9", b'{"s1": 1}')
    with at(broker, 2) as client:
        with pytest.raises(SinkError, match=r"not authorized to publish to \$mqttd/x"):
            _Staged(client).ask("put/q/s3/0", serialize(Publish("$mqttd/x", b"", 0), 5))
    with at(broker, 2) as client:  # it is worker 1 that keeps what is left of it
        mixed = serialize(Publish("$mqttd/x", b"", 0), 5) + rows(300, 1)
        answer = _Staged(client, skip=True).ask("put/q/s3/0", mixed)
        assert answer["skipped"] == 1
        assert answer["refused"] == "1 skipped: not authorized to publish to $mqttd/x"
        assert _Staged(client).ask("release/q/1", b'{"s3": 1}')["published"] == 1


def test_a_batch_waits_for_receivers_at_another_worker(tmp_path: Path) -> None:
    """Whose queue has a hundred places."""
    broker = start(tmp_path, 2, mqueue={"max_length": 100})
    found: Counter[bytes] = Counter()
    heard = at(broker, 2)

    def take() -> None:
        while found.total() < 1000 and (one := heard.receive(30)):
            found[one.payload] += 1

    try:
        heard.subscribe("out/#", 2)
        with at(broker, 1) as client:
            for number in (0, 1):
                _Staged(client).ask(f"put/q/s{number}/0", rows(number * 500, 500, 2))
        taking = threading.Thread(target=take)
        taking.start()
        with at(broker, 1) as client:
            assert _Staged(client).ask("release/q/0", b'{"s0": 1, "s1": 1}')["ok"]
        taking.join()
        assert found == numbers(0, 1000)
        assert json.loads(ctl(broker, "spark", "stage"))["dropped"] == 0
    finally:
        heard.close()
        broker.stop()


def test_nobody_hands_on_what_was_not_authorized(broker: Broker) -> None:
    """What workers tell one another is not for clients."""
    with at(broker, 2) as client:
        client.publish("$mqttd/staged/mqttd/put/q/s/0", rows(0, 1), 1)
        with pytest.raises(Exception, match="refused a message to"):
            client.flush()
    with at(broker, 1) as client:
        with pytest.raises(Exception, match="refused to subscribe"):
            client.subscribe("$mqttd/staged/#")


def test_the_first_worker_is_killed_in_the_middle_of_batches(
    broker: Broker, tmp_path: Path
) -> None:
    wanted: Counter[bytes] = Counter()

    def wait_beyond(count: int) -> None:
        until(lambda: logged(tmp_path).total() > count, "nothing is logged", 60)

    for batch in range(3):
        stages = {}
        for part, number in enumerate((1, 2)):
            with at(broker, number) as client:
                task, stage = _Staged(client), f"s{batch}-{part}"
                for chunk in range(8):
                    first = batch * 4096 + part * 2048 + chunk * 256
                    task.ask(f"put/q/{stage}/{chunk}", rows(first, 256), 4)
                    wanted += numbers(first, first + 256)
                task.ask(f"put/q/{stage}/0", rows(first - 7 * 256, 256))
                stages[stage] = 8
        text = json.dumps(stages).encode()
        before = logged(tmp_path).total()

        def release(text: bytes = text, batch: int = batch) -> None:
            with at(broker, 2) as client:
                try:
                    _Staged(client).ask(f"release/q/{batch}", text)
                except Exception as error:  # it is killed meanwhile
                    print(error)

        driver = threading.Thread(target=release)
        driver.start()
        wait_beyond(before)
        time.sleep(0.01 * batch)
        kill(broker, 1)
        all_there(broker)
        driver.join(60)
        with at(broker, 2) as client:
            assert _Staged(client).ask(f"release/q/{batch}", text).get("replayed")
        assert logged(tmp_path) == wanted


def test_what_crosses_at_qos_1_is_there_before_its_batch_is_forgotten(
    broker: Broker, tmp_path: Path
) -> None:
    """The first worker is killed while the other takes nothing, and the log has all of it."""
    heard = at(broker, 2)
    heard.subscribe("out/#", 1)
    filling = b"%08d" + b"-" * 20_000
    wanted = {filling % number for number in range(120)}
    client = at(broker, 1)
    task = _Staged(client)
    for chunk in range(20):
        some = (filling % (chunk * 6 + number) for number in range(6))
        data = b"".join(serialize(Publish("out/a", each, 1, packet_id=1), 5) for each in some)
        task.ask(f"put/q/s/{chunk}", data)
    first, second = pid_of(broker, 1), pid_of(broker, 2)
    answers: list[Any] = []

    def begun() -> None:
        with contextlib.suppress(Exception):  # it is killed meanwhile
            answers.append(task.ask("release/q/0", b'{"s": 20}'))

    os.kill(second, signal.SIGSTOP)
    try:
        driver = threading.Thread(target=begun)
        driver.start()
        until(lambda: logged(tmp_path).total() == 120, "it is not logged", 20)
        driver.join(0.5)
        assert not answers
        os.kill(first, signal.SIGKILL)
    finally:
        os.kill(second, signal.SIGCONT)
    all_there(broker)
    driver.join(60)
    client.close()
    with at(broker, 2) as client:
        assert _Staged(client).ask("release/q/0", b'{"s": 20}').get("replayed")
    found: set[bytes] = set()
    while found != wanted:
        message = heard.receive(30)
        assert message is not None, f"{len(found)} of 120 have come"
        found.add(message.payload)
    heard.close()
    assert set(logged(tmp_path).values()) == {1}


def test_a_batch_of_the_first_worker_comes_once_at_qos_2(tmp_path: Path) -> None:
    """To who is at another worker: killed when the log lacks what its store has."""
    text = FILES["plugins/spark.conf"] + "flush_after = 30.0\n"
    broker = start(tmp_path, 2, files={"plugins/spark.conf": text}, mqueue=LONG_QUEUE)
    keen = Keen(id_at(2, 2))
    try:
        keen.connect(broker)
        keen.client.subscribe("out/#", qos=2)
        stages, first = stage(broker, 60), pid_of(broker, 1)

        def begun() -> None:
            with contextlib.suppress(Exception):  # it is killed meanwhile
                release(broker, stages)

        driver = threading.Thread(target=begun)
        driver.start()
        keen.read(300)
        os.kill(first, signal.SIGKILL)
        assert not logged(tmp_path)
        all_there(broker)
        driver.join(60)
        assert release(broker, stages).get("replayed")
        keen.read_all(15360)
        assert keen.found == numbers(0, 15360)
        assert logged(tmp_path) == numbers(0, 15360)
    finally:
        broker.stop()


def test_a_batch_of_one_node_comes_once_to_another_at_qos_2(tmp_path: Path) -> None:
    """Killed when the log lacks what its store has."""
    etcd = start_etcd(tmp_path / "etcd")
    text = FILES["plugins/spark.conf"] + "flush_after = 30.0\n"
    more = {
        "plugins": {"load": ["spark"]},
        "files": {"plugins/spark.conf": text},
        "store": {"kind": "sqlite"},
        "mqueue": LONG_QUEUE,
    }
    nodes: Nodes = {}
    try:
        nodes["b"] = start_node(tmp_path, etcd, "b", **more)
        nodes["a"] = start_node(tmp_path, etcd, "a", program=RESTS, **more)
        assert nodes["a"].says("node b is linked")
        keen = Keen()
        keen.connect(nodes["b"])
        keen.client.subscribe("out/#", qos=2)
        stages = stage(nodes["a"], 16)

        def begun() -> None:
            with contextlib.suppress(Exception):  # it is killed meanwhile
                release(nodes["a"], stages)

        driver = threading.Thread(target=begun)
        driver.start()
        keen.read(300)
        nodes["a"].stop(hard=True)
        driver.join(60)
        assert not logged(tmp_path / "a")
        nodes["a"] = start_node(tmp_path, etcd, "a", **more)
        assert release(nodes["a"], stages).get("replayed")
        keen.read_all(4096)
        assert keen.found == numbers(0, 4096)
        assert logged(tmp_path / "a") == numbers(0, 4096)
    finally:
        for node in nodes.values():
            node.stop()
        etcd.stop()


def test_batches_are_known_to_any_number_of_workers(tmp_path: Path) -> None:
    """Staged by two, released by one process, asked for again at three."""
    broker = start(tmp_path, 2)
    try:
        with at(broker, 2) as client:
            _Staged(client).ask("put/q/s/0", rows(0, 100))
        for workers, replayed in ((1, False), (3, True)):
            broker.stop()
            broker = start(tmp_path, workers)
            with Client(Address("127.0.0.1", broker.port)) as client:
                answer = _Staged(client).ask("release/q/0", b'{"s": 1}')
            assert bool(answer.get("replayed")) is replayed
            assert logged(tmp_path) == numbers(0, 100)
    finally:
        broker.stop()
