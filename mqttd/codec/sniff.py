"""What the first bytes of a connection look like, when they are not what the port expects.

One clear line in the log instead of "malformed packet": an HTTP request on 1883, a TLS hello on a
plain port, MQTT on a TLS port. Only looked at when a connection has failed already.
"""

from __future__ import annotations

from typing import Final

__all__ = ["looks_like"]

_METHODS: Final = (
    b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"CONNECT ",
    b"TRACE ", b"PRI ",
)  # fmt: skip
_PROXY_V2: Final = b"\r\n\r\n\x00\r\nQUIT\n"


def looks_like(data: bytes) -> str:
    """What protocol `data`, the beginning of a connection, belongs to; empty when unknown.

    >>> looks_like(b"GET / HTTP/1.1")
    'an HTTP request'
    >>> looks_like(bytes.fromhex("16030100f8"))
    'TLS'
    """
    if data.startswith(_METHODS):
        return "an HTTP request"
    if data[:2] == b"\x16\x03":
        return "TLS"
    if data[:1] == b"\x10" and (b"\x00\x04MQTT" in data[:12] or b"\x00\x06MQIsdp" in data[:14]):
        return "an MQTT CONNECT"
    if data.startswith(b"PROXY ") or (len(data) >= 5 and data[:12] == _PROXY_V2[: len(data)]):
        return "a PROXY protocol header"
    if data.startswith(b"SSH-"):
        return "SSH"
    return ""
