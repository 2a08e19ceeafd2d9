"""Those who wait, address by address."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.net.fair import FairQueue, house_of


def test_houses_have_their_turn_whatever_the_length_of_their_lines() -> None:
    queue: FairQueue[str] = FairQueue(100, 100)
    for name in ("a1", "a2", "a3", "b1", "a4", "c1", "c2"):
        assert queue.join(name[0], name) is None
    assert [queue.next() for _ in range(7)] == ["a1", "b1", "c1", "a2", "c2", "a3", "a4"]
    with pytest.raises(IndexError):
        queue.next()


def test_a_full_queue_takes_a_place_from_the_longest_line() -> None:
    queue: FairQueue[str] = FairQueue(3, 100)
    assert [queue.join("a", name) for name in ("a1", "a2", "a3")] == [None] * 3
    assert queue.join("a", "a4") == "a4"
    assert queue.join("b", "b1") == "a3"
    assert queue.join("c", "c1") == "a2"
    assert queue.join("d", "d1") == "d1"  # nobody has more than one
    assert [queue.next() for _ in range(len(queue))] == ["a1", "b1", "c1"]


@given(st.lists(st.one_of(st.none(), st.sampled_from("abcde")), max_size=200))
def test_the_longest_line_is_known_whoever_joins_or_goes(steps: list[str | None]) -> None:
    """What is said of a queue by looking at all of it, after each step."""
    queue: FairQueue[str] = FairQueue(12, 7)
    lines: dict[str, list[str]] = {}
    for number, house in enumerate(steps):
        if house is None:
            if lines:
                first = next(iter(lines))
                line = lines.pop(first)
                assert queue.next() == line.pop(0)
                if line:
                    lines[first] = line
            continue
        name = f"{house}{number}"
        mine = len(lines.get(house, ()))
        longest = max(map(len, lines.values()), default=0)
        gone = queue.join(house, name)
        if mine >= 7 or (sum(map(len, lines.values())) == 12 and longest <= mine + 1):
            assert gone == name
            continue
        if sum(map(len, lines.values())) == 12:
            assert gone is not None and len(lines[gone[0]]) == longest
            assert gone == lines[gone[0]].pop()
        else:
            assert gone is None
        lines.setdefault(house, []).append(name)
        assert {one: queue.of(one) for one in lines} == {one: len(lines[one]) for one in lines}


def test_a_house_has_so_many_places_and_no_more() -> None:
    queue: FairQueue[int] = FairQueue(100, 2)
    assert [queue.join("a", n) for n in range(3)] == [None, None, 2]
    assert (queue.of("a"), queue.of("b"), len(queue)) == (2, 0, 2)


def test_a_queue_without_places_sends_everybody_away() -> None:
    queue: FairQueue[int] = FairQueue(0, 0)
    assert queue.join("a", 1) == 1
    assert FairQueue[int](0, 5).join("a", 1) == 1


@pytest.mark.parametrize(
    "host,house",
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("unix", "unix"),
        ("unix:7", "unix"),
        ("/run/mqtt.sock", "unix"),
        ("", ""),
        ("no:address", "no:address"),
    ],
)
def test_what_one_address_stands_for(host: str, house: str) -> None:
    assert house_of(host) == house
