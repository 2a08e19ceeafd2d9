"""Five MQTT clients of other people behind one small face, so that one test drives them all.

    connect -> subscribe / publish / receive -> disconnect

Each call returns when the library says it is done, or raises after `DEADLINE` seconds. What a
library cannot tell (mosquitto_sub: whether the session was present) is None.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import aiomqtt
import gmqtt
import paho.mqtt.client as paho
from gmqtt.mqtt.constants import MQTTv50, MQTTv311
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support.needs import cache_folder, missing, needs_program

__all__ = ["CLIENTS", "DEADLINE", "Client", "Received"]

DEADLINE: Final = 10.0  # seconds
EXPIRY: Final = 300  # seconds a durable session outlives its connection
V31, V311, V5 = 3, 4, 5


class Received(NamedTuple):
    topic: str
    payload: bytes
    qos: int


class Client(ABC):
    """A client of one library; `durable` keeps its session when it disconnects."""

    versions: ClassVar[tuple[int, ...]] = (V311, V5)

    def __init__(self, port: int, version: int, client_id: str, durable: bool = False) -> None:
        self.port = port
        self.version = version
        self.client_id = client_id
        self.durable = durable
        self.session_present: bool | None = None
        self.inbox: queue.Queue[Received] = queue.Queue()

    @classmethod
    def require(cls) -> None:
        """Skips the test where the library is not installed."""
        return  # pip brought it

    @abstractmethod
    def connect(self) -> None: ...

    @abstractmethod
    def subscribe(self, topic_filter: str, qos: int) -> None: ...

    @abstractmethod
    def publish(self, topic: str, payload: bytes, qos: int) -> None: ...

    @abstractmethod
    def disconnect(self) -> None: ...

    def receive(self) -> Received:
        """The next message."""
        return self.inbox.get(timeout=DEADLINE)

    def __enter__(self) -> Client:
        self.connect()
        return self

    def __exit__(self, *failure: object) -> None:
        self.disconnect()


class Mosquitto(Client):
    """mosquitto_sub and mosquitto_pub: a process for every subscription and every message."""

    versions = (V31, V311, V5)
    names: ClassVar = {V31: "mqttv31", V311: "mqttv311", V5: "mqttv5"}

    @classmethod
    def require(cls) -> None:
        needs_program("mosquitto_sub", "mosquitto-clients")
        needs_program("mosquitto_pub", "mosquitto-clients")

    def connect(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def arguments(self) -> list[str]:
        return ["-h", "127.0.0.1", "-p", str(self.port), "-V", self.names[self.version]]

    def subscribe(self, topic_filter: str, qos: int) -> None:
        durable = ["-c"] if self.durable else []
        if self.durable and self.version == V5:
            durable += ["-x", str(EXPIRY)]
        # A pipe is buffered in blocks unless stdbuf says otherwise.
        self.process = subprocess.Popen(
            ["stdbuf", "-oL", "mosquitto_sub", *self.arguments(), "-d", "-i", self.client_id,
             *durable, "-q", str(qos), "-t", topic_filter, "-F", "MESSAGE %q %t %p"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        subscribed = threading.Event()
        threading.Thread(target=self.read, args=(self.process, subscribed), daemon=True).start()
        if not subscribed.wait(DEADLINE):
            raise TimeoutError("mosquitto_sub has not subscribed")

    def read(self, process: subprocess.Popen[str], subscribed: threading.Event) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Subscribed"):
                subscribed.set()
            elif line.startswith("MESSAGE "):
                _, qos, topic, payload = line.rstrip("\n").split(" ", 3)
                self.inbox.put(Received(topic, payload.encode(), int(qos)))

    def publish(self, topic: str, payload: bytes, qos: int) -> None:
        subprocess.run(
            ["mosquitto_pub", *self.arguments(), "-q", str(qos), "-t", topic, "-s"],
            input=payload, check=True, timeout=DEADLINE, capture_output=True,
        )  # fmt: skip

    def disconnect(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(DEADLINE)


class Paho(Client):
    """paho-mqtt with its own thread."""

    versions = (V31, V311, V5)

    def connect(self) -> None:
        done: queue.Queue[Any] = queue.Queue()
        clean = None if self.version == V5 else not self.durable
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, self.client_id, clean, protocol=self.version
        )
        self.client.on_connect = lambda c, u, flags, reason, p: done.put((flags, reason))
        self.client.on_subscribe = lambda c, u, mid, reasons, p: done.put(reasons)
        self.client.on_message = lambda c, u, m: self.inbox.put(Received(m.topic, m.payload, m.qos))
        self.done = done
        options: dict[str, Any] = {}
        if self.version == V5:
            options = {"clean_start": not self.durable, "properties": session_expiry(self.durable)}
        self.client.connect("127.0.0.1", self.port, **options)
        self.client.loop_start()
        flags, reason = done.get(timeout=DEADLINE)
        assert not reason.is_failure, reason
        self.session_present = flags.session_present

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self.client.subscribe(topic_filter, qos)
        (reason,) = self.done.get(timeout=DEADLINE)
        assert reason.value == qos, reason

    def publish(self, topic: str, payload: bytes, qos: int) -> None:
        self.client.publish(topic, payload, qos).wait_for_publish(DEADLINE)

    def disconnect(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


class AsyncClient(Client):
    """A client of an asyncio library, its loop in a thread of its own."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def do(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        async def bounded() -> Any:
            return await asyncio.wait_for(coroutine, DEADLINE)

        return asyncio.run_coroutine_threadsafe(bounded(), self.loop).result(DEADLINE + 1)

    def stop_loop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(DEADLINE)
        self.loop.close()


