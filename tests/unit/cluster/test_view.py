"""All that etcd has is taken in a step at a time, and nothing is missed meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mqttd.cluster.etcd.client import Kv
from mqttd.cluster.etcd.keys import Heir
from mqttd.cluster.etcd.steps import in_turns
from mqttd.mesh.frames import BEGIN, END, REMOVE, frame, packed
from tests.support import packets as mq
from tests.unit.cluster.test_unreadable import KEYS, Here, ban, chunk, member

#: Filters of a chunk, and bytes of one.
COUNT = 1000


def filters(name: str, start: int, end: int) -> list[str]:
    return [f"{name}/{number}/{'x' * 50}/#" for number in range(start, end)]


def topic(name: str, number: int) -> str:
    return f"{name}/{number}/{'x' * 50}/t"


def all_of(here: Here, *found: tuple[bytes, bytes]) -> Iterator[None]:
    here.revision += 1
    kvs = [Kv(key, value, 5, here.revision, 1) for key, value in sorted(found)]
    return here.view.reset(kvs, here.revision)


def goes_to(here: Here, name: str, number: int) -> bool:
    """Whether a message to this filter has a way to node `a`."""
    peer = here.mesh.nodes["a"].peer
    return peer in here.broker.router.of(topic(name, number)).sessions


def test_the_old_view_serves_until_the_new_one_is_whole() -> None:
    """It was one turn: 0.1 s of 100,000 filters and more."""
    here = Here()
    old = [chunk("a", n, *filters("gone", n * COUNT, n * COUNT + COUNT)) for n in range(3)]
    both = [chunk("a", 3 + n, *filters("both", n * COUNT, n * COUNT + COUNT)) for n in range(3)]
    new = [chunk("a", 6 + n, *filters("new", n * COUNT, n * COUNT + COUNT)) for n in range(3)]
    here.all(member("a"), *old, *both, ban("bad"))
    before = here.mesh.applied
    states: list[tuple[bool, bool]] = []
    for _ in all_of(here, member("a"), *both, *new, ban("bad")):
        assert here.mesh.applied == before, "it is not all there"
        assert all(goes_to(here, "both", number) for number in range(0, 3 * COUNT, 500))
        gone = sum(goes_to(here, "gone", number) for number in range(0, 3 * COUNT, 100))
        came = sum(goes_to(here, "new", number) for number in range(0, 3 * COUNT, 100))
        assert gone == 30 or came == 30, "what comes does so before others go"
        states.append((gone == 30, came == 0))
        here.view.tick()
    assert len(states) >= 20
    assert states[:5] == [(True, True)] * 5, "nothing changes while it is read"
    assert here.mesh.applied == here.revision
    assert here.filters == {*filters("both", 0, 3 * COUNT), *filters("new", 0, 3 * COUNT)}


def test_no_step_has_more_than_some_filters() -> None:
    here = Here()
    here.all(
        member("a"),
        *(chunk("a", n, *filters("old", n * COUNT, n * COUNT + COUNT)) for n in range(5)),
    )
    before = here.filters
    some = (chunk("a", n, *filters("new", n * COUNT, n * COUNT + COUNT)) for n in range(5))
    for _ in all_of(here, member("a"), *some):
        after = here.filters
        assert len(before ^ after) <= 500
        before = after
    assert here.filters == set(filters("new", 0, 5 * COUNT))


def test_what_a_node_has_written_anew_is_read_over_many_steps() -> None:
    """Until the end of that what was before holds, too; a chunk may end in the midst of it."""
    here = Here()
    first = [chunk("a", 0, *filters("a", 0, COUNT)), chunk("a", 1, *filters("b", 0, COUNT))]
    begins = (
        KEYS.route("a", 5, 2),
        frame(BEGIN, packed([])) + chunk("a", 2, *filters("c", 0, COUNT))[1],
    )
    goes = (
        KEYS.route("a", 5, 3),
        frame(REMOVE, packed([each.encode() for each in filters("c", 0, 10)])),
    )
    ends = KEYS.route("a", 5, 4), chunk("a", 4, *filters("d", 0, COUNT))[1] + frame(END, packed([]))
    for _ in all_of(here, member("a"), *first, begins, goes):
        pass
    assert here.filters == {
        *filters("a", 0, COUNT),
        *filters("b", 0, COUNT),
        *filters("c", 10, COUNT),
    }
    for _ in all_of(here, member("a"), *first, begins, goes, ends):
        pass
    assert here.filters == {*filters("c", 10, COUNT), *filters("d", 0, COUNT)}


def test_the_alarm_of_what_cannot_be_read_stays_while_all_is_read_again() -> None:
    here = Here()
    spoilt = KEYS.ban("client_id", "z"), b"{"
    large = [chunk("a", n, *filters("f", n * COUNT, n * COUNT + COUNT)) for n in range(2)]
    here.all(member("a"), spoilt, *large)
    assert here.alarm
    steps = all_of(here, spoilt, member("a"), *large)
    with suppress(StopIteration):
        while True:
            next(steps)
            here.view.tick()
            assert here.alarm
    for _ in all_of(here, member("a"), *large):
        pass
    here.view.tick()
    assert not here.alarm


class Loop:
    """A reactor of which a test has the next turn come."""

    def __init__(self) -> None:
        self.later: list[Callable[[], object]] = []

    def callLater(self, delay: float, call: Callable[..., object], *args: object) -> None:
        assert not delay
        self.later.append(lambda: call(*args))


def test_steps_are_done_in_as_many_turns_as_they_take() -> None:
    loop, now, done = Loop(), 0.0, 0

    def steps() -> Iterator[None]:
        nonlocal now, done
        for _ in range(10):
            now += 0.002
            done += 1
            yield

    finished: list[object] = []
    Deferred.fromCoroutine(in_turns(steps(), loop, lambda: now)).addCallback(finished.append)
    turns = [done]
    while not finished:
        loop.later.pop()()
        turns.append(done)
    assert turns == [2, 4, 6, 8, 10, 10]


def test_steps_that_fail_say_so() -> None:
    def steps() -> Iterator[None]:
        yield
        raise ValueError("x")

    failed: list[object] = []
    asked = Deferred.fromCoroutine(in_turns(steps(), Clock()))
    asked.addErrback(lambda failure: failed.append(failure.value))
    assert isinstance(failed[0], ValueError)


def test_17_a_node_that_has_come_and_gone_unheard_is_noticed_when_all_is_read() -> None:
    """What it had claimed of us was ours still, as far as we knew: two nodes had the session."""
    here = Here()
    home = here.keys.home("a"), b"{}"
    ours = here.keys.home("me"), b"{}"

    def read(*found: tuple[bytes, bytes], at: int) -> bool:
        here.revision += 1
        kvs = [Kv(key, value, 5, at, 1) for key, value in sorted(found)]
        for _ in here.view.reset(kvs, here.revision):
            pass
        return here.view.missed

    assert not read(member("a"), home, at=here.revision)
    here.put((KEYS.route("b", 5, 0), b""))
    assert not read(member("a"), home, at=here.revision)  # heard of
    assert read(home, at=here.revision)
    assert not read(home, at=here.revision)
    assert not read(ours, at=here.revision + 1)
    assert read(home, at=here.revision + 1)
    assert read(member("a"), home, at=here.revision + 1)


@pytest.mark.parametrize("known", ["gone", "", "back"])
def test_17_what_we_had_for_one_that_was_taken_over_while_we_were_cut_off_goes_to_its_heir(
    known: str,
) -> None:
    """What its clients had published here in a minority was lost, acknowledged; where we had heard
    that it was gone, too, and where it is back, without those sessions."""
    here = Here()
    home = (KEYS.home("b"), b'{"id": "b"}')
    here.all(member("a"), member("b"), home)
    node = here.mesh.nodes["b"]
    for number, qos in ((1, 1), (2, 2)):
        node.ferry.carry(mq.publish("t", b"x", qos, number, version=mq.V5), True)
    if known == "gone":
        here.all(member("a"), home)
        assert here.view.absent.nodes["b"] is node
    heir = (KEYS.heir("b"), Heir("s", "s", "a", 5, "done").dump())
    if known == "back":
        here.revision += 1
        found = sorted([member("a"), home, heir])
        kvs = [Kv(key, value, 5, here.revision, 1) for key, value in found]
        kvs.append(Kv(*member("b"), here.revision, here.revision, 1))
        for _ in here.view.reset(kvs, here.revision):
            pass
        assert here.mesh.nodes["b"] is not node and not here.mesh.nodes["b"].ferry.kept
    else:
        here.all(member("a"), heir)
    kept = [data for _, data in here.mesh.nodes["a"].ferry.kept]
    assert kept == [mq.publish("t", b"x", 1, 1, version=mq.V5)]
    assert "b" not in here.view.absent.nodes
