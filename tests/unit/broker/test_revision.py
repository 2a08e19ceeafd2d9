"""Rights that are taken back: subscriptions end, and what was on its way is not delivered."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from zope.interface import implementer

from mqttd.access.chain import AccessControl
from mqttd.broker.sessions.revision import SLICE
from mqttd.codec.packets import (
    Connect,
    Disconnect,
    Packet,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from mqttd.config.schema import Acl, Auth, Config
from mqttd.interfaces import IAuthenticator
from mqttd.session.ground.settings import Settings
from mqttd.types import AUTH_OK, STOP, AuthVerdict, ClientInfo, Verdict
from tests.support.memory import MemoryBroker, MemoryClient


@implementer(IAuthenticator)
class Anybody:
    """Lets everybody in under the name they give."""

    def init(self, opts: Mapping[str, object]) -> None:
        pass

    def check(self, client: ClientInfo, password: bytes | None) -> AuthVerdict:
        return AUTH_OK

    def description(self) -> str:
        return "anybody"


class Node(MemoryBroker):
    """A broker in memory with rules in a file."""

    def __init__(self, path: Path, rules: str, settings: Settings | None = None) -> None:
        self.path = path
        path.write_text(rules)
        config = Config(acl=Acl(file=str(path)), auth=Auth(chain=()))
        self.rules = AccessControl(config, on_deny=self._denied)
        self.rules.register_mod("auth", "anybody", Anybody())
        self.denials: list[tuple[str, str, str]] = []
        super().__init__(settings, self.rules)  # type: ignore[arg-type]
        self.broker.access_changed()
        self.rules.on_change = self.broker.access_changed

    def _denied(self, client: object, action: object, topic: str, rule: str) -> None:
        self.denials.append((client.client_id, topic, rule))  # type: ignore[attr-defined]

    def change(self, rules: str) -> None:
        """New rules, and the turns in which they take effect."""
        self.path.write_text(rules)
        self.rules.reload_acl()
        self.broker.access_changed()
        self.run_soon()

    def join(self, client_id: str, user: str | None = None, **more: object) -> MemoryClient:
        return self.connect(client_id, 5, username=user, **more)  # type: ignore[arg-type]

    def publish(
        self, topic: str, payload: bytes = b"x", qos: int = 0, retain: bool = False
    ) -> None:
        self.broker.publish_text(topic, payload, qos, retain)


def subscribe(client: MemoryClient, *filters: str, qos: int = 1) -> list[int]:
    client.send(Subscribe(1, [Subscription(each, qos) for each in filters]))
    if len(filters) > 200:
        client.node.run_soon()  # a long list is served in several turns
    answer = next(packet for packet in client.take() if isinstance(packet, Suback))
    return answer.reason_codes


def topics(client: MemoryClient) -> list[str]:
    return [packet.topic for packet in client.published()]


ALL = "{allow, all}.\n"
NO_SECRET = '{deny, all, subscribe, ["secret/#"]}.\n{allow, all}.\n'
KEPT = {0x11: 3600}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "acl.conf"


def test_CVE_2021_34434_a_revoked_subscription_delivers_no_more(path: Path) -> None:
    node = Node(path, ALL)
    alice = node.join("alice")
    assert subscribe(alice, "secret/a", "secret/#", "open/a") == [1, 1, 1]
    node.change(NO_SECRET)
    node.publish("secret/a")
    node.publish("open/a")
    assert topics(alice) == ["open/a"]
    assert not alice.closed
    assert list(alice.session.subscriptions or ()) == ["open/a"]
    assert node.broker.metrics.subscriptions_revoked == 2
    told = [fields["topic_filter"] for event, fields in node.events
            if event == "subscription revoked"]  # fmt: skip
    assert sorted(map(str, told)) == ["secret/#", "secret/a"]
    assert node.denials[-1][2] == f'{path}:1 {{deny, all, subscribe, ["secret/#"]}}'


def test_a_right_that_stays_is_not_touched(path: Path) -> None:
    node = Node(path, ALL)
    alice = node.join("alice")
    subscribe(alice, "open/#", "$share/g/open/a")
    node.change(NO_SECRET)
    assert node.broker.metrics.subscriptions_revoked == 0
    assert set(alice.session.subscriptions or ()) == {"open/#", "$share/g/open/a"}


def test_on_revoke_disconnect_ends_the_connection_with_0x87(path: Path) -> None:
    settings = Settings()
    settings.revoke_disconnect = True
    node = Node(path, ALL, settings)
    alice, bob, old = node.join("alice"), node.join("bob"), node.connect("old", 4)
    for client in (alice, old):
        subscribe(client, "secret/a")
    subscribe(bob, "open/a")
    node.change(NO_SECRET)
    assert [p.reason_code for p in alice.take() if isinstance(p, Disconnect)] == [0x87]
    assert alice.closed and old.closed and not bob.closed
    assert old.take() == []


def test_what_was_queued_before_the_right_went_is_not_delivered(path: Path) -> None:
    node = Node(path, ALL)
    alice = node.join("alice", clean=False, properties=KEPT)
    subscribe(alice, "secret/#", "open/#", "+/both")
    alice.drop()
    for topic in ("secret/a", "open/a", "secret/both", "open/b"):
        node.publish(topic, qos=1)
    node.change(NO_SECRET + "")
    back = node.join("alice", clean=False, properties=KEPT)
    # "+/both" touches secret/both: it went with "secret/#".
    assert topics(back) == ["open/a", "open/b"]
    assert node.broker.metrics.dropped_revoked == 2


def test_a_queued_copy_that_another_subscription_still_allows_is_kept(path: Path) -> None:
    node = Node(path, ALL)
    alice = node.join("alice", clean=False, properties=KEPT)
    subscribe(alice, "a/#", "a/b")
    alice.drop()
    node.publish("a/b", qos=1)
    node.publish("a/c", qos=1)
    node.change('{deny, all, subscribe, ["a/c"]}.\n{allow, all}.\n')
    assert topics(node.join("alice", clean=False, properties=KEPT)) == ["a/b"]


def test_what_waits_behind_a_full_window_goes_too(path: Path) -> None:
    node = Node(path, ALL)
    alice = node.join("alice", properties={0x21: 1})
    subscribe(alice, "secret/a", "open/a")
    node.publish("secret/a", b"1", qos=1)
    node.publish("secret/a", b"2", qos=1)
    node.publish("open/a", b"3", qos=1)
    (first,) = alice.published()
    node.change(NO_SECRET)
    alice.send(Puback(first.packet_id))
    assert [packet.payload for packet in alice.published()] == [b"3"]


def test_what_was_sent_and_not_acknowledged_is_not_sent_again(path: Path) -> None:
    node = Node(path, ALL)
    alice = node.join("alice", clean=False, properties=KEPT)
    subscribe(alice, "secret/a", "open/a")
    node.publish("secret/a", qos=1)
    node.publish("open/a", qos=1)
    assert len(alice.published()) == 2
    alice.drop()
    node.change(NO_SECRET)
    assert topics(node.join("alice", clean=False, properties=KEPT)) == ["open/a"]


def test_a_shared_message_goes_to_a_member_who_may_have_it(path: Path) -> None:
    node = Node(path, ALL)
    alice = node.join("alice", "alice", clean=False, properties=KEPT)
    subscribe(alice, "$share/g/job")
    alice.drop()
    node.publish("job", b"1", qos=1)
    bob = node.join("bob", "bob")
    subscribe(bob, "$share/g/job")
    node.change('{deny, {user, "alice"}, subscribe, ["job"]}.\n{allow, all}.\n')
    node.broker.perform()
    assert [packet.payload for packet in bob.published()] == [b"1"]


def test_the_replay_of_retained_messages_stops(path: Path) -> None:
    node = Node(path, ALL)
    for i in range(200):
        node.publish(f"secret/{i}", b"x" * 20_000, retain=True)
    slow = node.client(5, room=64_000)
    slow.send(Connect("slow", 5))
    slow.send(Subscribe(1, [Subscription("secret/#", 0)]))
    node.change(NO_SECRET)
    came = 0
    for _ in range(1000):
        packets: list[Packet] = slow.take()
        came += sum(isinstance(packet, Publish) for packet in packets)
        node.broker.perform()
        node.run_soon()
        if not packets:
            break
    assert 0 < came < 150
    assert slow.session.replays is None


def test_CVE_2018_12546_a_retained_message_goes_with_its_publishers_right(path: Path) -> None:
    node = Node(path, ALL)
    mallory, alice = node.join("m", "mallory"), node.join("a", "alice")
    for client, topic in ((mallory, "lamp/1"), (alice, "lamp/2")):
        client.send(Publish(topic, b"on", 0, True))
    node.change('{deny, {user, "mallory"}, publish, ["lamp/#"]}.\n{allow, all}.\n')
    reader = node.join("r")
    reader.send(Subscribe(1, [Subscription("lamp/#", 0)]))
    assert topics(reader) == ["lamp/2"]
    node.change(ALL)
    again = node.join("r2")
    again.send(Subscribe(1, [Subscription("lamp/#", 0)]))
    assert sorted(topics(again)) == ["lamp/1", "lamp/2"]


def test_retained_messages_of_an_address_that_may_publish_stay(path: Path) -> None:
    rules = '{allow, {ipaddr, "127.0.0.1"}}.\n{allow, all, subscribe}.\n'
    node = Node(path, rules)
    node.join("a").send(Publish("t", b"on", 0, True))
    node.publish("$SYS/x", retain=True)
    node.change(rules + "{deny, all}.\n")
    reader = node.join("r")
    reader.send(Subscribe(1, [Subscription("t", 0), Subscription("$SYS/x", 0)]))
    assert sorted(topics(reader)) == ["$SYS/x", "t"]


def test_a_retained_message_is_asked_for_once_per_change(path: Path) -> None:
    node = Node(path, ALL)
    node.join("a").send(Publish("t", b"on", 0, True))
    node.change(ALL + "%")
    before = node.rules.describe()[-1]["hit"]
    for i in range(5):
        reader = node.join(f"r{i}")
        reader.send(Subscribe(1, [Subscription("t", 0)]))
        assert topics(reader) == ["t"]
    assert node.rules.describe()[-1]["hit"] == int(str(before)) + 5 + 1


@pytest.mark.parametrize("allowed", [True, False])
def test_a_will_is_published_only_if_it_still_may_be(path: Path, allowed: bool) -> None:
    node = Node(path, ALL)
    reader = node.join("r")
    subscribe(reader, "will/#")
    alice = node.join("a", will=Will("will/a", b"gone"))
    if not allowed:
        node.change('{deny, {client, "a"}, publish, ["will/a"]}.\n{allow, all}.\n')
    alice.drop()
    assert topics(reader) == (["will/a"] if allowed else [])


def test_a_session_that_comes_back_with_fewer_rights_loses_what_they_allowed(path: Path) -> None:
    node = Node(path, '{allow, {ipaddr, "127.0.0.1"}}.\n{allow, all, subscribe, ["open/#"]}.\n')
    alice = node.join("alice", "alice", clean=False, properties=KEPT)
    subscribe(alice, "secret/a", "open/a")
    alice.drop()
    node.publish("secret/a", qos=1)
    node.publish("open/a", qos=1)
    elsewhere = node.client(5)
    elsewhere.channel.edge.host = "10.0.0.1"  # type: ignore[attr-defined]
    elsewhere.send(Connect("alice", 5, clean_start=False, username="alice", properties=KEPT))
    assert topics(elsewhere) == ["open/a"]
    assert list(elsewhere.session.subscriptions or ()) == ["open/a"]


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.1"])
def test_a_session_whose_client_nobody_has_seen_is_looked_at_when_it_is_back(
    path: Path, host: str, named: bool
) -> None:
    """As one that was restored from a store, or has come from another node."""
    rules = '{allow, {ipaddr, "127.0.0.1"}}.\n{allow, all, subscribe, ["open/#"]}.\n'
    node = Node(path, rules)
    alice = node.join("alice", "alice", clean=False, properties=KEPT)
    subscribe(alice, "secret/a", "open/a")
    session = alice.session
    assert session is not None
    alice.drop()
    session.client = ClientInfo("alice", "alice", "", 0, "", 5) if named else None
    node.publish("secret/a", qos=1)
    node.publish("open/a", qos=1)
    node.change(rules)
    assert list(session.subscriptions or ()) == ["secret/a", "open/a"]
    back = node.client(5)
    back.channel.edge.host = host  # type: ignore[attr-defined]
    back.send(Connect("alice", 5, clean_start=False, username="alice", properties=KEPT))
    allowed = ["secret/a", "open/a"] if host == "127.0.0.1" else ["open/a"]
    assert topics(back) == allowed
    assert list(session.subscriptions or ()) == allowed


def test_CVE_2026_6564_a_session_is_taken_over_by_its_own_user_only(path: Path) -> None:
    node = Node(path, ALL)
    alice = node.join("c", "alice", clean=False, properties=KEPT)
    subscribe(alice, "secret/a")
    mallory = node.join("c", "mallory", clean=False, properties=KEPT)
    assert mallory.connack is not None and mallory.connack.reason_code == 0x87
    assert not alice.closed
    alice.drop()
    node.publish("secret/a", qos=1)
    again = node.join("c", "mallory", clean=False, properties=KEPT)
    assert again.connack is not None and again.connack.reason_code == 0x87
    assert topics(node.join("c", "alice", clean=False, properties=KEPT)) == ["secret/a"]


def test_a_hook_at_client_authorize_is_asked_too(path: Path) -> None:
    node = Node(path, ALL)
    alice = node.join("alice")
    subscribe(alice, "secret/a", "open/a")

    def authorize(client: object, action: object, topic: str, acc: Verdict) -> object:
        return STOP(Verdict.DENY) if topic.startswith("secret") else None

    node.hooks.hook("client.authorize", authorize)  # type: ignore[arg-type]
    node.run_soon()
    assert list(alice.session.subscriptions or ()) == ["open/a"]


def test_100000_subscriptions_are_looked_at_in_short_turns(path: Path) -> None:
    settings = Settings()
    settings.max_subscriptions = 100_000
    node = Node(path, ALL, settings)
    many = node.join("many")
    for start in range(0, 40_000, 4000):
        subscribe(many, *(f"x/{i}" for i in range(start, start + 4000)))
    for i in range(600):
        subscribe(node.join(f"c{i}"), *(f"{'secret' if j % 2 else 'open'}/{j}" for j in range(20)))
    node.path.write_text(NO_SECRET)
    node.rules.reload_acl()
    asked = node.rules.describe()[-1]
    node.broker.access_changed()
    turns, slowest, most = 0, 0.0, 0
    while node.tasks:
        before = int(str(node.rules.describe()[-1]["hit"]))
        tasks, node.tasks = node.tasks, []
        started = time.thread_time()
        for task in tasks:
            task()
        slowest = max(slowest, time.thread_time() - started)
        most = max(most, int(str(node.rules.describe()[-1]["hit"])) - before)
        turns += 1
    assert most <= SLICE + 1
    assert turns >= 52_000 // SLICE
    assert slowest < 1.0  # a few milliseconds
    assert node.broker.metrics.subscriptions_revoked == 6000
    assert node.broker.router.subscriptions == 46_000
    assert asked is not None
    print(f"{turns} turns, the slowest {slowest * 1000:.1f} ms")


def test_a_change_during_a_revision_starts_it_anew(path: Path) -> None:
    node = Node(path, ALL)
    clients = [node.join(f"c{i}") for i in range(SLICE)]
    for client in clients:
        subscribe(client, "a", "b")
    node.broker.access_changed()
    node.tasks.pop(0)()
    assert node.broker.revision.running
    node.change('{deny, all, subscribe, ["a"]}.\n{allow, all}.\n')
    assert all(list(client.session.subscriptions or ()) == ["b"] for client in clients)
    assert not node.broker.revision.running


def test_CVE_2017_7652_a_reload_without_descriptors_left_keeps_every_rule(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(path, NO_SECRET)
    alice = node.join("alice")

    def no_more(*args: object, **more: object) -> str:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Path, "read_text", no_more)
    with pytest.raises(Exception, match="Too many open files"):
        node.rules.reload_acl()
    node.broker.access_changed()
    node.run_soon()
    assert subscribe(alice, "secret/a", "open/a") == [0x87, 1]


def test_nobody_s_rights_are_looked_at_once_the_broker_ends(path: Path) -> None:
    """Modules of plugins go first: without them the answers are others."""
    node = Node(path, "{allow, all}.")
    client = node.join("c")
    filters = [f"t/{n}" for n in range(3 * SLICE)]
    subscribe(client, *filters)
    node.broker.access_changed()
    node.broker.stop()
    node.rules.close()
    node.broker.access_changed()
    node.run_soon()
    assert sorted(node.session("c").subscriptions or ()) == sorted(filters)
