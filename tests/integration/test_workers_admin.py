"""Several workers seen by operators: over TCP with tokens, by the page, by `mqttd-ctl`."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mqttd.admin.ctl.client import Client
from mqttd.workers.answers import ANSWERS
from tests.integration.test_workers import id_at
from tests.support import packets as mq
from tests.support.broker import Broker, start_broker, write_settings
from tests.support.chromium import Chromium
from tests.support.client import RawClient
from tests.support.ctl import told as ctl
from tests.support.waiting import until

COUNT = 2
#: Whose answers have been compared with the document.
DOCUMENTED: set[str] = set()
TOKEN = "x" * 32
PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("workers")
    tokens = folder / "tokens"
    tokens.write_text(TOKEN)
    made = start_broker(
        folder,
        node={"workers": COUNT},
        admin={
            "page": {"enabled": True, "bind": "127.0.0.1:0"},
            "tcp": {"bind": "127.0.0.1:0", "token_file": str(tokens)},
        },
    )
    try:
        yield made
    finally:
        made.stop()


def port_of(broker: Broker, what: str) -> int:
    found = re.search(rf"{what} on port (\d+)", broker.output)
    assert found is not None
    return int(found[1])


class Asked:
    """One answer of the interface over TCP."""

    def __init__(
        self, broker: Broker, method: str, path: str, body: object = None, token: str = TOKEN
    ) -> None:
        port = port_of(broker, "HTTP interface")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        self.status = answer.status
        self.headers = answer.headers
        text = answer.read()
        is_json = "json" in (answer.headers.get("content-type") or "")
        self.told: Any = json.loads(text) if is_json else text.decode()
        connection.close()
        if self.status == 200:
            as_documented(method, path, self.told)


def as_documented(method: str, path: str, told: Any) -> None:
    """The document has all of an answer."""
    path = path.partition("?")[0].removeprefix("/api/v1")
    for key, kind in ANSWERS.items():
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", key), f"{method} {path}"):
            assert msgspec.to_builtins(msgspec.convert(told, kind)) == told
            DOCUMENTED.add(key)


@pytest.fixture
def two(broker: Broker) -> Iterator[tuple[RawClient, RawClient]]:
    """A client at each worker."""
    made = [RawClient(broker.port, mq.V5).connect(id_at(worker, COUNT)) for worker in (1, 2)]
    yield made[0], made[1]
    for client in made:
        client.close()


def test_lists_show_both_workers_in_one_order(
    broker: Broker, two: tuple[RawClient, RawClient]
) -> None:
    for n, client in enumerate(two):
        client.subscribe("both", f"own/{n}", qos=1)
    found = Asked(broker, "GET", "/api/v1/clients?limit=1000").told["clients"]
    assert {one["worker"] for one in found} == {1, 2}
    assert [one["client_id"] for one in found] == sorted(one["client_id"] for one in found)
    for sort in ("-subscriptions", "session_age", "-session_age", "idle", "-idle"):
        pages = []
        cursor: str | None = ""
        while cursor is not None:
            page = Asked(broker, "GET", f"/api/v1/clients?sort={sort}&limit=1{cursor}").told
            pages += page["clients"]
            cursor = page["cursor"] and f"&cursor={page['cursor']}"
        assert sorted(one["client_id"] for one in pages) == [one["client_id"] for one in found]
    topics = Asked(broker, "GET", "/api/v1/topics").told["topics"]
    assert {"topic_filter": "both", "subscribers": 2} in topics
    routes = Asked(broker, "GET", "/api/v1/routes?topic=both").told["routes"]
    assert [(one["topic_filter"], one["receivers"], one["worker"]) for one in routes] == [
        ("both", 1, 1),
        ("both", 1, 2),
    ]
    held = Asked(broker, "GET", "/api/v1/memory").told
    assert {one["worker"] for one in held["sessions"]} == {1, 2}
    store = Asked(broker, "GET", "/api/v1/store").told
    assert "worker-1" in store["path"] and "worker-2" in store["path"]


def test_the_document_has_all_of_what_is_of_workers(
    broker: Broker, two: tuple[RawClient, RawClient]
) -> None:
    one, other = two
    for n, client in enumerate(two):
        client.subscribe("documented/#", f"own/{n}", qos=1)
    ctl(broker, "trace", "topic", "documented/#")
    one.publish("documented/a", b"x", qos=1)
    until(lambda: Asked(broker, "GET", "/api/v1/why").told["messages"], "it is followed")
    ctl(broker, "trace", "stop", "topic", "documented/#")
    (life, *_) = Asked(broker, "GET", "/api/v1/why").told["messages"]
    names = [Asked(broker, "GET", f"/api/v1/{kind}").told["clients"][0]["client_id"]
             for kind in ("clients", "sessions")]  # fmt: skip
    wanted = {"client_id": names[0], "topic_filter": "wanted"}
    Asked(broker, "POST", "/api/v1/subscriptions", wanted)
    for path in (
        "status", "alarms", "slow", "topics", "routes?topic=own/1", "subscriptions",
        f"subscriptions?client_id={names[0]}", f"clients/{names[0]}", f"sessions/{names[0]}",
        f"why/{life['id']}",
    ):  # fmt: skip
        assert Asked(broker, "GET", f"/api/v1/{path}").status == 200, path
    query = f"client_id={names[0]}&topic_filter=wanted"
    Asked(broker, "DELETE", f"/api/v1/subscriptions?{query}")
    Asked(broker, "DELETE", f"/api/v1/clients/{names[0]}")
    until(lambda: Asked(broker, "DELETE", f"/api/v1/sessions/{kept(broker)}").status == 200, "gone")
    assert DOCUMENTED == ANSWERS.keys()


def kept(broker: Broker) -> str:
    """A client id whose session stays when it has gone."""
    name = id_at(2, COUNT)
    RawClient(broker.port, mq.V311).connect(name, clean=False).disconnect()
    return name


def test_what_others_ask_first(broker: Broker, two: tuple[RawClient, RawClient]) -> None:
    assert Asked(broker, "GET", "/health/live", token="").status == 200
    assert Asked(broker, "GET", "/health/ready", token="").told == {"ready": True}
    text = Asked(broker, "GET", "/metrics").told
    found = re.search(r"^mqttd_clients_connected (\d+)$", text, re.MULTILINE)
    assert found is not None and int(found[1]) >= 2
    assert Asked(broker, "GET", "/api/v1/status", token="y" * 32).status == 401


def test_roles_hold_and_one_audit_has_every_change(
    broker: Broker, two: tuple[RawClient, RawClient]
) -> None:
    made = Asked(broker, "POST", "/api/v1/api-users", {"name": "vic", "role": "viewer"})
    token = made.told["token"]
    assert Asked(broker, "GET", "/api/v1/status", token=token).status == 200
    name = Asked(broker, "GET", "/api/v1/clients").told["clients"][0]["client_id"]
    path = f"/api/v1/clients/{name}"
    refused = Asked(broker, "DELETE", path, token=token)
    assert (refused.status, refused.told["code"]) == (403, "forbidden")
    ban = {"kind": "client_id", "value": "evil", "reason": "is"}
    assert Asked(broker, "POST", "/api/v1/bans", ban).status == 200
    audit = Asked(broker, "GET", "/api/v1/audit").told["audit"]
    newest = audit[0]
    assert (newest["who"], newest["method"], newest["path"]) == (
        "token_file",
        "POST",
        "/api/v1/bans",
    )
    assert newest["after"]["value"] == "evil"
    assert len([one for one in audit if one["path"] == "/api/v1/bans"]) == 1
    assert broker.directory is not None
    kept = broker.directory / "data/audit.jsonl"
    until(lambda: "/api/v1/bans" in kept.read_text(), "a thread writes it")
    assert not (broker.directory / "data/worker-1/audit.jsonl").exists()
    assert Asked(broker, "DELETE", "/api/v1/bans?kind=client_id&value=evil").status == 200


def test_events_of_all_workers_are_one_stream(broker: Broker) -> None:
    connection = http.client.HTTPConnection(
        "127.0.0.1", port_of(broker, "HTTP interface"), timeout=30
    )
    connection.request(
        "GET", "/api/v1/events?kinds=clients,counters", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    answer = connection.getresponse()
    assert answer.status == 200
    names = {id_at(worker, COUNT): worker for worker in (1, 2)}
    seen: dict[str, int] = {}
    kind = ""
    counted = False
    for line in answer:
        if line.startswith(b"event: "):
            kind = line[7:].strip().decode()
        elif line.startswith(b"data: "):
            told = json.loads(line[6:])
            if kind == "counters" and told["gauges"]:
                if not counted:  # both are listened to
                    for name in names:
                        RawClient(broker.port, mq.V5).connect(name).disconnect()
                counted = True
            elif kind == "clients" and told.get("client_id") in names:
                seen[told["client_id"]] = told["worker"]
        if seen == names and counted:
            break
    connection.close()
    assert seen == names


def test_a_stream_ends_with_its_token(broker: Broker) -> None:
    made = Asked(broker, "POST", "/api/v1/api-users", {"name": "brief", "role": "viewer"})
    connection = http.client.HTTPConnection(
        "127.0.0.1", port_of(broker, "HTTP interface"), timeout=30
    )
    shown = {"Authorization": f"Bearer {made.told['token']}"}
    connection.request("GET", "/api/v1/events?kinds=counters", headers=shown)
    answer = connection.getresponse()
    assert answer.status == 200
    while not answer.readline().startswith(b"data:"):
        pass
    assert Asked(broker, "DELETE", "/api/v1/api-users/brief").status == 200
    answer.read()  # until its end
    connection.close()


def test_workers_are_listened_to_while_somebody_reads(broker: Broker) -> None:
    def asked() -> int:
        """Connections to the admin sockets of workers: those of the kernel's list that are up."""
        with open("/proc/net/unix", encoding="utf-8") as table:
            lines = [line.split() for line in table]
        where = f"{broker.directory}/data/worker-"
        return sum(line[-1].startswith(where) and line[5] == "03" for line in lines)

    connection = http.client.HTTPConnection(
        "127.0.0.1", port_of(broker, "HTTP interface"), timeout=30
    )
    connection.request("GET", "/api/v1/events", headers={"Authorization": f"Bearer {TOKEN}"})
    answer = connection.getresponse()
    while not answer.readline().startswith(b"data:"):
        pass
    until(lambda: asked() == COUNT, "both are")
    connection.close()
    until(lambda: asked() == 0, "and no longer")


