"""A back end that hangs, dies, answers garbage or after 10 s: nobody else notices.

A plugin registers four authentication modules of these kinds, in front of the module that the
others use. While clients knock at one of them all the time, others connect, and publish to
themselves; how long that takes is compared with an undisturbed broker.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient

MODES = ("hangs", "dies", "garbage", "late")
ROUNDS = 200  # at least
SECONDS = 2.0  # at least, several deadlines of the back ends
KNOCKING = 8
DEADLINE = 30.0

PLUGIN = """
from twisted.internet.defer import Deferred, fail
from zope.interface import implementer

from mqttd.interfaces import IAuthenticator, IPlugin
from mqttd.plugins.declare import MqttdPlugin
from mqttd.types import AUTH_OK

broken = MqttdPlugin(
    name="broken",
    version="1.0",
    description="Authentication with back ends that do not work.",
    factory="mqttd_plugins.broken:Broken",
)


@implementer(IAuthenticator)
class Backend:
    def __init__(self, handle, mode):
        self.handle, self.mode = handle, mode

    def init(self, opts): ...

    def concerns(self, client, password):
        return client.username == self.mode

    def check(self, client, password):
        waiting = Deferred()
        if self.mode == "dies":
            return fail(ConnectionRefusedError("nobody listens"))
        if self.mode == "garbage":
            self.handle.call_later(0.01, waiting.callback, "<html>")
        if self.mode == "late":
            self.handle.call_later(10, lambda: waiting.called or waiting.callback(AUTH_OK))
        return waiting

    def description(self):
        return "back end that " + self.mode


@implementer(IPlugin)
class Broken:
    def load(self, handle, config):
        for mode in ("hangs", "dies", "garbage", "late"):
            handle.register_mod("auth", mode, Backend(handle, mode))

    def unload(self): ...
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("backends")
    (folder / "etc/plugins").mkdir(parents=True, mode=0o755)
    broker = start_broker(
        folder,
        files={"plugins/broken.py": PLUGIN},
        plugins={"load": ["broken"]},
        auth={
            "chain": [*MODES, "anonymous"],
            "backend": {"deadline": "500ms", "concurrency": 4, "breaker_retry": "300ms"},
        },
    )
    try:
        yield broker
    finally:
        broker.stop()


class Knocking(threading.Thread):
    """Connects as a client of one back end, again and again; notes the answers."""

    def __init__(self, broker: Broker, mode: str, name: str, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.broker, self.mode, self.name_, self.stop = broker, mode, name, stop
        self.codes: list[int] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            n = 0
            while not self.stop.wait(0.02):
                n += 1
                client = RawClient(self.broker.port, mq.V5, DEADLINE)
                client.send(
                    mq.connect(f"{self.name_}-{n}", mq.V5, username=self.mode, password=b"%d" % n)
                )
                self.codes.append(client.expect(mq.CONNACK).reason)
                client.close()
        except BaseException as error:
            self.error = error


class Took(NamedTuple):
    """How long something took, in milliseconds."""

    median: float
    p95: float


def took(times: list[float]) -> Took:
    return Took(statistics.median(times) * 1000, statistics.quantiles(times, n=20)[18] * 1000)


def measure(broker: Broker, name: str, seconds: float = SECONDS) -> tuple[Took, Took]:
    """Of CONNECT to CONNACK, and of a message there and back."""
    connects, messages = [], []
    subscriber = RawClient(broker.port, mq.V5, DEADLINE)
    subscriber.connect(f"{name}-sub")
    subscriber.subscribe((f"{name}/t", 1))
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(connects) < ROUNDS:
        client = RawClient(broker.port, mq.V5, DEADLINE)
        start = time.perf_counter()
        client.connect(f"{name}-{len(connects)}")
        connects.append(time.perf_counter() - start)
        client.close()
        start = time.perf_counter()
        subscriber.publish(f"{name}/t", b"x", qos=1)
        subscriber.message(topic=f"{name}/t")
        messages.append(time.perf_counter() - start)
    subscriber.close()
    return took(connects), took(messages)


@contextlib.contextmanager
def knocking(broker: Broker, mode: str) -> Iterator[list[Knocking]]:
    stop = threading.Event()
    threads = [Knocking(broker, mode, f"{mode}-{i}", stop) for i in range(KNOCKING)]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        stop.set()
        for thread in threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()


@pytest.fixture(scope="module")
def quiet(broker: Broker) -> tuple[Took, Took]:
    """What it takes while nobody knocks at a broken back end, but as many at the sound one.

    The threads of this test share one interpreter with the client that measures: what they cost it
    has to be in both figures.
    """
    measure(broker, "warm", 0.2)
    with knocking(broker, "nobody's"):
        return measure(broker, "quiet")


@pytest.mark.parametrize("mode", MODES)
def test_a_broken_back_end_is_no_matter_to_others(
    broker: Broker, quiet: tuple[Took, Took], mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with knocking(broker, mode) as threads:
        connect, message = measure(broker, mode)
    with capsys.disabled():
        print(
            f"\n  {mode:8} p95 CONNECT {connect.p95:6.2f} ms (undisturbed {quiet[0].p95:.2f}),"
            f" publish {message.p95:6.2f} ms (undisturbed {quiet[1].p95:.2f}),"
            f" {sum(len(thread.codes) for thread in threads)} clients refused"
        )
    # As ever on a machine that is busy with other things, and now and then with nothing else: half
    # of them go as they go undisturbed, and hardly one takes as long as the deadline of the back
    # end, which is what anybody would see who had to wait for it.
    for found, undisturbed in zip((connect, message), quiet, strict=True):
        assert found.median < max(3 * undisturbed.median, 100)
        assert found.p95 < max(3 * undisturbed.p95, 500)
    for thread in threads:
        assert thread.error is None
        assert set(thread.codes) == {0x88}
    opened = [line for line in broker.lines if "auth breaker opened" in line and mode in line]
    if mode == "garbage":  # what is no verdict is the failure of the client it is about
        assert not opened
        assert any("module failed" in line and "TypeError" in line for line in broker.lines)
        return
    assert opened, broker.output
    reason = {"dies": "its back end could not be reached"}
    assert reason.get(mode, "no answer within 0.5 s") in opened[0]
    assert any("alarm raised" in line and mode in line for line in broker.lines)


def test_the_figures_of_each_module_are_shown(broker: Broker, tmp_path: Path) -> None:
    assert broker.directory is not None
    shown = subprocess.run(
        [Path(sys.executable).parent / "mqttd-ctl",
         "--socket", broker.directory / "data/mqttd.sock", "auth", "list", "--json"],
        capture_output=True, text=True, timeout=DEADLINE, check=True,
    )  # fmt: skip
    modules = {module["name"]: module for module in json.loads(shown.stdout)["modules"]}
    for mode in MODES:
        module = modules[mode]
        assert (module["breaker_opened"] >= 1) == (mode != "garbage")
        assert module["hit"] == module["error"] + module["rejected"] > 0
        assert (module["late"] > 0) == (mode in ("hangs", "late"))
        assert (module["running"], module["waiting"]) == (0, 0)
