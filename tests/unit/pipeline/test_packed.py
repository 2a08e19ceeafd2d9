"""mqttd.pipeline.log.packed: payloads are compressed a part at a time, and read as one column."""

from __future__ import annotations

import random

import pytest

from mqttd.pipeline.log.blocks import Taken, is_loose, parse_header, verify
from mqttd.pipeline.log.decode import decode_block
from mqttd.pipeline.log.packed import PAYLOADS, Columns, pack, parts, taken_of
from mqttd.pipeline.log.zstd import zstd
from tests.unit.pipeline.logs import row

_KIB = 1024


def in_pieces(payloads: list[bytes]) -> Taken:
    """A batch whose payloads are on their way, as they come from `Payloads`."""
    taken = taken_of([row(i, payload=payload) for i, payload in enumerate(payloads)])
    columns = taken.columns.copy()
    columns[PAYLOADS] = b""
    return taken._replace(columns=columns, pieces=payloads)


def noise(count: int) -> list[bytes]:
    """Payloads of 64 KiB that nothing compresses."""
    chance = random.Random(7)
    return [chance.randbytes(64 * _KIB) for _ in range(count)]


def filler(count: int) -> list[bytes]:
    """Payloads of 64 KiB that are hardly worth a byte."""
    return [bytes([i % 256]) * (64 * _KIB) for i in range(count)]


def text(count: int) -> list[bytes]:
    """Payloads of 64 KiB that become some three times smaller."""
    chance = random.Random(8)
    return [
        chance.randbytes(24 * _KIB).hex().encode()[: 40 * _KIB] + bytes(24 * _KIB)
        for _ in range(count)
    ]


class Counting:
    """zstd, and how much it was given at a time."""

    def __init__(self) -> None:
        self.given: list[int] = []

    def compress(self, data: bytes) -> bytes:
        self.given.append(len(data))
        return zstd().compress(data)

    def decompress(self, data: bytes, size: int) -> bytes:
        return zstd().decompress(data, size)


@pytest.mark.parametrize("sizes", [(0, 20), (20, 0), (1, 20), (20, 3), (5, 5), (4, 4), (1, 0)])
def test_14_payloads_of_many_frames_come_out_as_they_went_in(sizes: tuple[int, int]) -> None:
    payloads = noise(sizes[0]) + [b"small", b"s"] + filler(sizes[1])
    taken = in_pieces(payloads)
    for codec in (None, zstd()):
        data = pack(taken, 7, 3, codec)
        assert [event.payload for event in decode_block(data, "n")] == payloads
    assert Columns(data)[PAYLOADS] == b"".join(payloads)


def test_14_no_frame_has_more_payloads_than_it_is_worth() -> None:
    codec = Counting()
    pack(in_pieces(filler(20)), 0, 0, codec)
    assert sum(codec.given) >= 20 * 64 * _KIB
    assert max(codec.given) == 256 * _KIB


def test_14_payloads_that_do_not_compress_take_what_they_are() -> None:
    taken = in_pieces(noise(20))
    data = pack(taken, 0, 0, zstd())
    assert len(data) < len(pack(taken, 0))
    assert b"".join(taken.pieces) in data


def test_14_what_compresses_is_compressed_beside_what_does_not() -> None:
    data = pack(in_pieces(noise(8) + filler(40)), 0, 0, zstd())
    assert len(data) < 9 * 64 * _KIB


def quickly(payloads: list[bytes]) -> tuple[bytes, Counting, Counting]:
    """A block as the broker's thread makes it; what columns were given to, and payloads."""
    usual, quick = Counting(), Counting()
    made = parts(in_pieces(payloads), 7, 3, usual, quick)
    return b"".join(made), usual, quick


@pytest.mark.parametrize("sizes", [(0, 20), (20, 0), (3, 20), (20, 3), (15, 0), (16, 0)])
def test_14_many_payloads_come_out_as_they_went_in(sizes: tuple[int, int]) -> None:
    payloads = noise(sizes[0]) + [b"small", b"s"] + filler(sizes[1])
    data, _, _ = quickly(payloads)
    assert [event.payload for event in decode_block(data, "n")] == payloads
    assert Columns(data)[PAYLOADS] == b"".join(payloads)


def test_14_many_payloads_that_hardly_become_less_are_only_looked_at() -> None:
    payloads = noise(40)
    made = parts(in_pieces(payloads), 7, 3, usual := Counting(), quick := Counting())
    assert 0 < sum(quick.given) <= 32 * _KIB
    assert max(usual.given) < 64 * _KIB
    # Nor are they copied.
    assert {id(payload) for payload in payloads} <= {id(part) for part in made}


def test_14_many_payloads_that_begin_alike_and_go_on_as_noise_are_left() -> None:
    payloads = [bytes(16 * _KIB) + one[: 48 * _KIB] for one in noise(20)]
    data, _, quick = quickly(payloads)
    assert sum(quick.given) <= 32 * _KIB
    assert [event.payload for event in decode_block(data, "n")] == payloads


def test_14_payloads_that_become_next_to_nothing_are_not_left() -> None:
    """To compress them takes less time than to write them."""
    data = b"".join(parts(in_pieces(filler(16)), 7, 3, zstd(), zstd(), loose=True))
    assert not is_loose(data) and len(data) < 64 * _KIB


@pytest.mark.parametrize(
    ("payloads", "left"),
    [(text(16), True), (text(4), True), (text(3), False), (noise(4), False), (noise(16), False)],
)
def test_14_many_payloads_can_be_left_for_later(payloads: list[bytes], left: bool) -> None:
    made = parts(in_pieces(payloads), 7, 3, zstd(), quick := Counting(), loose=True)
    data = b"".join(made)
    assert is_loose(data) is left and parse_header(data).loose is left
    assert sum(quick.given) <= 32 * _KIB
    if left:  # nor copied
        assert {id(payload) for payload in payloads} <= {id(part) for part in made}
    assert verify(data) and Columns(data)[PAYLOADS] == b"".join(payloads)
    assert [event.payload for event in decode_block(data, "n")] == payloads


@pytest.mark.parametrize("size", [300, 4096])
def test_14_a_small_block_in_haste_is_left_for_later(size: int) -> None:
    payloads = [one[:size] for one in text(8) + noise(4)]
    taken = in_pieces(payloads)
    data = b"".join(parts(taken, 7, 3, usual := Counting(), Counting(), True, hasty=True))
    assert is_loose(data) and verify(data)
    assert all(given >= 2 * _KIB for given in usual.given)
    assert [event.payload for event in decode_block(data, "n")] == payloads
    # With time for it, or where nothing may be left, it is what it was.
    at_once = b"".join(parts(taken, 7, 3, zstd(), zstd(), loose=False))
    assert b"".join(parts(taken, 7, 3, zstd(), zstd(), False, hasty=True)) == at_once
    assert not is_loose(at_once)


def test_14_a_large_block_is_the_same_in_haste() -> None:
    for payloads in (text(16), noise(16), filler(16)):
        taken = in_pieces(payloads)
        made = [b"".join(parts(taken, 7, 3, zstd(), zstd(), True, hasty=h)) for h in (False, True)]
        assert made[0] == made[1]


def test_14_many_payloads_are_compressed_quickly_and_few_well() -> None:
    _, usual, quick = quickly(filler(16))
    assert sum(quick.given) >= 16 * 64 * _KIB and max(usual.given) < 64 * _KIB
    _, usual, quick = quickly(filler(15))
    assert not quick.given and sum(usual.given) >= 15 * 64 * _KIB
