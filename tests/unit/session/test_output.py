"""Output in one write or several, and what a short write leaves."""

from __future__ import annotations

import random

import pytest

from mqttd.session.channel.channel import Channel
from mqttd.session.ground.output import GATHER, LARGE, gather, give_back, take
from tests.support.memory import MemoryBroker


def channel_with(*pieces: bytes) -> Channel:
    channel = MemoryBroker().connect("c").channel
    channel.out = list(pieces) or None
    channel.out_bytes = sum(map(len, pieces))
    return channel


def taken(channel: Channel) -> list[bytes]:
    """What `take` gives, and what of it a write would see."""
    at = channel.out_at
    pieces = take(channel)
    return [pieces[0][at:], *pieces[1:]] if pieces else []


def waits(channel: Channel) -> bytes:
    return b"".join(channel.out or [])[channel.out_at :]


MIXED = (b"a" * 10, b"b" * 5, b"C" * LARGE, b"d" * 7, b"E" * (LARGE + 3), b"f", b"g" * 100)
SIZE = sum(map(len, MIXED))
EDGES = [sum(map(len, MIXED[:n])) for n in range(len(MIXED) + 1)]
OFFSETS = sorted(
    {at + by for at in EDGES for by in (-2, -1, 0, 1, 2) if 0 <= at + by <= SIZE}
    | set(range(0, SIZE, 1999))
)


def test_small_pieces_are_joined_and_large_ones_are_not_copied() -> None:
    channel = channel_with(*MIXED)
    pieces = take(channel)
    assert pieces == [MIXED[0] + MIXED[1], MIXED[2], MIXED[3], MIXED[4], MIXED[5] + MIXED[6]]
    assert pieces[1] is MIXED[2] and pieces[3] is MIXED[4]
    assert channel.out is None


@pytest.mark.parametrize("written", OFFSETS)
def test_a_short_write_leaves_the_rest_whole_and_uncopied(written: int) -> None:
    channel = channel_with(*MIXED)
    pieces = take(channel)
    give_back(channel, pieces, written)
    assert channel.out_bytes == SIZE - written
    assert waits(channel) == b"".join(MIXED)[written:]
    assert (channel.out is None) == (written == SIZE)
    for piece in channel.out or []:
        assert any(piece is one for one in pieces)
    if channel.out is None:
        assert channel.out_at == 0


@pytest.mark.parametrize("size", [1, 40, LARGE, 3 * GATHER])
def test_one_piece_and_every_offset(size: int) -> None:
    piece = random.Random(size).randbytes(size)
    for written in {0, 1, size // 2, size - 1, size}:
        channel = channel_with(piece)
        give_back(channel, take(channel), written)
        assert waits(channel) == piece[written:]
        channel.out = [*(channel.out or []), b"more"]
        channel.out_bytes += 4
        offered = b"".join(taken(channel))
        assert offered + b"".join(channel.out or []) == piece[written:] + b"more"


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("whole", [False, True], ids=["pieces", "gathered"])
def test_everything_arrives_once_and_in_order(seed: int, whole: bool) -> None:
    rnd = random.Random(seed)
    channel = channel_with()
    sent = b""
    got = b""
    for turn in range(60):
        if turn < 40:
            for _ in range(rnd.randrange(4)):
                piece = rnd.randbytes(rnd.choice([1, 9, 5_000, LARGE - 1, LARGE, 400_000]))
                channel.out = [*(channel.out or []), piece]
                channel.out_bytes += len(piece)
                sent += piece
        if whole and rnd.random() < 0.5:
            data = gather(channel)
            assert channel.out_at == 0
            channel.out_bytes -= len(data)
            got += data
        else:
            at = channel.out_at
            pieces = take(channel)
            assert len(pieces) < 12
            offered = b"".join(pieces)[at:]
            written = rnd.choice([0, len(offered), rnd.randrange(len(offered) + 1)])
            got += offered[:written]
            give_back(channel, pieces, written)
        assert channel.out_bytes == len(waits(channel)) == len(sent) - len(got)
    while channel.out is not None:
        data = gather(channel)
        channel.out_bytes -= len(data)
        got += data
    assert got == sent
    assert channel.out_bytes == 0
