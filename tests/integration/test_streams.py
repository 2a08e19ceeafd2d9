"""Event streams of a real broker end with the log-in, token, role or door they were begun with."""

from __future__ import annotations

import http.client
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import Broker, start_broker
from tests.support.ctl import run
from tests.support.ctl import told as ctl

PASSWORD = "correct horse"
TOKEN = "t" * 32


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    made = start_broker(
        tmp_path_factory.mktemp("streams"),
        files={"tokens": TOKEN + "\n", "others": "o" * 32 + "\n"},
        admin={
            "page": {"enabled": True, "bind": "127.0.0.1:0"},
            "tcp": {"bind": "127.0.0.1:0", "token_file": "tokens"},
        },
    )
    try:
        yield made
    finally:
        made.stop()


class Door:
    """A connection to an address of a broker, of one who shows something."""

    def __init__(self, broker: Broker, what: str, **shown: str) -> None:
        found = re.findall(rf"{what} on port (\d+)", broker.output)
        self.connection = http.client.HTTPConnection("127.0.0.1", int(found[-1]), timeout=30)
        self.shown = {name.replace("_", "-"): value for name, value in shown.items()}

    def ask(self, method: str, path: str, body: object = None) -> http.client.HTTPResponse:
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json", **self.shown}
        self.connection.request(method, path, data, headers)
        return self.connection.getresponse()

    def stream(self) -> http.client.HTTPResponse:
        """A stream that is being told."""
        answer = self.ask("GET", "/api/v1/events?kinds=counters")
        assert answer.status == 200
        while not answer.readline().startswith(b"data:"):
            pass
        return answer


def log_in(broker: Broker, name: str) -> Door:
    door = Door(broker, "dashboard")
    answer = door.ask("POST", "/api/v1/session", {"username": name, "password": PASSWORD})
    cookie = (answer.headers["set-cookie"] or "").partition(";")[0]
    csrf = json.loads(answer.read())["csrf"]
    return Door(broker, "dashboard", Cookie=cookie, X_CSRF_Token=csrf)


def with_token(broker: Broker, name: str, what: str = "dashboard") -> Door:
    return Door(broker, what, Authorization=f"Bearer {ctl(broker, 'api-users', 'token', name)}")


def user(broker: Broker, name: str) -> None:
    ctl(broker, "api-users", "add", name, "--role", "operator", stdin=PASSWORD + "\n")


def entry(broker: Broker, name: str, **changed: Any) -> None:
    """Change somebody's entry in the file."""
    assert broker.directory is not None
    path = broker.directory / "data/api-users.json"
    told = json.loads(path.read_text())
    told["users"][name].update(changed)
    new = path.with_suffix(".new")
    new.touch(0o600)
    new.write_text(json.dumps(told))
    os.replace(new, path)


def test_a_stream_ends_with_what_it_was_asked_for_with(broker: Broker) -> None:
    for name in ("out", "deleted", "changed", "role", "stays"):
        user(broker, name)
    doors = {
        "the user logs out": log_in(broker, "out"),
        "the user is deleted": log_in(broker, "deleted"),
        "the user has another password": log_in(broker, "changed"),
        "the user has another role": log_in(broker, "role"),
        "the token is deleted": with_token(broker, "token"),
        "the token is deleted, over TCP": with_token(broker, "tcp", "HTTP interface"),
        "the token has expired": with_token(broker, "expired"),
        "the token's role is for the event log": with_token(broker, "role-of-token"),
    }
    streams = {what: door.stream() for what, door in doors.items()}
    stays = log_in(broker, "stays").stream()
    fewer = with_token(broker, "fewer")
    entry(broker, "fewer", role="administrator")
    fewer_stream = fewer.stream()

    out = Door(broker, "dashboard")
    out.shown = doors["the user logs out"].shown
    assert out.ask("DELETE", "/api/v1/session").status == 200
    ctl(broker, "api-users", "del", "deleted")
    ctl(broker, "api-users", "add", "changed", stdin="another horse\n")
    admin = Door(broker, "HTTP interface", Authorization=f"Bearer {TOKEN}")
    given = {"name": "role", "role": "viewer"}
    assert admin.ask("POST", "/api/v1/api-users", given).status == 200
    ctl(broker, "api-users", "del", "token")
    ctl(broker, "api-users", "del", "tcp")
    entry(broker, "expired", expires=1.0)
    entry(broker, "role-of-token", role="events")
    entry(broker, "fewer", role="viewer")

    for what, stream in streams.items():
        stream.read()  # until its end
        assert doors[what].ask("GET", "/api/v1/events").status in (401, 403), what
    # Whose right to ask is as it was reads on.
    for stream in (stays, fewer_stream):
        for _ in range(2):
            while not stream.readline().startswith(b"data:"):
                pass


def test_a_stream_ends_with_the_tokens_of_a_door(broker: Broker) -> None:
    """A file of tokens that is another, and a door that is."""
    assert broker.directory is not None
    first = Door(broker, "HTTP interface", Authorization=f"Bearer {TOKEN}").stream()
    tokens = Path(broker.directory / "etc/tokens")
    tokens.write_text("n" * 40 + "\n")
    first.read()
    old = Door(broker, "HTTP interface", Authorization="Bearer " + "n" * 40)
    second = old.stream()
    silent = Door(broker, "HTTP interface", Authorization="Bearer " + "n" * 40)
    silent.ask("GET", "/api/v1/session").read()
    conf = broker.directory / "etc/mqttd.conf"
    conf.write_text(conf.read_text().replace('"tokens"', '"others"'))
    done = run(broker, "reload")
    assert done.returncode == 0, done.stderr
    second.read()
    with pytest.raises(ConnectionError):
        silent.ask("GET", "/api/v1/session")
    again = Door(broker, "HTTP interface", Authorization="Bearer " + "o" * 32)
    assert again.ask("GET", "/api/v1/session").status == 200
