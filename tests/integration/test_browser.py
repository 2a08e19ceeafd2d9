"""The page on the WebSocket port in headless Chromium, and mqtt.js used directly from a page."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.admin.ctl.main import Client
from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.chromium import Chromium, Page
from tests.support.client import RawClient
from tests.support.doors import Door, doors_of, write_certificates


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as made:
        yield made


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("browser")
    write_certificates(folder / "etc" / "certs")
    web = {"bind": "127.0.0.1:0"}
    made = start_broker(
        folder,
        listener={
            "ws": {"default": web, "other": {**web, "path": "/live", "transport": "twisted"}},
            "wss": {"default": web},
        },
    )
    try:
        yield made
    finally:
        made.stop()


def control(broker: Broker) -> Client:
    assert broker.directory is not None
    return Client(str(broker.directory / "data" / "mqttd.sock"))


def click(page: Page, button: str) -> None:
    page.wait(f"!document.getElementById('{button}').disabled")
    page.evaluate(f"document.getElementById('{button}').click()")


def fill(page: Page, **values: str) -> None:
    for name, value in values.items():
        element = name.replace("_", "-")
        page.evaluate(f"document.getElementById('{element}').value = {json.dumps(value)}")


def rows(page: Page) -> list[list[str]]:
    found: list[list[str]] = page.evaluate(
        "[...document.querySelectorAll('#messages tr')]"
        ".map(row => [...row.cells].slice(1).map(cell => cell.textContent))"
    )
    return found


@pytest.mark.parametrize("door", ["ws:default", "ws:other", "wss:default"])
@pytest.mark.parametrize("version", ["5", "4"])
def test_the_page_connects_subscribes_publishes_and_shows(
    broker: Broker, browser: Chromium, door: str, version: str
) -> None:
    """What an operator does with it, by its own buttons; beside it a client over plain TCP."""
    found: Door = doors_of(broker)[door]
    scheme = "https" if found.kind == "wss" else "http"
    topic = f"room/{door}/{version}"
    page = browser.open(f"{scheme}://127.0.0.1:{found.port}/")
    page.wait("document.readyState === 'complete' && typeof mqtt === 'object'")
    fill(page, version=version, client_id=f"page-{door}-{version}")
    click(page, "connect-button")
    page.wait("document.getElementById('status').textContent === 'Connected'")
    fill(page, filter=f"{topic}/#", subscribe_qos="1")
    click(page, "subscribe-button")
    page.wait("document.querySelectorAll('#subscriptions li').length === 1")

    markup = "<img src=x onerror=alert(1)> ünïcode"
    fill(page, topic=f"{topic}/a", publish_qos="1", payload=markup)
    click(page, "publish-button")
    page.wait("document.querySelectorAll('#messages tr').length === 1")
    assert rows(page) == [[f"{topic}/a", "1", "", markup]]

    peer = RawClient(broker.port, mq.V5).connect()
    assert peer.subscribe(f"{topic}/b", qos=2) == [2]
    peer.publish(f"{topic}/c", b"\xff\x00\x01", 1)
    page.wait("document.querySelectorAll('#messages tr').length === 2")
    assert rows(page)[0] == [f"{topic}/c", "1", "", "ff 00 01 (3 bytes)"]
    fill(page, topic=f"{topic}/b", publish_qos="2", payload="x" * 100_000)
    click(page, "publish-button")
    assert peer.message(topic=f"{topic}/b").payload == b"x" * 100_000
    peer.close()

    shown = control(broker).get(f"/clients/page-{door}-{version}")
    assert (shown["listener"], shown["connected"]) == (door, True)
    click(page, "disconnect-button")
    page.wait("document.getElementById('status').textContent === 'Not connected'")
    assert browser.console == []  # nothing that the page's own policy refused


def test_the_page_says_why_it_is_not_connected(broker: Broker, browser: Chromium) -> None:
    page = browser.open(f"http://127.0.0.1:{doors_of(broker)['ws:default'].port}/")
    page.wait("document.readyState === 'complete' && typeof mqtt === 'object'")
    fill(page, username="nobody", password="wrong")
    click(page, "connect-button")
    page.wait("document.getElementById('status').textContent.startsWith('Not connected: ')")
    page.wait("/Bad User Name or Password/i.test(document.getElementById('status').textContent)")
    assert page.evaluate("document.getElementById('publish-button').disabled") is True


def test_the_page_checks_a_topic_and_comes_back(broker: Broker, browser: Chromium) -> None:
    """What is wrong is said before it is sent; a connection that was lost is made again."""
    found = doors_of(broker)["ws:default"]
    page = browser.open(f"http://127.0.0.1:{found.port}/")
    page.wait("document.readyState === 'complete' && typeof mqtt === 'object'")
    fill(page, client_id="page-back")
    click(page, "connect-button")
    page.wait("document.getElementById('status').textContent === 'Connected'")
    for button, values, told in (
        ("publish-button", {"topic": "a/+"}, "a topic to publish to has no + or #"),
        ("subscribe-button", {"filter": "a/#/b"}, "# is the last level"),
        ("subscribe-button", {"filter": "a/b+"}, "+ and # stand for a whole level"),
    ):
        fill(page, **values)
        click(page, button)
        page.wait(f"document.getElementById('status').textContent.endsWith({json.dumps(told)})")
    fill(page, filter="back/#")
    click(page, "subscribe-button")
    page.wait("document.querySelectorAll('#subscriptions li').length === 1")
    control(broker).request("POST", "/listeners/ws:default/restart")
    page.wait("document.getElementById('status').textContent === 'Connected'")
    fill(page, topic="back/again", payload="here")
    click(page, "publish-button")
    page.wait("document.querySelectorAll('#messages tr').length === 1")
    control(broker).request("DELETE", "/clients/page-back")
    page.wait("/ended by the administrator .0x98./.test("
              "document.getElementById('status').textContent)")  # fmt: skip
    browser.console.clear()


def test_every_field_of_the_page_has_a_name(broker: Broker, browser: Chromium) -> None:
    """What a screen reader says of each control; the status speaks for itself."""
    page = browser.open(f"http://127.0.0.1:{doors_of(broker)['ws:default'].port}/")
    page.wait("document.readyState === 'complete'")
    page.call("Accessibility.enable")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    controls = ("textbox", "button", "combobox", "checkbox", "MenuListPopup", "status", "table")
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"] and node.get("role", {}).get("value") in controls
    ]
    assert len([role for role, _ in named if role == "button"]) == 6
    assert [
        role for role, name in named if not name and role not in ("status", "MenuListPopup")
    ] == []
    assert page.evaluate("document.getElementById('status').getAttribute('aria-live')") == "polite"
    browser.console.clear()


def test_mqtt_js_directly_from_a_page(broker: Broker, browser: Chromium, tmp_path: Path) -> None:
    """A script of one's own with the same library: QoS 2 there and back, 300 messages, in order."""
    port = doors_of(broker)["ws:default"].port
    page = browser.open(f"http://127.0.0.1:{port}/")
    page.wait("typeof mqtt === 'object'")
    got = page.evaluate(
        f"""new Promise((resolve, reject) => {{
            const client = mqtt.connect("ws://127.0.0.1:{port}/mqtt",
                {{ protocolVersion: 5, reconnectPeriod: 0, timerVariant: "native" }});
            const found = [];
            client.on("error", reject);
            client.on("message", (topic, payload) => {{
                found.push(Number(payload.toString()));
                if (found.length === 300) client.end(false, () => resolve(found));
            }});
            client.subscribe("direct/#", {{ qos: 2 }}, () => {{
                for (let n = 0; n < 300; n++) client.publish("direct/x", String(n), {{ qos: n % 3 ? 2 : 1 }});
            }});
        }})"""  # noqa: E501
    )
    assert sorted(got) == list(range(300))


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """Somebody else's page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_page_of_another_origin_may_not_connect(broker: Broker, browser: Chromium) -> None:
    """The default list: a page that did not come from this port is somebody else's."""
    port = doors_of(broker)["ws:default"].port
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = browser.open(f"http://127.0.0.1:{server.server_port}/")
        page.wait(f"location.port === '{server.server_port}' && document.readyState === 'complete'")
        outcome = page.evaluate(
            f"""new Promise((resolve) => {{
                const socket = new WebSocket("ws://127.0.0.1:{port}/mqtt", "mqtt");
                socket.onopen = () => resolve("open");
                socket.onclose = (event) => resolve(event.code);
            }})"""
        )
        server.shutdown()
    assert outcome == 1006
    end = time.monotonic() + 10
    while "WebSocket from a page that may not connect" not in broker.output:
        assert time.monotonic() < end, "no line in the log"
        time.sleep(0.02)
    browser.console.clear()
