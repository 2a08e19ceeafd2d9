"""The wills of clients whose worker is killed: each comes once, when that is back."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqttd.admin.ctl.client import Client
from tests.integration.test_workers import id_at
from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)

#: Version, clean start, session expiry: the first and the third end with their connection.
KINDS = {
    "v5": (mq.V5, True, 0),
    "v5-stays": (mq.V5, True, 600),
    "v311": (mq.V311, True, 0),
    "v311-stays": (mq.V311, False, 0),
}
EACH = 5


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    started = start_broker(tmp_path, node={"workers": 2})
    yield started
    started.stop()


def kill(broker: Broker, times: int) -> None:
    """Kill worker 2; again as soon as there is another one."""
    assert broker.directory is not None
    control = Client(str(broker.directory / "data" / "mqttd.sock"))
    killed: set[int | None] = {None}

    def worker() -> dict[str, Any]:
        return next(each for each in control.get("/workers")["workers"] if each["worker"] == 2)

    for _ in range(times):
        until(lambda: worker()["pid"] not in killed, "a process")
        pid = int(worker()["pid"])
        killed.add(pid)
        os.kill(pid, signal.SIGKILL)
    until(lambda: worker()["pid"] not in killed and worker()["state"] == "running", "the worker")


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("qos", [1, 2])
def test_wills_of_a_killed_worker_come_once(broker: Broker, qos: int, times: int) -> None:
    stays = [(mq.SESSION_EXPIRY, 600)]
    clients: list[RawClient] = []

    def connect(name: str, **fields: object) -> RawClient:
        client = RawClient(broker.port, fields.pop("version", mq.V5), deadline=30.0)  # type: ignore[arg-type]
        clients.append(client)
        return client.connect(name, **fields)  # type: ignore[arg-type]

    names = [id_at(worker, 2) for worker in (1, 2)]
    try:
        watchers = [connect(name, clean=False, props=stays) for name in names]
        for watcher in watchers:
            watcher.subscribe("w/#", qos=qos)
        for kind, (version, clean, expiry) in KINDS.items():
            props = [(mq.SESSION_EXPIRY, expiry)] if expiry else ()
            for n in range(EACH):
                will = mq.Will(f"w/{kind}/{n}", b"gone", qos)
                connect(id_at(2, 2), version=version, clean=clean, props=props, will=will)
        late = mq.Will("w/late", b"no", qos, props=[(mq.WILL_DELAY, 300)])
        connect(id_at(2, 2), props=stays, will=late)
        short = mq.Will("w/short", b"gone", qos, props=[(mq.WILL_DELAY, 300)])
        connect(id_at(2, 2), props=[(mq.SESSION_EXPIRY, 1)], will=short)
        connect(id_at(2, 2), will=mq.Will("w/goodbye", b"no", qos)).disconnect()
        kill(broker, times)
        watchers[1] = connect(names[1], clean=False, props=stays)
        assert watchers[1].resumed
        wanted = Counter(f"w/{kind}/{n}" for kind in KINDS for n in range(EACH))
        wanted["w/short"] = 1  # when its session has expired
        for watcher in watchers:
            found = Counter(each.topic for each in watcher.collect(wanted.total()))
            assert found == wanted
        # Those who publish there now come behind all that was due.
        connect(id_at(2, 2)).publish("w/end", b"end", qos)
        for watcher in watchers:
            assert watcher.message().topic == "w/end"
    finally:
        for client in clients:
            client.close()