def test_tables_have_a_column_for_the_worker(
    broker: Broker, two: tuple[RawClient, RawClient]
) -> None:
    two[0].subscribe("column", qos=1)
    for words in (("clients", "list"), ("sessions", "list"), ("subscriptions", "list")):
        head, *rows = ctl(broker, *words).splitlines()
        assert head.split()[-1] == "worker"
        assert {row.split()[-1] for row in rows} <= {"1", "2"} and rows


def test_the_page_shows_one_broker(broker: Broker, two: tuple[RawClient, RawClient]) -> None:
    ctl(broker, "api-users", "add", "ann", stdin=PASSWORD + "\n")
    with Chromium() as browser:
        page = browser.open(f"http://127.0.0.1:{port_of(broker, 'dashboard')}/")
        page.wait("!!document.querySelector('input[name=password]')")
        page.evaluate(
            "document.querySelector('input[name=username]').value = 'ann';"
            f"document.querySelector('input[name=password]').value = {json.dumps(PASSWORD)};"
            "document.querySelector('form').requestSubmit()"
        )
        page.wait("document.querySelectorAll('live-chart canvas').length === 6")
        page.wait("document.querySelectorAll('table[aria-label=Workers] tbody tr').length === 2")
        browser.console.clear()
        page.evaluate("location.hash = 'clients'")
        found = (
            "[...document.querySelectorAll('td[data-label=Worker]')].map(one => one.textContent)"
        )
        page.wait(f"['1', '2'].every(one => {found}.includes(one))")
        for name in ("subscriptions", "retained", "topics", "alarms", "memory", "listeners", "log",
                     "plugins", "config", "access", "audit", "users", "bans"):  # fmt: skip
            page.evaluate(f"location.hash = '{name}'")
            page.wait(f"document.querySelector('#pages a[aria-current]').hash === '#{name}'"
                      " && !!document.querySelector('main h1')")  # fmt: skip
        late = RawClient(broker.port, mq.V5).connect("seen-at-once")
        page.evaluate("location.hash = 'clients'")
        page.wait(
            "[...document.querySelectorAll('td a')].some(a => a.textContent === 'seen-at-once')"
        )
        page.evaluate("location.hash = 'clients/seen-at-once'")
        page.wait("!!document.getElementById('kick')")
        page.evaluate("document.getElementById('kick').click()")
        late.expect_close(0x98)
        late.close()
        assert browser.console == []


