"""WebSocket frames, server side: what carries MQTT once the HTTP upgrade is done.

    0 1 2 3 4 5 6 7   8  9..15    16..31/79     4 bytes
    F R R R opcode    M  length   more length   mask      payload ...

Payload bytes of binary frames are handed on as they come: MQTT does not care for frame borders, so
half a packet in a frame, or two, or one byte, are all the same, and no frame is ever collected.
The frames of one chunk are unmasked together. Each flush of the broker is one binary frame.
permessage-deflate is never agreed to.

Frames may be empty, and 64 KiB hold 10,900 of those: of more than `FRAMES` at once the bytes behind
them are put off, for later turns (`behind`).

Promise: at most 14 bytes of a header and 125 of a control frame are kept, beside what is put off,
which is never more than came at once; what a chunk of pings is answered is shorter than the chunk,
and made once. What breaks RFC 6455 is answered with a close frame and its code: 1002 for the
framing, 1003 for text (MQTT-6.0.0-1).
"""

from __future__ import annotations

from typing import Any, Final

from mqttd.codec.scan import is_utf8
from mqttd.transports.layers import Layer

__all__ = [
    "CLOSE_NORMAL",
    "FRAMES",
    "WebSocketLayer",
    "close_frame",
    "frame_header",
    "stretched",
    "unmask",
    "unmask_long",
]

CLOSE_NORMAL: Final = 1000
_PROTOCOL_ERROR: Final = 1002
_UNSUPPORTED: Final = 1003

#: Frames that are taken in one step, some 0.06 microseconds each: a read full of ordinary messages
#: has no more. A control frame counts for as many as it costs.
FRAMES: Final = 3200
_CONTROL: Final = 3
#: A unit of a turn's work is so many frames, as a power of two.
_UNIT: Final = 3
#: Bytes from which on a piece is unmasked by itself.
_LONG: Final = 2048

_CONTINUATION: Final = 0
_TEXT: Final = 1
_BINARY: Final = 2
_CLOSE: Final = 8
_PING: Final = 9
_PONG: Final = 10
#: Headers of short binary frames that are whole messages, by the length of the payload.
_HEADERS: Final[list[bytes]] = [bytes((0x82, n)) for n in range(126)]


