"""The broker in memory: whole exchanges in one call, time by hand, the same result every time."""

from __future__ import annotations

import time

import pytest
from zope.interface import implementer

from mqttd.codec import properties as prop
from mqttd.codec.packets import Puback, Subscription, Will
from mqttd.interfaces import IAuthenticator
from mqttd.testing import HookRecorder, MemoryBroker, NotConnected
from mqttd.types import OK, AuthError


@pytest.fixture
def node() -> MemoryBroker:
    return MemoryBroker()


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_goes_from_client_to_client(node: MemoryBroker, version: int, qos: int) -> None:
    alice = node.connect("alice", version)
    assert alice.subscribe("a/#", "b", qos=2) == [2, 2]
    assert node.connect("bob", 4).publish("a/x", b"hello", qos, retain=True) == 0
    (message,) = alice.messages()
    assert (message.topic, message.payload, message.qos) == ("a/x", b"hello", qos)
    assert not alice.messages()
    assert not alice.session.inflight
    alice.unsubscribe("a/#")
    node.publish("a/x", b"again")
    assert not alice.messages()


def test_a_thousand_sessions_take_a_few_seconds() -> None:
    node = MemoryBroker()
    begin = time.process_time()
    clients = [node.connect(f"client {number}") for number in range(1000)]
    for number, client in enumerate(clients):
        assert client.subscribe(f"to/{number}", qos=1) == [1]
    for _ in range(10):
        for number, client in enumerate(clients):
            assert client.publish(f"to/{(number + 1) % 1000}", b"hello", 1) == 0
    assert all(len(client.messages()) == 10 for client in clients)
    for client in clients:
        client.disconnect()
    took = time.process_time() - begin
    assert node.broker.stats()["sessions"] == 0
    assert node.broker.metrics.messages_received_qos1 == 10_000
    assert took < 10, f"{took:.1f} s of one core"


def test_time_passes_by_hand_alone(node: MemoryBroker) -> None:
    alice = node.connect("alice", properties={prop.SESSION_EXPIRY_INTERVAL: 60}, keep_alive=10)
    node.advance(14.5)
    assert not alice.closed
    node.advance(1.0)
    assert alice.closed
    assert alice.disconnect_packet is not None
    assert alice.disconnect_packet.reason_code == 0x8D
    assert node.session("alice") is not None
    node.advance(61)
    assert node.session("alice") is None


def test_two_runs_are_the_same() -> None:
    def run() -> list[object]:
        node = MemoryBroker()
        seen = HookRecorder(node.hooks)
        alice = node.connect("", will=Will("gone", b"alice"))
        heard = node.subscribe("#")
        alice.publish("a", b"x", 2)
        alice.drop()
        node.advance(3)
        return [
            alice.connack,
            [(message.id, message.topic) for message in heard],
            seen.points,
            node.broker.stats(),
        ]

    assert run() == run()


def test_a_refused_client_says_why(node: MemoryBroker) -> None:
    def refuse(client: object, password: object, acc: object) -> object:
        return OK(AuthError("not today", 0x87))

    node.hook("client.authenticate", refuse)  # type: ignore[arg-type]
    alice = node.connect("alice")
    assert alice.closed
    assert alice.connack is not None and alice.connack.reason_code == 0x87
    with pytest.raises(NotConnected, match="0x87"):
        alice.subscribe("a")


def test_a_slow_client_holds_its_messages_back(node: MemoryBroker) -> None:
    node.settings.high_watermark = 10_000
    slow = node.connect("slow", room=1000)
    slow.subscribe("t", qos=1)
    slow.reading = False
    for _ in range(50):
        node.publish("t", bytes(1000), qos=1)
    assert slow.session.mqueue is not None
    slow.reading = True
    assert len(slow.messages()) == 50


def test_a_client_that_does_not_acknowledge_fills_its_window(node: MemoryBroker) -> None:
    alice = node.connect("alice", properties={prop.RECEIVE_MAXIMUM: 2})
    alice.acknowledge = False
    alice.subscribe("t", qos=1)
    for _ in range(3):
        node.publish("t", b"x", qos=1)
    first, second = alice.messages()
    alice.send(Puback(first.packet_id), Puback(second.packet_id))
    assert len(alice.messages()) == 1


def test_topics_can_be_denied_and_options_given(node: MemoryBroker) -> None:
    node.deny("secret", "private/#")
    alice = node.connect("alice")
    assert alice.publish("secret", b"x", 1) == 0x87
    assert alice.subscribe("private/#", Subscription("t", 1, no_local=True)) == [0x87, 1]
    alice.publish("t", b"x")
    assert not alice.messages()


def test_a_hook_that_raises_is_reported(node: MemoryBroker) -> None:
    def broken(message: object) -> None:
        raise RuntimeError("no")

    node.hook("message.publish", broken)
    node.connect("alice").publish("t", b"x", 1)
    ((where, error),) = node.faults
    assert (where, str(error)) == ("message.publish", "no")


def test_what_never_rests_is_found(node: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqttd.testing.memory.MAX_TURNS", 100)

    def again() -> None:
        node.clock.callLater(0, again)

    node.clock.callLater(0, again)
    with pytest.raises(AssertionError, match="does not come to rest"):
        node.settle()


def test_everybody_may_connect_until_a_module_is_asked(node: MemoryBroker) -> None:
    assert not node.connect("alice", username="al", password=b"any").closed

    @implementer(IAuthenticator)
    class Nobody:
        def init(self, opts: object) -> None:
            pass

        def check(self, client: object, password: object) -> AuthError:
            return AuthError("nobody may")

        def description(self) -> str:
            return "lets nobody in"

    node.access.register_mod("auth", "nobody", Nobody())
    assert node.connect("bob").closed
    node.access.unregister_mod("auth", "nobody")
    assert not node.connect("bob").closed
