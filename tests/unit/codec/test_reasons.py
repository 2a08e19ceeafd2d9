"""The reason table: complete, and of one mind with the exceptions."""

from __future__ import annotations

import pytest

from mqttd.codec import reasons
from mqttd.codec.properties import PROPERTIES
from mqttd.codec.reasons import CODES_OF, REASONS, MqttError, name_of, to_connack_v3
from tests.cases.packets import ALLOWED, ONE_OF_EACH

EXCEPTIONS = {
    reasons.MalformedPacket: 0x81,
    reasons.ProtocolViolation: 0x82,
    reasons.UnsupportedVersion: 0x84,
    reasons.ClientIdentifierNotValid: 0x85,
    reasons.BadAuthenticationMethod: 0x8C,
    reasons.TopicFilterInvalid: 0x8F,
    reasons.TopicNameInvalid: 0x90,
    reasons.ReceiveMaximumExceeded: 0x93,
    reasons.TopicAliasInvalid: 0x94,
    reasons.PacketTooLarge: 0x95,
    reasons.QuotaExceeded: 0x97,
}


def test_every_code_of_the_standard_is_there() -> None:
    """2.4: 43 byte values."""
    successes = {0x00, 0x01, 0x02, 0x04, 0x10, 0x11, 0x18, 0x19}
    assert set(REASONS) == successes | set(range(0x80, 0xA3))
    for code, info in REASONS.items():
        assert info.code == code
        assert info.name and info.text and info.packets


def test_every_constant_is_in_the_table() -> None:
    for name in reasons.__all__:
        value = getattr(reasons, name)
        if isinstance(value, int) and not name.startswith("CONNACK_V3"):
            assert value in REASONS, name


@pytest.mark.parametrize(
    ("kind", "code"), EXCEPTIONS.items(), ids=lambda v: getattr(v, "__name__", "")
)
def test_an_exception_is_a_reason_code(kind: type[MqttError], code: int) -> None:
    error = kind("what was wrong")
    assert (error.reason_code, error.detail, str(error)) == (
        code,
        "what was wrong",
        "what was wrong",
    )
    assert kind("other", 0x80).reason_code == 0x80
    assert isinstance(error, MqttError)


def test_names() -> None:
    assert name_of(0x87) == "Not authorized"
    assert name_of(0x77) == "0x77"


def test_3x_has_six_codes() -> None:
    expected = {0x00: 0, 0x84: 1, 0x85: 2, 0x88: 3, 0x86: 4, 0x87: 5, 0x89: 3, 0x8A: 5, 0x97: 3}
    assert {code: to_connack_v3(code) for code in expected} == expected
    assert {to_connack_v3(code) for code in CODES_OF[2]} == set(range(6))


def test_the_property_table_is_that_of_the_standard() -> None:
    assert set(PROPERTIES) == set(ONE_OF_EACH)
    kinds = ["will", "connect", "connack", "publish", "puback", "pubrec", "pubrel", "pubcomp"]
    kinds += ["subscribe", "suback", "unsubscribe", "unsuback", "", "", "disconnect", "auth"]
    for packet_type, kind in enumerate(kinds):
        found = {i for i, info in PROPERTIES.items() if packet_type in info.packets}
        assert found == ALLOWED.get(kind, set())
    assert {i for i, info in PROPERTIES.items() if info.multiple} == {0x0B, 0x26}
