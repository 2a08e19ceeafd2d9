"""A plugin in a process of its own: the same interfaces, and nothing it does stops the broker."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.ctl import run

DEADLINE = 30.0  # seconds

PLUGIN = """
import ctypes
import hashlib
import os

from zope.interface import implementer

from mqttd.codec.packets import Subscription
from mqttd.interfaces import IPlugin
from mqttd.plugins.declare import MqttdPlugin
from mqttd.types import OK, STOP, AuthError, StoreFull

apart = MqttdPlugin(name="apart", version="1.0", description="Runs apart.",
                    factory="mqttd_plugins.apart:Apart", isolation="process", policy="deny")

@implementer(IPlugin)
class Apart:
    def load(self, handle, config):
        self.handle = handle
        self.seen = []
        handle.hook("client.authenticate", self.authenticate)
        handle.hook("message.publish", self.publish, ("!",))
        handle.hook("message.publish", self.corner, topic_filter=["corner/#"], client="fri*")
        handle.hook("client.connected", self.connected)
        handle.hook("client.subscribe.after", self.subscribed)
        handle.subscribe("ask/#", self.asked)
        handle.add_command("seen", lambda argv: " ".join(self.seen))
        handle.add_command("pid", lambda argv: str(os.getpid()))
        handle.add_command("keep", self.keep)
        handle.add_command("fail", lambda argv: int("x"))
        handle.add_command("clients", self.clients)
        handle.add_metric("seen", "What was seen.", lambda: len(self.seen))
        handle.call_later(0.01, handle.log.info, "hello from apart")
        handle.in_thread(sum, [1, 2]).addCallback(lambda three: self.seen.append(f"thread-{three}"))
        try:
            handle.add_route("x", None)
        except NotImplementedError as error:
            self.seen.append("no-routes")

    async def authenticate(self, client, password, verdict):
        if client.client_id == "enemy":
            return STOP(AuthError("no friend"))

    async def keep(self, argv):
        store = self.handle.store
        count = len(store.keys())
        store.put(f"key {count}", b"x" * 10)
        await store.written()
        try:
            store.put("large", bytes(2_000_000))
        except StoreFull as error:
            return f"{store.keys()} {store.get('key 0')} {store.used} of {store.most}: {error}"

    def publish(self, message, mark):
        if message.topic == "crash":
            ctypes.string_at(0)
        if message.topic == "stuck":
            while True:
                hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 6_000_000)
        if message.topic == "drop":
            return STOP(None)
        if message.topic.startswith("loud/"):
            return OK(message.replace(payload=message.payload.upper() + mark.encode()))

    def corner(self, message):
        return OK(message.replace(payload=b"seen"))

    def connected(self, client, acc):
        self.seen.append(client.client_id)

    def subscribed(self, client, subscriptions):
        self.seen.append(subscriptions[0].topic_filter)

    def asked(self, message):
        self.handle.publish("answer", message.payload, 1)

    def clients(self, argv):
        code = self.handle.subscribe_client(argv[0], Subscription("given", 1))
        return ",".join(client.client_id for client in self.handle.clients()) + f" {code}"

    def unload(self):
        pass