def test_what_became_of_a_message_is_asked_of_all(
    broker: Broker, two: tuple[RawClient, RawClient]
) -> None:
    one, other = two
    other.subscribe("why/+", qos=1)
    one.subscribe("why/#", qos=0)
    ctl(broker, "trace", "topic", "why/#")
    assert Asked(broker, "GET", "/api/v1/trace").told["traced"][0]["value"] == "why/#"
    one.publish("why/a", b"followed", qos=1)
    other.message(payload=b"followed")

    def life() -> Any:
        told = Asked(broker, "GET", "/api/v1/why?topic=why/%23").told
        return told["messages"][0] if told["messages"] else {"steps": []}

    until(lambda: any(step["what"] == "acked" for step in life()["steps"]), "acknowledged")
    found = life()
    steps = [(step["what"], step["worker"]) for step in found["steps"]]
    assert steps[0] == ("published", 1)
    assert ("crossed", 2) in steps and ("acked", 2) in steps and ("sent", 1) in steps
    assert Asked(broker, "GET", f"/api/v1/why/{found['id']}").told["steps"] == found["steps"]
    assert "came to worker 2" in ctl(broker, "why", found["id"])
    ctl(broker, "trace", "stop", "topic", "why/#")
    assert Asked(broker, "DELETE", "/api/v1/trace?kind=topic&value=why/%23").status == 404
    one.publish("lost/here", b"nobody", qos=1)
    lost = "/api/v1/why?reason=no_subscriber&topic=lost/here"
    until(lambda: Asked(broker, "GET", lost).told["messages"], "lost")
    assert Asked(broker, "GET", lost).told["messages"][0]["steps"][0]["worker"] == 1


