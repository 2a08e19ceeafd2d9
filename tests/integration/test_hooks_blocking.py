"""Callbacks that block the reactor of a real broker are broken off, and nobody else notices."""

from __future__ import annotations

import json
import socket
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient

#: Calls of each kind, and what one may cost another client in seconds: 50 ms is the promise, the
#: rest is for a machine that does other work, or nothing for a second or two while one of them is
#: made. All of these callbacks would block for 5 s or more.
CALLS = 5
LIMIT = 2.5
LIMIT_OF_ONE = 4.5

PROGRAM = '''
import hashlib, re, socket, time
from mqttd.plugins.calls.budget import Budget
from mqttd.types import OK

mine, other = socket.socketpair()

def loop():
    i = 0
    while True:
        i += 1

def swallow():
    """Takes the first exception for its own business."""
    try:
        time.sleep(5)
    except BaseException:
        time.sleep(5)

def nested():
    """Calls into the broker, where another callback blocks."""
    service.broker.publish_text("bad/sleep", b"")
    time.sleep(5)

def flood():
    """Its own code hardly runs: it is in the broker nearly all the time."""
    while True:
        service.broker.publish_text("flood", b"")

HOW = {
    "flood": flood,
    "regex": lambda: re.match("(a+)+$", "a" * 40 + "b"),
    "sleep": lambda: time.sleep(5),
    "loop": loop,
    "recv": lambda: mine.recv(1),
    "swallow": swallow,
    "nested": nested,
    "c-code": lambda: hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 15_000_000),
}

def on_message_publish(message):
    kind, _, how = message.topic.partition("/")
    if kind == "bad":
        HOW[how]()
    return OK

def count(message, counts):
    counts[message.topic] = counts.get(message.topic, 0) + 1
    if message.topic == "worse":
        time.sleep(5)

bad = Budget("bad", error_limit=1000)
service.hooks.hook("message.publish", on_message_publish, owner=bad)
worse = Budget("worse", "deny", error_limit=4, retry_after=1)
service.hooks.hook("message.publish", count, ({},), owner=worse)
'''


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = start_broker(tmp_path_factory.mktemp("blocking"), program=PROGRAM)
    try:
        yield broker
    finally:
        broker.stop()
    assert broker.says("Server Shut Down")  # Twisted's own signal handlers still work


def client(broker: Broker, name: str) -> RawClient:
    made = RawClient(broker.port, deadline=20)
    made.connect(name)
    return made


def wait_for(broker: Broker, text: str) -> None:
    until = time.monotonic() + 20
    while text not in broker.output:
        assert time.monotonic() < until, f"no {text!r} in:\n{broker.output}"
        time.sleep(0.02)


def ask(broker: Broker, path: str) -> Any:
    """What the API answers."""
    assert broker.directory is not None
    with socket.socket(socket.AF_UNIX) as api:
        api.settimeout(20)
        api.connect(str(broker.directory / "data/mqttd.sock"))
        api.sendall(f"GET /api/v1/{path} HTTP/1.0\r\nHost: mqttd\r\n\r\n".encode())
        with api.makefile("rb") as answer:
            return json.loads(answer.read().partition(b"\r\n\r\n")[2])


def broken_off(broker: Broker) -> int:
    """How many calls of the plugin `bad` were."""
    budgets = ask(broker, "hooks")["budgets"]
    (bad,) = [budget for budget in budgets if budget["name"] == "bad"]
    return int(bad["errors_by_kind"].get("blocked", 0))


def round_trip(victim: RawClient, topic: str) -> float:
    start = time.monotonic()
    victim.send(mq.publish(topic, b"ping", 1, 7))
    victim.wait_for(mq.PUBACK)
    return time.monotonic() - start


@pytest.mark.parametrize("how", ["sleep", "loop", "recv", "regex", "swallow", "nested", "flood"])
def test_other_clients_hardly_notice_a_callback_that_blocks(broker: Broker, how: str) -> None:
    villain, victim = client(broker, f"villain-{how}"), client(broker, f"victim-{how}")
    before = broken_off(broker)
    worst = []
    for _ in range(CALLS):
        villain.send(mq.publish(f"bad/{how}", b""))
        worst.append(max(round_trip(victim, "ping") for _ in range(5)))
        villain.ping()
    print(f"{how}: {', '.join(f'{each * 1000:.1f}' for each in worst)} ms at worst")
    assert statistics.median(worst) < LIMIT and max(worst) < LIMIT_OF_ONE, broker.output
    assert broken_off(broker) >= before + CALLS


def test_a_callback_stuck_in_c_code_is_reported_while_it_is(broker: Broker) -> None:
    villain = client(broker, "villain-c")
    villain.deadline = 60.0  # as long as the machine takes for what is done in C
    villain.send(mq.publish("bad/c-code", b""))
    wait_for(broker, "cannot be broken off")
    assert broker.says("pbkdf2_hmac")  # where it is stuck
    villain.ping()


def test_a_plugin_that_goes_on_blocking_is_quarantined_and_tried_again(tmp_path: Path) -> None:
    """In a broker of its own: where the machine is busy, other tests bring it errors, too."""
    broker = start_broker(tmp_path, program=PROGRAM)
    try:
        goes_on_blocking(broker)
    finally:
        broker.stop()


def goes_on_blocking(broker: Broker) -> None:
    villain, victim = client(broker, "villain"), client(broker, "victim")
    victim.subscribe("ping")
    for _ in range(4):
        villain.publish("worse", b"")
    wait_for(broker, "alarm raised: alarm=quarantine.worse")
    until = time.monotonic() + 20
    while True:  # its policy is to deny: nothing is published until it answers again
        victim.publish("ping", b"", qos=1)
        if "alarm cleared: alarm=quarantine.worse" in broker.output:
            break
        assert time.monotonic() < until, broker.output
    victim.message(topic="ping")
    villain.ping()
    (alarm,) = ask(broker, "alarms")["past"]
    assert "worse is quarantined (deny) after 4 errors" in alarm["text"]
