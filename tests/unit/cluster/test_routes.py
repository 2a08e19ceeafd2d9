"""Filters on their way to etcd, and who waits until others have them."""

from __future__ import annotations

import sys
from base64 import b64decode
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mqttd.cluster.etcd.client import Answer, Json, put, remove
from mqttd.cluster.etcd.keys import Keys
from mqttd.cluster.etcd.reading import chunk_of
from mqttd.cluster.links.nodes import NodeMesh, Settling
from mqttd.cluster.routes.routes import MOST_WAIT, Routes
from mqttd.cluster.routes.view import filters_of
from mqttd.mesh.link import Link, Stream
from tests.support.memory import MemoryBroker
from tests.support.shared_etcd import KEYS, Asked, Store


class Etcd:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[Deferred[Answer]] = []
        self.revision = 10

    def transaction(self, *_: Any) -> Deferred[Answer]:
        self.asked.append(Deferred())
        return self.asked[-1]

    def accept(self) -> int:
        self.revision += 1
        self.asked.pop(0).callback(Answer(True, self.revision))
        return self.revision


class Keeping:
    """Answers at once, and has what it was told."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}

    async def transaction(
        self, when: list[Json], then: list[Json], otherwise: list[Json]
    ) -> Answer:
        for each in then:
            if put := each.get("request_put"):
                self.kept[b64decode(put["key"])] = b64decode(put["value"])
            else:
                gone = each["request_delete_range"]
                start, end = b64decode(gone["key"]), b64decode(gone["range_end"])
                self.kept = {k: v for k, v in self.kept.items() if not start <= k < end}
        return Answer(True, 10)


class Transport:
    def write(self, data: bytes) -> None:
        pass

    def abortConnection(self) -> None:
        pass


@pytest.fixture
def parts() -> tuple[Routes, NodeMesh, Etcd, Clock]:
    clock, etcd = Clock(), Etcd()
    broker = MemoryBroker().broker
    routes = Routes(etcd, Keys("c"), "a", clock)  # type: ignore[arg-type]
    mesh = NodeMesh(broker, routes.changed, routes.hold, lambda *_: None)
    mesh.saw = routes.look
    routes.mesh = mesh
    routes.begin(1, 1)
    node = mesh.join("b", 2)
    mesh.linked(node.number, Link(broker, Stream(Transport()), node.number), False)
    return routes, mesh, etcd, clock


def test_a_filter_that_has_gone_and_come_again_is_not_settled_by_its_first_coming(
    parts: tuple[Routes, NodeMesh, Etcd, Clock],
) -> None:
    """A node that is slow has seen that it came, went, and not yet that it is there again."""
    routes, mesh, etcd, clock = parts
    told: list[str] = []
    mesh.added("f")
    clock.advance(0)
    first = etcd.accept()
    mesh.removed("f")
    clock.advance(0)
    etcd.accept()
    mesh.added("f")
    assert mesh.waits(Settling(["f"], lambda: told.append("settled")))
    clock.advance(0)
    assert len(etcd.asked) == 1  # on its way
    mesh.nodes["b"].seen = first
    routes.look()
    assert (told, mesh.lacks("f")) == ([], True)
    mesh.nodes["b"].seen = etcd.accept()
    routes.look()
    assert (told, mesh.lacks("f")) == (["settled"], False)


def test_who_waits_for_many_waits_for_the_last_and_not_for_one_that_has_gone(
    parts: tuple[Routes, NodeMesh, Etcd, Clock],
) -> None:
    routes, mesh, etcd, clock = parts
    told: list[str] = []
    mesh.added("a")
    clock.advance(0)
    mesh.added("b")
    mesh.added("c")
    assert mesh.waits(Settling(["a", "c"], lambda: told.append("a, c")))
    assert mesh.waits(Settling(["b"], lambda: told.append("b")))
    mesh.removed("c")
    mesh.nodes["b"].seen = etcd.accept()
    clock.advance(0)
    routes.look()
    assert (told, mesh.lacks("a"), mesh.lacks("b")) == ([], False, True)
    mesh.nodes["b"].seen = etcd.accept()
    routes.look()
    assert told == ["b", "a, c"]
    assert not mesh.unsettled
    clock.advance(10)
    routes.tick()
    assert (told, routes.refused) == (["b", "a, c"], 0)


def test_nothing_is_kept_of_who_was_refused_while_etcd_is_away(
    parts: tuple[Routes, NodeMesh, Etcd, Clock],
) -> None:
    routes, mesh, _, clock = parts
    taken = Settling(["f"], lambda: None)
    before = sys.getrefcount(taken)
    mesh.added("f")
    assert mesh.waits(taken)
    clock.advance(MOST_WAIT)
    routes.tick()
    assert routes.refused == 1
    assert sys.getrefcount(taken) == before


def test_what_is_dead_in_etcd_is_counted_by_its_bytes(
    parts: tuple[Routes, NodeMesh, Etcd, Clock],
) -> None:
    """Of few long filters that come and go, beside many short ones, little is left."""
    routes, mesh, _, clock = parts
    keeping = Keeping()
    routes.etcd = keeping  # type: ignore[assignment]
    for number in range(10_000):
        mesh.added(f"t/{number}")
    clock.advance(0)
    for number in range(200):
        full_filter = f"{number}/" + "x" * 60_000
        mesh.added(full_filter)
        clock.advance(0)
        mesh.removed(full_filter)
        clock.advance(0)
        assert sum(map(len, keeping.kept.values())) < 2 << 20
    chunks = [chunk_of(value) for _, value in sorted(keeping.kept.items())]
    assert filters_of(chunks) == mesh.filters.keys()


def test_who_comes_does_not_wait_for_all_that_go_together(
    parts: tuple[Routes, NodeMesh, Etcd, Clock],
) -> None:
    routes, mesh, etcd, clock = parts
    mesh.nodes["b"].seen = 1000
    many = [f"{number}/" + "x" * 60_000 for number in range(100)]
    for each in many:
        mesh.added(each)
    clock.advance(0)
    while etcd.asked:
        etcd.accept()
    for each in many:
        mesh.removed(each)
    clock.advance(0)
    told: list[str] = []
    mesh.added("new")
    assert mesh.waits(Settling(["new"], lambda: told.append("new")))
    etcd.accept()  # what was under way when it came
    etcd.accept()
    assert told == ["new"]
    while etcd.asked:
        etcd.accept()
    assert not routes.chunks


class Written:
    """The filters of node a in an etcd, of which the answers to some requests do not come."""

    def __init__(self) -> None:
        self.clock, self.store = Clock(), Store()
        #: What becomes of the next requests.
        self.fates: list[tuple[str, float]] = []
        broker = MemoryBroker().broker
        etcd = Asked(self.clock, self.store, self._fate)
        self.routes = Routes(etcd, KEYS, "a", self.clock)
        self.mesh = NodeMesh(broker, self.routes.changed, self.routes.hold, lambda *_: None)
        self.routes.mesh = self.mesh
        self.lease = self.store.grant()
        self.store.transact({"success": [put(KEYS.node("a"), b"", self.lease)]})
        self.routes.begin(self.store.revision, self.lease)

    def _fate(self) -> tuple[str, float]:
        return self.fates.pop(0) if self.fates else ("well", 0.0)

    def change(self, *filters: str, wanted: bool = True) -> None:
        """These are wanted, or are not any more; three seconds for that."""
        for each in filters:
            (self.mesh.added if wanted else self.mesh.removed)(each)
        for _ in range(30):
            self.clock.advance(0.1)

    def chunks(self) -> list[bytes]:
        """What was written, in its order."""
        prefix = KEYS.route("a", self.routes._epoch, 0)[:-8]
        events = [kv for _, some in self.store.log for kv, gone in some if not gone]
        return [kv.value for kv in events if kv.key.startswith(prefix)]

    def heard(self) -> set[str]:
        """What who watches knows to be wanted."""
        return filters_of(map(chunk_of, self.chunks()))


def test_17_what_was_asked_in_vain_and_comes_there_later_is_not_the_last_word() -> None:
    """That nobody wanted it any more came there behind that somebody does, again: others sent
    nothing there, until they read all the next time, up to a minute later."""
    written = Written()
    written.change("f")
    written.fates.append(("held", 5.0))
    written.change("f", wanted=False)
    written.change("f")
    assert written.heard() == {"f"} and len(written.chunks()) == 3
    for _ in range(50):
        written.clock.advance(0.1)
    assert written.heard() == {"f"} and len(written.chunks()) == 3


def test_17_what_was_done_though_no_answer_has_said_so_is_not_done_again() -> None:
    written = Written()
    written.fates.append(("lost", 0.0))
    written.change("f")
    assert len(written.chunks()) == 1 and not written.routes.chunks
    assert written.routes.revision == written.store.revision


def test_filters_are_written_though_somebody_has_taken_the_last_ones_away() -> None:
    written = Written()
    written.change("f")
    written.store.transact({"success": [remove(KEYS.route("a", written.routes._epoch, 0))]})
    written.change("g")
    assert len(written.chunks()) == 2 and not written.routes.chunks


def test_a_node_that_is_out_writes_nothing() -> None:
    written = Written()
    written.store.transact({"success": [remove(KEYS.node("a"))]})
    written.change("f")
    assert written.chunks() == [] and not written.routes._lease
