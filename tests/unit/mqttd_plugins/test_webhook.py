"""webhook: events go out in order and in batches; what does not fit or is not taken is counted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail, succeed

from mqttd.testing import LoadedPlugin, MemoryBroker, PluginConformance
from mqttd_plugins.webhook.lane import IN_A_ROW
from mqttd_plugins.webhook.plugin import APART, EVENTS, Settings, Webhook

URL = "http://127.0.0.1:9/events"


class Server:
    """Stands in for the HTTP server: keeps requests, answers what it is told."""

    def __init__(self) -> None:
        self.requests: list[tuple[list[dict[str, Any]], dict[str, str]]] = []
        self.status: int | Exception | None = 200
        self.hung: list[Deferred[int]] = []
        #: A payload that has its batch answered with `refusal`; and the events that were taken.
        self.poison = "none"
        self.refusal = 400
        self.taken: list[dict[str, Any]] = []

    def post(self, body: bytes, headers: dict[str, str]) -> Deferred[int]:
        self.requests.append((json.loads(body), headers))
        if self.status is None:
            self.hung.append(Deferred())
            return self.hung[-1]
        if any(event.get("payload") == self.poison for event in self.requests[-1][0]):
            return succeed(self.refusal)
        if self.status == 200:
            self.taken += self.requests[-1][0]
        return fail(self.status) if isinstance(self.status, Exception) else succeed(self.status)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [event for batch, _ in self.requests for event in batch]


def load(node: MemoryBroker, server: Server, **config: Any) -> LoadedPlugin:
    plugin = Webhook(server.post)
    events = {"events": ["message.publish"]}
    return node.load(_Configured(plugin, Settings(url=URL, **(events | config))))


class _Configured:
    """The plugin with a configuration made here."""

    def __new__(cls, plugin: Webhook, config: Settings) -> Any:
        original = plugin.load
        plugin.load = lambda handle, _: original(handle, config)  # type: ignore[method-assign]
        return plugin


class TestConformance(PluginConformance):
    cycles = 10

    def make(self) -> Any:
        return _Configured(Webhook(Server().post), Settings(url=URL, events=EVENTS))


@pytest.fixture
def node() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def server() -> Server:
    return Server()


def test_everything_that_can_be_chosen_is_sent(node: MemoryBroker, server: Server) -> None:
    loaded = load(node, server, events=EVENTS)
    alice = node.connect("alice", username="al")
    alice.subscribe("t", qos=1)
    alice.publish("t", b"hello", 1)
    alice.publish("nobody", b"", 0)
    alice.unsubscribe("t")
    alice.disconnect()
    node.advance(2)
    (request,) = server.requests
    events, headers = request
    assert {event["event"] for event in events} == set(EVENTS)
    assert headers["X-Mqttd-Batch"].endswith("-1") and headers["X-Mqttd-Attempt"] == "1"
    published = next(event for event in events if event["event"] == "message.publish")
    assert published["topic"] == "t" and published["payload"] == "hello"
    assert published["from"] == "alice" and published["node"] == "memory"
    acked = next(event for event in events if event["event"] == "message.acked")
    assert acked["id"] == published["id"] and acked["clientid"] == "alice"
    assert loaded.metrics()["sent_total"] == len(events)


def test_a_batch_goes_when_it_is_full_or_old(node: MemoryBroker, server: Server) -> None:
    load(node, server, batch_size=3, batch_seconds=1.0)
    for number in range(7):
        node.publish("t", b"%d" % number)
    node.advance(0.1)
    assert [len(batch) for batch, _ in server.requests] == [3, 3]
    node.advance(1)
    assert [event["payload"] for event in server.events] == [str(n) for n in range(7)]


def test_only_chosen_topics_go(node: MemoryBroker, server: Server) -> None:
    load(node, server, topics=("a/#", "b"))
    for topic in ("a/x", "b", "c"):
        node.publish(topic)
    node.advance(2)
    assert [event["topic"] for event in server.events] == ["a/x", "b"]


@pytest.mark.parametrize(
    ("mode", "payload", "sent"),
    [
        ("text", "ü".encode(), {"payload": "ü"}),
        ("text", b"\xff", {"payload_base64": "/w=="}),
        ("base64", b"x", {"payload_base64": "eA=="}),
        ("none", b"x", {}),
        ("text", b"x" * 11, {}),
    ],
)
def test_payloads(
    node: MemoryBroker, server: Server, mode: str, payload: bytes, sent: dict[str, str]
) -> None:
    load(node, server, payload=mode, payload_bytes=10)
    node.publish("t", payload)
    node.advance(2)
    (event,) = server.events
    assert {key: event[key] for key in event if key.startswith("payload")} == sent
    assert event["size"] == len(payload)


@pytest.mark.parametrize("answer", [500, 503, 429, 408, OSError("refused")])
def test_a_batch_is_tried_again_until_it_is_taken(
    node: MemoryBroker, server: Server, answer: Any
) -> None:
    loaded = load(node, server, retry_after=1.0, batch_seconds=0.1)
    server.status = answer
    node.publish("t", b"1")
    node.advance(0.5)
    assert "server" in loaded.alarms
    node.publish("t", b"2")
    node.advance(2)
    server.status = 200
    node.advance(5)
    batches = [headers["X-Mqttd-Batch"].rpartition("-")[2] for _, headers in server.requests]
    assert batches[:-1] == ["1"] * (len(batches) - 1) and batches[-1] == "2"
    assert server.requests[-2][0] == server.requests[0][0]
    assert [event["payload"] for event in server.requests[-1][0]] == ["2"]
    assert not loaded.alarms
    metrics = loaded.metrics()
    assert (metrics["sent_total"], metrics["dropped_failed_total"]) == (2, 0)


def test_pauses_grow_and_attempts_end(node: MemoryBroker, server: Server) -> None:
    loaded = load(node, server, retry_after=1.0, retry_most=3.0, attempts=5, batch_seconds=0.1)
    server.status = 500
    times = []
    original = server.post

    def post(body: bytes, headers: dict[str, str]) -> Deferred[int]:
        times.append(node.clock.seconds())
        return original(body, headers)

    loaded.plugin._post = post
    node.publish("t", b"x")
    node.advance(60)
    pauses = [round(after - before) for before, after in zip(times, times[1:], strict=False)]
    assert pauses == [1, 2, 3, 3]
    assert loaded.metrics()["dropped_failed_total"] == 1
    server.status = 200
    node.publish("t", b"next")
    node.advance(2)
    assert loaded.metrics()["sent_total"] == 1


@pytest.mark.parametrize("status", [400, 401, 404, 301])
def test_a_refused_batch_is_dropped_at_once(
    node: MemoryBroker, server: Server, status: int
) -> None:
    loaded = load(node, server)
    server.status = status
    node.publish("t", b"x")
    node.advance(60)
    assert len(server.requests) == 1
    assert loaded.metrics()["dropped_failed_total"] == 1
    assert f"status {status}" in loaded.alarms["server"]


def test_the_queue_is_bounded_and_drops_are_counted(node: MemoryBroker, server: Server) -> None:
    loaded = load(node, server, queue=5, batch_size=2, batch_seconds=0.1)
    server.status = None
    for number in range(10):
        node.publish("t", b"%d" % number)
    node.advance(1)
    metrics = loaded.metrics()
    assert len(server.events) == 2  # under way
    assert metrics["waiting"] == 5
    assert metrics["dropped_queue_full_total"] == 3
    server.status = 200
    server.hung[0].callback(200)
    node.advance(1)
    assert [event["payload"] for event in server.events] == [str(n) for n in range(7)]


def test_large_events_count_by_size(node: MemoryBroker, server: Server) -> None:
    loaded = load(node, server, queue_bytes=3000)
    server.status = None
    for _ in range(10):
        node.publish("t", b"x" * 1000)
    assert 0 < loaded.metrics()["waiting"] < 3


def test_a_server_that_never_answers_is_given_up(node: MemoryBroker, server: Server) -> None:
    loaded = load(node, server, timeout=5.0, attempts=2, retry_after=1.0, batch_seconds=0.1)
    server.status = None
    node.publish("t", b"x")
    node.advance(30)
    assert len(server.requests) == 2
    assert loaded.metrics()["dropped_failed_total"] == 1


def test_unloading_ends_what_is_under_way(node: MemoryBroker, server: Server) -> None:
    loaded = load(node, server, batch_seconds=0.1)
    server.status = None
    node.publish("t", b"x")
    node.advance(1)
    loaded.unload()
    assert server.hung[0].called
    node.advance(60)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"url": "ftp://x/"}, "expected http"),
        ({"url": "http:///x"}, "expected http"),
        ({"url": URL, "topics": ("a/#/b",)}, "last level"),
        ({"url": URL, "headers": {"X-A": "b\r\nX-B: c"}}, "line break"),
    ],
)
def test_mistakes_are_named_and_secrets_are_not(
    node: MemoryBroker, config: dict[str, Any], why: str
) -> None:
    with pytest.raises(Exception, match=why):
        node.load(_Configured(Webhook(Server().post), Settings(**config)))
    secret = Settings(url="ftp://user:secret@host/token")
    with pytest.raises(ValueError) as error:
        node.load(_Configured(Webhook(Server().post), secret))
    assert "secret" not in str(error.value) and "token" not in str(error.value)


def waiting_of(node: MemoryBroker, server: Server, loaded: LoadedPlugin) -> list[str]:
    """Whose events wait; the server is well again, and gets them."""
    server.status = 200
    before = len(server.events)
    server.hung[-1].callback(200)
    node.advance(60)
    assert loaded.metrics()["waiting"] == 0
    return [event["from_username"] for event in server.events[before:]]


@pytest.mark.parametrize(
    ("config", "payload"),
    [({"queue": 30}, b""), ({"queue_bytes": 30_000}, b"x" * 700)],
    ids=["events", "bytes"],
)
def test_no_user_fills_the_queue_for_others(
    node: MemoryBroker, server: Server, config: dict[str, int], payload: bytes
) -> None:
    loaded = load(node, server, batch_size=1, **config)
    server.status = None
    users = [node.connect(f"c{n}", username=f"u{n}") for n in range(3)]
    users[0].publish("t", b"under way")
    node.advance(1)
    busy, busy_too, other = users
    other_names = [node.connect(f"more-{n}", username="u0") for n in range(5)]
    for _ in range(100):
        for client in (busy, *other_names):
            client.publish("t", payload)
    for _ in range(100):
        busy_too.publish("t", payload)
    for _ in range(3):
        other.publish("t", payload)
    node.publish("t", payload)  # the operator's own
    sent = waiting_of(node, server, loaded)
    assert sent.count("u2") == 3 and sent[-1] is None
    assert 10 <= sent.count("u0") <= 15 and 5 <= sent.count("u1") <= sent.count("u0")


def test_a_queue_that_has_emptied_is_anybodys_again(node: MemoryBroker, server: Server) -> None:
    loaded = load(node, server, queue=10, batch_size=1)
    alice = node.connect("alice", username="al")
    for _ in range(3):
        server.status = None
        alice.publish("t", b"under way")
        node.advance(1)
        for _ in range(20):
            alice.publish("t", b"")
        assert waiting_of(node, server, loaded) == ["al"] * 5


def test_one_event_larger_than_half_of_the_queue_fits(node: MemoryBroker, server: Server) -> None:
    load(node, server, queue_bytes=2000)
    node.connect("alice").publish("t", b"x" * 1400)
    node.advance(2)
    assert len(server.events) == 1


def test_deliveries_are_charged_to_the_subscriber(node: MemoryBroker, server: Server) -> None:
    load(node, server, queue=20, events=("message.publish", "message.delivered"))
    server.status = None
    for n in range(30):
        node.connect(f"s{n}", username="greedy").subscribe("t")
    alice = node.connect("alice", username="al")
    for _ in range(3):
        alice.publish("t", b"x")
    server.status = 200
    node.advance(10)
    events = [event["event"] for event in server.events]
    assert events.count("message.publish") == 3 and events.count("message.delivered") >= 5


def test_a_batch_is_bounded_by_its_bytes_too(node: MemoryBroker, server: Server) -> None:
    load(node, server, batch_bytes=4096)
    for number in range(20):
        node.publish("t", b"%4d" % number + b"x" * (6000 if number == 7 else 600))
    node.advance(2)
    sizes = [len(json.dumps(batch, separators=(",", ":"))) for batch, _ in server.requests]
    assert [event["payload"][:4] for event in server.events] == [f"{n:4}" for n in range(20)]
    assert sorted(sizes)[-1] > 6000 and sorted(sizes)[-2] <= 4096
    assert len(server.requests) < 10


def test_a_batch_with_enough_bytes_goes_at_once(node: MemoryBroker, server: Server) -> None:
    load(node, server, batch_bytes=4096, batch_seconds=60.0)
    for _ in range(5):
        node.publish("t", b"x" * 1000)
    node.advance(0.1)
    assert len(server.events) == 3


def test_what_has_no_room_is_not_encoded(
    node: MemoryBroker, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[bytes] = []
    encode = Webhook._payload

    def counted(plugin: Webhook, payload: bytes) -> dict[str, str]:
        encoded.append(payload)
        return encode(plugin, payload)

    monkeypatch.setattr(Webhook, "_payload", counted)
    loaded = load(node, server, queue=10, batch_seconds=60.0)
    alice = node.connect("alice")
    for _ in range(100):
        alice.publish("t", b"x")
    assert len(encoded) == loaded.metrics()["waiting"] == 5
    assert loaded.metrics()["dropped_queue_full_total"] == 95


@pytest.mark.parametrize("refusal", [400, 403, 413, 422, 500, 502])
def test_what_is_refused_takes_no_events_of_others_along(
    node: MemoryBroker, server: Server, refusal: int
) -> None:
    loaded = load(node, server, batch_seconds=0.1)
    server.poison, server.refusal = "\0", refusal
    alice, mallory = node.connect("a", username="alice"), node.connect("m", username="mallory")
    for number in range(60):
        alice.publish("t", b"%d" % number)
        if number % 3 == 0:
            mallory.publish("t", b"\0" if number % 2 else b"good %d" % number)
    node.advance(60)
    of = {name: [each for each in server.taken if each["from"] == name] for name in "am"}
    assert [event["payload"] for event in of["a"]] == [str(number) for number in range(60)]
    assert [event["payload"] for event in of["m"]] == [f"good {n}" for n in range(0, 60, 6)]
    metrics = loaded.metrics()
    assert (metrics["sent_total"], metrics["dropped_failed_total"]) == (70, 10)
    assert metrics["waiting"] == 0 and not loaded.alarms


def test_who_has_had_others_refused_costs_them_no_more_requests(
    node: MemoryBroker, server: Server
) -> None:
    loaded = load(node, server, batch_seconds=0.1)
    server.poison = "\0"
    alice, mallory = node.connect("a", username="alice"), node.connect("m", username="mallory")
    for _ in range(2):
        alice.publish("t", b"first")
        mallory.publish("t", b"\0")
    node.advance(10)
    before = len(server.requests)
    for _ in range(20):
        alice.publish("t", b"then")
        for _ in range(20):
            mallory.publish("t", b"\0")
        node.advance(1)
    requests = [batch for batch, _ in server.requests[before:]]
    mine = [batch for batch in requests if batch[0]["from"] == "a"]
    assert [[event["payload"] for event in batch] for batch in mine] == [["then"]] * 20
    # Half a second of pause after each that was refused.
    assert len(requests) - len(mine) <= 2 * 20 + 1
    # An hour later, when nothing of it waits any more, it is anybody again.
    node.advance(APART + 600)
    mallory.publish("t", b"good")
    alice.publish("t", b"last")
    node.advance(1)
    assert [event["payload"] for event in server.requests[-1][0]] == ["good", "last"]
    assert loaded.metrics()["waiting"] == 0


def test_a_server_that_refuses_everything_is_not_asked_for_each_event(
    node: MemoryBroker, server: Server
) -> None:
    loaded = load(node, server, batch_seconds=0.1)
    server.status = 401
    clients = [node.connect(f"c{n}", username=f"u{n}") for n in range(200)]
    for client in clients:
        client.publish("t", b"x")
    node.advance(600)
    assert IN_A_ROW <= len(server.requests) <= 2 * IN_A_ROW + 2
    assert loaded.metrics()["dropped_failed_total"] == 200
    assert "status 401" in loaded.alarms["server"]
    server.status = 200
    for client in clients:
        client.publish("t", b"y")
    node.advance(600)
    assert len(server.taken) == 200 and not loaded.alarms
