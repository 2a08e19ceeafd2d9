"""A store that is copied to a stream whose servers lose what they had acknowledged."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock, deferLater

from mqttd.cluster.replication import legacy
from mqttd.cluster.replication.copying import PATIENCE, Copying
from mqttd.nats.client import NOT_YET, NatsError
from mqttd.nats.jetstream import Missing, NoStream, Stored
from mqttd.storage.blocks import Group
from mqttd.storage.database import connect
from tests.unit.storage.test_copies import Source, contents


class Servers:
    """Streams in memory, by the names of `JetStream`; they may forget their last messages, and take
    their time."""

    class nats:
        most = 4096 + 2000

    def __init__(self, clock: Clock) -> None:
        self.streams: dict[str, list[Stored]] = {}
        self.first: dict[str, int] = {}
        #: Called with the subject of a message that has come.
        self.came: Callable[[str], object] = lambda subject: None
        self.away = False
        #: Seconds that an answer takes.
        self.slow = 0.0
        self.clock = clock

    def at(self, subject: str) -> str:
        return subject.rpartition(".")[0]

    async def make(self, stream: str, subject: str, copies: int) -> None:
        self.streams[stream] = []
        self.first[stream] = 1

    async def append(self, subject: str, data: bytes) -> int:
        if self.slow:
            await deferLater(self.clock, self.slow)
        if self.away:
            raise NatsError("not connected")
        if self.at(subject) not in self.streams:
            raise NatsError("nobody answers")
        found = self.streams[self.at(subject)]
        number = (found[-1].sequence if found else self.first[self.at(subject)] - 1) + 1
        found.append(Stored(subject, number, data))
        self.came(subject)
        if self.away:
            raise NatsError("the connection is gone")  # before it is acknowledged
        return number

    async def get(self, stream: str, sequence: int) -> Stored:
        await self.info(stream)
        for each in self.streams[stream]:
            if each.sequence == sequence:
                return each
        raise Missing("no message found (10037)")

    async def last(self, stream: str, subject: str) -> Stored:
        for each in reversed(self.streams[stream]):
            if each.subject == subject:
                return each
        raise Missing("no message found (10037)")

    async def cut(self, stream: str, before: int) -> None:
        self.first[stream] = before
        self.streams[stream] = [each for each in self.streams[stream] if each.sequence >= before]

    async def info(self, stream: str) -> dict[str, Any]:
        if stream not in self.streams:
            raise NoStream("stream not found (10059)")
        return {"state": {"first_seq": self.first[stream]}}

    def lose(self, stream: str, count: int) -> None:
        """All were killed, and begin again without the last they had acknowledged."""
        del self.streams[stream][-count:]


class Node:
    """A store that lives, its copy, and where others are told to find that."""

    def __init__(self, path: Path, seed: int) -> None:
        self.clock = Clock()
        self.servers = Servers(self.clock)
        self.source = Source(path / "store.db", seed)
        self.path = path
        self.base, self.ledger = self.source.base, self.source.ledger
        self.told = ""
        self.life = 0
        self.waiting: deque[Group] = deque()
        #: Called when a group is there.
        self.made_room: Callable[[], object] = lambda: None
        self.copying = Copying(
            self.servers, self.clock, self, 3, self._announce, self.anew  # type: ignore[arg-type]
        )  # fmt: skip

    def between(self, job: Callable[[Any], Any]) -> Deferred[Any]:
        return succeed(job(self.base))

    def turn(self) -> None:
        while self.waiting and self.copying.has(self.waiting[0]):
            self.waiting.popleft()
            self.made_room()

    async def _announce(self, stream: str) -> None:
        self.told = stream

    def anew(self) -> None:
        self.life += 1
        self.copying.begin(f"s{self.life}", f"s{self.life}")

    def live(self) -> None:
        """A group is written here, and is to be copied."""
        group = self.source.live()
        self.waiting.append(group)
        self.copying.submit(group)

    def settle(self, seconds: float = 5.0) -> None:
        for _ in range(int(seconds * 4)):
            self.clock.advance(0.25)

    def copied(self, name: str) -> Any:
        """What an heir finds now where others are told to look."""
        path = str(self.path / name)
        asked = Deferred.fromCoroutine(
            legacy.fetch(self.servers, self.told, self.told, path)  # type: ignore[arg-type]
        )
        found: list[Any] = []
        asked.addBoth(found.append)
        assert found == [None], found
        base = connect(path)
        try:
            return contents(base)
        finally:
            base.close()


@pytest.fixture(params=range(6))
def node(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Node]:
    monkeypatch.setattr(legacy, "deferToThread", lambda f, *more: succeed(f(*more)))
    made = Node(tmp_path, request.param)
    made.anew()
    for _ in range(12):
        made.live()
    made.settle()
    assert not made.waiting and made.told == "s1"
    yield made
    made.copying.end()
    made.base.close()


def test_17_the_copy_is_the_store(node: Node) -> None:
    assert node.copied("one") == contents(node.base)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_17_what_servers_lose_is_copied_anew_before_anything_is_acknowledged(
    node: Node, count: int
) -> None:
    node.servers.lose("s1", count)
    node.live()
    # Nothing counts until all of it is somewhere; then others know where.
    assert bool(node.waiting) == (node.told == "s1")
    node.settle()
    assert node.told == "s2" and not node.waiting
    assert node.copied("two") == contents(node.base)


@pytest.mark.parametrize("after", range(1, 12))
def test_17_also_in_the_midst_of_a_copy_or_an_entry(node: Node, after: int) -> None:
    """Servers are killed behind any message, some of the last of which are lost with them."""
    chance = random.Random(after)
    left = after

    def came(subject: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            stream = node.servers.at(subject)
            node.servers.lose(stream, min(chance.randint(1, 6), len(node.servers.streams[stream])))
            node.servers.away = chance.random() < 0.7

    node.servers.lose("s1", 1)
    node.servers.came = came
    for _ in range(4):
        node.live()
    node.clock.advance(0.1)
    node.servers.away = False
    for _ in range(3):
        node.live()
    node.settle()
    assert not node.waiting and node.copying.whole and node.told != "s1"
    assert node.copied("two") == contents(node.base)


def test_17_a_stream_that_is_gone_is_made_anew(node: Node) -> None:
    """Servers that have lost their disks, or an operator, have taken it away."""
    del node.servers.streams["s1"]
    node.live()
    node.settle()
    assert node.waiting and node.told == "s1"  # those that begin anew may not know of it yet
    node.settle()
    node.settle()
    node.settle()
    assert node.told == "s2" and not node.waiting
    assert node.copied("two") == contents(node.base)


def test_17_an_answer_that_did_not_come_may_have_given_the_number_anew(node: Node) -> None:
    last = node.servers.streams["s1"][-1].sequence
    node.servers.lose("s1", 1)

    def came(subject: str) -> None:
        node.servers.away = node.servers.streams["s1"][-1].sequence == last

    node.servers.came = came
    node.live()
    assert node.servers.away
    node.servers.away = False
    node.settle()
    assert node.told == "s2" and not node.waiting
    assert node.copied("two") == contents(node.base)


def test_17_a_loss_is_seen_when_nothing_is_said(node: Node) -> None:
    node.settle()
    assert node.told == "s1"
    node.servers.lose("s1", 1)
    node.settle()
    node.settle()
    assert node.told == "s2"
    del node.servers.streams["s2"]
    for _ in range(5):
        node.settle()
    assert node.told == "s3"
    assert node.copied("three") == contents(node.base)


#: Seconds for an answer with which all of a store takes longer than anybody waits.
SLOW = 6.0


def test_a_copy_anew_keeps_nobody_waiting_for_longer_than_servers_that_are_away(node: Node) -> None:
    node.servers.lose("s1", 1)
    node.servers.slow = SLOW
    node.live()
    node.settle(PATIENCE - 1)
    assert node.life == 2 and not node.copying.whole and not node.copying.fault
    node.settle(1.5)
    assert not node.copying.whole and "copied anew" in node.copying.fault and node.waiting
    node.settle(300)
    assert node.copying.whole and not node.copying.fault and not node.waiting
    node.servers.slow = 0
    assert node.copied("two") == contents(node.base)


def test_the_first_copy_takes_as_long_as_it_takes(node: Node) -> None:
    node.servers.slow = SLOW
    node.copying.stop()
    node.copying.settle()
    node.anew()
    node.live()
    while not node.copying.whole:
        node.settle(1)
        assert not node.copying.fault
    assert node.clock.seconds() > PATIENCE


def test_17_what_cannot_be_read_now_is_what_servers_say(node: Node) -> None:
    """Of many asked for at once: the heir tries again, or knows that there is no stream."""
    node.servers.get = _fails  # type: ignore[method-assign]
    path = str(node.path / "one")
    asked = Deferred.fromCoroutine(
        legacy.fetch(node.servers, node.told, node.told, path)  # type: ignore[arg-type]
    )
    failed: list[Any] = []
    asked.addErrback(failed.append)
    node.settle()
    assert failed and failed[0].type is NatsError


async def _fails(stream: str, sequence: int) -> Stored:
    raise NatsError("it does not answer")


def test_17_what_waited_when_the_node_was_taken_over_waits_no_more_when_it_begins_anew(
    node: Node,
) -> None:
    """It was late after 15 seconds, and for ever: what is to be kept was refused."""
    Deferred.fromCoroutine(node.servers.append("s1.f", b""))  # its heir's
    node.live()
    node.settle(1)
    assert "has taken over" in node.copying.fault and node.waiting
    node.copying.stop()
    node.copying.settle()
    assert not node.waiting
    node.anew()
    node.live()
    node.settle(2 * PATIENCE)
    assert node.copying.whole and not node.copying.fault and not node.waiting


def test_what_gathers_behind_a_group_has_waited_with_it(node: Node) -> None:
    """Two outages in a row are one."""

    def gathered() -> None:
        node.made_room = lambda: None
        node.servers.away = True
        node.live()

    node.servers.away = True
    node.made_room = gathered
    node.live()
    node.settle(PATIENCE - 1)
    node.servers.away = False
    node.settle(0.25)
    assert node.servers.away and node.waiting and not node.copying.fault
    node.settle(1)
    assert node.copying.fault == "not connected"
    node.servers.away = False
    node.settle(1)
    assert not node.copying.fault and not node.waiting


def test_each_reason_is_said_once_until_it_works_again(node: Node) -> None:
    """Also the one behind the first, which may be that nothing was tried yet."""
    said: list[str] = []
    node.copying.log = SimpleNamespace(  # type: ignore[assignment]
        warn=lambda text, error: said.append(error), info=lambda text: said.append(text)
    )
    for reason in (NOT_YET, "a: refused", "b: no TLS", "a: refused", "b: no TLS"):
        node.copying._fails(reason)
    assert said == ["a: refused", "b: no TLS"]
    node.copying._still_fails(node.copying._failed_at)
    assert node.copying.fault == "a: refused; b: no TLS"
    node.copying._works()
    node.copying._works()
    assert said[2:] == ["the store is copied again"]
    node.copying._fails("a: refused")
    assert said[3:] == ["a: refused"]
    node.copying._works()
