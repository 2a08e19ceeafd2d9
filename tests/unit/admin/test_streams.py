"""An event stream ends with what it was asked for with: log-in, token, role, door."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.defer import maybeDeferred
from twisted.internet.error import ConnectionDone
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure
from twisted.web.resource import IResource

from mqttd.admin.api import Api
from mqttd.admin.doors.page import PageDoor
from mqttd.admin.doors.site import site_of
from mqttd.admin.doors.streams import EVERY
from mqttd.admin.doors.tcp import AdminTcpService
from mqttd.admin.http import logins as logins_module
from mqttd.admin.http.api_users import ApiUsers, add_token, add_user, change_role, delete_user
from mqttd.admin.http.logins import IDLE, LONGEST, Logins
from mqttd.admin.http.parts import Parts
from mqttd.admin.http.slow import Slow
from mqttd.config.schema import AdminTcp
from mqttd.readmodel.feed import Feed
from mqttd.readmodel.model import Model
from mqttd.readmodel.topic_rates import TopicFigures
from mqttd.secrets.passwords import Cost
from tests.unit.admin.node import make_broker

PASSWORD = "correct horse"
CHEAP = Cost(1024, 1, 1)
FILE_TOKEN = "f" * 32

Change = Callable[["Node"], object]


class Node:
    """The interface of a broker at its page and over TCP, and what reads its events."""

    def __init__(self, path: Path, api: Api) -> None:
        self.clock = MemoryReactorClock()
        self.path = str(path / "api-users.json")
        self.tokens = path / "tokens"
        self.tokens.write_text(FILE_TOKEN + "\n")
        users = ApiUsers(self.path, seconds=self.clock.seconds)
        self.api = api
        parts = cast(Parts, api.parts)
        self.feed = parts.feed = Feed(
            parts.model.figures, lambda tell: None, lambda tell: None, self.clock
        )
        self.logins = parts.logins = Logins(users, self.clock, maybeDeferred)
        add_user(self.path, "ann", "administrator", PASSWORD, None, CHEAP)
        self.token = add_token(self.path, "robot", "administrator", None)
        page: IResource = PageDoor(api.resource(), self.logins, False, Slow(self.clock))
        self.page = site_of(page, 1000, reactor=self.clock)
        settings = AdminTcp(bind="127.0.0.1:0", token_file=str(self.tokens))
        self.tcp = AdminTcpService(api.resource(), settings, self.clock, 1000, users=users)

    def asked(self, site: Any, method: str, path: str, body: str = "", **shown: str) -> Answer:
        """What comes of a request on a connection of its own."""
        told = {"Host": "127.0.0.1", "Content-Length": str(len(body)), **shown}
        lines = [f"{method} {path} HTTP/1.1", *(f"{k.replace('_', '-')}: {told[k]}" for k in told)]
        channel = site.buildProtocol(IPv4Address("TCP", "127.0.0.1", 1))
        transport = StringTransport()
        channel.makeConnection(transport)
        channel.dataReceived(("\r\n".join(lines) + "\r\n\r\n" + body).encode())
        return Answer(channel, transport)

    def log_in(self) -> dict[str, str]:
        body = json.dumps({"username": "ann", "password": PASSWORD})
        got = self.asked(self.page, "POST", "/api/v1/session", body).text
        cookie = got.partition("Set-Cookie: ")[2].partition(";")[0]
        csrf = got.partition('"csrf":"')[2].partition('"')[0]
        return {"Cookie": cookie, "X_CSRF_Token": csrf}

    def says(self, stream: Answer) -> bool:
        """Whether an event that happens now is told."""
        before = len(stream.text)
        self.feed.say("alarm raised", {"alarm": "told"})
        self.clock.advance(EVERY)
        return '"told"' in stream.text[before:]


class Answer:
    """What one connection was told."""

    def __init__(self, channel: Any, transport: StringTransport) -> None:
        self.channel = channel
        self.transport = transport

    @property
    def text(self) -> str:
        return self.transport.value().decode()

    @property
    def is_over(self) -> bool:
        """Its last piece was told."""
        return self.text.endswith("0\r\n\r\n")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Api:
    """The interface of one broker: who may use it is of each test."""
    broker = make_broker(tmp_path_factory.mktemp("broker"))
    return Api(Parts(broker, Model(broker), in_thread=maybeDeferred))


@pytest.fixture
def node(tmp_path: Path, api: Api) -> Node:
    return Node(tmp_path, api)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def log_out(node: Node, shown: dict[str, str]) -> None:
    got = node.asked(node.page, "DELETE", "/api/v1/session", **shown).text
    assert "200 OK" in got


def used_for(seconds: float) -> Change:
    """A log-in whose stream goes on for so long, which counts as a request."""

    def change(node: Node) -> None:
        for _ in range(int(seconds // (IDLE / 2))):
            node.clock.advance(IDLE / 2)

    return change


def crowd_out(node: Node) -> None:
    for _ in range(2):
        node.log_in()


def no_file(node: Node) -> None:
    os.unlink(node.path)


def open_to_others(node: Node) -> None:
    os.chmod(node.path, 0o644)


#: Whoever has logged in, and what ends that.
OF_LOGINS: dict[str, Change] = {
    "expired": used_for(LONGEST + IDLE),
    "its user was deleted": lambda node: delete_user(node.path, "ann"),
    "its user has another password": lambda node: add_user(
        node.path, "ann", "administrator", "another horse", None, CHEAP
    ),
    "its user has another role": lambda node: change_role(node.path, "ann", "viewer", None),
    "its user has none": lambda node: change_role(node.path, "ann", "events", None),
    "its user has expired": lambda node: (
        change_role(node.path, "ann", "administrator", 10.0), node.clock.advance(10),
    ),
    "others have logged in": crowd_out,
    "the file is gone": no_file,
    "the file is for others, too": open_to_others,
}  # fmt: skip

OF_TOKENS: dict[str, Change] = {
    "deleted": lambda node: delete_user(node.path, "robot"),
    "another one in its place": lambda node: add_token(node.path, "robot", "viewer", None),
    "a password in its place": lambda node: add_user(
        node.path, "robot", "viewer", PASSWORD, None, CHEAP
    ),
    "the file is gone": no_file,
    "the file is for others, too": open_to_others,
}


@pytest.mark.parametrize("why", OF_LOGINS)
def test_a_stream_ends_with_its_log_in(
    node: Node, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins_module, "MOST", 2)
    stream = node.asked(node.page, "GET", "/api/v1/events?kinds=alarms", **node.log_in())
    assert node.says(stream)
    OF_LOGINS[why](node)
    assert not node.says(stream)
    assert stream.is_over and not len(node.feed)


def test_a_stream_ends_when_its_user_logs_out_and_others_of_the_user_go_on(node: Node) -> None:
    shown, other = node.log_in(), node.log_in()
    first, second, third = (
        node.asked(node.page, "GET", "/api/v1/events?kinds=alarms", **one)
        for one in (shown, other, bearer(node.token))
    )
    log_out(node, shown)
    assert not node.says(first)
    assert first.is_over
    assert node.says(second) and node.says(third)
    # The connection is as good as any: what it shows now is looked at.
    first.channel.dataReceived(b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n")
    node.clock.advance(0)
    assert "401 Unauthorized" in first.text


def test_a_log_in_lasts_while_its_stream_does_and_no_longer_than_any(node: Node) -> None:
    shown = node.log_in()
    stream = node.asked(node.page, "GET", "/api/v1/events?kinds=alarms", **shown)
    used_for(LONGEST - IDLE)(node)
    assert node.says(stream)
    stream.channel.connectionLost(Failure(ConnectionDone()))
    node.clock.advance(IDLE + 1)
    stream = node.asked(node.page, "GET", "/api/v1/events?kinds=alarms", **shown)
    assert "401 Unauthorized" in stream.text


@pytest.mark.parametrize("door", ["page", "tcp"])
@pytest.mark.parametrize("why", OF_TOKENS)
def test_a_stream_ends_with_its_token(node: Node, door: str, why: str) -> None:
    site = node.page if door == "page" else node.tcp.site
    stream = node.asked(site, "GET", "/api/v1/events?kinds=alarms", **bearer(node.token))
    assert node.says(stream)
    OF_TOKENS[why](node)
    assert not node.says(stream)
    assert stream.is_over and not len(node.feed)


def test_a_stream_ends_when_its_token_expires(node: Node) -> None:
    token = add_token(node.path, "brief", "viewer", 10.0)
    stream = node.asked(node.page, "GET", "/api/v1/events?kinds=alarms", **bearer(token))
    assert node.says(stream)
    node.clock.advance(10)
    assert not node.says(stream)
    assert stream.is_over


def test_what_takes_long_is_told_to_who_may_see_it_when_it_is_there(node: Node) -> None:
    """Topics are counted for as long as was asked."""
    parts = cast(Parts, node.api.parts)
    parts.topic_figures = TopicFigures(parts.broker, node.clock.callLater)
    path = "/api/v1/topics/busiest?seconds=5"
    told, refused = (
        node.asked(node.page, "GET", path, **bearer(token))
        for token in (add_token(node.path, "stays", "viewer", None), node.token)
    )
    assert not told.text and not refused.text
    delete_user(node.path, "robot")
    node.clock.advance(5)
    assert '"topics":[]' in told.text
    assert "401 Unauthorized" in refused.text and "topics" not in refused.text


@pytest.mark.parametrize(("role", "goes_on"), [("operator", 1), ("viewer", 1), ("events", 0)])
def test_a_token_with_another_role_is_told_what_that_may_see(
    node: Node, role: str, goes_on: int
) -> None:
    """All kinds of events are a viewer's."""
    stream = node.asked(node.page, "GET", "/api/v1/events?kinds=alarms", **bearer(node.token))
    assert node.says(stream)
    users = json.loads(Path(node.path).read_text())
    users["users"]["robot"]["role"] = role
    Path(node.path).write_text(json.dumps(users))
    assert node.says(stream) is bool(goes_on)
    assert stream.is_over is not bool(goes_on)


