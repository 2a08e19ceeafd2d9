"""TLS records between a socket and what is above, by the standard library's `ssl.MemoryBIO`.

Measured beside the alternatives (docs/design/transports.md): pyOpenSSL on the descriptor needs two
reads per record, Twisted's own TLS transport three times the CPU. Certificates and what is asked of
a client live in `mqttd.transports.tls`.

Promise: a chunk that holds one record costs one call of OpenSSL to read it, and no exception; a
flush costs one to write it. OpenSSL's object of a connection, 30 KiB and more, is made when its
first record is whole and looks like TLS: whoever connects and says nothing, or half a ClientHello,
gets none. Who sends records that bring nothing is not listened to for long: a KeyUpdate of 27 bytes
costs up to 40 us, so that a read full of them would keep everybody waiting for 90 ms.
"""

from __future__ import annotations

import ssl
from typing import Any, Final

from mqttd.codec.sniff import looks_like
from mqttd.transports.layers import Layer

__all__ = ["TlsLayer"]

#: The most that one read gives: OpenSSL hands out one record at a time.
_RECORD: Final = 16384
_HANDSHAKE: Final = 0x16
#: What OpenSSL's object of a connection takes with its buffers, measured.
_OBJECT: Final = 48 * 1024
#: Of a record: type, version, length.
_HEADER: Final = 5
#: What a record takes beside what is in it.
_WRAPPED: Final = 30
#: A unit of a turn's work is so many records, as a power of two.
_UNIT: Final = 1
#: Bytes that OpenSSL is given at once, which it cannot be stopped in.
_SLICE: Final = 2 * _RECORD
#: Bytes that may come in a row and bring none: a record whose end has not come, and some more.
_EMPTY: Final = _RECORD + _RECORD // 2


class TlsLayer(Layer):
    """The server's end of one TLS connection.

    `context` is an `ssl.SSLContext`; `identify(ssl_object)` gives the `PeerIdentity` of a client
    that has shown a certificate.
    """

    def __init__(self, context: Any, identify: Any) -> None:
        super().__init__()
        self.identify: Any = identify
        #: What the connection began with; None once its `session` is made.
        self.context: Any = context
        #: The beginning of its first record, until all of that is there.
        self.hello: bytes = b""
        self.incoming: Any = None
        self.outgoing: Any = None
        self.session: Any = None
        #: What `session` passes every call on to, without the detour through Python.
        self.openssl: Any = None
        self.shaking = True
        self.costly = True
        self.known: object | None = None
        #: Bytes that came beside what they brought.
        self.empty: int = 0

    def received(self, data: bytes) -> bytes:
        """Records from the peer; returns the plain bytes in them."""
        if self.context is not None:
            if not self.begun:
                self.begun = True
                if data[0] != _HANDSHAKE:
                    seen = looks_like(data) or f"bytes that begin with {data[:4].hex(' ')}"
                    self.ended = f"expected TLS, got {seen}"
                    return b""
            if self.hello:
                data = self.hello + data
            if len(data) < _HEADER or len(data) < _HEADER + (data[3] << 8 | data[4]):
                self.hello = data
                if len(data) > _HEADER + _RECORD:
                    self.ended = "TLS: record too long"
                return b""
            self.hello = b""
            self._begin()
        if len(data) <= _SLICE:
            return self._open(data)
        plain: list[bytes] = []
        for at in range(0, len(data), _SLICE):
            plain.append(self._open(data[at : at + _SLICE]))
            if self.ended:
                break
        return b"".join(plain)

    def _open(self, data: bytes) -> bytes:
        """A part of what has come; returns the plain bytes in it."""
        self.incoming.write(data)
        if self.shaking:
            if not self._shake():
                return b""
            data = b""  # the handshake, or most of it
        openssl = self.openssl
        records: list[bytes] = []
        # A record is larger than what is in it: mostly this is room enough, and soon given back.
        room = len(data) if 0 < len(data) < _RECORD else _RECORD
        try:
            while True:
                more: bytes = openssl.read(room)
                if not more:
                    self._end()
                    break
                records.append(more)
                if not self.incoming.pending and (len(more) < room or not openssl.pending()):
                    break
                room = _RECORD
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._end()
        except (ssl.SSLError, OSError, ValueError) as error:
            self.ended = f"TLS: {_reason(error)}"
        self._take()
        self.work += len(records) >> _UNIT
        plain = records[0] if len(records) == 1 else b"".join(records)
        empty = self.empty + len(data) - len(plain) - _WRAPPED * len(records)
        self.empty = empty if empty > 0 else 0
        if empty > _EMPTY and not self.ended:
            self.ended = "TLS: records without data"
        return plain

    def _end(self) -> None:
        """close_notify: since TLS 1.3 it ends one direction alone (RFC 8446, 6.1)."""
        self.ended = "closed by the client"
        self.half = self.session.version() == "TLSv1.3"

    def _begin(self) -> None:
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.session = self.context.wrap_bio(self.incoming, self.outgoing, True)
        self.openssl = getattr(self.session, "_sslobj", None) or self.session
        self.context = None

    def _shake(self) -> bool:
        """A step of the handshake; says whether it is done."""
        try:
            self.openssl.do_handshake()
        except ssl.SSLWantReadError:
            self._take()
            return False
        except (ssl.SSLError, OSError, ValueError) as error:
            self.ended = f"TLS handshake failed: {_reason(error)}"
            self._take()
            return False
        self.shaking = False
        self.costly = False
        self.known = self.identify(self.session)
        return True

    def _take(self) -> None:
        if self.outgoing.pending:
            self.answer += self.outgoing.read()

    def holding(self) -> int:
        """OpenSSL's object, or what there is of a ClientHello."""
        return len(self.hello) if self.session is None else _OBJECT

    def sent(self, data: bytes) -> bytes:
        """Plain bytes as records."""
        if data:
            self.openssl.write(data)
        records: bytes = self.outgoing.read()
        return records

    def closing(self) -> bytes:
        """The close_notify alert."""
        if self.session is None:
            return b""
        try:
            self.session.unwrap()
        except (ssl.SSLError, OSError, ValueError):
            pass
        last: bytes = self.outgoing.read()
        return last

    def identity(self) -> object | None:
        """What the client's certificate says."""
        return self.known


def _reason(error: Exception) -> str:
    """OpenSSL's reason in plain words: `peer did not return a certificate`."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, str) and reason:
        text = reason.replace("_", " ").lower()
        detail = getattr(error, "verify_message", None)
        return f"{text}: {detail}" if detail else text
    return str(error)
