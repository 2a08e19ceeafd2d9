"""The page of a real broker: who gets in, what others cannot do, and what a browser shows."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import stat
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.chromium import Chromium
from tests.support.client import RawClient
from tests.support.ctl import told as ctl

PASSWORD = "correct horse"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    made = start_broker(
        tmp_path_factory.mktemp("page"),
        admin={"page": {"enabled": True, "bind": "127.0.0.1:0"}},
        program="from mqttd.admin.http import slow\nslow.FIRST = 0.01\nslow.MOST = 0.01\n",
    )
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def port(broker: Broker) -> int:
    found = re.search(r"dashboard on port (\d+)", broker.output)
    assert found is not None
    return int(found[1])


@pytest.fixture(scope="module")
def users(broker: Broker) -> dict[str, str]:
    """Names, and what each shows."""
    ctl(broker, "api-users", "add", "ann", stdin=PASSWORD + "\n")
    ctl(broker, "api-users", "add", "vic", "--role", "viewer", stdin=PASSWORD + "\n")
    return {
        role: ctl(broker, "api-users", "token", f"of-{role}", "--role", role)
        for role in ("viewer", "operator", "administrator", "events")
    }


class Asked:
    """One answer."""

    def __init__(
        self, port: int, method: str, path: str, body: object = None, **headers: str
    ) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body else None
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, data, {"Content-Type": "application/json", **sent})
        answer = connection.getresponse()
        self.status = answer.status
        self.headers = answer.headers
        text = answer.read()
        is_json = "json" in (answer.headers.get("content-type") or "")
        self.told: Any = json.loads(text) if is_json else text
        connection.close()


def enter(port: int, name: str = "ann") -> tuple[str, str]:
    """Cookie and CSRF token of a log-in."""
    got = Asked(port, "POST", "/api/v1/session", {"username": name, "password": PASSWORD})
    assert got.status == 200
    cookie = got.headers["set-cookie"]
    assert "httponly" in cookie.lower() and "samesite=strict" in cookie.lower()
    return cookie.partition(";")[0], got.told["csrf"]


def test_there_is_no_password_before_one_was_made(tmp_path: Path) -> None:
    """The first user comes by the link in the log, once; then it is as with all others."""
    broker = start_broker(tmp_path, admin={"page": {"enabled": True, "bind": "127.0.0.1:0"}})
    try:
        found = re.search(r"dashboard on port (\d+)", broker.output)
        link = re.search(r"(http://127\.0\.0\.1:\d+)/#first=([A-Za-z0-9_-]{43})\s", broker.output)
        assert found is not None and link is not None
        port = int(found[1])
        assert link[1].endswith(f":{port}")
        for role in ("viewer", "operator", "administrator"):
            token = ctl(broker, "api-users", "token", f"of-{role}", "--role", role)
            shown = {"Authorization": f"Bearer {token}"}
            lines = str(Asked(port, "GET", "/api/v1/log/lines", **shown).told["lines"])
            assert "/#first=" in lines
            assert (link[2] in lines) is (role == "administrator"), role
        got = Asked(port, "GET", "/api/v1/session")
        assert (got.status, got.told["code"]) == (401, "no_users")
        path, body = "/api/v1/session/first", {"username": "ann", "password": PASSWORD}
        cross = {"Origin": "http://evil.example", "Sec_Fetch_Site": "cross-site"}
        right = {**body, "token": link[2]}
        assert Asked(port, "POST", path, right, **cross).told["code"] == "cross_site"
        assert Asked(port, "POST", path, {**body, "token": "x" * 43}).told["code"] == "wrong_token"
        got = Asked(port, "POST", path, right)
        assert (got.status, got.told["role"]) == (200, "administrator")
        cookie = got.headers["set-cookie"].partition(";")[0]
        shown = {"Cookie": cookie, "X_CSRF_Token": got.told["csrf"]}
        assert Asked(port, "GET", "/api/v1/clients", **shown).status == 200
        assert Asked(port, "POST", path, {**right, "username": "eve"}).told["code"] == "not_first"
        assert PASSWORD not in broker.output
    finally:
        broker.stop()


def test_users_and_tokens_are_made_by_an_administrator(port: int, users: dict[str, str]) -> None:
    shown = {"Authorization": f"Bearer {users['administrator']}"}
    got = Asked(port, "POST", "/api/v1/api-users", {"name": "robot", "role": "viewer"}, **shown)
    assert (got.status, got.told["new"]) == (200, True)
    own = {"Authorization": f"Bearer {got.told['token']}"}
    assert Asked(port, "GET", "/api/v1/status", **own).status == 200
    assert Asked(port, "GET", "/api/v1/api-users", **own).status == 403
    listed = Asked(port, "GET", "/api/v1/api-users", **shown).told["users"]
    assert {"name": "robot", "role": "viewer", "shows": "token", "expires": None} in listed
    assert "argon2" not in str(listed)
    assert Asked(port, "DELETE", "/api/v1/api-users/robot", **shown).status == 200
    assert Asked(port, "GET", "/api/v1/status", **own).status == 401
    assert Asked(port, "DELETE", "/api/v1/api-users/robot", **shown).status == 404


def test_another_role_leaves_the_password(port: int, users: dict[str, str]) -> None:
    shown = {"Authorization": f"Bearer {users['administrator']}"}
    path = "/api/v1/api-users"
    given = {"name": "eva", "role": "viewer", "password": PASSWORD}
    assert Asked(port, "POST", path, given, **shown).told["new"] is True
    got = Asked(port, "POST", path, {"name": "eva", "role": "operator"}, **shown).told
    assert got == {"name": "eva", "role": "operator", "new": False, "token": None}
    login = Asked(port, "POST", "/api/v1/session", {"username": "eva", "password": PASSWORD})
    assert (login.status, login.told["role"]) == (200, "operator")
    assert Asked(port, "DELETE", f"{path}/eva", **shown).status == 200


def test_a_path_that_is_no_text_is_refused_without_noise(
    broker: Broker, port: int, users: dict[str, str]
) -> None:
    shown = {"Authorization": f"Bearer {users['viewer']}"}
    got = Asked(port, "GET", "/api/v1/clients/%ff", **shown)
    assert (got.status, got.told["code"]) == (400, "bad_request")
    assert "critical" not in broker.output and "Traceback" not in broker.output


def test_users_are_kept_in_a_file_for_the_broker_alone(
    broker: Broker, users: dict[str, str]
) -> None:
    assert broker.directory is not None
    path = broker.directory / "data/api-users.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    kept = path.read_text()
    assert "$argon2id$" in kept and PASSWORD not in kept
    assert not any(token in kept for token in users.values())
    assert "of-viewer" in ctl(broker, "api-users", "list")


def test_no_token_a_wrong_one_and_a_role_without_rights(port: int, users: dict[str, str]) -> None:
    assert Asked(port, "GET", "/api/v1/clients").status == 401
    assert Asked(port, "GET", "/metrics").status == 401
    assert Asked(port, "GET", "/api/v1/clients", Authorization="Bearer wrong").status == 401
    assert Asked(port, "GET", "/health/live").status == 200
    ban = {"kind": "client_id", "value": "x"}
    allowed = {
        "events": (403, 403, 403), "viewer": (200, 403, 403), "operator": (200, 200, 403),
        "administrator": (200, 200, 200),
    }  # fmt: skip
    for role, wanted in allowed.items():
        shown = {"Authorization": f"Bearer {users[role]}"}
        got = (
            Asked(port, "GET", "/api/v1/clients", **shown).status,
            Asked(port, "POST", "/api/v1/bans", ban, **shown).status,
            Asked(port, "POST", "/api/v1/config/apply", {}, **shown).status,
        )
        assert got == wanted, role


def test_a_token_ends_with_its_user(broker: Broker, port: int, users: dict[str, str]) -> None:
    token = ctl(broker, "api-users", "token", "gone", "--expires", "1d")
    shown = {"Authorization": f"Bearer {token}"}
    assert Asked(port, "GET", "/api/v1/status", **shown).status == 200
    ctl(broker, "api-users", "del", "gone")
    assert Asked(port, "GET", "/api/v1/status", **shown).status == 401


def test_a_log_in_has_two_secrets_and_takes_both(port: int, users: dict[str, str]) -> None:
    """Browsers send the cookie to every port of the host: alone it opens nothing."""
    wrong = {"username": "ann", "password": "wrong"}
    got = Asked(port, "POST", "/api/v1/session", wrong)
    assert (got.status, got.told["code"]) == (401, "wrong_password")
    cookie, csrf = enter(port)
    other = enter(port, "vic")[1]
    both = {"Cookie": cookie, "X_CSRF_Token": csrf}
    lift = "/api/v1/bans?kind=client_id&value=nobody"
    asked = (
        ("GET", "/api/v1/clients"), ("GET", "/api/v1/session"), ("GET", "/api/v1/events"),
        ("GET", "/metrics"), ("GET", "/api/v1/plugins/spark/log"), ("DELETE", lift),
        ("DELETE", "/api/v1/session"),
    )  # fmt: skip
    for method, path in asked:
        for shown in (
            {"Cookie": cookie},
            {"X_CSRF_Token": csrf},
            {"Cookie": cookie, "X_CSRF_Token": other},
            {"Cookie": cookie, "X_CSRF_Token": cookie.partition("=")[2]},
        ):
            assert Asked(port, method, path, **shown).status == 401, (method, path, shown)
    assert Asked(port, "GET", "/api/v1/clients", **both).status == 200
    assert Asked(port, "GET", "/api/v1/session", **both).told == {
        "name": "ann", "role": "administrator",
    }  # fmt: skip
    assert Asked(port, "DELETE", lift, **both).status == 404
    assert Asked(port, "DELETE", "/api/v1/session", **both).status == 200
    assert Asked(port, "GET", "/api/v1/clients", **both).status == 401


class Neighbour(BaseHTTPRequestHandler):
    """Another program's page on the same machine; it keeps the cookies that it is sent."""

    cookies: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.cookies.append(self.headers.get("cookie") or "")
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>neighbour</title>")

    def log_message(self, *words: object) -> None:
        """Nothing."""


