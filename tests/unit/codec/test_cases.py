"""Every case of the table, read and written, however the bytes are cut.

A test takes all cases of one kind of packet, and names each that fails: 23,000 tests of their own
take most of a minute to collect and report.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from mqttd.codec.packets import (
    CONNACK,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    Packet,
    Pingreq,
    Pingresp,
)
from mqttd.codec.parser import Parser, check_direction, parse_packet
from mqttd.codec.reasons import MqttError
from mqttd.codec.serializer import serialize
from tests.cases.packets import CASES, FAULTS, VALID, Case, connect


def each(cases: list[Case]) -> Callable[[Callable[[Case], None]], Any]:
    """Decorates a test of one case: it is done with all of them, a kind of packet at a time."""
    kinds: dict[str, list[Case]] = {}
    for case in cases:
        kind = f"{case.wire[0] >> 4}-to-{case.role}-v{case.version}"
        kinds.setdefault(kind, []).append(case)

    def decorated(test: Callable[[Case], None]) -> Any:
        def all_of(kind: str) -> None:
            failed: list[BaseException] = []
            for case in kinds[kind]:
                try:
                    test(case)
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(case.name)
                    failed.append(error)
            if failed:
                names = ", ".join(error.__notes__[-1] for error in failed)
                raise BaseExceptionGroup(
                    f"{len(failed)} of {len(kinds[kind])} cases: {names}", failed
                )

        all_of.__doc__ = test.__doc__
        return pytest.mark.parametrize("kind", [*kinds])(all_of)

    return decorated


def test_every_case_is_tried_and_one_that_fails_is_named() -> None:
    seen = set()

    @each(CASES)
    def tried(case: Case) -> None:
        seen.add(case.name)
        assert case is not CASES[0], "as it should"

    kinds = [*tried.pytestmark[0].args[1]]
    with pytest.raises(BaseExceptionGroup, match=re.escape(CASES[0].name)):
        tried(kinds[0])
    for kind in kinds[1:]:
        tried(kind)
    assert seen == {case.name for case in CASES}


each_valid = each(VALID)
each_fault = each(FAULTS)


def opens(case: Case) -> bool:
    """The case is what a client says first: a CONNECT, or what was meant to be one."""
    if case.role == "client":
        return False
    return case.wire[0] >> 4 == CONNECT or "instead of mqtt" in case.name


def parser_for(case: Case) -> Parser:
    """A parser at the point of the connection where this packet comes."""
    parser = Parser(case.version, role=case.role)
    if case.role == "server" and not opens(case):
        parser.feed(connect(case.version))
    return parser


def body_of(wire: bytes) -> bytes:
    end = 1
    while wire[end] & 0x80:
        end += 1
    return wire[end + 1 :]


def ping(role: str) -> tuple[bytes, Packet]:
    return (b"\xc0\x00", Pingreq()) if role == "server" else (b"\xd0\x00", Pingresp())


def test_names_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


@each_valid
def test_read_whole(case: Case) -> None:
    assert parser_for(case).feed(case.wire) == [case.packet]


@each_valid
def test_read_alone(case: Case) -> None:
    assert parse_packet(case.wire[0], body_of(case.wire), case.version) == case.packet


@each([case for case in VALID if len(case.wire) < 20000])
def test_read_byte_by_byte(case: Case) -> None:
    parser = parser_for(case)
    for position in range(len(case.wire) - 1):
        assert parser.feed(case.wire[position : position + 1]) == []
        assert parser.buffered == position + 1
    assert parser.feed(case.wire[-1:]) == [case.packet]
    assert parser.buffered == 0


@each_valid
def test_read_in_two_pieces(case: Case) -> None:
    step = max(1, len(case.wire) // 16)
    for cut in range(0, len(case.wire), step):
        parser = parser_for(case)
        assert parser.feed(case.wire[:cut]) == []
        assert parser.feed(case.wire[cut:]) == [case.packet]


@each_valid
def test_read_with_a_tail(case: Case) -> None:
    parser = parser_for(case)
    tail, packet = ping(case.role)
    expected = [case.packet] if case.wire[0] >> 4 == DISCONNECT else [case.packet, packet]
    assert parser.feed(case.wire + tail + tail[:1]) == expected
    assert parser.feed(tail[1:]) == expected[1:]


@each_valid
def test_read_in_pieces_with_a_tail(case: Case) -> None:
    parser = parser_for(case)
    tail, packet = ping(case.role)
    half = len(case.wire) // 2
    expected = [case.packet] if case.wire[0] >> 4 == DISCONNECT else [case.packet, packet]
    assert parser.feed(case.wire[:half]) == []
    assert parser.feed(case.wire[half:] + tail) == expected


@each_valid
def test_written(case: Case) -> None:
    assert case.packet is not None
    wire = serialize(case.packet, case.version)
    if case.canonical:
        assert wire == case.wire
    else:
        assert wire != case.wire
        assert parser_for(case).feed(wire) == [case.packet]


@each_valid
def test_refused_one_byte_above_the_limit(case: Case) -> None:
    parser = parser_for(case)
    parser.max_packet_size = len(case.wire)
    assert parser.feed(case.wire) == [case.packet]
    parser = parser_for(case)
    parser.max_packet_size = len(case.wire) - 1
    with pytest.raises(MqttError) as raised:
        parser.feed(case.wire)
    assert raised.value.reason_code == 0x95


def error_of(case: Case, *pieces: bytes) -> MqttError:
    parser = parser_for(case)
    with pytest.raises(MqttError) as raised:
        for piece in pieces:
            parser.feed(piece)
    assert parser.buffered == 0
    assert parser.before_fault == []
    assert parser.feed(b"\xc0\x00") == [], "a parser is spent after an error"
    return raised.value


@each_fault
def test_fault_whole(case: Case) -> None:
    error = error_of(case, case.wire)
    assert type(error) is case.error
    assert error.reason_code >= 0x80
    assert error.detail == str(error) != ""


@each_fault
def test_fault_byte_by_byte(case: Case) -> None:
    error = error_of(case, *[case.wire[i : i + 1] for i in range(len(case.wire))])
    assert type(error) is case.error


@each_fault
def test_fault_with_a_tail(case: Case) -> None:
    error = error_of(case, case.wire + ping(case.role)[0])
    assert type(error) is case.error


@each([case for case in FAULTS if not opens(case)])
def test_fault_behind_a_good_packet(case: Case) -> None:
    """What was complete before the fault is not lost with it."""
    parser = parser_for(case)
    tail, packet = ping(case.role)
    with pytest.raises(MqttError) as raised:
        parser.feed(tail + case.wire)
    assert type(raised.value) is case.error
    assert parser.before_fault == [packet]


ONE_WAY = {CONNECT, CONNACK, SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP}


@each([case for case in FAULTS if case.wire[1] < 0x80 and len(case.wire) == case.wire[1] + 2])
def test_fault_alone(case: Case) -> None:
    """`parse_packet` finds what is wrong with a packet itself, `check_direction` the rest."""
    try:
        packet = parse_packet(case.wire[0], body_of(case.wire), case.version)
        check_direction(packet, case.role == "server")
    except MqttError as error:
        assert type(error) is case.error
    else:
        # A type that only the other side sends: the stream's business.
        assert "from a" in case.name
        assert packet.type in ONE_WAY or case.version < 5