def test_roles_hold_on_all_workers_also_on_one_that_was_away(
    broker: Broker, two: tuple[RawClient, RawClient]
) -> None:
    role = {"name": "mute", "rules": '{deny, all, publish, ["muted/#"]}.'}
    assert Asked(broker, "POST", "/api/v1/roles", role).status == 200
    member = {"username": "$anonymous", "roles": ["mute"]}
    assert Asked(broker, "POST", "/api/v1/members", member).status == 200
    bad = Asked(broker, "POST", "/api/v1/members", {"username": "x", "roles": ["nobody's"]})
    assert (bad.status, bad.told["code"]) == (422, "not_done")
    for client in two:
        assert said(client) == 0x87
    kill(broker, 2)
    late = RawClient(broker.port, mq.V5, deadline=30.0).connect(id_at(2, COUNT))
    assert said(late) == 0x87
    assert [one["name"] for one in Asked(broker, "GET", "/api/v1/roles").told["roles"]] == ["mute"]
    assert Asked(broker, "DELETE", "/api/v1/roles/mute").told == {"deleted": "mute", "untold": None}
    assert said(late) in (0, 0x10)
    assert Asked(broker, "DELETE", "/api/v1/members/%24anonymous").status == 200
    late.close()


def said(client: RawClient) -> int:
    """The reason code of a PUBACK."""
    packet = client.publish("muted/a", b"", qos=1)
    assert packet is not None
    return packet.reason


