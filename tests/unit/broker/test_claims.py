"""Owning a client id: before a client is accepted, in a bounded wait, one claim at a time."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
from twisted.internet.defer import Deferred, fail, succeed
from zope.interface import implementer

from mqttd.broker import connecting
from mqttd.broker.connecting import STAGES, Connecting
from mqttd.broker.sessions.claims import TIMEOUT
from mqttd.codec import properties as prop
from mqttd.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Subscribe,
    Subscription,
)
from mqttd.interfaces import IRegistry, ISessionStore
from mqttd.types import AuthResult, Claim, ClientInfo, Held, SessionState
from tests.support.memory import AllowAll, MemoryBroker, MemoryClient
from tests.unit.testing.stores import Member, MemorySessions, Table, Taken

HOUR = {0x11: 3600}


@implementer(IRegistry)
class Slow:
    """A registry that answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Deferred[Claim]]] = []
        self.released: list[tuple[str, int]] = []

    def claim(self, client_id: str, principal: str | None, lasts: bool) -> Deferred[Claim]:
        answer: Deferred[Claim] = Deferred()
        self.asked.append((client_id, answer))
        return answer

    def answer(self, claim: Claim | Exception | None = None, at: int = 0) -> None:
        """Answer the oldest question, or that `at` this place."""
        _, asked = self.asked.pop(at)
        if isinstance(claim, Exception):
            asked.errback(claim)
        else:
            asked.callback(Claim(1, Held.NOWHERE) if claim is None else claim)

    def release(self, client_id: str, epoch: int) -> None:
        self.released.append((client_id, epoch))

    def watch(self, taken: Taken) -> None:
        self.taken = taken

    def description(self) -> str:
        return "slow"


@implementer(IRegistry)
class Answers(Slow):
    """A registry that answers at once with what `say` gives."""

    def __init__(self, say: Callable[[], object]) -> None:
        super().__init__()
        self.say = say

    def claim(self, client_id: str, principal: str | None, lasts: bool) -> Deferred[Claim]:
        answer: Deferred[Claim] = self.say()  # type: ignore[assignment]
        return answer


@implementer(ISessionStore)
class SlowSessions(MemorySessions):
    """A store whose reading waits."""

    def __init__(self, place: dict[str, SessionState]) -> None:
        super().__init__(place)
        self.asked: list[tuple[str, Deferred[SessionState | None]]] = []

    def load(self, client_id: str) -> Deferred[SessionState | None]:
        answer: Deferred[SessionState | None] = Deferred()
        self.asked.append((client_id, answer))
        return answer

    def answer(self) -> None:
        client_id, asked = self.asked.pop(0)
        asked.callback(self.place.get(client_id))


def begin(
    node: MemoryBroker,
    client_id: str,
    version: int = 5,
    username: str | None = None,
    clean: bool = False,
) -> MemoryClient:
    """A connection whose CONNECT was sent."""
    client = node.client(version)
    properties = HOUR if version == 5 else None
    client.send(
        Connect(client_id, version=version, clean_start=clean, username=username,
                properties=properties)
    )  # fmt: skip
    return client


def connack(client: MemoryClient) -> Connack:
    (packet,) = client.take()
    assert isinstance(packet, Connack)
    return packet


# -- the plain way


def test_alone_a_client_is_accepted_in_the_turn_of_its_connect() -> None:
    node = MemoryBroker()
    client = node.connect("c", 5, clean=False)
    assert client.connack is not None and client.connack.reason_code == 0
    assert not node.tasks
    assert not node.broker.connecting.claims.lines


def test_the_stages_that_run_are_those_of_the_table() -> None:
    source = Path(connecting.__file__ or "").with_name("connecting.py").read_text()
    chain = next(
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == "_stage"
    )
    runs: list[tuple[int, str]] = []
    for step in chain.body[1:]:
        at = len(STAGES) - 1
        if isinstance(step, ast.If):
            at = ast.literal_eval(ast.unparse(step.test).removeprefix("at == "))
            step = step.body[0]
        assert isinstance(step, ast.Return) and step.value is not None
        runs.append((at, ast.unparse(step.value)))
    assert runs == [(at, f"self.{name}(attempt)") for at, (name, *_) in enumerate(STAGES)]
    for name, question, refusal, _ in STAGES:
        assert callable(getattr(Connecting, name))
        assert question and (refusal or name == "accepted")


