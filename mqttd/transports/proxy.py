"""The PROXY protocol, versions 1 and 2: the client's address as a load balancer knows it.

    PROXY TCP4 192.0.2.7 198.51.100.1 51234 8883\\r\\n                              (version 1)
    signature 12 | version+command 1 | family 1 | length 2 | addresses | TLVs       (version 2)

Believed only from the networks the listener names (`proxy_protocol`); there it is required, and
everything before its end belongs to it. Version 2 can carry what the proxy saw of TLS: the common
name of a client certificate counts if the proxy says that it was shown and verified.

Promise: at most `MAX_HEADER` bytes are kept; whatever comes, `parse_header` returns a header, None
for "more", or raises `ProxyError` and nothing else.

Specification: https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt
"""

from __future__ import annotations

import socket
from typing import Any, Final

from mqttd.codec.sniff import looks_like
from mqttd.transports.layers import Layer

__all__ = ["MAX_HEADER", "ProxyError", "ProxyHeader", "ProxyLayer", "parse_header"]

#: A header longer than this is refused; haproxy's stay below 600 bytes.
MAX_HEADER: Final = 4096

_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_V1_LONGEST: Final = 107
_LOCAL: Final = 0x20
_PROXY: Final = 0x21
_TLV_SSL: Final = 0x20
_TLV_SSL_CN: Final = 0x22
_CERT_SHOWN: Final = 0x06  # on this connection, or on the one the TLS session began with


class ProxyError(ValueError):
    """What came is no PROXY header; the text says why."""


class ProxyHeader:
    """What a header says. `size` is its length; `host` is empty where it names no client."""

    def __init__(self, size: int, host: str, port: int, common_name: str | None) -> None:
        self.size = size
        self.host = host
        self.port = port
        self.common_name = common_name


class ProxyLayer(Layer):
    """Takes the header away; `identify(header)` makes a `PeerIdentity` of it."""

    def __init__(self, identify: Any) -> None:
        super().__init__()
        self.identify: Any = identify
        self.buffer: bytes = b""
        self.known: object | None = None
        self.shaking = True

    def received(self, data: bytes) -> bytes:
        """Bytes from the proxy; returns those behind the header."""
        if self.done:
            return data
        buffer = self.buffer + data
        try:
            header = parse_header(buffer)
        except ProxyError as error:
            self.ended = str(error)
            return b""
        if header is None:
            self.buffer = buffer
            return b""
        self.buffer = b""
        self.known = self.identify(header)
        self.shaking = False
        self.done = True
        return buffer[header.size :]

    def sent(self, data: bytes) -> bytes:
        """Nothing of this layer goes to the peer."""
        return data

    def identity(self) -> object | None:
        """The client as the proxy sees it."""
        return self.known


def parse_header(data: bytes) -> ProxyHeader | None:
    """The header that `data` begins with, or None if it is not complete. Raises `ProxyError`."""
    if data[:12] == _SIGNATURE[: len(data)]:
        return _version_2(data) if len(data) >= 16 else None
    if data[:6] == b"PROXY "[: len(data)]:
        return _version_1(data)
    seen = looks_like(data) or f"bytes that begin with {data[:4].hex(' ')}"
    raise ProxyError(f"expected a PROXY protocol header, got {seen}")


def _version_1(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, _V1_LONGEST)
    if end < 0:
        if len(data) >= _V1_LONGEST:
            raise ProxyError("PROXY header without an end")
        return None
    try:
        words = data[:end].decode("ascii").split(" ")
    except UnicodeDecodeError:
        raise ProxyError("PROXY header that is not ASCII") from None
    if len(words) >= 2 and words[1] == "UNKNOWN":
        return ProxyHeader(end + 2, "", 0, None)
    if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
        raise ProxyError("PROXY header of an unknown form")
    family = socket.AF_INET if words[1] == "TCP4" else socket.AF_INET6
    host = _text_address(family, words[2])
    _text_address(family, words[3])
    port = _port(words[4])
    _port(words[5])
    return ProxyHeader(end + 2, host, port, None)


def _text_address(family: int, text: str) -> str:
    try:
        return socket.inet_ntop(family, socket.inet_pton(family, text))
    except (OSError, ValueError):
        raise ProxyError("PROXY header with an address that is none") from None


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 65535):
        raise ProxyError("PROXY header with a port that is none")
    return int(text)


def _version_2(data: bytes) -> ProxyHeader | None:
    command: int = data[12]
    family: int = data[13]
    length: int = data[14] << 8 | data[15]
    size = 16 + length
    if command != _LOCAL and command != _PROXY:
        raise ProxyError(f"PROXY header with version and command 0x{command:02x}")
    if size > MAX_HEADER:
        raise ProxyError(f"PROXY header of {size} bytes, at most {MAX_HEADER} are taken")
    if len(data) < size:
        return None
    if command == _LOCAL:
        return ProxyHeader(size, "", 0, None)
    if family == 0x11:
        width = 4
        kind = int(socket.AF_INET)
    elif family == 0x21:
        width = 16
        kind = int(socket.AF_INET6)
    else:
        # UDP and Unix sockets have no address that is of use here.
        skip = 216 if family >> 4 == 3 else 0
        if length < skip:
            raise ProxyError("PROXY header too short for its addresses")
        return ProxyHeader(size, "", 0, _common_name(data[16 + skip : size]))
    addresses = 2 * width + 4
    if length < addresses:
        raise ProxyError("PROXY header too short for its addresses")
    host = socket.inet_ntop(kind, data[16 : 16 + width])
    at = 16 + 2 * width
    port = data[at] << 8 | data[at + 1]
    return ProxyHeader(size, host, port, _common_name(data[16 + addresses : size]))


def _common_name(tlvs: bytes) -> str | None:
    """The common name of the certificate that the proxy has verified."""
    for kind, value in _tlvs(tlvs):
        if kind != _TLV_SSL:
            continue
        if len(value) < 5:
            raise ProxyError("PROXY header with a cut TLS part")
        shown = value[0] & _CERT_SHOWN
        verified = value[1:5] == b"\0\0\0\0"
        for inner, text in _tlvs(value[5:]):
            if inner == _TLV_SSL_CN and shown and verified:
                try:
                    return text.decode()
                except UnicodeDecodeError:
                    raise ProxyError("PROXY header with a common name not in UTF-8") from None
    return None


def _tlvs(data: bytes) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    pos = 0
    while pos < len(data):
        if pos + 3 > len(data):
            raise ProxyError("PROXY header with a cut TLV")
        kind: int = data[pos]
        end = pos + 3 + (data[pos + 1] << 8 | data[pos + 2])
        if end > len(data):
            raise ProxyError("PROXY header with a cut TLV")
        found.append((kind, data[pos + 3 : end]))
        pos = end
    return found
