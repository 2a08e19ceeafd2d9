"""Chunks of filters: what can be read from them at any time, and how much there is to read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.cluster.etcd.reading import chunk_of
from mqttd.cluster.routes import chunks as module
from mqttd.cluster.routes.chunks import SHARE, Change, Chunks
from mqttd.cluster.routes.view import filters_of
from tests.unit.cluster.test_unreadable import Here, member

#: What etcd takes in one request, with room for what is around it in base 64.
MOST = (1 << 20) * 3 // 4


class Etcd:
    """Has what one node has written."""

    def __init__(self) -> None:
        self.chunks = Chunks({})
        self.came = 0
        self.kept: dict[int, bytes] = {}

    def changed(self, full_filter: str, wanted: bool) -> None:
        self.came += wanted
        self.chunks.changed(full_filter, wanted, self.came)

    def write(self) -> Change:
        change = self.chunks.next(self.came)
        if change.value:
            self.kept[self.chunks.number] = change.value
            for number in [each for each in self.kept if each < change.below]:
                del self.kept[number]
            self.chunks.done(change)
        return change

    def write_all(self) -> int:
        """How many chunks that took."""
        count = 0
        while self.chunks:
            assert len(self.write().value) < MOST
            count += 1
        return count

    def read(self) -> set[str]:
        return filters_of(chunk_of(value) for _, value in sorted(self.kept.items()))

    def size(self) -> int:
        return sum(map(len, self.kept.values()))


@given(
    st.lists(st.tuples(st.sampled_from([False, True, None]), st.sampled_from("abcdefgh"))),
    st.integers(1, 40),
)
def test_others_have_what_there_is_whenever_they_begin_to_read(
    changes: list[tuple[bool | None, str]], share: int
) -> None:
    """By a watch from the start, and by a range at any time and a watch from there on."""
    etcd, here = Etcd(), Here()
    here.all(member("a"))
    wanted: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SHARE", share)
        patch.setattr(module, "_SPARE", 1 << 9)
        patch.setattr(module, "_FEW", 5)
        for wants, name in [*changes, *[(None, "")] * 200]:
            if wants is not None:
                if wants is not (name in wanted):
                    (wanted.add if wants else wanted.discard)(name)
                    etcd.changed(name, wants)
                continue
            if not etcd.chunks:
                continue
            number, change = etcd.chunks.number, etcd.write()
            if change.value:
                here.put((here.keys.route("a", 5, number), change.value))
            assert etcd.read() == etcd.chunks.there == here.filters
            late = Here()
            late.all(member("a"), *((late.keys.route("a", 5, n), v) for n, v in etcd.kept.items()))
            assert late.filters == here.filters
    assert etcd.read() == wanted


def test_what_is_dead_is_counted_by_its_bytes() -> None:
    """A few hundred long filters, far fewer than there are short ones, come and go."""
    etcd = Etcd()
    for number in range(10_000):
        etcd.changed(f"t/{number}", True)
    etcd.write_all()
    for number in range(500):
        full_filter = f"{number}/" + "x" * 60_000
        etcd.changed(full_filter, True)
        etcd.write_all()
        etcd.changed(full_filter, False)
        etcd.write_all()
        assert etcd.size() < 2 << 20
    assert len(etcd.read()) == 10_000


def test_what_there_is_may_be_as_much_as_it_is() -> None:
    """Many bytes that are all wanted are not written again and again."""
    etcd = Etcd()
    for number in range(300):
        etcd.changed(f"{number}/" + "x" * 30_000, True)
    before = etcd.write_all()
    for number in range(100):
        etcd.changed(f"t/{number}", True)
        etcd.changed(f"t/{number}", False)
        etcd.write_all()
    assert etcd.write_all() == 0
    assert len(etcd.kept) <= before + 200
    assert len(etcd.read()) == 300


def test_who_comes_does_not_wait_for_those_that_go_nor_for_what_is_written_anew() -> None:
    etcd = Etcd()
    many = [f"{number}/" + "x" * 60_000 for number in range(200)]
    for each in many:
        etcd.changed(each, True)
    etcd.write_all()
    for each in many[20:]:
        etcd.changed(each, False)
    etcd.changed("new", True)
    change = etcd.write()
    assert change.came == ["new"] and change.settled == etcd.came
    assert len(change.value) < 3 * SHARE
    seen = 0
    while etcd.chunks:
        etcd.changed(f"new/{seen}", True)
        change = etcd.write()
        assert change.came == [f"new/{seen}"]
        seen += 1
    assert seen > 60
    assert etcd.read() == {*many[:20], "new", *(f"new/{number}" for number in range(seen))}


def test_who_waits_for_one_that_has_gone_waits_for_no_more_than_those_before_it() -> None:
    etcd = Etcd()
    etcd.changed("a", True)
    etcd.changed("b", True)
    etcd.changed("b", False)
    change = etcd.write()
    assert (change.came, change.settled) == (["a"], 2)
    assert not etcd.chunks