class Aiomqtt(AsyncClient):
    """aiomqtt: tells nothing about the session, so only its messages can."""

    versions = (V31, V311, V5)

    def connect(self) -> None:
        self.do(self.open())

    async def open(self) -> None:
        clean: dict[str, Any] = {"clean_session": not self.durable}
        if self.version == V5:
            clean = {"clean_start": not self.durable, "properties": session_expiry(self.durable)}
        self.client = aiomqtt.Client(
            "127.0.0.1", self.port, identifier=self.client_id,
            protocol=aiomqtt.ProtocolVersion(self.version), timeout=DEADLINE, **clean,
        )  # fmt: skip
        await self.client.__aenter__()
        self.reader = asyncio.create_task(self.read())

    async def read(self) -> None:
        with contextlib.suppress(aiomqtt.MqttError):
            async for m in self.client.messages:
                assert isinstance(m.payload, bytes)
                self.inbox.put(Received(m.topic.value, m.payload, m.qos))

    def subscribe(self, topic_filter: str, qos: int) -> None:
        granted = self.do(self.client.subscribe(topic_filter, qos))
        assert [int(getattr(code, "value", code)) for code in granted] == [qos], granted

    def publish(self, topic: str, payload: bytes, qos: int) -> None:
        self.do(self.client.publish(topic, payload, qos))

    def disconnect(self) -> None:
        self.do(self.close())
        self.stop_loop()

    async def close(self) -> None:
        self.reader.cancel()
        await self.client.__aexit__(None, None, None)


class Gmqtt(AsyncClient):
    """gmqtt: its publish is not awaited, the subscriber's side shows that it arrived."""

    def connect(self) -> None:
        self.do(self.open())

    async def open(self) -> None:
        expiry = {"session_expiry_interval": EXPIRY} if self.durable and self.version == V5 else {}
        self.client = gmqtt.Client(self.client_id, clean_session=not self.durable, **expiry)
        self.granted: asyncio.Queue[tuple[int, ...]] = asyncio.Queue()
        self.client.on_connect = self.on_connect
        self.client.on_message = self.on_message
        self.client.on_subscribe = lambda c, mid, qos, p: self.granted.put_nowait(qos)
        version = MQTTv50 if self.version == V5 else MQTTv311
        self.connected = asyncio.Event()
        await self.client.connect("127.0.0.1", self.port, version=version)
        await self.connected.wait()

    def on_connect(self, client: Any, flags: int, code: int, properties: Any) -> None:
        self.session_present = bool(flags & 1)
        self.connected.set()

    async def on_message(
        self, client: Any, topic: str, payload: bytes, qos: int, properties: Any
    ) -> int:
        self.inbox.put(Received(topic, payload, qos))
        return 0

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self.do(self.subscribed(topic_filter, qos))

    async def subscribed(self, topic_filter: str, qos: int) -> None:
        self.client.subscribe(topic_filter, qos=qos)
        assert list(await self.granted.get()) == [qos]

    def publish(self, topic: str, payload: bytes, qos: int) -> None:
        self.loop.call_soon_threadsafe(lambda: self.client.publish(topic, payload, qos=qos))

    def disconnect(self) -> None:
        self.do(self.client.disconnect())
        self.stop_loop()


class MqttJs(Client):
    """mqtt.js in node: one request and one answer a line, see js/client.cjs."""

    versions = (V31, V311, V5)
    modules: ClassVar[Path]

    @classmethod
    def require(cls) -> None:
        needs_program("node", "nodejs")
        npm = needs_program("npm", "npm")
        folder = cache_folder("mqtt.js-5")
        cls.modules = folder / "node_modules"
        if (cls.modules / "mqtt" / "package.json").exists():
            return
        done = subprocess.run(
            [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "mqtt@5"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            missing("mqtt.js", f"npm install --prefix {folder} mqtt@5 ({done.stderr[-200:]})")

    def connect(self) -> None:
        self.answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self.node = subprocess.Popen(
            ["node", str(Path(__file__).parent / "js" / "client.cjs")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "NODE_PATH": str(self.modules)},
        )  # fmt: skip
        threading.Thread(target=self.read, daemon=True).start()
        answer = self.ask(
            do="connect", port=self.port, version=self.version, clientId=self.client_id,
            clean=not self.durable, expiry=EXPIRY if self.durable else 0,
        )  # fmt: skip
        self.session_present = answer["sessionPresent"]

    def read(self) -> None:
        assert self.node.stdout is not None
        for line in self.node.stdout:
            answer = json.loads(line)
            if "topic" in answer:
                received = Received(answer["topic"], answer["payload"].encode(), answer["qos"])
                self.inbox.put(received)
            else:
                self.answers.put(answer)

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.node.stdin is not None
        print(json.dumps(request), file=self.node.stdin, flush=True)
        answer = self.answers.get(timeout=DEADLINE)
        assert "error" not in answer, answer
        return answer

    def subscribe(self, topic_filter: str, qos: int) -> None:
        assert self.ask(do="subscribe", filter=topic_filter, qos=qos)["granted"] == [qos]

    def publish(self, topic: str, payload: bytes, qos: int) -> None:
        self.ask(do="publish", topic=topic, payload=payload.decode(), qos=qos)

    def disconnect(self) -> None:
        try:
            self.ask(do="disconnect")
            self.node.wait(DEADLINE)
        finally:
            self.node.kill()
            self.node.wait()


def session_expiry(durable: bool) -> Properties:
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = EXPIRY if durable else 0
    return properties


CLIENTS: Final[dict[str, type[Client]]] = {
    "mosquitto": Mosquitto,
    "paho": Paho,
    "aiomqtt": Aiomqtt,
    "gmqtt": Gmqtt,
    "mqttjs": MqttJs,
}
