"""The PROXY header, both versions: what it says, cut anywhere, and what is refused."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.transports.proxy import MAX_HEADER, ProxyError, ProxyHeader, ProxyLayer, parse_header

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def tlv(kind: int, value: bytes) -> bytes:
    return bytes((kind,)) + len(value).to_bytes(2, "big") + value


def version_2(family: int, addresses: bytes, tlvs: bytes = b"", command: int = 0x21) -> bytes:
    body = addresses + tlvs
    return SIGNATURE + bytes((command, family)) + len(body).to_bytes(2, "big") + body


def four(host: str = "192.0.2.7", port: int = 40000) -> bytes:
    return (
        ipaddress.ip_address(host).packed
        + ipaddress.ip_address("198.51.100.1").packed
        + port.to_bytes(2, "big")
        + (1883).to_bytes(2, "big")
    )


def ssl_tlv(client: int = 0x07, verify: int = 0, name: bytes = b"device-7") -> bytes:
    return tlv(0x20, bytes((client,)) + verify.to_bytes(4, "big") + tlv(0x21, b"TLSv1.3")
               + tlv(0x22, name))  # fmt: skip


def read(data: bytes) -> ProxyHeader:
    header = parse_header(data)
    assert header is not None
    return header


@pytest.mark.parametrize(
    ("data", "host", "port"),
    [
        (b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 1883\r\n", "192.0.2.7", 40000),
        (b"PROXY TCP6 2001:db8::7 ::1 1 2\r\n", "2001:db8::7", 1),
        (b"PROXY UNKNOWN\r\n", "", 0),
        (b"PROXY UNKNOWN ffff:f:f ffff 65535 65535\r\n", "", 0),
        (version_2(0x11, four()), "192.0.2.7", 40000),
        (version_2(0x21, bytes(15) + b"\x07" + bytes(16) + b"\x9c\x40\0\1"), "::7", 40000),
        (version_2(0x00, b""), "", 0),
        (version_2(0x31, bytes(216)), "", 0),
        (version_2(0x11, four(), command=0x20), "", 0),
    ],
)
def test_headers_name_the_client(data: bytes, host: str, port: int) -> None:
    """Whole, with MQTT behind it, and not before its last byte has come."""
    header = read(data + b"\x10\x00")
    assert (header.host, header.port, header.size) == (host, port, len(data))
    assert all(parse_header(data[:cut]) is None for cut in range(len(data)))


def test_the_common_name_counts_when_shown_and_verified() -> None:
    def name(*parts: bytes) -> str | None:
        return read(version_2(0x11, four(), b"".join(parts))).common_name

    assert name(tlv(4, b"noop"), ssl_tlv()) == "device-7"
    assert name(ssl_tlv(client=0x05)) == "device-7"  # with the session
    assert name(ssl_tlv(client=0x01)) is None  # TLS, but no certificate
    assert name(ssl_tlv(verify=1)) is None  # not verified
    assert name(tlv(2, b"host.example")) is None


@pytest.mark.parametrize(
    "data",
    [
        b"\x10\x0c\0\4MQTT",
        b"GET / HTTP/1.1\r\n",
        b"PROXY " + b"x" * 110,
        b"PROXY TCP4 192.0.2.7\r\n",
        b"PROXY TCP4 192.0.2.256 1.1.1.1 1 2\r\n",
        b"PROXY TCP4 ::1 ::1 1 2\r\n",
        b"PROXY TCP4 192.0.2.7 1.1.1.1 65536 2\r\n",
        b"PROXY TCP4 192.0.2.7 1.1.1.1 -1 2\r\n",
        b"PROXY UDP4 192.0.2.7 1.1.1.1 1 2\r\n",
        b"PROXY TCP4  192.0.2.7 1.1.1.1 1 2\r\n",
        b"PROXY TCP4 192.0.2.\xff 1.1.1.1 1 2\r\n",
        version_2(0x11, four(), command=0x22),
        version_2(0x11, four(), command=0x11),
        version_2(0x11, b"abc"),
        version_2(0x31, bytes(215)),
        version_2(0x11, four(), b"\x01"),
        version_2(0x11, four(), b"\x01\xff\xff"),
        version_2(0x11, four(), tlv(0x20, b"\x07")),
        version_2(0x11, four(), ssl_tlv(name=b"\xff\xfe")),
        SIGNATURE + b"\x21\x11" + (MAX_HEADER).to_bytes(2, "big"),
    ],
)
def test_what_is_no_header_is_refused(data: bytes) -> None:
    with pytest.raises(ProxyError):
        parse_header(data)


@given(st.binary(max_size=200))
def test_nothing_else_is_ever_raised(data: bytes) -> None:
    for start in (data, b"PROXY " + data, version_2(0x11, four(), data), SIGNATURE + data):
        try:
            parse_header(start)
        except ProxyError:
            pass


def test_the_layer_hands_on_what_is_behind_the_header() -> None:
    layer = ProxyLayer(lambda header: (header.host, header.port))
    data = version_2(0x11, four()) + b"MQTT"
    assert b"".join(layer.received(data[i : i + 1]) for i in range(len(data) - 3)) == b"M"
    assert layer.done and not layer.shaking
    assert layer.identity() == ("192.0.2.7", 40000)