def kill(broker: Broker, number: int) -> None:
    """End a worker, and wait until it is back."""
    worker = Asked(broker, "GET", "/api/v1/workers").told["workers"][number - 1]
    os.kill(worker["pid"], signal.SIGKILL)

    def back() -> bool:
        now = Asked(broker, "GET", "/api/v1/workers").told["workers"][number - 1]
        return bool(now["starts"] > worker["starts"] and now["state"] == "running")

    until(back, "back")


def test_a_drain_goes_over_all_workers_and_ends_the_broker(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKEN)
    tcp = {"bind": "127.0.0.1:0", "token_file": str(tokens)}
    broker = start_broker(tmp_path, node={"workers": COUNT}, admin={"tcp": tcp})
    try:
        clients = [
            RawClient(broker.port, mq.V5, deadline=30.0).connect(id_at(worker, COUNT))
            for worker in (1, 1, 1, 2)
        ]
        control = Client(str(tmp_path / "data/mqttd.sock"))
        assert control.request("POST", "/drain", {"rate": 0.01, "exit": False})["left"] == 4
        for worker in (1, 2):
            RawClient(broker.port, mq.V5).connect(id_at(worker, COUNT), reason=0x9C)
        assert control.get("/drain")["draining"]
        waiting = Asked(broker, "GET", "/health/ready", token="")
        assert (waiting.status, waiting.told) == (503, {"ready": False, "reason": "draining"})
        assert not control.request("DELETE", "/drain")["draining"]
        assert "the broker ends" in ctl(broker, "drain", "--rate", "20/s", "--to", "elsewhere")
        for client in clients:
            assert client.wait_for(mq.DISCONNECT).reason == 0x9C
        assert broker.process is not None
        assert broker.process.wait(30) == 0
    finally:
        broker.stop()


ONCE = """
from zope.interface import implementer
from twisted.web.static import Data
from mqttd.interfaces import IPlugin
from mqttd.plugins.declare import MqttdPlugin

once = MqttdPlugin(name="once", version="1.0", description="Counts.", workers="one",
                   factory="mqttd_plugins.once:Plugin")

@implementer(IPlugin)
class Plugin:
    def load(self, handle, config):
        self.seen = []
        handle.subscribe("once/#", lambda message: self.seen.append(message.topic))
        handle.add_command("seen", lambda argv: ",".join(self.seen), "What was published.")
        handle.add_route("page", Data(b"here", "text/plain"))

    def unload(self):
        pass
"""


def test_a_plugin_for_one_worker_gets_each_message_once(
    broker: Broker, two: tuple[RawClient, RawClient]
) -> None:
    assert broker.directory is not None
    folder = broker.directory / "etc/plugins"
    folder.mkdir(exist_ok=True)
    (folder / "once.py").write_text(ONCE)
    ctl(broker, "plugins", "load", "once")
    for client, topic in zip(two, ("once/1", "once/2"), strict=True):
        client.publish(topic, b"", qos=1)
    until(lambda: ctl(broker, "once", "seen").count("once/") == 2, "both")
    assert sorted(ctl(broker, "once", "seen").split(",")) == ["once/1", "once/2"]
    assert Asked(broker, "GET", "/api/v1/plugins/once/page").told == "here"
    assert Asked(broker, "GET", "/api/v1/plugins/once").told["workers"] == "one"
    ctl(broker, "plugins", "unload", "once")
    assert Asked(broker, "GET", "/api/v1/plugins/once/page").status == 404


def test_levels_alarms_and_configuration(broker: Broker) -> None:
    told = Asked(broker, "POST", "/api/v1/log/level", {"module": "mqttd.broker", "level": "debug"})
    assert told.told["modules"] == {"mqttd.broker": "debug"}
    assert Asked(broker, "POST", "/api/v1/log/level", {"module": "mqttd.broker"}).status == 200
    lines = Asked(broker, "GET", "/api/v1/log/lines").told["lines"]
    assert any("worker=2" in line for line in lines)
    got = Asked(broker, "GET", "/api/v1/config")
    keys = {one["key"]: one["value"] for one in got.told["keys"]}
    assert keys["node.data_dir"].strip('"').endswith("/data")
    assert Asked(broker, "POST", "/api/v1/config/plan").told["changes"] == []
    assert Asked(broker, "POST", "/api/v1/config/apply", {}).told["applied"] is True
    assert Asked(broker, "GET", "/api/v1/alarms").told["alarms"] == []
    assert Asked(broker, "POST", "/api/v1/store/compact").status == 200


