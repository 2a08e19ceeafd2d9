"""The packet types and protocol versions as numbers, the root of the codec's imports.

Plain ``Final`` integers, because a compiled module inlines them (MQTT 5.0, 2.1.2).
"""

from __future__ import annotations

from typing import Final

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
]

WILL: Final = 0
"""Not a packet type: names the will's own properties inside CONNECT (3.1.3.2)."""

CONNECT: Final = 1
CONNACK: Final = 2
PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
SUBACK: Final = 9
UNSUBSCRIBE: Final = 10
UNSUBACK: Final = 11
PINGREQ: Final = 12
PINGRESP: Final = 13
DISCONNECT: Final = 14
AUTH: Final = 15

TYPE_NAMES: Final[list[str]] = [
    "WILL",
    "CONNECT",
    "CONNACK",
    "PUBLISH",
    "PUBACK",
    "PUBREC",
    "PUBREL",
    "PUBCOMP",
    "SUBSCRIBE",
    "SUBACK",
    "UNSUBSCRIBE",
    "UNSUBACK",
    "PINGREQ",
    "PINGRESP",
    "DISCONNECT",
    "AUTH",
]
"""Name of each type, indexed by its number; 0 is reserved on the wire, the will here."""

MQTT_3_1: Final = 3
MQTT_3_1_1: Final = 4
MQTT_5_0: Final = 5
