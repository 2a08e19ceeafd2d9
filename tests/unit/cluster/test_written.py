"""Which wills of a node stand in etcd: not the same twice, and no more than there is room for."""

from __future__ import annotations

from mqttd.cluster.wills.written import LARGEST, Written

ONE = ("one", "")
OTHER = ("other", "")


def test_what_is_there_is_not_written_again() -> None:
    wills = Written()
    assert wills.change("c", b"will", ONE) is True
    assert wills.change("c", b"will", ONE) is None
    assert wills.change("c", b"other", ONE) is True
    assert wills.held == len("c") + len(b"other")
    assert wills.change("c", b"", ONE) is False
    assert wills.change("c", b"", ONE) is None
    assert wills.held == 0
    assert wills.change("c", b"other", ONE) is True


def test_a_user_has_half_of_the_room() -> None:
    wills = Written(200)
    assert [wills.change(f"{n}", b"x" * 49, ONE) for n in range(3)] == [True, True, None]
    assert list(wills.left_out) == ["2"]
    assert [wills.change(f"{n}", b"x" * 49, OTHER) for n in range(3, 6)] == [True, True, None]
    assert wills.change("6", b"x", (None, "10.0.0.1")) is None
    assert wills.held == 200


def test_who_was_left_out_may_try_again_and_those_behind_as_well() -> None:
    wills = Written(200)
    for n in range(4):
        wills.change(f"{n}", b"x" * 49, ONE)
    assert list(wills.left_out) == ["2", "3"]
    assert wills.again() == "2"
    assert wills.change("2", b"x" * 49, ONE) is None
    assert wills.again() == "3"
    assert wills.change("0", b"", ONE) is False
    assert wills.change("3", b"x" * 49, ONE) is True
    assert wills.change("2", b"", ONE) is None
    assert wills.again() is None


def test_what_was_there_goes_where_the_new_one_has_no_room() -> None:
    wills = Written()
    assert wills.change("c", b"x", ONE) is True
    assert wills.change("c", b"x" * (LARGEST + 1), ONE) is False
    assert list(wills.left_out) == ["c"]
    assert wills.change("c", b"x", ONE) is True
    assert not wills.left_out
    wills.clear()
    assert (wills.held, wills.change("c", b"", ONE)) == (0, None)