def test_who_is_sent_the_cookie_on_another_port_does_not_have_the_log_in(
    port: int, users: dict[str, str]
) -> None:
    """And the page goes on: when it is loaded again, and in another tab."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Neighbour)
    Thread(target=server.serve_forever, daemon=True).start()
    here = f"http://127.0.0.1:{port}/"
    in_as = "document.getElementById('who')?.textContent === '{} (administrator)'"
    try:
        with Chromium() as browser:
            page = browser.open(here)
            page.wait("!!document.querySelector('input[name=password]')")
            page.evaluate(_log_in("ann", PASSWORD))
            page.wait(in_as.format("ann"))
            other = browser.open(f"http://127.0.0.1:{server.server_port}/")
            other.wait("document.title === 'neighbour'")
            assert other.evaluate("sessionStorage.length") == 0
            cookie = next(filter(None, Neighbour.cookies))
            assert cookie.startswith(f"mqttd-{port}=")
            own = {"Cookie": cookie, "Origin": here[:-1], "Sec_Fetch_Site": "same-origin"}
            for path in ("session", "clients", "events", "openapi.json"):
                got = Asked(port, "GET", f"/api/v1/{path}", **own)
                assert got.status == 401 and "csrf" not in got.told, path
            assert Asked(port, "POST", "/api/v1/publish", {"topic": "t"}, **own).status == 401
            page.evaluate("window.before = true")
            page.call("Page.reload")
            page.wait("!window.before && " + in_as.format("ann"))
            page.wait("document.getElementById('state').textContent === 'Live'")
            tab = browser.open(here)
            tab.wait(in_as.format("ann"))
            tab.evaluate("document.getElementById('leave').click()")
            page.wait("!!document.querySelector('input[name=password]')")
            page.evaluate(_log_in("ann", PASSWORD))
            tab.wait(in_as.format("ann"))
    finally:
        server.shutdown()
        server.server_close()


def _log_in(name: str, password: str) -> str:
    return (
        f"document.querySelector('input[name=username]').value = {json.dumps(name)};"
        f"document.querySelector('input[name=password]').value = {json.dumps(password)};"
        "document.querySelector('form').requestSubmit()"
    )


def test_another_page_gets_nothing_of_a_log_in(port: int, users: dict[str, str]) -> None:
    """A page of another port is "same-site": its requests carry the cookie, and are refused."""
    cookie, csrf = enter(port)
    for headers in (
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "null"},
    ):
        shown = {"Cookie": cookie, "X_CSRF_Token": csrf, **headers}
        got = Asked(port, "GET", "/api/v1/clients", **shown)
        assert (got.status, got.told["code"]) == (403, "cross_site"), headers
        got = Asked(port, "POST", "/api/v1/publish", {"topic": "t"}, **shown)
        assert (got.status, got.told["code"]) == (403, "cross_site"), headers
        body = {"username": "ann", "password": PASSWORD}
        assert Asked(port, "POST", "/api/v1/session", body, **headers).status == 403
        assert "access-control-allow-origin" not in got.headers
    own = {"Origin": f"http://127.0.0.1:{port}", "Sec_Fetch_Site": "same-origin"}
    own |= {"Cookie": cookie, "X_CSRF_Token": csrf}
    assert Asked(port, "GET", "/api/v1/clients", **own).status == 200


def test_a_name_of_others_that_leads_here_is_refused(port: int, users: dict[str, str]) -> None:
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", ""):
        assert Asked(port, "GET", "/", Host=host).status == 421, host
    assert Asked(port, "GET", "/", Host=f"localhost:{port}").status == 200


@pytest.mark.parametrize(
    "path",
    ["/../api.py", "/page/../../api.py", "/page/%2e%2e/%2e%2e/api.py", "/page//app.js",
     "//etc/passwd", "/page/app.js%00", "/page/", "/etc/passwd", "/page/..%2f..%2fapi.py"],
)  # fmt: skip
def test_only_the_files_of_the_page_are_served(port: int, path: str) -> None:
    assert Asked(port, "GET", path).status == 404
    assert Asked(port, "POST", "/page/app.js", {"a": 1}).status == 405


def test_an_oversized_body_is_refused(port: int, users: dict[str, str]) -> None:
    shown = {"Authorization": f"Bearer {users['operator']}"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.putrequest("POST", "/api/v1/publish")
    for name, value in {**shown, "Content-Length": str(1 << 30)}.items():
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def test_event_streams_have_an_end_and_others_find_room(port: int, users: dict[str, str]) -> None:
    """One caller has 208 of them at most: another one still gets its own."""
    held = []
    try:
        for number in range(209):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            shown = {"Authorization": f"Bearer {users['viewer']}"}
            connection.request("GET", "/api/v1/events?kinds=alarms", headers=shown)
            answer = connection.getresponse()
            assert answer.status == (200 if number < 208 else 503), number
            held.append(connection)
        other = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        shown = {"Authorization": f"Bearer {users['operator']}"}
        other.request("GET", "/api/v1/events?kinds=counters", headers=shown)
        answer = other.getresponse()
        assert answer.status == 200
        while b"event: counters" not in answer.readline():
            pass
        told = json.loads(answer.readline().removeprefix(b"data: "))
        assert told["gauges"]["sessions"] >= 0
        held.append(other)
    finally:
        for connection in held:
            connection.close()


def test_what_is_not_ours_is_as_it_was_published() -> None:
    folder = ROOT / "mqttd/admin/web/page"
    told = (folder / "uPlot.txt").read_text()
    for name in ("uPlot.iife.min.js", "uPlot.min.css"):
        assert f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}" in told


def test_an_operator_uses_the_page(broker: Broker, port: int, users: dict[str, str]) -> None:
    """Wrong password, log in, a client appears, is kicked, a denial is explained; no rights."""
    with Chromium() as browser:
        page = browser.open(f"http://127.0.0.1:{port}/")
        page.wait("!!document.querySelector('input[name=password]')")
        page.evaluate(_log_in("ann", "wrong password"))
        page.wait("document.getElementById('told').textContent.includes('wrong password')")
        browser.console.clear()  # a browser reports each answer from 400
        page.evaluate(_log_in("ann", PASSWORD))
        page.wait("document.querySelectorAll('live-chart canvas').length === 6")
        page.wait("document.querySelectorAll('.tile').length === 6")
        assert page.evaluate("document.cookie") == ""
        page.evaluate("location.hash = 'clients'")
        page.wait("!!document.querySelector('table')")
        client = RawClient(broker.port, mq.V5).connect("<b>page</b>")
        page.wait(
            "[...document.querySelectorAll('td a')].some(a => a.textContent === '<b>page</b>')"
        )
        page.evaluate("document.querySelector('td a').click()")
        page.wait("!!document.getElementById('kick')")
        page.evaluate("document.getElementById('kick').click()")
        client.expect_close(0x98)
        client.close()
        for name in ("subscriptions", "retained", "alarms", "plugins", "config", "api"):
            page.evaluate(f"location.hash = '{name}'")
            page.wait(f"document.querySelector('#pages a[aria-current]').hash === '#{name}'"
                      " && !!document.querySelector('main table')")  # fmt: skip
        page.evaluate("location.hash = 'access'")
        page.wait("!!document.querySelector('input[name=topic]')")
        page.evaluate("document.querySelector('input[name=topic]').value = 'a/b';"
                      "document.querySelector('form').requestSubmit()")  # fmt: skip
        page.wait("/Allowed|Denied/.test(document.querySelector('main').textContent)")
        page.evaluate("document.getElementById('leave').click()")
        page.wait("!!document.querySelector('input[name=password]')")
        page.evaluate(_log_in("vic", PASSWORD))
        page.wait("document.getElementById('who').textContent === 'vic (viewer)'")
        assert [line for line in browser.console if "Content Security Policy" in str(line)] == []
