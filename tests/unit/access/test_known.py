"""Who got in lately, in eight bytes each."""

from __future__ import annotations

from mqttd.access.auth.known import Known


def test_it_knows_those_who_got_in_and_nobody_else() -> None:
    known = Known(1000)
    for n in range(500):
        known.add(("10.0.0.7", "=alice", f"={n}"))
    assert len(known) == 500
    assert all(("10.0.0.7", "=alice", f"={n}") in known for n in range(500))
    assert not any(("10.0.0.7", "=bob", f"={n}") in known for n in range(500))


def test_an_empty_one_knows_nobody() -> None:
    known = Known(1000)
    assert len(known) == 0 and ("a",) not in known


def test_those_of_the_longest_ago_are_forgotten_and_who_comes_again_is_kept() -> None:
    known = Known(100)
    for n in range(1000):
        known.add(("again",))
        known.add((str(n),))
        assert len(known) <= 100
    assert ("again",) in known and ("999",) in known and ("950",) in known
    assert ("0",) not in known and ("500",) not in known


def test_whoever_comes_again_and_again_takes_one_place() -> None:
    known = Known(100)
    for _ in range(1000):
        known.add(("again",))
    assert len(known) == 1
