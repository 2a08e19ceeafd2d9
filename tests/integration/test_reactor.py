"""A broker on the engine's own reactor and on Twisted's: messages, transports, the API, workers."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mqttd.admin.ctl.main import Client
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.doors import KINDS, TRANSPORTS, dial, doors_of, start_with_doors


@contextmanager
def on(*told: str) -> Iterator[None]:
    """Brokers that are started meanwhile are told this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.support.broker.REACTOR", list(told))
        yield


#: What twistd is told, and what the log says of it.
REACTORS = {
    "": "mqttd.transports.reactor.EngineReactor",
    "--reactor=mqttd": "mqttd.transports.reactor.EngineReactor",
    "--reactor=epoll": "twisted.internet.epollreactor.EPollReactor",
}


@pytest.fixture(scope="module", params=["", "--reactor=epoll"], ids=["own", "epoll"])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    with on(*filter(None, [request.param])):
        made = start_with_doors(tmp_path_factory.mktemp("own"))
    try:
        assert REACTORS[request.param] in made.output
        yield made
    finally:
        made.stop()


@pytest.mark.parametrize("told", REACTORS)
def test_the_reactor_is_the_engines_own_or_the_one_that_was_asked_for(
    tmp_path: Path, told: str
) -> None:
    with on(*filter(None, [told])):
        broker = start_broker(tmp_path)
    broker.stop()
    assert REACTORS[told] in broker.output


#: As a Twisted that has other names of its own; and what runs then.
OTHER_NAMES = (
    "from mqttd.transports import reactor as ours; {}; ours.prefer();"
    "from twisted.internet import reactor; print(type(reactor).__name__)"
)


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("pass", "EngineReactor"),
        ("ours._PRIVATE = ('_pollers',)", "EPollReactor"),
        ("from twisted.internet import selectreactor; selectreactor.install()", "SelectReactor"),
    ],
)
def test_twisteds_own_runs_where_it_is_not_as_the_engines_needs_it(
    first: str, expected: str
) -> None:
    command = [sys.executable, "-c", OTHER_NAMES.format(first)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{expected}\n"


#: A process that is to be a worker, as far as its imports, and what it runs on then.
WARM = (
    "import sys; from mqttd.workers.spare import warm; warm();"
    "from twisted.internet import reactor; print(type(reactor).__name__, sys.argv[1:])"
)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (["--reactor=mqttd", "mqttd"], "EngineReactor ['mqttd']"),
        (["--reactor=epoll", "mqttd"], "EPollReactor ['mqttd']"),
    ],
)
def test_a_worker_runs_on_the_reactor_that_it_was_told(told: list[str], expected: str) -> None:
    command = [sys.executable, "-c", WARM, *told]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == (
        f"{expected}\n"
    )


@pytest.mark.parametrize(
    ("told", "expected"),
    [([], b"--reactor=mqttd"), (["--reactor=epoll"], b"--reactor=epoll")],
)
def test_workers_are_told_the_engines_reactor_or_that_of_the_broker(
    tmp_path: Path, told: list[str], expected: bytes
) -> None:
    with on(*told):
        broker = start_broker(tmp_path, node={"workers": 2})
    try:
        assert broker.process is not None
        pid = broker.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        words = [Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0") for child in children]
        assert len(words) >= 2
        assert all(expected in each for each in words)
    finally:
        broker.stop()


@pytest.mark.parametrize("name", [f"{kind}:{how}" for kind in KINDS for how in TRANSPORTS])
def test_messages_pass_through_every_listener(broker: Broker, name: str) -> None:
    assert broker.directory is not None
    certificates = broker.directory / "etc" / "certs"
    door = doors_of(broker)[name]
    reader = RawClient(0, 5, sock=dial(door, certificates)).connect(f"r-{name}")
    sender = RawClient(0, 5, sock=dial(door, certificates)).connect(f"s-{name}")
    reader.subscribe(f"own/{name}", qos=2)
    for qos in (0, 1, 2):
        sender.publish(f"own/{name}", b"%d" % qos, qos=qos)
        assert reader.message().payload == b"%d" % qos
    reader.close()
    sender.close()


def test_the_api_answers_while_messages_leave_no_pause(broker: Broker) -> None:
    """Twisted's descriptors and delayed calls have their turn under load."""
    assert broker.directory is not None
    stop = threading.Event()
    door = doors_of(broker)["tcp:engine"]

    def flood(number: int) -> None:
        client = RawClient(0, 4, sock=dial(door)).connect(f"flood-{number}")
        while not stop.is_set():
            client.publish("flood", b"x" * 100, qos=1)
        client.close()

    threads = [threading.Thread(target=flood, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    try:
        api = Client(str(broker.directory / "data" / "mqttd.sock"), timeout=60)
        for _ in range(20):
            assert api.get("/listeners")["listeners"]
        ticking = RawClient(0, 4, sock=dial(door)).connect("idle", keep_alive=1)
        # Keep alive is looked at by a delayed call.
        assert ticking.expect_close() is None
    finally:
        stop.set()
        for thread in threads:
            thread.join(10)
