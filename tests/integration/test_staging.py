"""Batches of Spark's sink at a broker that is killed with -9: each message is logged once."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from mqttd.codec.packets import Publish
from mqttd.codec.serializer import serialize
from mqttd.pipeline.client import Address, Client
from mqttd.pipeline.spark.sink import SinkError, _Staged
from tests.integration.test_events import everything, start

LONG = os.environ.get("MQTTD_LONG") == "1"


def rows(begin: int, count: int) -> bytes:
    return b"".join(
        serialize(Publish("out/a", b"%d" % i, 1, packet_id=1), 5)
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
