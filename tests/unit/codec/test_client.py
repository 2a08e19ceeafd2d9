"""The client's end of a connection: what it answers, what it keeps, what it hands on."""

from __future__ import annotations

import pytest

from mqttd.codec.client import ClientCore
from mqttd.codec.packets import Connect, Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel
from mqttd.codec.parser import Parser
from mqttd.codec.reasons import MqttError
from mqttd.codec.serializer import serialize


def arrive(core: ClientCore, *packets: Packet) -> list[Packet]:
    return core.feed(b"".join(serialize(packet, core.version) for packet in packets))


def written(core: ClientCore) -> list[Packet]:
    data = core.take_out()
    assert core.unsent == 0
    connect = serialize(Connect("c", core.version), core.version)
    return Parser(core.version).feed(connect + data)[1:]


def publish(core: ClientCore, qos: int) -> Publish:
    packet = Publish("a", b"x", qos, packet_id=core.packet_id())
    core.in_flight[packet.packet_id] = packet
    core.send(packet)
    return packet


@pytest.mark.parametrize("version", [4, 5])
def test_what_comes_is_acknowledged_in_its_order(version: int) -> None:
    core = ClientCore(version)
    got = arrive(
        core,
        Publish("a", b"0"),
        Publish("a", b"1", 1, packet_id=7),
        Publish("a", b"2", 2, packet_id=8),
        Pubrel(9),
    )
    assert [packet.payload for packet in got if isinstance(packet, Publish)] == [b"0", b"1", b"2"]
    assert written(core) == [Puback(7), Pubrec(8), Pubcomp(9)]


def test_nothing_is_acknowledged_where_that_is_not_wanted() -> None:
    core = ClientCore(5, acknowledge=False)
    assert len(arrive(core, Publish("a", b"1", 1, packet_id=7), Pubrel(9))) == 2
    assert core.take_out() == b""


def test_a_publish_of_qos_2_goes_on_by_itself_and_its_end_is_told() -> None:
    core = ClientCore(5)
    packet = publish(core, 2)
    core.take_out()
    assert arrive(core, Pubrec(packet.packet_id)) == []
    assert written(core) == [Pubrel(packet.packet_id)]
    assert core.in_flight == {packet.packet_id: Pubrel(packet.packet_id)}
    assert arrive(core, Pubcomp(packet.packet_id)) == [Pubcomp(packet.packet_id)]


def test_a_refusal_ends_the_exchange() -> None:
    core = ClientCore(5)
    packet = publish(core, 2)
    core.take_out()
    assert arrive(core, Pubrec(packet.packet_id, 0x97)) == [Pubrec(packet.packet_id, 0x97)]
    assert core.take_out() == b""


def test_an_identifier_in_use_is_passed_over() -> None:
    core = ClientCore(4)
    first = publish(core, 1).packet_id
    for _ in range(65534):
        core.packet_id()
    assert core.packet_id() == first + 1


def test_on_a_new_connection_what_was_not_acknowledged_is_sent_again() -> None:
    core = ClientCore(5)
    publishes = [publish(core, 1), publish(core, 2), publish(core, 2)]
    arrive(core, Pubrec(publishes[2].packet_id))
    core.feed(b"\x30")  # half a packet
    core.restart()
    assert core.take_out() == b""
    core.send_again()
    assert written(core) == publishes[:2]
    assert list(core.in_flight) == [packet.packet_id for packet in publishes[:2]]


def test_what_is_no_mqtt_is_told() -> None:
    with pytest.raises(MqttError):
        ClientCore(5).feed(b"\x00\x00")