# -- an answer that comes later


def test_a_client_is_accepted_when_the_registry_has_answered() -> None:
    slow = Slow()
    node = MemoryBroker(ownership=slow)
    client = begin(node, "c")
    client.send(Pingreq())
    assert client.take() == [] and node.session("c") is None
    slow.answer()
    packets = client.take()
    assert [type(packet) for packet in packets] == [Connack, Pingresp]
    node.run_soon()
    assert not node.broker.connecting.claims.lines
    assert slow.released == []
    client.send(Disconnect(0, {0x11: 0}))
    assert slow.released == [("c", 1)]


def test_a_client_that_leaves_while_it_waits_gives_the_client_id_back() -> None:
    slow = Slow()
    node = MemoryBroker(ownership=slow)
    client = begin(node, "c")
    client.drop()
    slow.answer(Claim(7, Held.NOWHERE))
    node.run_soon()
    assert node.session("c") is None
    assert slow.released == [("c", 7)]
    assert not node.broker.connecting.claims.lines
    assert node.broker.channels == 0


def test_who_comes_while_another_waits_for_the_same_id_waits_behind_it() -> None:
    slow = Slow()
    node = MemoryBroker(ownership=slow)
    first, second, other = begin(node, "c"), begin(node, "c"), begin(node, "d")
    assert [client_id for client_id, _ in slow.asked] == ["c", "d"]
    slow.answer(at=1)
    assert connack(other).reason_code == 0
    slow.answer()
    assert connack(first).reason_code == 0
    assert second.take() == []
    node.run_soon()
    assert [client_id for client_id, _ in slow.asked] == ["c"]  # claimed again for the second
    slow.answer(Claim(1, Held.HERE))
    assert connack(second).session_present
    (packet,) = first.take()
    assert isinstance(packet, Disconnect) and packet.reason_code == 0x8E
    node.run_soon()
    assert not node.broker.connecting.claims.lines
    assert slow.released == []


def test_the_one_behind_gets_its_turn_when_the_first_has_gone() -> None:
    slow = Slow()
    node = MemoryBroker(ownership=slow)
    first, second = begin(node, "c"), begin(node, "c")
    first.drop()
    slow.answer()
    node.run_soon()
    assert slow.released == []  # the second needs it
    slow.answer()
    assert connack(second).reason_code == 0


def test_another_user_who_waits_behind_is_refused() -> None:
    slow = Slow()
    node = MemoryBroker(ownership=slow)
    first, second = begin(node, "c", username="alice"), begin(node, "c", username="mallory")
    slow.answer()
    node.run_soon()
    assert connack(first).reason_code == 0
    assert connack(second).reason_code == 0x87
    assert not first.closed and second.closed


@pytest.mark.parametrize(("version", "code"), [(5, 0x89), (4, 3)])
def test_who_waits_too_long_is_refused(version: int, code: int) -> None:
    slow = Slow()
    node = MemoryBroker(ownership=slow)
    client = begin(node, "c", version)
    node.advance(TIMEOUT - 300)
    assert not client.closed
    node.advance(600)
    assert connack(client).reason_code == code
    assert client.closed
    assert node.broker.metrics.claims_timed_out == 1
    slow.answer(Claim(3, Held.NOWHERE))  # too late: nobody wants it
    assert slow.released == [("c", 3)]
    assert node.session("c") is None


def test_those_in_line_wait_no_longer_than_the_first() -> None:
    slow = Slow()
    node = MemoryBroker(ownership=slow)
    clients = [begin(node, "c") for _ in range(5)]
    node.advance(TIMEOUT + 300)
    assert [connack(client).reason_code for client in clients] == [0x89] * 5
    node.run_soon()
    assert not node.broker.connecting.claims.lines
    assert node.broker.metrics.claims_timed_out == 5