class WebSocketLayer(Layer):
    """The HTTP upgrade by `upgrade` (see `mqttd.transports.websocket.Upgrade`), then frames."""

    def __init__(self, upgrade: Any) -> None:
        super().__init__()
        self.upgrade: Any = upgrade
        self.shaking = upgrade is not None
        #: A header that is not complete.
        self.head: bytes = b""
        #: Payload bytes of the current frame still to come.
        self.left: int = 0
        self.opcode: int = 0
        #: The next frame must continue a message.
        self.inside: bool = False
        self.mask: bytes = b""
        #: Payload of a control frame, as far as it has come.
        self.control: bytes = b""
        #: Answers to the pings of one chunk.
        self.pongs: list[bytes] = []
        self.closed: bool = False

    def received(self, data: bytes) -> bytes:
        """Bytes from the peer, or none to go on; returns the payload of binary frames in them."""
        if self.upgrade is not None:
            data = self._upgrade(data)
            if not data or self.upgrade is not None:
                return b""
        if self.closed:
            return b""
        if self.behind and data:
            self.behind += data  # of a transport that gives what it had when it was paused
            return b""
        if self.behind:
            data = self.behind
            self.behind = b""
        if self.head:
            data = self.head + data
            self.head = b""
        n = len(data)
        pos = 0
        count = 0
        #: Masked payload, and the masks that lie over it.
        pieces: list[bytes] = []
        masks: list[bytes] = []
        before = b""
        while pos < n:
            if self.left == 0:
                if count >= FRAMES:
                    self.behind = data[pos:]
                    break
                if not self.inside:
                    # Whole short messages, which is what most frames are.
                    while n - pos >= 6 and data[pos] == 0x82 and count < FRAMES:
                        size = data[pos + 1] - 0x80
                        if size < 0 or size > 125 or pos + 6 + size > n:
                            break
                        start = pos + 6
                        mask = data[pos + 2 : start]
                        if size != 4:
                            mask = mask * ((size + 3) >> 2)
                            if size & 3:
                                mask = mask[:size]
                        pos = start + size
                        count += 1
                        masks.append(mask)
                        pieces.append(data[start:pos])
                    if pos == n or count >= FRAMES:
                        continue
                size = self._header(data, pos, n)
                if size == 0:
                    self.head = data[pos:]
                    break
                if size < 0:
                    break
                pos += size
                count += 1 if self.opcode < _CLOSE else _CONTROL
                if self.left == 0 and self.opcode >= _CLOSE and not self._control():
                    break
                continue
            end = pos + self.left
            if end > n:
                end = n
            piece = data[pos:end]
            taken = end - pos
            begun = self.mask
            self.left -= taken
            pos = end
            if self.left:
                turn = taken & 3
                if turn:
                    self.mask = self.mask[turn:] + self.mask[:turn]
            if self.opcode >= _CLOSE:
                self.control += unmask(piece, stretched(begun, taken))
                if self.left == 0 and not self._control():
                    break
            elif taken >= _LONG:
                before += _together(pieces, masks) + unmask_long(piece, begun)
                pieces = []
                masks = []
            else:
                pieces.append(piece)
                masks.append(stretched(begun, taken))
        self.work += count >> _UNIT
        if self.pongs:
            self._pong()
        if before:
            return before + _together(pieces, masks)
        return _together(pieces, masks)

    def _header(self, data: bytes, pos: int, n: int) -> int:
        """Read a frame header at `pos`: its size, 0 for more, -1 for a fault."""
        if n - pos < 2:
            return 0
        first: int = data[pos]
        length: int = data[pos + 1]
        opcode: int = first & 0x0F
        if first & 0x70:
            return self._fail(_PROTOCOL_ERROR, "reserved bits in a frame")
        if not length & 0x80:
            return self._fail(_PROTOCOL_ERROR, "a frame without a mask")
        length &= 0x7F
        if opcode >= _CLOSE:
            if opcode > _PONG:
                return self._fail(_PROTOCOL_ERROR, f"frame with opcode {opcode}")
            if not first & 0x80 or length > 125:
                return self._fail(_PROTOCOL_ERROR, "a control frame in pieces or too long")
        elif opcode == _TEXT:
            return self._fail(_UNSUPPORTED, "a text frame")
        elif opcode > _BINARY:
            return self._fail(_PROTOCOL_ERROR, f"frame with opcode {opcode}")
        elif (opcode == _CONTINUATION) != self.inside:
            return self._fail(_PROTOCOL_ERROR, "frames of a message out of order")
        size = 6
        if length == 126:
            size = 8
            if n - pos < size:
                return 0
            length = data[pos + 2] << 8 | data[pos + 3]
            if length < 126:
                return self._fail(_PROTOCOL_ERROR, "a frame length longer than it needs to be")
        elif length == 127:
            size = 14
            if n - pos < size:
                return 0
            length = int.from_bytes(data[pos + 2 : pos + 10], "big")
            if length < 65536 or length >> 63:
                return self._fail(_PROTOCOL_ERROR, "a frame length that is not allowed")
        elif n - pos < size:
            return 0
        if opcode < _CLOSE:
            self.inside = not first & 0x80
        self.opcode = opcode
        self.left = length
        self.mask = data[pos + size - 4 : pos + size]
        return size

    def _control(self) -> bool:
        """A whole control frame has come; False ends the connection."""
        body = self.control
        self.control = b""
        if self.opcode == _PING:
            self.pongs.append(bytes((0x80 | _PONG, len(body))) + body)
            return True
        if self.opcode == _PONG:
            return True
        code = CLOSE_NORMAL
        if body:
            code = body[0] << 8 | body[1] if len(body) > 1 else 0
            if not valid_close(code) or not is_utf8(body[2:]):
                return self._fail(_PROTOCOL_ERROR, "a close frame that is not allowed") > 0
        self.closed = True
        self._pong()
        self.answer += close_frame(code)
        self.ended = f"WebSocket closed by the client ({code})"
        return False

    def _pong(self) -> None:
        """Answer the pings of this chunk, all at once: ten thousand fit into a read."""
        self.answer += b"".join(self.pongs)
        self.pongs = []

    def _fail(self, code: int, reason: str) -> int:
        self.closed = True
        self._pong()
        self.answer += close_frame(code)
        self.ended = f"WebSocket: {reason}"
        return -1

    def _upgrade(self, data: bytes) -> bytes:
        """The HTTP request; returns the bytes behind it once the WebSocket is open."""
        upgrade = self.upgrade
        upgrade.received(data)
        self.answer += upgrade.take()
        if upgrade.open:
            self.upgrade = None
            self.shaking = False
            rest: bytes = upgrade.rest()
            return rest
        if upgrade.ended:
            self.ended = upgrade.ended
            self.closed = True
        return b""

    def sent(self, data: bytes) -> bytes:
        """One binary frame; nothing may follow a close frame."""
        if self.closed:
            return b""
        return frame_header(len(data)) + data

    def closing(self) -> bytes:
        """A close frame, unless there was one."""
        if self.closed:
            return b""
        self.closed = True
        return close_frame(CLOSE_NORMAL)


def _together(pieces: list[bytes], masks: list[bytes]) -> bytes:
    """The pieces without their masks."""
    if not pieces:
        return b""
    if len(pieces) == 1:
        return unmask(pieces[0], masks[0])
    return unmask(b"".join(pieces), b"".join(masks))


def stretched(mask: bytes, size: int) -> bytes:
    """The four bytes of `mask` again and again, `size` in all."""
    return (mask * ((size + 3) >> 2))[:size]


def unmask_long(data: bytes, mask: bytes) -> bytes:
    """`data` with the four bytes of `mask` laid over it again and again, by Autobahn's C part.

    Calling it costs 3 us and hardly more for 64 KiB, which take 120 here.
    """
    from autobahn.websocket import xormasker

    native: Any = xormasker
    if not native.USES_NVX:
        return unmask(data, stretched(mask, len(data)))
    return bytes(native.create_xor_masker(mask, len(data)).process(data))


def unmask(data: bytes, mask: bytes) -> bytes:
    """`data` with `mask` laid over it, which is as long."""
    laid = int.from_bytes(data, "little") ^ int.from_bytes(mask, "little")
    return laid.to_bytes(len(data), "little")


def frame_header(length: int) -> bytes:
    """Header of an unmasked binary frame that is a whole message."""
    if length < 126:
        return _HEADERS[length]
    if length < 65536:
        return b"\x82\x7e" + length.to_bytes(2, "big")
    return b"\x82\x7f" + length.to_bytes(8, "big")


def close_frame(code: int) -> bytes:
    """A close frame with a code and no text."""
    return bytes((0x80 | _CLOSE, 2, code >> 8, code & 0xFF))


def valid_close(code: int) -> bool:
    """Whether a peer may send this close code (RFC 6455, 7.4)."""
    return 3000 <= code < 5000 or 1000 <= code <= 1003 or 1007 <= code <= 1014