"""

Ctl = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    directory = tmp_path / "etc/plugins"
    directory.mkdir(parents=True)
    directory.chmod(0o755)
    (directory / "apart.py").write_text(PLUGIN)
    broker = start_broker(tmp_path, plugins={"max_store_bytes": "1MiB"})
    try:
        yield broker
    finally:
        broker.stop()


@pytest.fixture
def ctl(tmp_path: Path) -> Ctl:
    return partial(run, tmp_path)


def eventually(true: Callable[[], object], what: Callable[[], object]) -> None:
    until = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < until, what()
        time.sleep(0.05)


def client(broker: Broker, name: str) -> RawClient:
    made = RawClient(broker.port, mq.V5, deadline=DEADLINE)
    made.connect(name)
    return made


def connects(broker: Broker, name: str) -> bool:
    made = RawClient(broker.port, mq.V5, deadline=DEADLINE)
    made.send(mq.connect(name, version=mq.V5))
    reason = made.expect(mq.CONNACK).reason
    made.close()
    return reason == 0


def test_it_works_as_if_it_were_in_the_broker(broker: Broker, ctl: Ctl) -> None:
    loaded = ctl("plugins", "load", "apart")
    assert loaded.returncode == 0, loaded.stderr + broker.output
    assert int(ctl("apart", "pid").stdout) != broker.process.pid  # type: ignore[union-attr]
    assert not connects(broker, "enemy")
    friend = client(broker, "friend")
    friend.subscribe(("#", 1))
    friend.publish("drop", b"", qos=1)
    friend.publish("loud/x", b"hello", qos=1)
    assert friend.message(topic="loud/x").payload == b"HELLO!"
    friend.publish("corner/x", b"not seen")
    assert friend.message(topic="corner/x").payload == b"seen"
    foe = client(broker, "foe")
    foe.publish("corner/x", b"not seen", qos=1)
    assert friend.message(topic="corner/x").payload == b"not seen"
    foe.close()
    assert "corner/#" in ctl("hooks", "list").stdout
    friend.publish("ask/me", b"something")
    assert {friend.message().topic for _ in range(2)} == {"ask/me", "answer"}
    assert ctl("apart", "clients", "friend").stdout == "friend 1\n"
    eventually(lambda: "thread-3" in ctl("apart", "seen").stdout, lambda: broker.output)
    seen = ctl("apart", "seen").stdout.split()
    assert {"no-routes", "friend", "#"} <= set(seen)
    for keys in ("['key 0']", "['key 0', 'key 1']"):
        kept = ctl("apart", "keep")
        assert kept.stdout.startswith(f"{keys} b'xxxxxxxxxx' "), kept.stderr
        assert "of 1048576: " in kept.stdout and "no room for 2000205" in kept.stdout
    failed = ctl("apart", "fail")
    assert failed.returncode == 1 and "ValueError: invalid literal" in failed.stderr
    assert "plugin_apart_seen" in ctl("metrics").stdout
    eventually(lambda: "hello from apart" in broker.output, lambda: broker.output)

    pid = int(ctl("apart", "pid").stdout)
    assert ctl("plugins", "unload", "apart").returncode == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert connects(broker, "enemy")
    friend.ping()


@pytest.mark.parametrize("topic", ["crash", "stuck"])
def test_one_that_crashes_or_is_stuck_in_c_is_started_again_and_stays_closed_meanwhile(
    broker: Broker, ctl: Ctl, topic: str
) -> None:
    assert ctl("plugins", "load", "apart").returncode == 0, broker.output
    pid = int(ctl("apart", "pid").stdout)
    friend, other = client(broker, "friend"), client(broker, "other")
    other.subscribe(("fine", 1))
    friend.send(mq.publish(topic, b"x", 1, 7, version=mq.V5))
    other.deadline = 2.0  # 50 ms on a machine that does nothing else
    other.ping()
    assert not connects(broker, "friend-2")  # nobody gets past a guard that is away
    eventually(lambda: "its process was started again" in broker.output, lambda: broker.output)
    assert int(ctl("apart", "pid").stdout) != pid
    eventually(lambda: connects(broker, "friend-3"), lambda: broker.output)
    assert not connects(broker, "enemy")
    friend.ping()
    other.ping()


def test_it_ends_with_the_broker(broker: Broker, ctl: Ctl) -> None:
    assert ctl("plugins", "load", "apart").returncode == 0, broker.output
    pid = int(ctl("apart", "pid").stdout)
    assert broker.process is not None
    broker.process.send_signal(signal.SIGKILL)  # no chance to tell anybody
    broker.process.wait(DEADLINE)

    def gone() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"

    eventually(gone, lambda: f"process {pid} is still there")
