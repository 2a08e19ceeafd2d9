"""What waits in the output of a channel, as the system takes it.

    out   [small, small, LARGE, small, LARGE, ...]      out_at: bytes of the first that are written
    take  [joined,       LARGE, small]                  one write, or one writev
    give_back                                           what it did not take, not copied

Small pieces are joined, because that is cheaper than to tell the kernel of each; large ones go as
they are, so that two receivers of a megabyte share its bytes, and a head that differs is a piece
of its own. What a short write leaves is remembered as an offset.

Promise: `out` and `out_at` say what is not written, `out_bytes` how much that is; no byte of a
piece from `LARGE` on is copied on its way to the kernel.
"""

from __future__ import annotations

from typing import Final

from mqttd.session.ground.connection import Connection

__all__ = ["GATHER", "LARGE", "gather", "give_back", "take"]

#: Bytes of one write, when more waits.
GATHER: Final = 262144
#: Bytes from which on a piece is not joined with others.
LARGE: Final = 8192


def take(channel: Connection, most: int = GATHER) -> list[bytes]:
    """Take what the next write is given, a bounded part; the first piece begins at `out_at`."""
    out = channel.out
    if out is None or channel.corked:
        return []
    if len(out) == 1:
        channel.out = None
        return out
    if channel.out_bytes < LARGE and channel.out_at == 0:
        channel.out = None
        return [b"".join(out)]
    pieces: list[bytes] = []
    small: list[bytes] = []
    size: int = -channel.out_at
    count = 0
    for piece in out:
        count += 1
        size += len(piece)
        if len(piece) < LARGE and (count > 1 or channel.out_at == 0):
            small.append(piece)
        else:
            if small:
                pieces.append(small[0] if len(small) == 1 else b"".join(small))
                small = []
            pieces.append(piece)
        if size >= most:
            break
    if small:
        pieces.append(small[0] if len(small) == 1 else b"".join(small))
    if count == len(out):
        channel.out = None
    else:
        del out[:count]
    return pieces


def give_back(channel: Connection, pieces: list[bytes], written: int) -> None:
    """After a write of what `take` gave: so many bytes of it have gone, the others wait."""
    channel.out_bytes -= written
    at: int = channel.out_at
    at += written
    done = 0
    for piece in pieces:
        if at < len(piece):
            break
        at -= len(piece)
        done += 1
    channel.out_at = at
    if done == len(pieces):
        return
    left = pieces[done:] if done else pieces
    out = channel.out
    channel.out = left if out is None else left + out


def gather(channel: Connection) -> bytes:
    """Take what waits as one piece, a bounded part of it, for those who cannot take several."""
    pieces = take(channel)
    if not pieces:
        return b""
    at: int = channel.out_at
    if at:
        channel.out_at = 0
        pieces[0] = pieces[0][at:]
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
