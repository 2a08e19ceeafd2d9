"""RETAIN comes to who has asked for it (Retain As Published) at another process, where it was."""

from __future__ import annotations

import pytest

from mqttd.codec.packets import Puback, Publish, Pubrel, Subscribe, Subscription
from tests.unit.mesh.test_one_set import Node, Side, Worker, joined, pump

SIDES = pytest.mark.parametrize("side", [Worker, Node])


def met(side: type[Side], topic_filter: str) -> tuple[Side, Side]:
    """Where it is published, and where somebody has subscribed to it."""
    here, there = side(1), side(2)
    joined(here, there)
    there.client.send(Subscribe(1, [Subscription(topic_filter, 2, False, True)]))
    here.mesh.add(here.neighbour(there), topic_filter)
    pump(here, there)
    there.client.take()
    return here, there


def published(here: Side, there: Side, payload: bytes, qos: int, retain: bool) -> list[bool]:
    """With which RETAIN flags that comes."""
    packet_id = 7 if qos else 0
    here.client.send(Publish("t", payload, qos, retain, packet_id=packet_id))
    pump(here, there)
    if qos == 2:
        here.client.send(Pubrel(7))
        pump(here, there)
    found = there.client.published()
    for each in found:
        assert (each.payload, each.qos) == (payload, qos)
        if qos == 1:
            there.client.send(Puback(each.packet_id))
    return [each.retain for each in found]


@SIDES
@pytest.mark.parametrize("topic_filter", ["t", "$share/g/t"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_is_retained_says_so(side: type[Side], topic_filter: str, qos: int) -> None:
    here, there = met(side, topic_filter)
    for payload in (b"1", b""):
        assert published(here, there, payload, qos, True) == [True]
        assert published(here, there, b"2", qos, False) == [False]


@SIDES
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("then", [0, 1, 2])
def test_an_empty_message_says_so_for_itself_alone(side: type[Side], qos: int, then: int) -> None:
    """Whichever lane it takes, and the next one."""
    here, there = met(side, "t")
    assert published(here, there, b"", qos, True) == [True]
    assert published(here, there, b"2", then, False) == [False]


@SIDES
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_an_operator_forgets_says_nothing_of_the_next(side: type[Side], qos: int) -> None:
    here, there = met(side, "t")
    assert published(here, there, b"1", 0, True) == [True]
    here.broker.retainer.delete("t")
    assert published(here, there, b"2", qos, False) == [False]
    assert here.kept() == there.kept() == {}


@SIDES
@pytest.mark.parametrize("topic_filter", ["t", "$share/g/t"])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("sent", [False, True])
def test_what_is_kept_for_who_is_away_says_so(
    side: type[Side], topic_filter: str, qos: int, sent: bool
) -> None:
    """It goes when there is a link again, whether it was on its way by the one that broke."""
    here, there = met(side, topic_filter)
    if not sent:
        here.cut(there)
        there.cut(here)
    for n, retain in enumerate((True, False, True), 1):
        here.client.send(Publish("t", b"%d" % n, qos, retain, packet_id=n))
        here.turn()
    if sent:
        here.cut(there)
        there.cut(here)
    joined(here, there)
    found = [(each.payload, each.retain) for each in there.client.published()]
    assert found == [(b"1", True), (b"2", False), (b"3", True)]


@SIDES
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("published", [False, True])
def test_who_has_not_asked_gets_what_is_retained_as_any_other(
    side: type[Side], qos: int, published: bool
) -> None:
    """Alone and beside one who has asked for it."""
    here, there = met(side, "t")
    there.client.send(Subscribe(2, [Subscription("t", 2, False, False)]))
    other = there.memory.connect("other", 5)
    other.send(Subscribe(1, [Subscription("t", 2, False, published)]))
    other.take()
    for n, retain in enumerate((True, True, False), 1):
        here.client.send(Publish("t", b"%d" % n, qos, retain, packet_id=n if qos else 0))
        pump(here, there)
        if qos == 2:
            here.client.send(Pubrel(n))
            pump(here, there)
        for client, says in ((there.client, False), (other, published)):
            found = client.published()
            assert [(each.payload, each.retain) for each in found] == [(b"%d" % n, says and retain)]
            if qos == 1:
                client.send(Puback(found[0].packet_id))
    assert here.kept() == there.kept()
