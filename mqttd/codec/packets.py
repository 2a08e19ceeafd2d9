"""The packets of MQTT 3.1, 3.1.1 and 5.0 as plain values; one class serves all three versions.

    Publish("a/b", b"21.5", qos=1, packet_id=7)

A packet is what one side says to the other and nothing more: it knows neither socket nor session.
``properties`` exists in 5.0 only and is None where there are none. Two packets are equal when all
their fields are. Slots and plain attributes, since one is built per packet on the wire (3.1-3.15).
"""

from __future__ import annotations

from typing import ClassVar

from mqttd.codec.packet_types import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5_0,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    TYPE_NAMES,
    UNSUBACK,
    UNSUBSCRIBE,
    WILL,
)
from mqttd.codec.properties import AUTHENTICATION_METHOD, Properties

__all__ = [
    "AUTH",
    "CONNACK",
    "CONNECT",
    "DISCONNECT",
    "MQTT_3_1",
    "MQTT_3_1_1",
    "MQTT_5_0",
    "PINGREQ",
    "PINGRESP",
    "PUBACK",
    "PUBCOMP",
    "PUBLISH",
    "PUBREC",
    "PUBREL",
    "SUBACK",
    "SUBSCRIBE",
    "TYPE_NAMES",
    "UNSUBACK",
    "UNSUBSCRIBE",
    "WILL",
    "Acknowledgement",
    "Auth",
    "Connack",
    "Connect",
    "Disconnect",
    "Packet",
    "Pingreq",
    "Pingresp",
    "Puback",
    "Pubcomp",
    "Publish",
    "Pubrec",
    "Pubrel",
    "Suback",
    "Subscribe",
    "Subscription",
    "Unsuback",
    "Unsubscribe",
    "Will",
]


class _Fields:
    """Equality and repr over the attributes named in ``fields``."""

    __slots__ = ()
    fields: ClassVar[tuple[str, ...]] = ()

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        for name in self.fields:
            if getattr(self, name) != getattr(other, name):
                return False
        return True

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        raise TypeError(f"{type(self).__name__} is mutable and has no hash")

    def __repr__(self) -> str:
        values = ", ".join([f"{name}={getattr(self, name)!r}" for name in self.fields])
        return f"{type(self).__name__}({values})"


class Packet(_Fields):
    """Any control packet; ``type`` is its number, CONNECT to AUTH (2.1.2)."""

    __slots__ = ()
    type: int = 0