def test_a_stream_ends_with_the_token_in_a_file(node: Node) -> None:
    stream = node.asked(node.tcp.site, "GET", "/api/v1/events?kinds=alarms", **bearer(FILE_TOKEN))
    assert node.says(stream)
    node.tokens.write_text("another " * 4)
    node.tokens.write_text("a" * 40 + "\n")
    assert not node.says(stream)
    assert stream.is_over


def test_a_door_that_is_closed_ends_its_streams_and_lets_nobody_ask_more(node: Node) -> None:
    """A configuration with another file of tokens comes with another door."""
    node.tcp.startService()
    stream = node.asked(node.tcp.site, "GET", "/api/v1/events?kinds=alarms", **bearer(FILE_TOKEN))
    silent = node.asked(node.tcp.site, "GET", "/api/v1/session", **bearer(FILE_TOKEN))
    assert "200 OK" in silent.text and node.says(stream)
    node.tcp.stopService()
    assert silent.transport.disconnecting
    assert not node.says(stream)
    assert stream.is_over and stream.transport.disconnecting


def test_who_does_not_read_is_ended_as_well(node: Node) -> None:
    stream = node.asked(node.page, "GET", "/api/v1/events?kinds=alarms", **bearer(node.token))
    assert node.says(stream)
    assert stream.transport.producer is not None
    stream.transport.producer.pauseProducing()
    assert not node.says(stream)
    delete_user(node.path, "robot")
    node.clock.advance(EVERY)
    assert not len(node.feed)
    stream.transport.producer.resumeProducing()
    assert stream.is_over and stream.text.count('"told"') == 1


def test_the_clock_stands_when_the_last_has_ended(node: Node) -> None:
    node.asked(node.page, "GET", "/api/v1/events", **bearer(node.token))
    delete_user(node.path, "robot")
    node.clock.advance(EVERY)
    assert not [call for call in node.clock.getDelayedCalls() if call.getTime() <= 10 * EVERY]
