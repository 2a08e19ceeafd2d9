"""Retained messages are one set at limits, too: these are asked where one comes in alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mqttd.broker.broker import Broker
from mqttd.broker.retained.retained import Retained
from mqttd.codec import properties as prop
from mqttd.codec import reasons
from mqttd.codec.packets import Puback, Publish
from mqttd.codec.properties import varint
from mqttd.mesh.changes import Changes
from mqttd.mesh.frames import split
from mqttd.mesh.retained import OF_ALL, Who, retain_frame, retained_from
from mqttd.mesh.retained import here as here_by
from tests.support.account import audit
from tests.support.memory import MemoryClient
from tests.unit.workers.test_ferry import Worker, joined, pump

OVER = reasons.QUOTA_EXCEEDED


def messages(broker: Broker) -> None:
    broker.retainer.max_messages = 5


def size(broker: Broker) -> None:
    broker.retainer.max_bytes = 5_000


def of_a_user(broker: Broker) -> None:
    broker.retainer.max_per_user = 5


def size_of_a_user(broker: Broker) -> None:
    broker.retainer.max_bytes_per_user = 5_000


def memory(broker: Broker) -> None:
    broker.retainer.share = 5_000


LIMITS = [messages, size, of_a_user, size_of_a_user, memory]


def told(worker: Worker, client: MemoryClient, topic: str, payload: bytes) -> None:
    client.send(Publish(topic, payload, 1, True, packet_id=1))
    worker.node.broker.perform()


def codes(client: MemoryClient) -> list[int]:
    answers = [packet for packet in client.take() if isinstance(packet, Puback)]
    return [answer.reason_code for answer in answers if answer.reason_code >= 0x80]


def kept(worker: Worker) -> dict[str, bytes]:
    retainer = worker.node.broker.retainer
    return {topic: level.message.wire for topic, level in retainer.topics.items()}  # type: ignore[attr-defined]


@pytest.mark.parametrize("limit", LIMITS)
def test_what_one_has_accepted_all_have(limit: Callable[[Broker], None]) -> None:
    pair = [Worker(1), Worker(2)]
    for worker in pair:
        limit(worker.node.broker)
    joined(*pair)
    clients = [worker.node.connect(f"p{worker.mesh.number}", 5, username="u") for worker in pair]
    for worker, client in zip(pair, clients, strict=True):
        for n in range(10):  # nothing is heard of the other meanwhile
            told(worker, client, f"{client.session.client_id}/{n}", bytes(500))
    pump(*pair)
    refused = [len(codes(client)) for client in clients]
    assert all(0 < count < 10 for count in refused)
    one, two = map(kept, pair)
    assert one == two and len(one) == 20 - sum(refused)
    # An earlier message is replaced everywhere, and everything counts: nobody has room any more.
    for worker, client in zip(pair, clients, strict=True):
        told(worker, client, f"{client.session.client_id}/0", b"again" * 100)
        told(worker, client, "new", bytes(500))
        pump(*pair)
        assert codes(client) == [OVER]
        audit(worker.node.broker, [client.channel])
    one, two = map(kept, pair)
    assert one == two and "new" not in one


def test_a_payload_over_the_limit_of_a_neighbour_is_taken() -> None:
    here, there = Worker(1), Worker(2)
    there.node.broker.retainer.max_payload = 100
    joined(here, there)
    client = here.node.connect("p", 5)
    told(here, client, "a", bytes(100))
    told(here, client, "b", bytes(101))
    pump(here, there)
    assert not codes(client) and kept(here) == kept(there) != {}


def test_one_whose_memory_is_full_takes_what_another_has_accepted() -> None:
    here, there = Worker(1), Worker(2)
    joined(here, there)
    client, other = here.node.connect("p", 5), there.node.connect("q", 5)
    there.node.broker.account.full = True
    told(here, client, "a", b"x")
    told(there, other, "b", b"x")
    pump(here, there)
    assert (codes(client), codes(other)) == ([], [OVER])
    assert kept(here) == kept(there) and list(kept(here)) == ["a"]
    assert there.node.broker.metrics.dropped_retained_full == 1


def test_who_starts_takes_all_there_is() -> None:
    here, there = Worker(1), Worker(2)
    messages(there.node.broker)
    client = here.node.connect("p", 5)
    for n in range(10):
        told(here, client, f"t/{n}", b"x")
    old = there.node.connect("q", 5)
    for n in range(5):
        told(there, old, f"old/{n}", b"x")
    there.mesh.changes = Changes(2, 0)  # of a life before
    there.link(takes=True)
    here.link()
    pump(here, there)
    assert kept(there) == kept(here) and len(kept(there)) == 10


def expires_in(worker: Worker, topic: str) -> int:
    level = worker.node.broker.retainer.topics[topic]
    return level.expires_at - worker.node.now


def of_two_machines() -> list[Worker]:
    """Their clocks of the day agree; one has run for an hour longer."""
    here, there = Worker(1), Worker(2)
    there.node.jump(3_600_000)
    there.node.broker.clock = here.node.broker.clock
    return [here, there]


@pytest.mark.parametrize("late", [False, True], ids=["as it comes", "to one that starts"])
@pytest.mark.parametrize("sender", [0, 1], ids=["by the younger", "by the elder"])
def test_messages_expire_at_one_time_on_machines_that_began_at_different_ones(
    sender: int, late: bool
) -> None:
    pair = of_two_machines()
    here, there = pair[sender], pair[1 - sender]
    if not late:
        joined(here, there)
    client = here.node.connect("p", 5)
    client.send(
        Publish("a", b"x", 1, True, packet_id=1, properties={prop.MESSAGE_EXPIRY_INTERVAL: 60})
    )
    told(here, client, "b", b"x")
    if late:
        here.link()
        there.link(takes=True)
    pump(here, there)
    assert expires_in(there, "a") == expires_in(here, "a") == 60_000
    retained = there.node.broker.retainer
    assert retained.topics["b"].expires_at == 0
    there.node.jump(60_000)
    assert list(retained.topics) == ["b"]


def test_a_node_of_before_is_told_and_heard_by_the_clock_of_the_machine() -> None:
    here, there = of_two_machines()
    joined(here, there)
    neighbour = here.mesh.neighbours[there.mesh.number]
    neighbour.dated = False
    client = here.node.connect("p", 5)
    client.send(
        Publish("a", b"x", 1, True, packet_id=1, properties={prop.MESSAGE_EXPIRY_INTERVAL: 7200})
    )
    pump(here, there)
    topics = [worker.node.broker.retainer.topics["a"] for worker in (here, there)]
    assert topics[0].expires_at == topics[1].expires_at == here.node.now + 7_200_000


def test_what_expired_before_a_machine_began_is_over_there() -> None:
    here, there = of_two_machines()
    client = here.node.connect("p", 5)
    client.send(
        Publish("a", b"x", 1, True, packet_id=1, properties={prop.MESSAGE_EXPIRY_INTERVAL: 1})
    )
    kept = here.node.broker.retainer.get("a", here.node.now)
    assert isinstance(kept, Retained)
    since = here.node.broker.clock() // 1000 - here.node.now
    data = retain_frame(0, 0, kept, since, Who())
    body = data[split(data, 0)[0] :]
    said = retained_from(body[8:], Who())[1].expires_at
    assert here_by(said, since) == kept.expires_at
    assert here_by(said, since + kept.expires_at + 5) == 1


@pytest.mark.parametrize("expires_at", [0, 7_000])
def test_a_publisher_is_said_as_the_one_before_or_anew(expires_at: int) -> None:
    told, heard = Who(), Who()
    for source, username in [("a", None), ("a", None), ("a", ""), ("b", "u"), ("", None)]:
        for size in (1, 200):
            kept = Retained(
                b"\x31" + varint(size + 3) + b"\0\1t" + bytes(size), 0, True, 0, 0, source
            )
            kept.username = username
            kept.peerhost = "::1"
            kept.listener = "tcp:default"
            kept.expires_at = expires_at
            data = retain_frame(7, OF_ALL, kept, 0, told)
            body = data[split(data, 0)[0] :]
            flags, found = retained_from(body[8:], heard)
            assert (flags & OF_ALL, found.v5, found.wire) == (OF_ALL, True, kept.wire)
            assert (found.source, found.username) == (source, username)
            assert (found.peerhost, found.listener) == ("::1", "tcp:default")
            assert found.expires_at == expires_at
