"""Those who wait, address by address."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.net.fair import FairQueue, house_of, networks_of


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


# -- groups of houses


def test_groups_have_their_turn_and_in_each_its_houses() -> None:
    queue: FairQueue[str] = FairQueue(100, 100)
    for group, house in ("xa", "xb", "xa", "xc", "yd", "yd", "ze"):
        assert queue.join(house, house, (group,)) is None
    assert (queue.of("a", ("x",)), queue.of("a", ("y",)), len(queue)) == (2, 0, 7)
    assert "".join(queue.next() for _ in range(7)) == "adebdca"


def test_a_full_queue_takes_a_place_from_the_longest_line_of_the_largest_group() -> None:
    queue: FairQueue[str] = FairQueue(5, 100)
    for group, house in ("xa", "xb", "xb", "xc", "yd"):
        assert queue.join(house, house, (group,)) is None
    assert queue.join("e", "e", ("z",)) == "b"
    assert queue.join("f", "f", ("x",)) == "f"  # each of its group has one
    assert queue.join("d", "d", ("y",)) == "b"  # who has waited for longest stays
    assert queue.join("d", "D", ("y",)) == "D"
    assert "".join(queue.next() for _ in range(5)) == "adecd"


@given(
    st.lists(
        st.one_of(st.none(), st.tuples(st.sampled_from("xyz"), st.sampled_from("abc"))),
        max_size=200,
    )
)
def test_each_group_is_a_fair_queue_of_its_own(steps: list[tuple[str, str] | None]) -> None:
    """With places for all: those of one group go in the order of a queue of that group alone."""
    queue: FairQueue[tuple[str, int]] = FairQueue(1000, 1000)
    own: dict[str, FairQueue[tuple[str, int]]] = {g: FairQueue(1000, 1000) for g in "xyz"}
    turns: list[str] = []
    for number, step in enumerate(steps):
        if step is None:
            if turns:
                group = turns.pop(0)
                assert queue.next() == own[group].next()
                if len(own[group]):
                    turns.append(group)
            continue
        group, house = step
        queue.join(house, (group, number), (group,))
        own[group].join(house, (group, number))
        if group not in turns:
            turns.append(group)
    assert len(queue) == sum(map(len, own.values()))


@pytest.mark.parametrize(
    "host,networks",
    [
        ("10.1.2.3", ("10.1", "10.1.2")),
        ("::ffff:10.1.2.3", ("10.1", "10.1.2")),
        ("2001:db8:1:2::1", ("2001:db8::/32", "2001:db8:1::/48")),
        ("::1", ("::/32", "::/48")),
        ("unix:7", ("unix", "unix")),
        ("", ("", "")),
        ("no:address", ("no:address", "no:address")),
        ("no/64", ("no/64", "no/64")),
        ("n:o/64", ("n:o/64", "n:o/64")),
    ],
)
def test_the_networks_of_an_address(host: str, networks: tuple[str, str]) -> None:
    assert networks_of(house_of(host)) == networks