class Will(_Fields):
    """The message a server publishes for a client that went away without a word (3.1.2.5).

    :param properties: the will's own, among them Will Delay Interval (5.0).
    """

    __slots__ = ("payload", "properties", "qos", "retain", "topic")
    fields: ClassVar[tuple[str, ...]] = ("topic", "payload", "qos", "retain", "properties")

    def __init__(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = properties


class Connect(Packet):
    """The first packet of a client (3.1).

    :param client_id: may be empty: the broker then assigns one, or refuses it.
    :param version: 3, 4 or 5 for MQTT 3.1, 3.1.1 and 5.0.
    :param protocol_name: "MQTT", for version 3 "MQIsdp".
    :param clean_start: Clean Session in 3.x.
    :param keep_alive: seconds; 0 for none.
    """

    __slots__ = (
        "clean_start",
        "client_id",
        "keep_alive",
        "password",
        "properties",
        "protocol_name",
        "username",
        "version",
        "will",
    )
    fields: ClassVar[tuple[str, ...]] = (
        "client_id",
        "version",
        "protocol_name",
        "clean_start",
        "keep_alive",
        "will",
        "username",
        "password",
        "properties",
    )
    type: int = CONNECT

    def __init__(
        self,
        client_id: str,
        version: int = MQTT_3_1_1,
        protocol_name: str = "MQTT",
        clean_start: bool = True,
        keep_alive: int = 0,
        will: Will | None = None,
        username: str | None = None,
        password: bytes | None = None,
        properties: Properties | None = None,
    ) -> None:
        self.client_id = client_id
        self.version = version
        self.protocol_name = protocol_name
        self.clean_start = clean_start
        self.keep_alive = keep_alive
        self.will = will
        self.username = username
        self.password = password
        self.properties = properties

    def method(self) -> str | None:
        """The Authentication Method (3.1.2.11.9), None without one."""
        if self.properties is None:
            return None
        method = self.properties.get(AUTHENTICATION_METHOD)
        return method if isinstance(method, str) else None

    def __repr__(self) -> str:
        # A packet ends up in logs; a password must not.
        secret = "None" if self.password is None else "<hidden>"
        return (
            f"Connect(client_id={self.client_id!r}, version={self.version}, "
            f"clean_start={self.clean_start}, keep_alive={self.keep_alive}, will={self.will!r}, "
            f"username={self.username!r}, password={secret}, properties={self.properties!r})"
        )


class Connack(Packet):
    """The server's answer to CONNECT (3.2).

    :param reason_code: 5.0 reason code, or 3.x return code 0 to 5.
    """

    __slots__ = ("properties", "reason_code", "session_present")
    fields: ClassVar[tuple[str, ...]] = ("session_present", "reason_code", "properties")
    type: int = CONNACK

    def __init__(
        self,
        session_present: bool = False,
        reason_code: int = 0,
        properties: Properties | None = None,
    ) -> None:
        self.session_present = session_present
        self.reason_code = reason_code
        self.properties = properties


class Publish(Packet):
    """A message on its way (3.3).

    :param topic: the topic name; empty in 5.0 if a Topic Alias stands for it.
    :param packet_id: 1 to 65535 for QoS 1 and 2, 0 for QoS 0.
    """

    __slots__ = ("dup", "packet_id", "payload", "properties", "qos", "retain", "topic")
    fields: ClassVar[tuple[str, ...]] = (
        "topic",
        "payload",
        "qos",
        "retain",
        "dup",
        "packet_id",
        "properties",
    )
    type: int = PUBLISH

    def __init__(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        dup: bool = False,
        packet_id: int = 0,
        properties: Properties | None = None,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.dup = dup
        self.packet_id = packet_id
        self.properties = properties


class Acknowledgement(Packet):
    """What PUBACK, PUBREC, PUBREL and PUBCOMP share (3.4 to 3.7).

    :param reason_code: 5.0 only; 0 in 3.x.
    """

    __slots__ = ("packet_id", "properties", "reason_code")
    fields: ClassVar[tuple[str, ...]] = ("packet_id", "reason_code", "properties")

    def __init__(
        self, packet_id: int, reason_code: int = 0, properties: Properties | None = None
    ) -> None:
        self.packet_id = packet_id
        self.reason_code = reason_code
        self.properties = properties


class Puback(Acknowledgement):
    """The answer to a QoS 1 PUBLISH (3.4)."""

    __slots__ = ()
    type: int = PUBACK


class Pubrec(Acknowledgement):
    """The answer to a QoS 2 PUBLISH (3.5)."""

    __slots__ = ()
    type: int = PUBREC


class Pubrel(Acknowledgement):
    """The answer to PUBREC (3.6)."""

    __slots__ = ()
    type: int = PUBREL


class Pubcomp(Acknowledgement):
    """The answer to PUBREL, the end of a QoS 2 delivery (3.7)."""

    __slots__ = ()
    type: int = PUBCOMP


class Subscription(_Fields):
    """One topic filter of a SUBSCRIBE with its options (3.8.3.1).

    :param qos: the QoS asked for.
    :param no_local: do not send this client its own messages.
    :param retain_as_published: keep the publisher's RETAIN flag.
    :param retain_handling: retained messages at subscribe time: 0 always, 1 if the subscription is
        new, 2 never.
    """

    __slots__ = ("no_local", "qos", "retain_as_published", "retain_handling", "topic_filter")
    fields: ClassVar[tuple[str, ...]] = (
        "topic_filter",
        "qos",
        "no_local",
        "retain_as_published",
        "retain_handling",
    )

    def __init__(
        self,
        topic_filter: str,
        qos: int = 0,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
    ) -> None:
        self.topic_filter = topic_filter
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.retain_handling = retain_handling


class Subscribe(Packet):
    """A request for one or more subscriptions (3.8)."""

    __slots__ = ("packet_id", "properties", "subscriptions")
    fields: ClassVar[tuple[str, ...]] = ("packet_id", "subscriptions", "properties")
    type: int = SUBSCRIBE

    def __init__(
        self,
        packet_id: int,
        subscriptions: list[Subscription],
        properties: Properties | None = None,
    ) -> None:
        self.packet_id = packet_id
        self.subscriptions = subscriptions
        self.properties = properties


class Suback(Packet):
    """The answer to SUBSCRIBE: one code per filter, in its order (3.9)."""

    __slots__ = ("packet_id", "properties", "reason_codes")
    fields: ClassVar[tuple[str, ...]] = ("packet_id", "reason_codes", "properties")
    type: int = SUBACK

    def __init__(
        self, packet_id: int, reason_codes: list[int], properties: Properties | None = None
    ) -> None:
        self.packet_id = packet_id
        self.reason_codes = reason_codes
        self.properties = properties


class Unsubscribe(Packet):
    """The end of one or more subscriptions (3.10)."""

    __slots__ = ("packet_id", "properties", "topic_filters")
    fields: ClassVar[tuple[str, ...]] = ("packet_id", "topic_filters", "properties")
    type: int = UNSUBSCRIBE

    def __init__(
        self, packet_id: int, topic_filters: list[str], properties: Properties | None = None
    ) -> None:
        self.packet_id = packet_id
        self.topic_filters = topic_filters
        self.properties = properties


class Unsuback(Packet):
    """The answer to UNSUBSCRIBE: one code per filter in 5.0, no code in 3.x (3.11)."""

    __slots__ = ("packet_id", "properties", "reason_codes")
    fields: ClassVar[tuple[str, ...]] = ("packet_id", "reason_codes", "properties")
    type: int = UNSUBACK

    def __init__(
        self,
        packet_id: int,
        reason_codes: list[int],
        properties: Properties | None = None,
    ) -> None:
        self.packet_id = packet_id
        self.reason_codes = reason_codes
        self.properties = properties


class Pingreq(Packet):
    """A client's sign of life (3.12)."""

    __slots__ = ()
    type: int = PINGREQ


class Pingresp(Packet):
    """The answer to PINGREQ (3.13)."""

    __slots__ = ()
    type: int = PINGRESP


class Disconnect(Packet):
    """The last packet: of a client in 3.x, of either side in 5.0 (3.14)."""

    __slots__ = ("properties", "reason_code")
    fields: ClassVar[tuple[str, ...]] = ("reason_code", "properties")
    type: int = DISCONNECT

    def __init__(self, reason_code: int = 0, properties: Properties | None = None) -> None:
        self.reason_code = reason_code
        self.properties = properties


class Auth(Packet):
    """A step of an extended authentication, 5.0 only (3.15)."""

    __slots__ = ("properties", "reason_code")
    fields: ClassVar[tuple[str, ...]] = ("reason_code", "properties")
    type: int = AUTH

    def __init__(self, reason_code: int = 0, properties: Properties | None = None) -> None:
        self.reason_code = reason_code
        self.properties = properties
