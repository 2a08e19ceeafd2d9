"""Every reason code of MQTT as one table, and the exceptions that carry one.

An exception *is* the wire answer: whoever catches a `MqttError` reads ``reason_code`` and knows
what to put into CONNACK or DISCONNECT; ``detail`` is for the log.

    raise MalformedPacket("CONNECT: will QoS 3")  ->  DISCONNECT 0x81, one log line

The table is MQTT 5.0, 2.4; the return codes of 3.1 and 3.1.1 are CONNACK's, 3.2.2.3.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from mqttd.codec.packet_types import (
    AUTH,
    CONNACK,
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
)

__all__ = [
    "ADMINISTRATIVE_ACTION",
    "BAD_AUTHENTICATION_METHOD",
    "BAD_USER_NAME_OR_PASSWORD",
    "BANNED",
    "CLIENT_IDENTIFIER_NOT_VALID",
    "CODES_OF",
    "CONNACK_V3_ACCEPTED",
    "CONNACK_V3_BAD_USER_NAME_OR_PASSWORD",
    "CONNACK_V3_IDENTIFIER_REJECTED",
    "CONNACK_V3_NOT_AUTHORIZED",
    "CONNACK_V3_SERVER_UNAVAILABLE",
    "CONNACK_V3_UNACCEPTABLE_PROTOCOL_VERSION",
    "CONNECTION_RATE_EXCEEDED",
    "CONTINUE_AUTHENTICATION",
    "DISCONNECT_WITH_WILL",
    "GRANTED_QOS_0",
    "GRANTED_QOS_1",
    "GRANTED_QOS_2",
    "IMPLEMENTATION_SPECIFIC_ERROR",
    "KEEP_ALIVE_TIMEOUT",
    "MALFORMED_PACKET",
    "MAXIMUM_CONNECT_TIME",
    "MESSAGE_RATE_TOO_HIGH",
    "NORMAL_DISCONNECTION",
    "NOT_AUTHORIZED",
    "NO_MATCHING_SUBSCRIBERS",
    "NO_SUBSCRIPTION_EXISTED",
    "PACKET_IDENTIFIER_IN_USE",
    "PACKET_IDENTIFIER_NOT_FOUND",
    "PACKET_TOO_LARGE",
    "PAYLOAD_FORMAT_INVALID",
    "PROTOCOL_ERROR",
    "QOS_NOT_SUPPORTED",
    "QUOTA_EXCEEDED",
    "REASONS",
    "RECEIVE_MAXIMUM_EXCEEDED",
    "RETAIN_NOT_SUPPORTED",
    "RE_AUTHENTICATE",
    "SENT_BY_CLIENT_ONLY",
    "SENT_BY_SERVER_ONLY",
    "SERVER_BUSY",
    "SERVER_MOVED",
    "SERVER_SHUTTING_DOWN",
    "SERVER_UNAVAILABLE",
    "SESSION_TAKEN_OVER",
    "SHARED_SUBSCRIPTIONS_NOT_SUPPORTED",
    "SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED",
    "SUCCESS",
    "TOPIC_ALIAS_INVALID",
    "TOPIC_FILTER_INVALID",
    "TOPIC_NAME_INVALID",
    "UNSPECIFIED_ERROR",
    "UNSUPPORTED_PROTOCOL_VERSION",
    "USE_ANOTHER_SERVER",
    "WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED",
    "BadAuthenticationMethod",
    "ClientIdentifierNotValid",
    "MalformedPacket",
    "MqttError",
    "PacketTooLarge",
    "ProtocolViolation",
    "QuotaExceeded",
    "ReasonInfo",
    "ReceiveMaximumExceeded",
    "TopicAliasInvalid",
    "TopicFilterInvalid",
    "TopicNameInvalid",
    "UnsupportedVersion",
    "name_of",
    "to_connack_v3",
]

SUCCESS: Final = 0x00
NORMAL_DISCONNECTION: Final = 0x00
GRANTED_QOS_0: Final = 0x00
GRANTED_QOS_1: Final = 0x01
GRANTED_QOS_2: Final = 0x02
DISCONNECT_WITH_WILL: Final = 0x04
NO_MATCHING_SUBSCRIBERS: Final = 0x10
NO_SUBSCRIPTION_EXISTED: Final = 0x11
CONTINUE_AUTHENTICATION: Final = 0x18
RE_AUTHENTICATE: Final = 0x19
UNSPECIFIED_ERROR: Final = 0x80
MALFORMED_PACKET: Final = 0x81
PROTOCOL_ERROR: Final = 0x82
IMPLEMENTATION_SPECIFIC_ERROR: Final = 0x83
UNSUPPORTED_PROTOCOL_VERSION: Final = 0x84
CLIENT_IDENTIFIER_NOT_VALID: Final = 0x85
BAD_USER_NAME_OR_PASSWORD: Final = 0x86
NOT_AUTHORIZED: Final = 0x87
SERVER_UNAVAILABLE: Final = 0x88
SERVER_BUSY: Final = 0x89
BANNED: Final = 0x8A
SERVER_SHUTTING_DOWN: Final = 0x8B
BAD_AUTHENTICATION_METHOD: Final = 0x8C
KEEP_ALIVE_TIMEOUT: Final = 0x8D
SESSION_TAKEN_OVER: Final = 0x8E
TOPIC_FILTER_INVALID: Final = 0x8F
TOPIC_NAME_INVALID: Final = 0x90
PACKET_IDENTIFIER_IN_USE: Final = 0x91
PACKET_IDENTIFIER_NOT_FOUND: Final = 0x92
RECEIVE_MAXIMUM_EXCEEDED: Final = 0x93
TOPIC_ALIAS_INVALID: Final = 0x94
PACKET_TOO_LARGE: Final = 0x95
MESSAGE_RATE_TOO_HIGH: Final = 0x96
QUOTA_EXCEEDED: Final = 0x97
ADMINISTRATIVE_ACTION: Final = 0x98
PAYLOAD_FORMAT_INVALID: Final = 0x99
RETAIN_NOT_SUPPORTED: Final = 0x9A
QOS_NOT_SUPPORTED: Final = 0x9B
USE_ANOTHER_SERVER: Final = 0x9C
SERVER_MOVED: Final = 0x9D
SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: Final = 0x9E
CONNECTION_RATE_EXCEEDED: Final = 0x9F
MAXIMUM_CONNECT_TIME: Final = 0xA0
SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED: Final = 0xA1
WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED: Final = 0xA2


class MqttError(Exception):
    """The peer broke the standard or a limit; ends its connection and no other.

    :ivar reason_code: MQTT 5.0 reason code of the answer.
    :ivar detail: what exactly was wrong, for the log and the Reason String.
    """

    def __init__(self, detail: str, reason_code: int = UNSPECIFIED_ERROR) -> None:
        super().__init__(detail)
        self.detail = detail
        self.reason_code = reason_code


class MalformedPacket(MqttError):
    """Bytes that cannot be parsed as the standard lays them out (5.0, 4.13.1)."""

    def __init__(self, detail: str, reason_code: int = MALFORMED_PACKET) -> None:
        super().__init__(detail, reason_code)


class ProtocolViolation(MqttError):
    """A well-formed packet that is not allowed here or has a value out of range (5.0, 4.13.1)."""

    def __init__(self, detail: str, reason_code: int = PROTOCOL_ERROR) -> None:
        super().__init__(detail, reason_code)


class UnsupportedVersion(MqttError):
    """A CONNECT whose protocol level is none of 3, 4, 5 (3.1.2.2).

    :ivar version: the level asked for; 5 and above understands a CONNACK 0x84, others want 0x01.
    """

    def __init__(
        self, detail: str, reason_code: int = UNSUPPORTED_PROTOCOL_VERSION, version: int = 0
    ) -> None:
        super().__init__(detail, reason_code)
        self.version = version


class ClientIdentifierNotValid(MqttError):
    """A client identifier that is well-formed but not accepted (3.1.3.1)."""

    def __init__(self, detail: str, reason_code: int = CLIENT_IDENTIFIER_NOT_VALID) -> None:
        super().__init__(detail, reason_code)


class BadAuthenticationMethod(MqttError):
    """An Authentication Method that is unknown or changed on the way (5.0, 4.12)."""

    def __init__(self, detail: str, reason_code: int = BAD_AUTHENTICATION_METHOD) -> None:
        super().__init__(detail, reason_code)


class TopicFilterInvalid(MqttError):
    """A topic filter that breaks the wildcard or shared subscription syntax (4.7.1, 4.8.2)."""

    def __init__(self, detail: str, reason_code: int = TOPIC_FILTER_INVALID) -> None:
        super().__init__(detail, reason_code)


class TopicNameInvalid(MqttError):
    """A topic name that is empty, has a wildcard or is over a limit (4.7)."""

    def __init__(self, detail: str, reason_code: int = TOPIC_NAME_INVALID) -> None:
        super().__init__(detail, reason_code)


class ReceiveMaximumExceeded(MqttError):
    """More unacknowledged QoS 1 and 2 messages than Receive Maximum allows (5.0, 3.3.4)."""

    def __init__(self, detail: str, reason_code: int = RECEIVE_MAXIMUM_EXCEEDED) -> None:
        super().__init__(detail, reason_code)


class TopicAliasInvalid(MqttError):
    """A topic alias of 0 or above the Topic Alias Maximum (5.0, 3.3.2.3.4)."""

    def __init__(self, detail: str, reason_code: int = TOPIC_ALIAS_INVALID) -> None:
        super().__init__(detail, reason_code)


class PacketTooLarge(MqttError):
    """A packet above the Maximum Packet Size, refused before it is buffered (5.0, 3.2.2.3.6)."""

    def __init__(self, detail: str, reason_code: int = PACKET_TOO_LARGE) -> None:
        super().__init__(detail, reason_code)


class QuotaExceeded(MqttError):
    """A limit of this broker, such as subscriptions per session, is used up (5.0, 4.13)."""

    def __init__(self, detail: str, reason_code: int = QUOTA_EXCEEDED) -> None:
        super().__init__(detail, reason_code)


class ReasonInfo(NamedTuple):
    """One row of the table.

    :ivar code: the byte on the wire.
    :ivar name: the standard's name; codes with several names list all of them.
    :ivar text: what it tells the reader of a log.
    :ivar packets: packet types it may appear in.
    """

    code: int
    name: str
    text: str
    packets: frozenset[int]


_ACK = (PUBACK, PUBREC)
_ALL_ACKS = (PUBACK, PUBREC, PUBREL, PUBCOMP, UNSUBACK, AUTH)


def _table() -> dict[int, ReasonInfo]:
    rows: list[tuple[int, str, str, tuple[int, ...]]] = [
        (0x00, "Success", "done", (CONNACK, *_ALL_ACKS, SUBACK, DISCONNECT)),
        (0x01, "Granted QoS 1", "subscribed with QoS 1 at most", (SUBACK,)),
        (0x02, "Granted QoS 2", "subscribed with QoS 2 at most", (SUBACK,)),
        (0x04, "Disconnect with Will Message", "leaves, and wants its will sent", (DISCONNECT,)),
        (0x10, "No matching subscribers", "accepted, nobody listens", _ACK),
        (0x11, "No subscription existed", "nothing to unsubscribe", (UNSUBACK,)),
        (0x18, "Continue authentication", "another step is wanted", (AUTH,)),
        (0x19, "Re-authenticate", "starts over on a live connection", (AUTH,)),
        (
            0x80,
            "Unspecified error",
            "failed, and the reason is not told",
            (CONNACK, *_ACK, SUBACK, UNSUBACK, DISCONNECT),
        ),
        (0x81, "Malformed Packet", "cannot be parsed", (CONNACK, DISCONNECT)),
        (0x82, "Protocol Error", "breaks the standard", (CONNACK, DISCONNECT)),
        (
            0x83,
            "Implementation specific error",
            "valid, but not accepted here",
            (CONNACK, *_ACK, SUBACK, UNSUBACK, DISCONNECT),
        ),
        (0x84, "Unsupported Protocol Version", "level is not 3, 4 or 5", (CONNACK,)),
        (0x85, "Client Identifier not valid", "client id is not allowed", (CONNACK,)),
        (0x86, "Bad User Name or Password", "credentials are not accepted", (CONNACK,)),
        (
            0x87,
            "Not authorized",
            "denied by access control",
            (CONNACK, *_ACK, SUBACK, UNSUBACK, DISCONNECT),
        ),
        (0x88, "Server unavailable", "does not take connections", (CONNACK,)),
        (0x89, "Server busy", "try again later", (CONNACK, DISCONNECT)),
        (0x8A, "Banned", "client is banned", (CONNACK,)),
        (0x8B, "Server shutting down", "goes away", (DISCONNECT,)),
        (
            0x8C,
            "Bad authentication method",
            "method is unknown or has changed",
            (CONNACK, DISCONNECT),
        ),
        (0x8D, "Keep Alive timeout", "silent for 1.5 times the keep alive", (DISCONNECT,)),
        (0x8E, "Session taken over", "same client id connected again", (DISCONNECT,)),
        (
            0x8F,
            "Topic Filter invalid",
            "filter is not accepted",
            (SUBACK, UNSUBACK, DISCONNECT),
        ),
        (0x90, "Topic Name invalid", "topic is not accepted", (CONNACK, *_ACK, DISCONNECT)),
        (0x91, "Packet Identifier in use", "id is busy", (*_ACK, SUBACK, UNSUBACK)),
        (0x92, "Packet Identifier not found", "id is unknown", (PUBREL, PUBCOMP)),
        (0x93, "Receive Maximum exceeded", "too many messages in flight", (DISCONNECT,)),
        (0x94, "Topic Alias invalid", "alias is 0 or too large", (DISCONNECT,)),
        (0x95, "Packet too large", "over the maximum packet size", (CONNACK, DISCONNECT)),
        (0x96, "Message rate too high", "publishes too fast", (DISCONNECT,)),
        (
            0x97,
            "Quota exceeded",
            "a limit is used up",
            (CONNACK, *_ACK, SUBACK, DISCONNECT),
        ),
        (0x98, "Administrative action", "closed by an operator", (DISCONNECT,)),
        (
            0x99,
            "Payload format invalid",
            "payload is not what its indicator says",
            (CONNACK, *_ACK, DISCONNECT),
        ),
        (0x9A, "Retain not supported", "no retained messages here", (CONNACK, DISCONNECT)),
        (0x9B, "QoS not supported", "over the maximum QoS", (CONNACK, DISCONNECT)),
        (0x9C, "Use another server", "for now", (CONNACK, DISCONNECT)),
        (0x9D, "Server moved", "for good", (CONNACK, DISCONNECT)),
        (
            0x9E,
            "Shared Subscriptions not supported",
            "not offered here",
            (SUBACK, DISCONNECT),
        ),
        (0x9F, "Connection rate exceeded", "connects too often", (CONNACK, DISCONNECT)),
        (0xA0, "Maximum connect time", "connected for as long as allowed", (DISCONNECT,)),
        (
            0xA1,
            "Subscription Identifiers not supported",
            "not offered here",
            (SUBACK, DISCONNECT),
        ),
        (
            0xA2,
            "Wildcard Subscriptions not supported",
            "not offered here",
            (SUBACK, DISCONNECT),
        ),
    ]
    return {
        code: ReasonInfo(code, name, text, frozenset(packets)) for code, name, text, packets in rows
    }


REASONS: Final[dict[int, ReasonInfo]] = _table()
"""Code to its row: the whole registry of MQTT 5.0, 2.4."""


def _codes_of() -> list[frozenset[int]]:
    return [
        frozenset([code for code, info in REASONS.items() if packet_type in info.packets])
        for packet_type in range(16)
    ]


CODES_OF: Final[list[frozenset[int]]] = _codes_of()
"""Packet type to the codes it may carry."""

SENT_BY_SERVER_ONLY: Final[dict[int, frozenset[int]]] = {
    AUTH: frozenset([0x00]),
    DISCONNECT: frozenset(
        [0x87, 0x89, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F]
        + [0xA0, 0xA1, 0xA2]
    ),
}
"""Codes of DISCONNECT (3.14.2.1) and AUTH (3.15.2.1) that a client must not send."""

SENT_BY_CLIENT_ONLY: Final[dict[int, frozenset[int]]] = {
    AUTH: frozenset([0x19]),
    DISCONNECT: frozenset([0x04]),
}
"""Codes of DISCONNECT and AUTH that a server must not send."""

CONNACK_V3_ACCEPTED: Final = 0
CONNACK_V3_UNACCEPTABLE_PROTOCOL_VERSION: Final = 1
CONNACK_V3_IDENTIFIER_REJECTED: Final = 2
CONNACK_V3_SERVER_UNAVAILABLE: Final = 3
CONNACK_V3_BAD_USER_NAME_OR_PASSWORD: Final = 4
CONNACK_V3_NOT_AUTHORIZED: Final = 5

_CONNACK_V3: Final[dict[int, int]] = {
    SUCCESS: CONNACK_V3_ACCEPTED,
    UNSUPPORTED_PROTOCOL_VERSION: CONNACK_V3_UNACCEPTABLE_PROTOCOL_VERSION,
    CLIENT_IDENTIFIER_NOT_VALID: CONNACK_V3_IDENTIFIER_REJECTED,
    BAD_USER_NAME_OR_PASSWORD: CONNACK_V3_BAD_USER_NAME_OR_PASSWORD,
    BAD_AUTHENTICATION_METHOD: CONNACK_V3_BAD_USER_NAME_OR_PASSWORD,
    NOT_AUTHORIZED: CONNACK_V3_NOT_AUTHORIZED,
    BANNED: CONNACK_V3_NOT_AUTHORIZED,
    TOPIC_NAME_INVALID: CONNACK_V3_NOT_AUTHORIZED,
    RETAIN_NOT_SUPPORTED: CONNACK_V3_NOT_AUTHORIZED,
    QOS_NOT_SUPPORTED: CONNACK_V3_NOT_AUTHORIZED,
}


def name_of(code: int) -> str:
    """The standard's name of a reason code, or its number where the standard has none."""
    info = REASONS.get(code)
    return info.name if info is not None else f"0x{code:02X}"


def to_connack_v3(code5: int) -> int:
    """The CONNACK return code (3.1.1, 3.2.2.3) nearest to a 5.0 reason code.

    3.x knows six codes: what has no counterpart becomes 3, server unavailable.
    """
    return _CONNACK_V3.get(code5, CONNACK_V3_SERVER_UNAVAILABLE)