def test_a_listener_is_stopped_and_started_in_every_worker(broker: Broker) -> None:
    assert "is stopped" in ctl(broker, "listeners", "stop", "tcp:default")
    for _ in range(4):
        with pytest.raises(ConnectionRefusedError):
            RawClient(broker.port, mq.V5)
    assert "is running" in ctl(broker, "listeners", "start", "tcp:default")
    for worker in (1, 2, 1, 2):
        RawClient(broker.port, mq.V5).connect(id_at(worker, COUNT)).disconnect()
    assert "is running" in ctl(broker, "listeners", "restart", "tcp:default")
    for worker in (1, 2, 1, 2):
        RawClient(broker.port, mq.V5).connect(id_at(worker, COUNT)).disconnect()
    listed = Asked(broker, "GET", "/api/v1/listeners/tcp:default").told
    assert (listed["state"], listed["port"]) == ("running", broker.port)


def test_a_worker_that_is_away_is_said_to_be(broker: Broker) -> None:
    workers = Asked(broker, "GET", "/api/v1/workers").told["workers"]
    assert [one["state"] for one in workers] == ["running", "running"]
    kill(broker, 2)
    assert Asked(broker, "GET", "/health/ready", token="").status == 200


@pytest.mark.timeout(300)
def test_a_backup_of_all_is_one_file_for_any_number_of_workers(tmp_path: Path) -> None:
    names = [id_at(worker, COUNT) for worker in (1, 2, 1, 2)]
    expiry = [(mq.SESSION_EXPIRY, 600)]
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
    copy = str(tmp_path / "copy")
    broker = start_broker(old, node={"workers": COUNT})
    try:
        for name in names:
            client = RawClient(broker.port, mq.V5).connect(name, clean=False, props=expiry)
            client.subscribe("t", qos=2)
            client.disconnect()
        publisher = RawClient(broker.port, mq.V5).connect(id_at(1, COUNT))
        publisher.publish("t", b"kept", qos=1, retain=True)
        publisher.publish("t", b"again", qos=2)
        publisher.close()
        assert json.loads(ctl(broker, "--json", "backup", copy))["path"] == copy
        assert sorted(one.name for one in tmp_path.iterdir()) == ["copy", "new", "old"]
        assert "is there already" in ctl_fails(broker, "backup", copy)
    finally:
        broker.stop()
    stores = json.loads(ctl(broker, "--json", "store", "info"))["stores"]
    assert sum(one["sessions"] for one in stores) == len(names)
    assert ctl(broker, "store", "check") == "nothing wrong"
    lines = ctl(broker, "store", "export", "-").splitlines()
    assert len([line for line in lines if '"type":"session"' in line]) == len(names)
    assert "is there already" in ctl_fails(broker, "restore", copy)
    settings: dict[str, Any] = {"node": {"workers": COUNT + 1}}
    write_settings(new, settings, "{allow, all}.\n", None)
    assert "sessions" in ctl(Broker(0, None, new), "restore", copy)
    broker = start_broker(new, **settings)
    try:
        for name in names:
            client = RawClient(broker.port, mq.V5).connect(name, clean=False, props=expiry)
            assert client.resumed
            assert client.payloads(2) == [b"kept", b"again"]
            client.close()
    finally:
        broker.stop()


def ctl_fails(broker: Broker, *argv: str) -> str:
    """What it says that it cannot do."""
    assert broker.directory is not None
    done = subprocess.run(
        [Path(sys.executable).parent / "mqttd-ctl", "--config",
         broker.directory / "etc/mqttd.conf", *argv],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    return done.stderr