def test_a_late_answer_does_not_take_the_id_from_who_has_it_now() -> None:
    slow = Slow()
    node = MemoryBroker(ownership=slow)
    begin(node, "c")
    node.advance(TIMEOUT + 300)
    second = begin(node, "c")
    slow.answer()  # of the first, which has gone
    assert slow.released == []
    slow.answer()
    assert connack(second).reason_code == 0
    assert node.session("c") is not None


@pytest.mark.parametrize(("version", "code"), [(5, 0x88), (4, 3)])
@pytest.mark.parametrize(
    "say",
    [
        lambda: fail(ConnectionError("no route to the registry")),
        lambda: succeed("not a Claim"),
        lambda: 1 / 0,
    ],
    ids=["fails", "says nonsense", "raises"],
)
def test_a_registry_that_fails_refuses(say: Callable[[], object], version: int, code: int) -> None:
    node = MemoryBroker(ownership=Answers(say))
    client = begin(node, "c", version)
    assert connack(client).reason_code == code
    assert client.closed
    assert node.broker.metrics.claims_failed == 1
    node.run_soon()
    assert not node.broker.connecting.claims.lines


def test_a_registry_that_fails_later_refuses_and_the_next_is_served() -> None:
    slow = Slow()
    node = MemoryBroker(ownership=slow)
    first, second = begin(node, "c"), begin(node, "c")
    slow.answer(OSError("gone"))
    node.run_soon()
    assert connack(first).reason_code == 0x88
    slow.answer()
    assert connack(second).reason_code == 0


@pytest.mark.parametrize("late", [False, True])
def test_the_registry_may_say_that_it_is_another_users(late: bool) -> None:
    error = PermissionError("alice has it")
    slow = Slow() if late else Answers(lambda: fail(error))
    node = MemoryBroker(ownership=slow)
    client = begin(node, "c", username="mallory")
    if late:
        slow.answer(error)
    assert connack(client).reason_code == 0x87
    assert node.broker.metrics.claims_failed == 0


def test_what_comes_here_during_a_claim_is_its_user_s() -> None:
    """Given by another node, or back here: whoever has claimed it meanwhile is refused."""
    other = MemoryBroker()
    other.connect("c", 4, clean=False, username="alice").drop()
    state = other.broker.registry.hand_over("c", 2)
    assert state is not None
    registry = Slow()
    node = MemoryBroker(ownership=registry)
    client = begin(node, "c", username="mallory")
    node.broker.registry.keep("c", 2, state)
    registry.answer(Claim(3, Held.NOWHERE))
    node.run_soon()
    assert connack(client).reason_code == 0x87
    assert node.broker.sessions["c"].username == "alice"
    assert not registry.released


def test_an_answer_that_is_there_already_costs_no_turn() -> None:
    node = MemoryBroker(ownership=Answers(lambda: succeed(Claim(1, Held.NOWHERE))))
    clients = [begin(node, "c") for _ in range(3)]
    node.run_soon()
    clients += [begin(node, "c"), begin(node, "d")]
    node.run_soon()
    assert [client.closed for client in clients] == [True] * 3 + [False] * 2
    assert not node.broker.connecting.claims.lines


