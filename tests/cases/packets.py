"""The one table of wire cases: bytes as the standard lays them out, and what must become of them.

    name, version, reader's role, bytes  ->  the packet they are, or the error they raise

The bytes are written by hand or put together by the few helpers below, which know the codec's
classes but none of its code: a fault in the codec cannot hide in both. A case is ``canonical``
where the serialiser must write exactly these bytes; others are valid, but longer than need be.

Read by the codec's tests, by the fuzzer as its seeds, and by whoever needs a bad packet.
"""

from __future__ import annotations

from typing import NamedTuple

from mqttd.codec.packets import (
    Acknowledgement,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from mqttd.codec.properties import Properties
from mqttd.codec.reasons import (
    MalformedPacket,
    MqttError,
    ProtocolViolation,
    TopicAliasInvalid,
    TopicFilterInvalid,
    TopicNameInvalid,
    UnsupportedVersion,
)

__all__ = ["CASES", "FAULTS", "VALID", "Case", "binary", "connect", "frame", "text"]


class Case(NamedTuple):
    """One packet on the wire.

    :ivar version: the version the connection speaks; CONNECT brings its own.
    :ivar role: who reads it, "server" or "client".
    :ivar packet: what it must be read as, None for a fault.
    :ivar error: what it must raise, None for a packet.
    :ivar canonical: the serialiser writes ``packet`` as ``wire``.
    """

    name: str
    version: int
    role: str
    wire: bytes
    packet: Packet | None = None
    error: type[MqttError] | None = None
    canonical: bool = True


# --- an encoder of its own, deliberately dull -------------------------------------------------


def length(n: int) -> bytes:
    """A variable byte integer, as the pseudo code of 1.5.5 has it."""
    out = b""
    while True:
        digit, n = n % 128, n // 128
        out += bytes([digit + 128 if n else digit])
        if not n:
            return out


def frame(first: int, *parts: bytes) -> bytes:
    """A packet: first byte, remaining length, and these parts."""
    body = b"".join(parts)
    return bytes([first]) + length(len(body)) + body


def two(n: int) -> bytes:
    return bytes([n // 256, n % 256])


def four(n: int) -> bytes:
    return two(n // 65536) + two(n % 65536)


def binary(data: bytes) -> bytes:
    return two(len(data)) + data


def text(string: str) -> bytes:
    return binary(string.encode())


def props(*parts: bytes) -> bytes:
    """Properties with their length before them."""
    body = b"".join(parts)
    return length(len(body)) + body


def none(version: int) -> bytes:
    """The zero that stands for "no properties" in 5.0, and nothing before."""
    return b"\x00" if version == 5 else b""


def head(version: int) -> bytes:
    """Protocol name and level."""
    return b"\x00\x06MQIsdp\x03" if version == 3 else b"\x00\x04MQTT" + bytes([version])


def connect(version: int, flags: int = 2, *payload: bytes, keep_alive: int = 0) -> bytes:
    """A CONNECT with this payload; with none, of client id "c"."""
    rest = payload or (text("c"),)
    return frame(0x10, head(version), bytes([flags]), two(keep_alive), none(version), *rest)


def connect5(properties: bytes, flags: int = 2, *payload: bytes) -> bytes:
    """A 5.0 CONNECT with these properties."""
    return frame(0x10, head(5), bytes([flags]), b"\x00\x00", properties, *(payload or (text("c"),)))


CASES: list[Case] = []


def valid(
    name: str, version: int, role: str, wire: bytes, packet: Packet, canonical: bool = True
) -> None:
    CASES.append(Case(f"{name} [{version}]", version, role, wire, packet, None, canonical))


def fault(name: str, version: int, role: str, wire: bytes, error: type[MqttError]) -> None:
    CASES.append(Case(f"{name} [{version}]", version, role, wire, None, error))


SERVER, CLIENT = "server", "client"
ROLES = (SERVER, CLIENT)
VERSIONS = (3, 4, 5)
NAMES = {3: "MQIsdp", 4: "MQTT", 5: "MQTT"}

BOM = "\ufeff"
BAD_STRINGS = {
    "overlong": b"\xc0\x80",
    "cut sequence": b"a\xe2\x82",
    "lone continuation": b"\x80",
    "surrogate D800": b"\xed\xa0\x80",
    "surrogate DFFF": b"\xed\xbf\xbf",
    "surrogate pair": b"\xed\xa0\x81\xed\xb0\x80",
    "above 10FFFF": b"\xf4\x90\x80\x80",
    "byte FF": b"a\xffb",
    "U+0000": b"a\x00b",
}
ODD_STRINGS = {
    "byte order mark": BOM + "a",
    "four bytes": "\U0001f980",
    "noncharacter": "\uffff",
    "control": "\x01\x7f",
    "last before the surrogates": "\ud7ff",
    "first behind the surrogates": "\ue000",
}


def connect_cases(v: int) -> None:
    n = NAMES[v]
    valid("connect", v, SERVER, connect(v), Connect("c", v, n))
    valid("connect keeps the session", v, SERVER, connect(v, 0), Connect("c", v, n, False))
    valid(
        "connect with keep alive",
        v,
        SERVER,
        connect(v, 2, text("c"), keep_alive=0xFFFE),
        Connect("c", v, n, keep_alive=65534),
    )
    valid("connect with an empty id", v, SERVER, connect(v, 2, text("")), Connect("", v, n))
    # The broker answers it, in 3.x with 0x02; it is well-formed.
    valid(
        "connect with an empty id, keeps the session",
        v,
        SERVER,
        connect(v, 0, text("")),
        Connect("", v, n, False),
    )
    long_id = "i" * 65535
    valid(
        "connect with an id of 65535 bytes",
        v,
        SERVER,
        connect(v, 2, text(long_id)),
        Connect(long_id, v, n),
    )
    for qos in (0, 1, 2):
        for retain in (False, True):
            valid(
                f"connect with a will, QoS {qos}, retain {retain}",
                v,
                SERVER,
                connect(
                    v,
                    2 | 4 | qos << 3 | retain << 5,
                    text("c"),
                    none(v),
                    text("w/t"),
                    binary(b"\x00bye\xff"),
                ),
                Connect("c", v, n, will=Will("w/t", b"\x00bye\xff", qos, retain)),
            )
    valid(
        "connect with an empty will payload",
        v,
        SERVER,
        connect(v, 6, text("c"), none(v), text("w"), binary(b"")),
        Connect("c", v, n, will=Will("w", b"", 0, False)),
    )
    valid(
        "connect with a user name",
        v,
        SERVER,
        connect(v, 0x82, text("c"), text("üser")),
        Connect("c", v, n, username="üser"),
    )
    valid(
        "connect with user name and password",
        v,
        SERVER,
        connect(v, 0xC2, text("c"), text("u"), binary(b"\x00\xff")),
        Connect("c", v, n, username="u", password=b"\x00\xff"),
    )
    valid(
        "connect with empty user name and password",
        v,
        SERVER,
        connect(v, 0xC2, text("c"), text(""), binary(b"")),
        Connect("c", v, n, username="", password=b""),
    )
    valid(
        "connect with everything",
        v,
        SERVER,
        connect(
            v,
            0xF6,
            text("c"),
            none(v),
            text("w"),
            binary(b"p"),
            text("u"),
            binary(b"s"),
            keep_alive=60,
        ),
        Connect("c", v, n, True, 60, Will("w", b"p", 2, True), "u", b"s"),
    )
    for what, string in ODD_STRINGS.items():
        valid(
            f"connect, client id with {what}",
            v,
            SERVER,
            connect(v, 2, text(string)),
            Connect(string, v, n),
        )


def connect_faults(v: int) -> None:
    bad = MalformedPacket
    whole = connect(v, 0xF6, text("c"), none(v), text("w"), binary(b"p"), text("u"), binary(b"s"))
    body = whole[2:]
    for cut in range(len(body)):
        # MQTT 3.1 allows to leave out user name and password, whatever the flags say.
        if v == 3 and cut in (len(body) - 3, len(body) - 6):
            continue
        fault(f"connect cut to {cut} bytes", v, SERVER, frame(0x10, body[:cut]), bad)
    fault("connect with a byte left over", v, SERVER, frame(0x10, body, b"\x00"), bad)
    if v > 3:
        fault("connect, reserved flag", v, SERVER, connect(v, 3), bad)
        fault("connect, will QoS 1 without a will", v, SERVER, connect(v, 0x0A), bad)
        fault("connect, will QoS 2 without a will", v, SERVER, connect(v, 0x12), bad)
        fault("connect, will retain without a will", v, SERVER, connect(v, 0x22), bad)
    else:
        # "Not used" in MQTT 3.1.
        for flags in (0x03, 0x0A, 0x12, 0x1A, 0x22, 0x3B):
            name = f"connect, unused flags {flags:02x}"
            valid(name, v, SERVER, connect(v, flags), Connect("c", v, NAMES[v]), False)
        valid(
            "connect, a will and bit 0",
            v,
            SERVER,
            connect(v, 0x0F, text("c"), text("w"), binary(b"p")),
            Connect("c", v, NAMES[v], will=Will("w", b"p", 1)),
            False,
        )
    fault(
        "connect, will QoS 3",
        v,
        SERVER,
        connect(v, 0x1E, text("c"), none(v), text("w"), binary(b"")),
        bad,
    )
    if v < 5:
        fault(
            "connect, password without user name",
            v,
            SERVER,
            connect(v, 0x42, text("c"), binary(b"s")),
            bad,
        )
    else:
        valid(
            "connect, password without user name",
            v,
            SERVER,
            connect(v, 0x42, text("c"), binary(b"s")),
            Connect("c", 5, password=b"s"),
        )
    user_flag = connect(v, 0x82, text("c"))
    pass_flag = connect(v, 0xC2, text("c"), text("u"))
    if v == 3:
        valid(
            "connect, no user name behind its flag",
            v,
            SERVER,
            user_flag,
            Connect("c", 3, "MQIsdp"),
            False,
        )
        valid(
            "connect, no password behind its flag",
            v,
            SERVER,
            pass_flag,
            Connect("c", 3, "MQIsdp", username="u"),
            False,
        )
    else:
        fault("connect, no user name behind its flag", v, SERVER, user_flag, bad)
        fault("connect, no password behind its flag", v, SERVER, pass_flag, bad)
    fault(
        "connect, user name without its flag", v, SERVER, connect(v, 2, text("c"), text("u")), bad
    )
    for topic in ("", "a/+", "#", "a#"):
        fault(
            f"connect, will topic {topic!r}",
            v,
            SERVER,
            connect(v, 6, text("c"), none(v), text(topic), binary(b"")),
            TopicNameInvalid,
        )
    for what, data in BAD_STRINGS.items():
        fault(f"connect, client id with {what}", v, SERVER, connect(v, 2, binary(data)), bad)
        fault(
            f"connect, user name with {what}",
            v,
            SERVER,
            connect(v, 0x82, text("c"), binary(data)),
            bad,
        )
        fault(
            f"connect, will topic with {what}",
            v,
            SERVER,
            connect(v, 6, text("c"), none(v), binary(data), binary(b"")),
            bad,
        )
    for position, field in enumerate(("client id", "will topic", "will payload", "user name")):
        fields = [text("c"), text("w"), binary(b"p"), text("u"), binary(b"s")]
        fields[position] = b"\xff\xff" + fields[position][2:]
        fault(
            f"connect, {field} longer than the packet",
            v,
            SERVER,
            connect(v, 0xC6, fields[0], none(v), *fields[1:]),
            bad,
        )
    fault("connect from a server", v, CLIENT, connect(v), ProtocolViolation)


def protocol_cases() -> None:
    tail = b"\x02\x00\x00" + text("c")
    for level in (0, 1, 2, 3, 6, 0x7F, 0x83, 0x84, 0xFF):
        fault(
            f"connect, MQTT level {level}",
            4,
            SERVER,
            frame(0x10, b"\x00\x04MQTT", bytes([level]), tail),
            UnsupportedVersion,
        )
    for level in (0, 2, 4, 5):
        fault(
            f"connect, MQIsdp level {level}",
            4,
            SERVER,
            frame(0x10, b"\x00\x06MQIsdp", bytes([level]), tail),
            UnsupportedVersion,
        )
    fault(
        "connect, unknown level and nothing else",
        4,
        SERVER,
        frame(0x10, b"\x00\x04MQTT\x09"),
        UnsupportedVersion,
    )
    for name in ("", "mqtt", "MQTTX", "MQT", "HTTP", "MQIsdP", "AMQP"):
        fault(
            f"connect, protocol name {name!r}",
            4,
            SERVER,
            frame(0x10, text(name), b"\x04", tail),
            ProtocolViolation,
        )
    fault("http instead of mqtt", 4, SERVER, b"GET / HTTP/1.1\r\n\r\n", ProtocolViolation)
    fault("tls instead of mqtt", 4, SERVER, b"\x16\x03\x01\x02\x00\x01", MalformedPacket)


CONNECT_PROPERTIES: list[tuple[str, bytes, Properties]] = [
    ("session expiry", b"\x11" + four(3600), {0x11: 3600}),
    ("session expiry never", b"\x11\xff\xff\xff\xff", {0x11: 0xFFFFFFFF}),
    ("session expiry 0", b"\x11\x00\x00\x00\x00", {0x11: 0}),
    ("receive maximum", b"\x21\x00\x01", {0x21: 1}),
    ("maximum packet size", b"\x27\x00\x00\x00\x01", {0x27: 1}),
    ("topic alias maximum", b"\x22\x00\x00", {0x22: 0}),
    ("request response information", b"\x19\x01", {0x19: 1}),
    ("request problem information", b"\x17\x00", {0x17: 0}),
    ("user property", b"\x26" + text("k") + text("v"), {0x26: [("k", "v")]}),
    (
        "user properties in order, twice the same",
        (b"\x26" + text("k") + text("v")) * 2 + b"\x26" + text("") + text(""),
        {0x26: [("k", "v"), ("k", "v"), ("", "")]},
    ),
    ("authentication method", b"\x15" + text("SCRAM-SHA-1"), {0x15: "SCRAM-SHA-1"}),
    (
        "authentication method and data",
        b"\x15" + text("m") + b"\x16" + binary(b"\x00\x01"),
        {0x15: "m", 0x16: b"\x00\x01"},
    ),
]

MESSAGE_PROPERTIES: list[tuple[str, bytes, Properties]] = [
    ("payload format", b"\x01\x01", {0x01: 1}),
    ("payload format bytes", b"\x01\x00", {0x01: 0}),
    ("message expiry", b"\x02\x00\x00\x00\x05", {0x02: 5}),
    ("content type", b"\x03" + text("text/plain"), {0x03: "text/plain"}),
    ("response topic", b"\x08" + text("re/ply"), {0x08: "re/ply"}),
    ("correlation data", b"\x09" + binary(b"\x00\xff"), {0x09: b"\x00\xff"}),
    ("correlation data, empty", b"\x09" + binary(b""), {0x09: b""}),
    ("user property", b"\x26" + text("k") + text(BOM + "v"), {0x26: [("k", BOM + "v")]}),
]

WILL_DELAY: tuple[str, bytes, Properties] = ("will delay", b"\x18\x00\x00\x00\x09", {0x18: 9})

EVERYTHING: Properties = {0x01: 0, 0x02: 5, 0x03: "text/plain", 0x08: "re/ply", 0x09: b"\x00\xff"}
"""What the second to the sixth of them make together."""

CONNACK_PROPERTIES: list[tuple[str, bytes, Properties]] = [
    ("session expiry", b"\x11" + four(1), {0x11: 1}),
    ("receive maximum", b"\x21" + two(65535), {0x21: 65535}),
    ("maximum QoS", b"\x24\x01", {0x24: 1}),
    ("retain available", b"\x25\x00", {0x25: 0}),
    ("maximum packet size", b"\x27" + four(1 << 20), {0x27: 1 << 20}),
    ("assigned client identifier", b"\x12" + text("auto-1"), {0x12: "auto-1"}),
    ("topic alias maximum", b"\x22" + two(10), {0x22: 10}),
    ("reason string", b"\x1f" + text("why"), {0x1F: "why"}),
    ("user property", b"\x26" + text("k") + text("v"), {0x26: [("k", "v")]}),
    ("wildcard available", b"\x28\x01", {0x28: 1}),
    ("identifiers available", b"\x29\x00", {0x29: 0}),
    ("shared available", b"\x2a\x01", {0x2A: 1}),
    ("server keep alive", b"\x13" + two(30), {0x13: 30}),
    ("response information", b"\x1a" + text("r/"), {0x1A: "r/"}),
    ("server reference", b"\x1c" + text("other:1883"), {0x1C: "other:1883"}),
    ("authentication", b"\x15" + text("m") + b"\x16" + binary(b"d"), {0x15: "m", 0x16: b"d"}),
]

REASONED: list[tuple[str, bytes, Properties]] = [
    ("reason string", b"\x1f" + text("why"), {0x1F: "why"}),
    ("user property", b"\x26" + text("k") + text("v"), {0x26: [("k", "v")]}),
]


def property_cases() -> None:
    """Each packet of 5.0 with each property it may have."""
    for name, wire, value in CONNECT_PROPERTIES:
        valid(
            f"connect, {name}", 5, SERVER, connect5(props(wire)), Connect("c", 5, properties=value)
        )
    for name, wire, value in [*MESSAGE_PROPERTIES, WILL_DELAY]:
        valid(
            f"connect, will, {name}",
            5,
            SERVER,
            connect5(b"\x00", 6, text("c"), props(wire), text("w"), binary(b"p")),
            Connect("c", 5, will=Will("w", b"p", 0, False, value)),
        )
    for role in ROLES:
        for name, wire, value in MESSAGE_PROPERTIES:
            valid(
                f"publish to a {role}, {name}",
                5,
                role,
                frame(0x30, text("t"), props(wire), b"p"),
                Publish("t", b"p", properties=value),
            )
        valid(
            f"publish to a {role}, topic alias",
            5,
            role,
            frame(0x30, text("t"), b"\x03\x23\x00\x01", b"p"),
            Publish("t", b"p", properties={0x23: 1}),
        )
        valid(
            f"publish to a {role}, topic alias alone",
            5,
            role,
            frame(0x30, text(""), b"\x03\x23\xff\xff", b"p"),
            Publish("", b"p", properties={0x23: 65535}),
        )
        wires = [wire for _, wire, _ in MESSAGE_PROPERTIES[1:6]]
        valid(
            f"publish to a {role}, everything",
            5,
            role,
            frame(0x3D, text("t"), two(9), props(*wires), b"p"),
            Publish("t", b"p", 2, True, True, 9, EVERYTHING),
        )
    for name, wire, value in CONNACK_PROPERTIES:
        valid(
            f"connack, {name}",
            5,
            CLIENT,
            frame(0x20, b"\x00\x00", props(wire)),
            Connack(properties=value),
        )
    for name, wire, value in REASONED:
        for kind, first, role in ACKS:
            valid(
                f"{kind.__name__.lower()} to a {role}, {name}",
                5,
                role,
                frame(first, two(7), b"\x00", props(wire)),
                kind(7, 0, value),
            )
        valid(
            f"suback, {name}",
            5,
            CLIENT,
            frame(0x90, two(7), props(wire), b"\x02"),
            Suback(7, [2], value),
        )
        valid(
            f"unsuback, {name}",
            5,
            CLIENT,
            frame(0xB0, two(7), props(wire), b"\x11"),
            Unsuback(7, [0x11], value),
        )
        for role in ROLES:
            valid(
                f"disconnect to a {role}, {name}",
                5,
                role,
                frame(0xE0, b"\x00", props(wire)),
                Disconnect(0, value),
            )
            valid(
                f"auth to a {role}, {name}",
                5,
                role,
                frame(0xF0, b"\x18", props(b"\x15" + text("m"), wire)),
                Auth(0x18, {0x15: "m", **value}),
            )
    valid(
        "disconnect, server reference",
        5,
        CLIENT,
        frame(0xE0, b"\x9d", props(b"\x1c" + text("x"))),
        Disconnect(0x9D, {0x1C: "x"}),
    )
    valid(
        "disconnect, session expiry",
        5,
        SERVER,
        frame(0xE0, b"\x00", props(b"\x11" + four(7))),
        Disconnect(0, {0x11: 7}),
    )
    valid(
        "subscribe, identifier 1",
        5,
        SERVER,
        frame(0x82, two(1), b"\x02\x0b\x01", text("a"), b"\x00"),
        Subscribe(1, [Subscription("a")], {0x0B: [1]}),
    )
    valid(
        "subscribe, largest identifier",
        5,
        SERVER,
        frame(0x82, two(1), b"\x05\x0b\xff\xff\xff\x7f", text("a"), b"\x00"),
        Subscribe(1, [Subscription("a")], {0x0B: [268435455]}),
    )
    valid(
        "subscribe, user property",
        5,
        SERVER,
        frame(0x82, two(1), props(b"\x26" + text("k") + text("v")), text("a"), b"\x00"),
        Subscribe(1, [Subscription("a")], {0x26: [("k", "v")]}),
    )
    valid(
        "unsubscribe, user property",
        5,
        SERVER,
        frame(0xA2, two(1), props(b"\x26" + text("k") + text("v")), text("a")),
        Unsubscribe(1, ["a"], {0x26: [("k", "v")]}),
    )
    valid(
        "publish to a client, identifiers",
        5,
        CLIENT,
        frame(0x30, text("t"), b"\x05\x0b\x01\x0b\x80\x01", b"p"),
        Publish("t", b"p", properties={0x0B: [1, 128]}),
    )


ONE_OF_EACH: dict[int, bytes] = {
    0x01: b"\x01\x00",
    0x02: b"\x02\x00\x00\x00\x01",
    0x03: b"\x03\x00\x01a",
    0x08: b"\x08\x00\x01a",
    0x09: b"\x09\x00\x01a",
    0x0B: b"\x0b\x01",
    0x11: b"\x11\x00\x00\x00\x01",
    0x12: b"\x12\x00\x01a",
    0x13: b"\x13\x00\x01",
    0x15: b"\x15\x00\x01a",
    0x16: b"\x16\x00\x01a",
    0x17: b"\x17\x00",
    0x18: b"\x18\x00\x00\x00\x01",
    0x19: b"\x19\x00",
    0x1A: b"\x1a\x00\x01a",
    0x1C: b"\x1c\x00\x01a",
    0x1F: b"\x1f\x00\x01a",
    0x21: b"\x21\x00\x01",
    0x22: b"\x22\x00\x01",
    0x23: b"\x23\x00\x01",
    0x24: b"\x24\x00",
    0x25: b"\x25\x00",
    0x26: b"\x26\x00\x01a\x00\x01b",
    0x27: b"\x27\x00\x00\x00\x01",
    0x28: b"\x28\x00",
    0x29: b"\x29\x00",
    0x2A: b"\x2a\x00",
}
"""Every property of 5.0 once (2.2.2.2)."""

# Table 2-4 once more, from the packet's side.
ALLOWED: dict[str, set[int]] = {
    "connect": {0x11, 0x15, 0x16, 0x17, 0x19, 0x21, 0x22, 0x26, 0x27},
    "will": {0x01, 0x02, 0x03, 0x08, 0x09, 0x18, 0x26},
    "connack": {0x11, 0x12, 0x13, 0x15, 0x16, 0x1A, 0x1C, 0x1F, 0x21, 0x22, 0x24, 0x25, 0x26}
    | {0x27, 0x28, 0x29, 0x2A},
    "publish": {0x01, 0x02, 0x03, 0x08, 0x09, 0x0B, 0x23, 0x26},
    "puback": {0x1F, 0x26},
    "pubrec": {0x1F, 0x26},
    "pubrel": {0x1F, 0x26},
    "pubcomp": {0x1F, 0x26},
    "subscribe": {0x0B, 0x26},
    "suback": {0x1F, 0x26},
    "unsubscribe": {0x26},
    "unsuback": {0x1F, 0x26},
    "disconnect": {0x11, 0x1C, 0x1F, 0x26},
    "auth": {0x15, 0x16, 0x1F, 0x26},
}


def around(packet: str, properties: bytes) -> tuple[str, bytes]:
    """(role of its reader, a packet of that name with these properties)."""
    if packet == "connect":
        return SERVER, connect5(properties)
    if packet == "will":
        return SERVER, connect5(b"\x00", 6, text("c"), properties, text("w"), binary(b"p"))
    if packet == "connack":
        return CLIENT, frame(0x20, b"\x00\x00", properties)
    if packet == "publish":
        return CLIENT, frame(0x30, text("t"), properties, b"p")
    if packet in ("puback", "pubrec", "pubrel", "pubcomp"):
        first = {"puback": 0x40, "pubrec": 0x50, "pubrel": 0x62, "pubcomp": 0x70}[packet]
        return SERVER, frame(first, two(7), b"\x00", properties)
    if packet == "subscribe":
        return SERVER, frame(0x82, two(7), properties, text("a"), b"\x00")
    if packet == "suback":
        return CLIENT, frame(0x90, two(7), properties, b"\x00")
    if packet == "unsubscribe":
        return SERVER, frame(0xA2, two(7), properties, text("a"))
    if packet == "unsuback":
        return CLIENT, frame(0xB0, two(7), properties, b"\x00")
    if packet == "disconnect":
        return SERVER, frame(0xE0, b"\x00", properties)
    return SERVER, frame(0xF0, b"\x18", properties)


def property_faults() -> None:
    bad, violation = MalformedPacket, ProtocolViolation
    for packet, allowed in ALLOWED.items():
        for identifier, wire in ONE_OF_EACH.items():
            role, whole = around(packet, props(wire))
            if identifier not in allowed:
                fault(f"{packet}, property {identifier:02x}", 5, role, whole, bad)
                continue
            # Authentication Data needs a method; AUTH needs one whatever it holds.
            method = ONE_OF_EACH[0x15] if identifier == 0x16 else b""
            if identifier != 0x26 and (packet, identifier) != ("publish", 0x0B):
                role, whole = around(packet, props(method, wire, wire))
                fault(f"{packet}, property {identifier:02x} twice", 5, role, whole, violation)
            for cut in range(1, len(wire)):
                role, whole = around(packet, props(wire[:cut]))
                if packet in ("connack", "disconnect") or packet.startswith("pub"):
                    fault(f"{packet}, property {identifier:02x} cut to {cut}", 5, role, whole, bad)
        for identifier in (0x00, 0x04, 0x0A, 0x10, 0x14, 0x20, 0x2B, 0x7F, 0x80, 0xFF):
            role, whole = around(packet, props(bytes([identifier]), b"\x00\x00\x00\x00"))
            fault(f"{packet}, unknown property {identifier:02x}", 5, role, whole, bad)
        role, whole = around(packet, b"\x81\x00")
        fault(f"{packet}, property length in too many bytes", 5, role, whole, bad)
        role, whole = around(packet, b"\x80\x80\x80\x80\x01")
        fault(f"{packet}, property length of five bytes", 5, role, whole, bad)
        role, whole = around(packet, b"\xff\xff\xff\x7f")
        fault(f"{packet}, property length beyond the packet", 5, role, whole, bad)
        role, whole = around(packet, props(b"\x26\x00\x02a\xff\x00\x01b"))
        fault(f"{packet}, user property name is not UTF-8", 5, role, whole, bad)
        role, whole = around(packet, props(b"\x26\x00\x01a\x00\x03\xed\xa0\x80"))
        fault(f"{packet}, user property value is a surrogate", 5, role, whole, bad)
        role, whole = around(packet, props(b"\x26\x00\x01a"))
        fault(f"{packet}, user property without a value", 5, role, whole, bad)
    for packet, identifier in [
        ("connect", 0x17),
        ("connect", 0x19),
        ("will", 0x01),
        ("publish", 0x01),
        ("connack", 0x24),
        ("connack", 0x25),
        ("connack", 0x28),
        ("connack", 0x29),
        ("connack", 0x2A),
    ]:
        for number in (2, 255):
            role, whole = around(packet, props(bytes([identifier, number])))
            name = f"{packet}, property {identifier:02x} is {number}"
            fault(name, 5, role, whole, violation)
    for packet in ("connect", "connack"):
        role, whole = around(packet, props(b"\x21\x00\x00"))
        fault(f"{packet}, receive maximum 0", 5, role, whole, violation)
        role, whole = around(packet, props(b"\x27\x00\x00\x00\x00"))
        fault(f"{packet}, maximum packet size 0", 5, role, whole, violation)
        role, whole = around(packet, props(b"\x16\x00\x01d"))
        fault(f"{packet}, authentication data without a method", 5, role, whole, violation)
    role, whole = around("auth", b"\x00")
    fault("auth without a method", 5, role, whole, violation)
    role, whole = around("auth", props(b"\x16\x00\x01d"))
    fault("auth with data, without a method", 5, role, whole, violation)
    for packet in ("publish", "will"):
        for topic in ("", "a/+", "#"):
            role, whole = around(packet, props(b"\x08", text(topic)))
            fault(f"{packet}, response topic {topic!r}", 5, role, whole, violation)
    role, whole = around("subscribe", b"\x02\x0b\x00")
    fault("subscribe, identifier 0", 5, role, whole, violation)
    role, whole = around("subscribe", b"\x03\x0b\x81\x00")
    fault("subscribe, identifier in too many bytes", 5, role, whole, bad)
    role, whole = around("subscribe", b"\x06\x0b\x80\x80\x80\x80\x01")
    fault("subscribe, identifier of five bytes", 5, role, whole, bad)
    role, whole = around("publish", b"\x02\x0b\x00")
    fault("publish, identifier 0", 5, role, whole, violation)
    for role in ROLES:
        fault(
            f"publish to a {role}, topic alias 0",
            5,
            role,
            frame(0x30, text("t"), b"\x03\x23\x00\x00"),
            TopicAliasInvalid,
        )
    fault(
        "publish to a server, identifier",
        5,
        SERVER,
        frame(0x30, text("t"), b"\x02\x0b\x01"),
        violation,
    )
    fault(
        "disconnect to a client, session expiry",
        5,
        CLIENT,
        frame(0xE0, b"\x00", props(b"\x11" + four(1))),
        violation,
    )


def publish_cases(v: int) -> None:
    for role in ROLES:
        name = f"publish to a {role}"
        for qos in (0, 1, 2):
            for retain in (False, True):
                for dup in (False, True) if qos else (False,):
                    first = 0x30 | dup << 3 | qos << 1 | retain
                    packet_id = 0x0A0B if qos else 0
                    valid(
                        f"{name}, first byte {first:02x}",
                        v,
                        role,
                        frame(first, text("a/b"), two(packet_id) if qos else b"", none(v), b"pay"),
                        Publish("a/b", b"pay", qos, retain, dup, packet_id),
                    )
        empty = frame(0x30, text("a"), none(v))
        valid(f"{name}, empty payload", v, role, empty, Publish("a", b""))
        for packet_id in (1, 255, 256, 65535):
            valid(
                f"{name}, packet id {packet_id}",
                v,
                role,
                frame(0x32, text("a"), two(packet_id), none(v)),
                Publish("a", b"", 1, packet_id=packet_id),
            )
        # The steps of the remaining length (2.1.4): payload that reaches each of them.
        for total in (127, 128, 16383, 16384, 2097151, 2097152):
            rest = total - len(text("a") + none(v))
            valid(
                f"{name}, remaining length {total}",
                v,
                role,
                frame(0x30, text("a"), none(v), bytes(rest)),
                Publish("a", bytes(rest)),
            )
        for what, string in ODD_STRINGS.items():
            valid(
                f"{name}, topic with {what}",
                v,
                role,
                frame(0x30, text(string), none(v)),
                Publish(string, b""),
            )
        for topic in ("/", "//", "a//b", " ", "$SYS/x", "t" * 65535, "/".join("abc" * 60)):
            valid(
                f"{name}, topic {topic[:12]!r}",
                v,
                role,
                frame(0x30, text(topic), none(v), b"1"),
                Publish(topic, b"1"),
            )


def publish_faults(v: int) -> None:
    bad = MalformedPacket
    for role in ROLES:
        name = f"publish to a {role}"
        for first in (0x36, 0x37, 0x3E, 0x3F):
            whole = frame(first, text("a"), two(1), none(v))
            fault(f"{name}, QoS 3 ({first:02x})", v, role, whole, bad)
        for first in (0x38, 0x39):
            whole = frame(first, text("a"), none(v))
            fault(f"{name}, DUP with QoS 0 ({first:02x})", v, role, whole, bad)
        for first in (0x32, 0x34, 0x3A, 0x3C):
            whole = frame(first, text("a"), two(0), none(v))
            fault(f"{name}, packet id 0 ({first:02x})", v, role, whole, ProtocolViolation)
        for topic in ("+", "#", "a/+/b", "a/#", "a+", "#a", "$share/g/#"):
            whole = frame(0x30, text(topic), none(v), b"p")
            fault(f"{name}, topic {topic!r}", v, role, whole, TopicNameInvalid)
        whole = frame(0x30, text(""), none(v), b"p")
        fault(f"{name}, no topic", v, role, whole, TopicNameInvalid if v < 5 else ProtocolViolation)
        for what, data in BAD_STRINGS.items():
            whole = frame(0x30, binary(data), none(v), b"p")
            fault(f"{name}, topic with {what}", v, role, whole, bad)
        body = text("ab") + two(1) + none(v)
        for cut in range(len(body)):
            fault(f"{name}, cut to {cut} bytes", v, role, frame(0x32, body[:cut]), bad)
        whole = frame(0x30, b"\x00\x04abc")
        fault(f"{name}, topic longer than the packet", v, role, whole, bad)


ACKS: list[tuple[type[Acknowledgement], int, str]] = [
    (kind, first, role)
    for kind, first in [(Puback, 0x40), (Pubrec, 0x50), (Pubrel, 0x62), (Pubcomp, 0x70)]
    for role in ROLES
]

# Tables 3-4 to 3-7.
ACK_CODES: dict[type[Acknowledgement], tuple[int, ...]] = {
    Puback: (0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99),
    Pubrec: (0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99),
    Pubrel: (0x00, 0x92),
    Pubcomp: (0x00, 0x92),
}


def acknowledgement_cases(v: int) -> None:
    bad = MalformedPacket
    for kind, first, role in ACKS:
        name = f"{kind.__name__.lower()} to a {role}"
        for packet_id in (1, 0x1234, 65535):
            valid(f"{name}, id {packet_id}", v, role, frame(first, two(packet_id)), kind(packet_id))
        fault(f"{name}, id 0", v, role, frame(first, two(0)), ProtocolViolation)
        fault(f"{name}, empty", v, role, frame(first), bad)
        fault(f"{name}, one byte", v, role, frame(first, b"\x01"), bad)
        if v < 5:
            fault(f"{name}, three bytes", v, role, frame(first, two(1), b"\x00"), bad)
            continue
        codes = ACK_CODES[kind]
        for code in range(256):
            whole = frame(first, two(1), bytes([code]))
            if code in codes:
                valid(f"{name}, code {code:02x}", v, role, whole, kind(1, code), code != 0)
            elif code % 16 in (0, 1, 2, 9) or code > 0x8F and code < 0xA4:
                fault(f"{name}, code {code:02x}", v, role, whole, ProtocolViolation)
        whole = frame(first, two(1), b"\x92\x00" if kind in (Pubrel, Pubcomp) else b"\x87\x00")
        code = whole[4]
        valid(f"{name}, empty properties", v, role, whole, kind(1, code), False)
        whole = frame(first, two(1), b"\x00\x00\x00")
        fault(f"{name}, a byte left over", v, role, whole, bad)


def connack_cases(v: int) -> None:
    bad = MalformedPacket
    tail = none(v)
    valid("connack", v, CLIENT, frame(0x20, b"\x00\x00", tail), Connack())
    if v == 3:
        whole = frame(0x20, b"\x01\x00")
        valid("connack, reserved byte", v, CLIENT, whole, Connack(), False)
    else:
        whole = frame(0x20, b"\x01\x00", tail)
        valid("connack, session present", v, CLIENT, whole, Connack(True))
        for flags in (0x02, 0x03, 0x80, 0xFF):
            whole = frame(0x20, bytes([flags, 0]), tail)
            fault(f"connack, flags {flags:02x}", v, CLIENT, whole, bad)
        whole = frame(0x20, b"\x01", b"\x05" if v < 5 else b"\x87", tail)
        fault("connack, refused and session present", v, CLIENT, whole, ProtocolViolation)
    if v == 5:
        allowed = [
            0,
            *range(0x80, 0x8B),
            0x8C,
            0x90,
            0x95,
            0x97,
            0x99,
            0x9A,
            0x9B,
            0x9C,
            0x9D,
            0x9F,
        ]
    else:
        allowed = [0, 1, 2, 3, 4, 5]
    for code in range(256):
        whole = frame(0x20, bytes([0, code]), tail)
        if code in allowed:
            valid(f"connack, code {code:02x}", v, CLIENT, whole, Connack(False, code))
        elif code < 8 or 0x7E < code < 0xA8 or code == 255:
            fault(f"connack, code {code:02x}", v, CLIENT, whole, ProtocolViolation)
    fault("connack, empty", v, CLIENT, frame(0x20), bad)
    fault("connack, one byte", v, CLIENT, frame(0x20, b"\x00"), bad)
    fault("connack, a byte left over", v, CLIENT, frame(0x20, b"\x00\x00", tail, b"\x00"), bad)
    if v == 5:
        fault("connack without properties", v, CLIENT, frame(0x20, b"\x00\x00"), bad)
    fault("connack from a client", v, SERVER, frame(0x20, b"\x00\x00", tail), ProtocolViolation)


GOOD_FILTERS = [
    "a",
    "/",
    "a/b",
    "+",
    "#",
    "+/+",
    "a/+/c",
    "a/#",
    "/#",
    "/+",
    "+/",
    "+/#",
    "$SYS/#",
    "$share/g/a",
    "$share/g//",
    "$share/g/+/#",
    "$share/$g/#",
    "$queue/a/+",
    "$queue/#",
    "$share",
    "$queue",
    "$shared/g",
    "a/$share/+",
    " ",
    BOM,
]
BAD_FILTERS = [
    "",
    "a+",
    "+a",
    "a/b+/c",
    "++",
    "#/",
    "a/#/b",
    "##",
    "a#",
    "#a",
    "a/b#",
    "+#",
    "$share/",
    "$share/g",
    "$share/g/",
    "$share//a",
    "$share/+/a",
    "$share/#/a",
    "$share/g+/a",
    "$share/g/a#",
    "$share/g/#/a",
    "$queue/",
    "$queue/a+",
    "$queue/#/b",
]


def subscribe_cases(v: int) -> None:
    bad, violation = MalformedPacket, ProtocolViolation

    def subscribe(*payload: bytes, first: int = 0x82, packet_id: int = 5) -> bytes:
        return frame(first, two(packet_id), none(v), *payload)

    for topic_filter in GOOD_FILTERS:
        valid(
            f"subscribe {topic_filter!r}",
            v,
            SERVER,
            subscribe(text(topic_filter), b"\x01"),
            Subscribe(5, [Subscription(topic_filter, 1)]),
        )
        valid(
            f"unsubscribe {topic_filter!r}",
            v,
            SERVER,
            frame(0xA2, two(5), none(v), text(topic_filter)),
            Unsubscribe(5, [topic_filter]),
        )
    for topic_filter in BAD_FILTERS:
        whole = subscribe(text(topic_filter), b"\x01")
        fault(f"subscribe {topic_filter!r}", v, SERVER, whole, TopicFilterInvalid)
        whole = frame(0xA2, two(5), none(v), text(topic_filter))
        fault(f"unsubscribe {topic_filter!r}", v, SERVER, whole, TopicFilterInvalid)
    long_filter = "f" * 65535
    valid(
        "subscribe to 65535 bytes",
        v,
        SERVER,
        subscribe(text(long_filter), b"\x00"),
        Subscribe(5, [Subscription(long_filter)]),
    )
    valid(
        "subscribe to three",
        v,
        SERVER,
        subscribe(text("a"), b"\x00", text("b"), b"\x01", text("a"), b"\x02"),
        Subscribe(5, [Subscription("a"), Subscription("b", 1), Subscription("a", 2)]),
    )
    valid(
        "unsubscribe from three",
        v,
        SERVER,
        frame(0xA2, two(5), none(v), text("a"), text("b"), text("a")),
        Unsubscribe(5, ["a", "b", "a"]),
    )
    for options in range(256):
        whole = subscribe(text("a"), bytes([options]))
        name = f"subscribe, options {options:02x}"
        handling, qos = options >> 4 & 3, options & 3
        if options < 3 or (v == 5 and options < 64 and handling < 3 and qos < 3):
            subscription = Subscription("a", qos, bool(options & 4), bool(options & 8), handling)
            valid(name, v, SERVER, whole, Subscribe(5, [subscription]))
        elif options < 70 or options in (0x80, 0xFF):
            if (v < 5 and options > 3) or options > 63:
                fault(name, v, SERVER, whole, bad)
            else:
                fault(name, v, SERVER, whole, violation)
    if v == 5:
        for topic_filter in ("$share/g/a", "$queue/a"):
            whole = subscribe(text(topic_filter), b"\x04")
            fault(f"subscribe {topic_filter!r}, no local", v, SERVER, whole, violation)
    for what, data in BAD_STRINGS.items():
        fault(f"subscribe, filter with {what}", v, SERVER, subscribe(binary(data), b"\x00"), bad)
        whole = frame(0xA2, two(5), none(v), binary(data))
        fault(f"unsubscribe, filter with {what}", v, SERVER, whole, bad)
    fault("subscribe, id 0", v, SERVER, subscribe(text("a"), b"\x00", packet_id=0), violation)
    fault("unsubscribe, id 0", v, SERVER, frame(0xA2, two(0), none(v), text("a")), violation)
    fault("subscribe to nothing", v, SERVER, subscribe(), violation)
    fault("unsubscribe from nothing", v, SERVER, frame(0xA2, two(5), none(v)), violation)
    fault("subscribe, empty", v, SERVER, frame(0x82), bad)
    fault("unsubscribe, empty", v, SERVER, frame(0xA2), bad)
    fault("subscribe without options", v, SERVER, subscribe(text("a")), bad)
    fault("subscribe, the second cut short", v, SERVER, subscribe(text("a"), b"\x00\x00"), bad)
    whole = frame(0xA2, two(5), none(v), text("a"), b"\x00")
    fault("unsubscribe, the second cut short", v, SERVER, whole, bad)
    whole = subscribe(text("a"), b"\x00")
    fault("subscribe from a server", v, CLIENT, whole, violation)
    whole = frame(0xA2, two(5), none(v), text("a"))
    fault("unsubscribe from a server", v, CLIENT, whole, violation)


def suback_cases(v: int) -> None:
    bad, violation = MalformedPacket, ProtocolViolation
    if v == 5:
        allowed = [0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2]
    else:
        allowed = [0, 1, 2, 0x80]
    whole = frame(0x90, two(5), none(v), bytes(allowed))
    valid("suback", v, CLIENT, whole, Suback(5, list(allowed)))
    for code in range(256):
        if code not in allowed and (code < 8 or 0x7E < code < 0xA8 or code == 255):
            whole = frame(0x90, two(5), none(v), bytes([0, code]))
            fault(f"suback, code {code:02x}", v, CLIENT, whole, violation)
    fault("suback without a code", v, CLIENT, frame(0x90, two(5), none(v)), violation)
    fault("suback, id 0", v, CLIENT, frame(0x90, two(0), none(v), b"\x00"), violation)
    fault("suback, empty", v, CLIENT, frame(0x90), bad)
    fault("suback from a client", v, SERVER, frame(0x90, two(5), none(v), b"\x00"), violation)
    if v == 5:
        codes = [0, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91]
        whole = frame(0xB0, two(5), b"\x00", bytes(codes))
        valid("unsuback", v, CLIENT, whole, Unsuback(5, codes))
        for code in (1, 2, 0x10, 0x81, 0x97, 0xFF):
            whole = frame(0xB0, two(5), b"\x00", bytes([code]))
            fault(f"unsuback, code {code:02x}", v, CLIENT, whole, violation)
        fault("unsuback without a code", v, CLIENT, frame(0xB0, two(5), b"\x00"), violation)
        fault("unsuback without properties", v, CLIENT, frame(0xB0, two(5)), bad)
    else:
        valid("unsuback", v, CLIENT, frame(0xB0, two(5)), Unsuback(5, []))
        fault("unsuback, a byte left over", v, CLIENT, frame(0xB0, two(5), b"\x00"), bad)
    fault("unsuback, id 0", v, CLIENT, frame(0xB0, two(0), none(v)), violation)
    fault("unsuback from a client", v, SERVER, frame(0xB0, two(5), none(v)), violation)


def short_cases(v: int) -> None:
    """PINGREQ, PINGRESP, DISCONNECT and AUTH."""
    bad, violation = MalformedPacket, ProtocolViolation
    valid("pingreq", v, SERVER, b"\xc0\x00", Pingreq())
    valid("pingresp", v, CLIENT, b"\xd0\x00", Pingresp())
    fault("pingreq from a server", v, CLIENT, b"\xc0\x00", violation)
    fault("pingresp from a client", v, SERVER, b"\xd0\x00", violation)
    fault("pingreq with a body", v, SERVER, b"\xc0\x01\x00", bad)
    fault("pingresp with a body", v, CLIENT, b"\xd0\x01\x00", bad)
    valid("disconnect", v, SERVER, b"\xe0\x00", Disconnect())
    if v < 5:
        fault("disconnect with a body", v, SERVER, b"\xe0\x01\x00", bad)
        fault("disconnect from a server", v, CLIENT, b"\xe0\x00", violation)
        for role in ROLES:
            fault(f"auth to a {role}", v, role, b"\xf0\x00", bad)
        return
    valid("disconnect from a server", v, CLIENT, b"\xe0\x00", Disconnect())
    # Table 3-10, "Sent by".
    both = [0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99]
    by_client = {0x00, 0x04, *both}
    by_server = {0x00, *both, 0x87, 0x89, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F, 0x9A, 0x9B, 0x9C, 0x9D}
    by_server |= {0x9E, 0x9F, 0xA0, 0xA1, 0xA2}
    for role, allowed in ((SERVER, by_client), (CLIENT, by_server)):
        for code in range(256):
            whole = bytes([0xE0, 1, code])
            if code in allowed:
                name = f"disconnect to a {role}, code {code:02x}"
                valid(name, v, role, whole, Disconnect(code), code != 0)
            elif code < 6 or 0x7E < code < 0xA8 or code == 255:
                fault(f"disconnect to a {role}, code {code:02x}", v, role, whole, violation)
        whole = b"\xe0\x02\x81\x00"
        valid(f"disconnect to a {role}, empty properties", v, role, whole, Disconnect(0x81), False)
        fault(f"disconnect to a {role}, byte left over", v, role, b"\xe0\x03\x81\x00\x00", bad)
    method = props(b"\x15" + text("m"))
    for role, own, other in ((SERVER, 0x19, 0x00), (CLIENT, 0x00, 0x19)):
        for code in (0x18, own):
            whole = frame(0xF0, bytes([code]), method)
            valid(f"auth to a {role}, code {code:02x}", v, role, whole, Auth(code, {0x15: "m"}))
        for code in (other, 0x01, 0x17, 0x1A, 0x80, 0x87):
            whole = frame(0xF0, bytes([code]), method)
            fault(f"auth to a {role}, code {code:02x}", v, role, whole, violation)
        fault(f"auth to a {role}, code alone", v, role, b"\xf0\x01\x18", bad)
        whole = frame(0xF0, b"\x18", method, b"\x00")
        fault(f"auth to a {role}, byte left over", v, role, whole, bad)
    valid("auth, empty", v, CLIENT, b"\xf0\x00", Auth())


SMALLEST: dict[int, tuple[str, bytes]] = {
    2: (CLIENT, b"\x00\x00"),
    4: (SERVER, b"\x00\x01"),
    5: (SERVER, b"\x00\x01"),
    6: (SERVER, b"\x00\x01"),
    7: (SERVER, b"\x00\x01"),
    8: (SERVER, b"\x00\x01\x00\x01a\x00"),
    9: (CLIENT, b"\x00\x01\x00"),
    10: (SERVER, b"\x00\x01\x00\x01a"),
    11: (CLIENT, b"\x00\x01"),
    12: (SERVER, b""),
    13: (CLIENT, b""),
    14: (SERVER, b""),
    15: (SERVER, b""),
}


def fixed_header_faults(v: int) -> None:
    """Reserved types and flags, all of them, and the remaining length."""
    bad = MalformedPacket
    for packet_type, (role, body) in SMALLEST.items():
        for flags in range(16):
            right = 2 if packet_type in (6, 8, 10) else 0
            if flags == right or (v == 3 and right == 2 and flags == 0x0A):
                continue
            whole = frame(packet_type << 4 | flags, body)
            fault(f"type {packet_type} with flags {flags:04b}", v, role, whole, bad)
    for flags in range(1, 16):
        whole = bytes([0x10 | flags]) + connect(v)[1:]
        fault(f"type 1 with flags {flags:04b}", v, SERVER, whole, bad)
    for flags in range(16):
        for role in ROLES:
            fault(f"type 0 with flags {flags:04b} to a {role}", v, role, bytes([flags, 0]), bad)
    if v == 3:
        again = frame(0x8A, two(1), text("a"), b"\x01")
        valid("subscribe with DUP", v, SERVER, again, Subscribe(1, [Subscription("a", 1)]), False)
        again = frame(0xAA, two(1), text("a"))
        valid("unsubscribe with DUP", v, SERVER, again, Unsubscribe(1, ["a"]), False)
        for role in ROLES:
            again = frame(0x6A, two(1))
            valid(f"pubrel to a {role} with DUP", v, role, again, Pubrel(1), False)
    for role in ROLES:
        five = b"\x30\x80\x80\x80\x80\x01" + text("a") + none(v)
        fault(f"remaining length of five bytes to a {role}", v, role, five, bad)
        endless = b"\x30\xff\xff\xff\xff\xff"
        fault(f"remaining length without an end to a {role}", v, role, endless, bad)
    padded = [b"\xc0\x80\x00", b"\xc0\x80\x80\x00", b"\xc0\x80\x80\x80\x00"]
    for wire in padded:
        name = f"remaining length in {len(wire) - 1} bytes for one"
        if v == 5:
            fault(name, v, SERVER, wire, bad)
        else:
            # Only 5.0 asks for the shortest form, and small devices pad.
            valid(name, v, SERVER, wire, Pingreq(), False)
    whole = connect(v)
    wire = whole[:1] + bytes([whole[1] | 0x80, 0x00]) + whole[2:]
    if v == 5:
        fault("connect, remaining length in two bytes for one", v, SERVER, wire, bad)
    else:
        name = "connect, remaining length in two bytes for one"
        valid(name, v, SERVER, wire, Connect("c", v, NAMES[v]), False)


for _version in VERSIONS:
    connect_cases(_version)
    connect_faults(_version)
    connack_cases(_version)
    publish_cases(_version)
    publish_faults(_version)
    acknowledgement_cases(_version)
    subscribe_cases(_version)
    suback_cases(_version)
    short_cases(_version)
    fixed_header_faults(_version)
protocol_cases()
property_cases()
property_faults()

VALID: list[Case] = [case for case in CASES if case.packet is not None]
FAULTS: list[Case] = [case for case in CASES if case.error is not None]
