"""paho-mqtt over ws and wss, on both transports, and a page that is fetched while clients talk."""

from __future__ import annotations

import queue
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import paho.mqtt.client as paho
import pytest

from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.doors import Door, client_context, doors_of, start_with_doors

DEADLINE = 10.0
DOORS = ["ws:engine", "ws:twisted", "wss:engine", "wss:twisted"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    made = start_with_doors(tmp_path_factory.mktemp("web"), kinds=("ws", "wss"))
    try:
        yield made
    finally:
        made.stop()


def context(broker: Broker) -> ssl.SSLContext:
    assert broker.directory is not None
    return client_context(broker.directory / "etc" / "certs")


class Paho:
    """A paho client on a WebSocket, its messages in `inbox`."""

    def __init__(self, broker: Broker, door: Door, version: int) -> None:
        self.inbox: queue.Queue[tuple[str, bytes, int]] = queue.Queue()
        self.done: queue.Queue[Any] = queue.Queue()
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, protocol=version, transport="websockets"
        )
        if door.kind == "wss":
            self.client.tls_set_context(context(broker))
        self.client.on_connect = lambda c, u, f, reason, p: self.done.put(reason)
        self.client.on_subscribe = lambda c, u, mid, reasons, p: self.done.put(reasons)
        self.client.on_message = lambda c, u, m: self.inbox.put((m.topic, m.payload, m.qos))
        self.client.connect("localhost", door.port)
        self.client.loop_start()
        assert not self.done.get(timeout=DEADLINE).is_failure

    def __enter__(self) -> Paho:
        return self

    def __exit__(self, *failure: object) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5], ids=["v311", "v5"])
@pytest.mark.parametrize("name", DOORS)
def test_paho_over_websocket(broker: Broker, name: str, version: int) -> None:
    """All QoS, payloads from nothing to half a megabyte, there and back."""
    door = doors_of(broker)[name]
    topic = f"paho/{name}/{version}"
    with Paho(broker, door, version) as reader, Paho(broker, door, version) as writer:
        reader.client.subscribe(f"{topic}/#", 2)
        reader.done.get(timeout=DEADLINE)
        sent = []
        for number, size in enumerate((0, 1, 125, 126, 65_535, 65_536, 500_000)):
            payload = bytes((number,)) * size
            done = writer.client.publish(f"{topic}/{number}", payload, number % 3)
            done.wait_for_publish(DEADLINE)
            sent.append((f"{topic}/{number}", payload, number % 3))
        # paho hands QoS 2 on when it is released, which later QoS 0 messages overtake.
        assert sorted(reader.inbox.get(timeout=DEADLINE) for _ in sent) == sorted(sent)


@pytest.mark.parametrize("name", DOORS)
def test_the_page_comes_from_the_same_port(broker: Broker, name: str) -> None:
    door = doors_of(broker)[name]
    scheme = "https" if door.kind == "wss" else "http"
    base = f"{scheme}://localhost:{door.port}"

    def get(path: str) -> tuple[int, bytes]:
        try:
            tls = context(broker) if scheme == "https" else None
            with urllib.request.urlopen(base + path, timeout=DEADLINE, context=tls) as got:
                return got.status, got.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    assert get("/")[0] == 200
    status, script = get("/mqtt.min.js")
    assert (status, len(script)) == (200, 342_341)
    assert get("/mqtt")[0] == 426
    assert get("/nothing")[0] == 404


def test_many_pages_at_once_while_clients_talk(broker: Broker) -> None:
    """Thirty downloads beside a conversation: each whole, the conversation goes on."""
    door = doors_of(broker)["ws:engine"]
    sizes: list[int] = []

    def fetch() -> None:
        url = f"http://localhost:{door.port}/mqtt.min.js"
        with urllib.request.urlopen(url, timeout=3 * DEADLINE) as got:
            sizes.append(len(got.read()))

    with Paho(broker, door, paho.MQTTv5) as client:
        client.client.subscribe("beside", 1)
        client.done.get(timeout=DEADLINE)
        threads = [threading.Thread(target=fetch) for _ in range(30)]
        for thread in threads:
            thread.start()
        for number in range(50):
            client.client.publish("beside", str(number), 1)
        got = [client.inbox.get(timeout=DEADLINE)[1] for _ in range(50)]
        for thread in threads:
            thread.join(3 * DEADLINE)
    assert got == [str(number).encode() for number in range(50)]
    assert sizes == [342_341] * 30


def test_a_listener_of_an_endpoint_string(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever Twisted can listen on carries MQTT: here a Unix socket by its endpoint."""
    folder = tmp_path_factory.mktemp("endpoint")
    made = start_broker(
        folder, listener={"endpoint": {"own": {"endpoint": f"unix:{folder}/e.sock:mode=600"}}}
    )
    try:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(DEADLINE)
        sock.connect(f"{folder}/e.sock")
        RawClient(0, mq.V5, sock=sock).connect("endpoint").close()
    finally:
        made.stop()