def test_a_thousand_wait_and_all_are_accepted() -> None:
    slow = Slow()
    node = MemoryBroker(ownership=slow)
    clients = [begin(node, f"c{number % 500}") for number in range(1000)]
    assert len(slow.asked) == 500
    while slow.asked:
        slow.answer(at=len(slow.asked) // 2)
        node.run_soon()
    codes = []
    for client in clients:
        packet = client.take()[0]
        assert isinstance(packet, Connack)
        codes.append(packet.reason_code)
    assert codes == [0] * 1000
    assert sum(client.closed for client in clients) == 500
    assert not node.broker.connecting.claims.lines


def test_a_thousand_of_one_client_id_take_over_from_each_other_in_order() -> None:
    slow = Slow()
    node = MemoryBroker(ownership=slow)
    clients = [begin(node, "c") for _ in range(1000)]
    while slow.asked:
        slow.answer()
        node.run_soon()
    assert [client.closed for client in clients] == [True] * 999 + [False]
    assert node.broker.metrics.sessions_takenover == 999


def test_nothing_fires_for_a_client_that_timed_out_on_its_own() -> None:
    slow = Slow()
    node = MemoryBroker(ownership=slow)
    node.broker.connecting.claims.timeout = 60_000
    client = begin(node, "c")
    node.advance(node.settings.connect_timeout + 500)
    assert client.closed
    slow.answer()
    node.run_soon()
    assert node.session("c") is None
    assert slow.released == [("c", 1)]


# -- another member of a cluster has it


def pair() -> tuple[MemoryBroker, MemoryBroker]:
    table = Table()
    return (
        MemoryBroker(ownership=Member("n1/0", table)),
        MemoryBroker(ownership=Member("n2/0", table)),
    )


def test_a_session_moves_with_its_subscriptions_and_its_queue() -> None:
    here, there = pair()
    client = begin(here, "c")
    client.send(Subscribe(1, [Subscription("a/+", 1), Subscription("$share/g/s", 2)], {0x0B: [7]}))
    client.drop()
    here.connect("pub").send(
        Publish("a/b", b"1", 1, packet_id=1), Publish("a/b", b"2", 1, packet_id=2),
        Publish("a/b", b"0", 0),
    )  # fmt: skip
    again = begin(there, "c")
    packets = again.take()
    assert isinstance(packets[0], Connack) and packets[0].session_present
    messages = [packet for packet in packets if isinstance(packet, Publish)]
    assert [message.payload for message in messages if message.qos] == [b"1", b"2"]
    assert {message.properties[0x0B][0] for message in messages if message.properties} == {7}
    assert here.session("c") is None and here.broker.router.subscriptions == 0
    there.connect("pub").send(Publish("a/b", b"3", 1, packet_id=1), Publish("s", b"4"))
    assert sorted(message.payload for message in again.published()) == [b"3", b"4"]


def test_a_connected_client_is_told_that_another_took_over() -> None:
    here, there = pair()
    client = begin(here, "c")
    client.take()
    again = begin(there, "c")
    here.run_soon()
    (packet,) = client.take()
    assert isinstance(packet, Disconnect) and packet.reason_code == 0x8E
    assert client.closed
    assert connack(again).session_present
    back = begin(here, "c")
    assert connack(back).session_present


def test_what_was_sent_and_not_acknowledged_is_sent_again_elsewhere() -> None:
    here, there = pair()
    client = begin(here, "c")
    client.send(Subscribe(1, [Subscription("a", 1)]))
    here.connect("pub").send(Publish("a", b"1", 1, packet_id=1))
    assert [message.payload for message in client.published()] == [b"1"]
    again = begin(there, "c")
    (message,) = again.published()
    assert message.payload == b"1"
    again.send(Puback(message.packet_id))
    assert not again.session.inflight


def test_clean_start_elsewhere_begins_afresh() -> None:
    here, there = pair()
    client = begin(here, "c")
    client.send(Subscribe(1, [Subscription("a", 1)]))
    client.drop()
    again = begin(there, "c", clean=True)
    assert not connack(again).session_present
    assert here.session("c") is None
    assert there.broker.router.subscriptions == 0


def test_another_user_elsewhere_is_refused_and_the_client_notices_nothing() -> None:
    here, there = pair()
    client = begin(here, "c", username="alice")
    client.take()
    assert connack(begin(there, "c", username="mallory")).reason_code == 0x87
    assert client.take() == [] and not client.closed


def test_a_session_that_arrives_for_a_client_that_has_gone_stays() -> None:
    here, _ = pair()
    client = begin(here, "c")
    client.send(Subscribe(1, [Subscription("a", 1)]))
    client.drop()
    state = here.broker.registry.hand_over("c", 2)
    assert state is not None
    slow = Slow()
    node = MemoryBroker(ownership=slow)
    begin(node, "c").drop()
    slow.answer(Claim(2, Held.NODE, "n1/0", state))
    node.run_soon()
    assert slow.released == []
    session = node.session("c")
    assert session is not None and session.channel is None
    assert session.subscriptions == {"a": 1}
    node.advance(3_601_000)
    assert node.session("c") is None  # and ends in its time
    assert slow.released == [("c", 2)]


def test_a_session_is_handed_over_to_a_later_owner_only() -> None:
    here, _ = pair()
    client = begin(here, "c")
    client.take()
    own = here.broker.registry.epochs.get("c", 1)
    assert here.broker.registry.hand_over("c", own) is None
    assert here.broker.registry.hand_over("nobody", 9) is None
    assert not client.closed


@pytest.mark.parametrize("record", [b"", b"{}", b"[1]", b'{"version": 99}', b"\xff"])
def test_a_record_that_cannot_be_read_is_no_session(record: bytes) -> None:
    claim = Claim(2, Held.NODE, "n1/0", SessionState(record))
    node = MemoryBroker(ownership=Answers(lambda: claim))
    assert not connack(begin(node, "c")).session_present
    assert "session lost" in [event for event, _ in node.events]


# -- what the store has kept


def test_the_store_is_read_for_a_client_that_is_not_here() -> None:
    place: dict[str, SessionState] = {}
    before = MemoryBroker(store=MemorySessions(place))
    client = begin(before, "c", username="alice")
    client.send(Subscribe(1, [Subscription("a", 1)]))
    assert place == {}
    client.drop()
    assert set(place) == {"c"}

    store = SlowSessions(place)
    node = MemoryBroker(store=store)
    again = begin(node, "c", username="alice")
    assert again.take() == []
    store.answer()
    assert connack(again).session_present
    assert again.session.subscriptions == {"a": 1}
    mallory = begin(MemoryBroker(store=MemorySessions(place)), "c", username="mallory")
    assert connack(mallory).reason_code == 0x87


def test_a_store_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    node = MemoryBroker(store=SlowSessions({}))
    client = begin(node, "c")
    node.advance(TIMEOUT + 300)
    assert connack(client).reason_code == 0x89


def test_recovered_sessions_take_messages_and_end_in_time() -> None:
    place: dict[str, SessionState] = {}
    before = MemoryBroker(store=MemorySessions(place))
    client = begin(before, "c")
    client.send(Subscribe(1, [Subscription("a", 1)]))
    client.drop()

    node = MemoryBroker(store=MemorySessions(place))
    node.broker.recover()
    node.connect("pub").send(Publish("a", b"1", 1, packet_id=1))
    again = begin(node, "c")
    packets = again.take()
    assert isinstance(packets[0], Connack) and packets[0].session_present
    assert [packet.payload for packet in packets[1:] if isinstance(packet, Publish)] == [b"1"]
    again.drop()
    node.advance(3_601_000)
    assert node.session("c") is None and place == {}


def test_clean_start_and_the_end_of_a_session_remove_it_from_the_store() -> None:
    place: dict[str, SessionState] = {}
    node = MemoryBroker(store=MemorySessions(place))
    begin(node, "c").drop()
    begin(node, "d").drop()
    assert set(place) == {"c", "d"}
    assert not connack(begin(node, "c", clean=True)).session_present
    assert set(place) == {"d"}
    node = MemoryBroker(store=MemorySessions(place))
    assert not connack(begin(node, "d", clean=True)).session_present
    assert place == {}


def test_a_store_that_fails_is_logged_and_the_client_goes_as_it_does() -> None:
    class Full(MemorySessions):
        def save(self, client_id: str, epoch: int, record: bytes) -> Deferred[None]:
            return fail(OSError("disk full"))

    node = MemoryBroker(store=Full())
    begin(node, "c").drop()
    assert "session store failed" in [event for event, _ in node.events]
    assert connack(begin(node, "c")).session_present


@pytest.mark.parametrize("kind", ["client_id", "username"])
def test_a_ban_that_comes_during_the_claim_keeps_it_out(kind: str) -> None:
    """It was let in by what it proved, and there was no ban then."""
    registry = Slow()
    node = MemoryBroker(ownership=registry)
    client = begin(node, "c", username="u")
    other = begin(node, "other", username="v")
    node.broker.bans.add(kind, "c" if kind == "client_id" else "u")
    node.broker.enforce_bans()
    registry.answer()
    registry.answer()
    node.run_soon()
    assert connack(client).reason_code == 0x8A and client.closed
    assert connack(other).reason_code == 0
    assert "c" not in node.broker.sessions
    assert node.broker.metrics.refused_banned == 1
    assert registry.released == [("c", 1)]
    assert not node.broker.connecting.claims.lines


class LetInBy(AllowAll):
    """Access control whose yes is that of a module."""

    def authenticate(
        self, client: ClientInfo, password: bytes | None, gone: object = None
    ) -> AuthResult:
        return AuthResult(True, module="username")


@pytest.mark.parametrize(
    ("module", "names", "by_client_id", "refused"),
    [
        ("username", {"u"}, False, True),
        ("username", {"c"}, True, True),
        ("username", {"another"}, False, False),
        ("jwt", {"u"}, False, False),
    ],
)
def test_a_user_revoked_during_the_claim_does_not_come_in(
    module: str, names: set[str], by_client_id: bool, refused: bool
) -> None:
    registry = Slow()
    node = MemoryBroker(access=LetInBy(), ownership=registry)
    client = begin(node, "c", username="u")
    gone = node.broker.revoke_users(module, frozenset(names), by_client_id)
    assert gone == node.broker.metrics.auth_revoked == refused
    if refused:
        assert connack(client).reason_code == 0x87 and client.closed
    registry.answer()
    node.run_soon()
    if not refused:
        assert connack(client).reason_code == 0
    assert ("c" in node.broker.sessions) == (not refused)
    assert registry.released == ([("c", 1)] if refused else [])
    assert not node.broker.connecting.undecided
    assert not node.broker.connecting.claims.lines
    if refused:
        again = begin(node, "c", username="u")  # who has the new password comes in
        registry.answer()
        node.run_soon()
        assert connack(again).reason_code == 0


def test_who_leaves_during_the_claim_is_waited_for_no_longer() -> None:
    registry = Slow()
    node = MemoryBroker(access=LetInBy(), ownership=registry)
    begin(node, "c", username="u").drop()
    assert node.broker.revoke_users("username", frozenset({"u"})) == 0
    registry.answer()
    node.run_soon()
    assert not node.broker.connecting.undecided


def test_who_is_taken_over_by_another_process_is_away_since_then() -> None:
    """However long its connection was: the session ends that much later, where it is kept."""
    here, there = MemoryBroker(), MemoryBroker()
    here.connect("c", 5, properties={prop.SESSION_EXPIRY_INTERVAL: 10})
    here.jump(60_000)
    there.jump(60_000)
    state = here.broker.registry.hand_over("c", 2)
    assert state is not None
    there.broker.registry.keep("c", 2, state)
    there.advance(9_000)
    assert there.session("c") is not None
    there.advance(2_000)
    assert there.session("c") is None


@pytest.mark.parametrize("ends", ["clean", "later"])
def test_what_came_through_a_shared_group_goes_to_another_member_wherever_it_ends(
    ends: str,
) -> None:
    """In flight and queued, QoS 1 and 2, but for a QoS 2 message that was sent. 4.8.2."""
    here, there = pair()
    member = begin(here, "c")
    member.send(Subscribe(1, [Subscription("$share/g/s/+", 2), Subscription("s/3", 1)]))
    publisher = begin(here, "p")
    for n in range(1, 3):
        publisher.send(Publish(f"s/{n}", b"sent", n, packet_id=n))
    member.drop()
    for n in range(1, 5):
        publisher.send(Publish(f"s/{n}", b"queued", 1 + n % 2, packet_id=10 + n))
    other = begin(there, "other")
    other.send(Subscribe(1, [Subscription("$share/g/s/+", 2)]))
    other.take()
    comes = begin(there, "c", clean=ends == "clean")
    queued = [1, 2, 3, 4]
    if ends == "later":
        assert len(comes.published()) == 7
        comes.drop()
        queued = [2, 4]  # the others are of QoS 2, and have been sent by now
        there.advance(3_601_000)
    else:
        assert comes.published() == []
    found = [(each.topic, each.payload) for each in other.published()]
    assert found == [("s/1", b"sent"), *((f"s/{n}", b"queued") for n in queued)]
