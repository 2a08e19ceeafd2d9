"""mqttd.pipeline.log.payloads: what goes in comes out, in order, and holds no bytes but its own."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from mqttd.pipeline.log.payloads import Payloads

SIZES = st.sampled_from((0, 1, 30, 511, 512, 700, 3000, 20_000))
#: How many packets of which size come in one read.
READ = st.lists(st.tuples(SIZES, st.integers(1, 5)), min_size=1, max_size=8)


@given(st.lists(st.one_of(SIZES, READ), max_size=30), st.integers(1, 30))
def test_14_payloads_come_out_as_they_came(
    story: list[int | list[tuple[int, int]]], at: int
) -> None:
    payloads = Payloads()
    wanted = found = b""
    for number, step in enumerate(story):
        fill = bytes([number + 1])
        if isinstance(step, int):
            payloads.add(fill * step)
            wanted += fill * step
        else:
            data = b"".join((b"head" + fill * size) * count for size, count in step)
            pos = 0
            for size, count in step:
                packet = 4 + size
                payloads.cut(data, pos + 4, pos + packet, packet, count)
                pos += packet * count
                wanted += fill * (size * count)
        if number % at == 0:
            found += b"".join(payloads.take())
    assert found + b"".join(payloads.take()) == wanted
    assert payloads.take() == []


def test_14_only_the_bytes_of_the_last_read_are_held() -> None:
    payloads = Payloads()
    reads = [bytes(1_000_000 + i) for i in range(3)]

    def held() -> list[bool]:
        return [sys.getrefcount(reads[at]) > before[at] for at in range(3)]

    before = [sys.getrefcount(reads[at]) for at in range(3)]
    assert held() == [False, False, False]
    for at in range(3):
        payloads.cut(reads[at], 10, 610, 1000, 2)
        payloads.cut(reads[at], 5000, 5600, 600, 1)
    assert held() == [False, False, True]
    assert sum(map(len, payloads.take())) == 3 * 3 * 600
    assert held() == [False, False, False]
