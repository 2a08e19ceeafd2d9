"""Bundled plugins in a real broker: a real HTTP server, a real scrape, mqttd-ctl from outside."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient

CTL = "import sys; from mqttd.admin.ctl.main import main; sys.exit(main())"
DEADLINE = 30.0


class HttpServer:
    """Keeps what is posted; answers 503 to the first `failing` requests."""

    def __init__(self, failing: int = 0) -> None:
        self.batches: list[tuple[list[dict[str, Any]], dict[str, str]]] = []
        self.failing = failing
        outer = self

        class Answer(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.batches.append((json.loads(body), dict(self.headers)))
                outer.failing -= 1
                self.send_response(503 if outer.failing >= 0 else 204)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def server() -> Iterator[HttpServer]:
    made = HttpServer(failing=2)
    yield made
    made.server.shutdown()
    made.server.server_close()


#: In full: `mqttd-ctl trace` is the broker's own.
TRACE = ("plugins", "run", "trace")


def ctl(broker: Broker, *argv: str) -> str:
    assert broker.directory is not None
    socket = broker.directory / "data/mqttd.sock"
    done = subprocess.run(
        [sys.executable, "-c", CTL, "--socket", socket, *argv],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def eventually(seen: Callable[[], Any]) -> Any:
    until = time.monotonic() + DEADLINE
    while True:
        found = seen()
        if found or time.monotonic() > until:
            return found
        time.sleep(0.05)


def test_they_work_together_in_a_real_broker(tmp_path: Path, server: HttpServer) -> None:
    broker = start_broker(
        tmp_path,
        plugins={"load": ["presence", "delayed", "webhook", "prometheus", "trace"]},
        files={
            "plugins/webhook.conf": (
                f'url = "http://127.0.0.1:{server.port}/events"\n'
                'events = ["client.connected", "message.publish"]\n'
                "batch_seconds = 0.1\nretry_after = 0.1\n"
                'headers = { Authorization = "Bearer token" }\n'
            ),
            "plugins/prometheus.conf": 'bind = "127.0.0.1:0"\n',
        },
    )
    try:
        assert "client=alice" in ctl(broker, *TRACE, "start", "t", "client=alice")
        bob = RawClient(broker.port)
        bob.connect("bob")
        bob.subscribe("lamp", qos=1)
        bob.subscribe("$SYS/brokers/+/clients/alice/#")
        alice = RawClient(broker.port)
        alice.connect("alice")
        notice = bob.wait_for(mq.PUBLISH, DEADLINE)
        assert json.loads(notice.payload)["clientid"] == "alice"
        alice.publish("$delayed/1/lamp", b"on", 1)
        late = bob.wait_for(mq.PUBLISH, DEADLINE)
        assert (late.topic, late.payload) == ("lamp", b"on")

        # webhook: two batches were answered with 503, and sent again
        def published() -> list[dict[str, Any]]:
            events = [event for batch, _ in server.batches for event in batch]
            return [event for event in events if event.get("topic") == "lamp"]

        assert eventually(published), server.batches
        first, second, third = [headers for _, headers in server.batches[:3]]
        assert first["X-Mqttd-Batch"] == second["X-Mqttd-Batch"] == third["X-Mqttd-Batch"]
        assert third["X-Mqttd-Attempt"] == "3"
        assert first["Authorization"] == "Bearer token"

        # prometheus: its own address, told in the log, and the administration socket
        line = next(line for line in broker.lines if "metrics at " in line)
        url = line.split("metrics at ")[1].strip()
        text = urllib.request.urlopen(url, timeout=DEADLINE).read().decode()
        assert "mqttd_clients_connected{" in text and "process_cpu_seconds_total" in text

        # trace: the file holds what alice did
        shown = ctl(broker, *TRACE, "show", "t")
        assert "'alice' is connected" in shown and "'bob' is connected" not in shown
        assert "lines" in ctl(broker, *TRACE, "stop", "t")
        assert "t  ended" in ctl(broker, *TRACE, "list")
        assert "0 messages wait" in ctl(broker, "delayed", "status")
    finally:
        broker.stop()
    assert "Traceback" not in broker.output


def test_topics_are_rewritten_and_clients_subscribed_and_prometheus_tells_of_it(
    tmp_path: Path,
) -> None:
    broker = start_broker(
        tmp_path,
        plugins={"load": ["rewrite", "auto_subscribe", "prometheus"]},
        sys={"interval": "1s"},
        files={
            "plugins/rewrite.conf": (
                '[[rules]]\nfrom = "old/+/data/#"\nto = "new/$2/of/$1"\n[mqttd]\nerror_limit = 3\n'
            ),
            "plugins/auto_subscribe.conf": '[[topics]]\nfilter = "clients/%c/#"\nqos = 1\n',
        },
    )
    try:
        bob = RawClient(broker.port)
        bob.connect("bob")
        bob.subscribe("new/#")
        alice = RawClient(broker.port)
        alice.connect("alice")
        alice.publish("old/7/data/a/b", b"x", 1)
        got = bob.wait_for(mq.PUBLISH, DEADLINE, topic="new/a/b/of/7")
        assert got.payload == b"x"
        # Nobody has subscribed to this but the plugin, for bob and with QoS 1.
        alice.publish("clients/bob/hello", b"y", 1)
        got = bob.wait_for(mq.PUBLISH, DEADLINE, topic="clients/bob/hello")
        assert (got.payload, got.qos) == (b"y", 1)
        bob.subscribe("$SYS/broker/plugins/quarantined")
        bob.wait_for(mq.PUBLISH, DEADLINE, payload=b"0", retain=True)

        text = admin_get(broker, "/api/v1/plugins/prometheus/metrics")
        assert "\nmqttd_plugin_rewrite_rewritten_total{" in text
        assert re.search(r"mqttd_plugin_auto_subscribe_subscribed_total\{.*\} 2.0", text), text
        assert re.search(r'mqttd_plugin_calls_total\{.*plugin="rewrite"\} [1-9]', text), text
        assert re.search(r'mqttd_plugin_quarantined\{.*plugin="rewrite"\} 0', text), text
        assert re.search(r"mqttd_alarms\{.*\} 0", text), text
        assert "process_cpu_seconds_total" in text
        info = json.loads(admin_get(broker, "/api/v1/plugins/rewrite"))
        assert info["budget"]["limits"]["error_limit"] == 3  # what its operator says
    finally:
        broker.stop()
    assert "Traceback" not in broker.output


def admin_get(broker: Broker, path: str) -> str:
    """What the administration socket answers, over HTTP."""
    assert broker.directory is not None
    with socket.socket(socket.AF_UNIX) as api:
        api.settimeout(DEADLINE)
        api.connect(str(broker.directory / "data/mqttd.sock"))
        api.sendall(f"GET {path} HTTP/1.0\r\nHost: mqttd\r\n\r\n".encode())
        with api.makefile("rb") as answer:
            head, _, body = answer.read().partition(b"\r\n\r\n")
    assert b" 200 " in head.splitlines()[0], head
    return body.decode()
