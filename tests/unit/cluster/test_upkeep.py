"""What etcd keeps is kept small by one node, and it is said when it takes no writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mqttd.broker.ground.alarms import Alarms
from mqttd.cluster.etcd.client import Answer, EtcdError
from mqttd.cluster.etcd.upkeep import ALARM, ROUND, Upkeep

FULL = "etcdserver: mvcc: database space exceeded"


class Etcd:
    """Answers at once."""

    refused: Callable[[str], object]
    older = ""

    def __init__(self) -> None:
        self.revision = 100
        self.used = 1 << 20
        self.errors: list[str] = []
        self.compacted: list[int] = []
        self.denies: set[str] = set()
        self.writes = 0

    def _may(self, what: str) -> None:
        if what in self.denies:
            raise EtcdError("etcd: 403: etcdserver: permission denied")

    async def status(self) -> dict[str, Any]:
        self._may("status")
        header = {"revision": str(self.revision)}
        size = {"dbSize": str(2 * self.used), "dbSizeInUse": str(self.used)}
        return {"header": header, **size, "errors": self.errors}

    async def compact(self, revision: int) -> None:
        self._may("compact")
        self.compacted.append(revision)

    async def transaction(self, when: Any, then: Any) -> Answer:
        return Answer(True, self.revision)

    async def write(self) -> None:
        self.writes += 1
        if self.errors or "write" in self.denies:
            self.refused(FULL)
            raise EtcdError(f"etcd: 429: {FULL}")


class Rounds:
    """An upkeep whose time goes on by rounds."""

    def __init__(self, compacts: bool = True, first: bool = True) -> None:
        self.etcd = Etcd()
        self.now = 0.0
        self.first = first
        made: Any = Upkeep
        self.upkeep: Upkeep = made(
            self.etcd, compacts, b"key", self.etcd.write, lambda: self.first, lambda: self.now
        )
        self.upkeep.alarms = Alarms()

    def go(self, rounds: int, revisions: int = 10) -> list[int]:
        """So many rounds with so many revisions each; what was compacted meanwhile."""
        self.etcd.compacted = []
        for _ in range(rounds):
            self.etcd.revision += revisions
            self.now += ROUND
            self.upkeep.tick()
            self.upkeep.tick()
        return self.etcd.compacted

    @property
    def alarms(self) -> list[str]:
        assert self.upkeep.alarms is not None
        return [each.name for each in self.upkeep.alarms.active()]


def test_once_a_minute_up_to_what_was_there_a_round_ago() -> None:
    rounds = Rounds()
    assert rounds.go(11) == []
    assert rounds.go(1) == [rounds.etcd.revision - 10]
    assert rounds.go(12) == [rounds.etcd.revision - 10]
    assert rounds.upkeep.counters()["cluster_etcd_compactions"] == 2
    # Where nothing is written there is nothing to compact, but for the last rounds before.
    assert len(rounds.go(36, revisions=0)) == 1


def test_at_once_where_much_is_written() -> None:
    rounds = Rounds()
    rounds.go(2)
    rounds.etcd.used += 65 << 20
    # What was written in a round is behind what was there before it.
    assert rounds.go(2) == [rounds.etcd.revision - 20, rounds.etcd.revision - 10]
    assert rounds.go(3) == []
    # etcd takes its time: from what is in use then on it is 64 MiB more.
    rounds.etcd.used -= 60 << 20
    assert rounds.go(1) == []
    rounds.etcd.used += 65 << 20
    assert len(rounds.go(5)) == 2


@pytest.mark.parametrize(("compacts", "first"), [(False, True), (True, False)])
def test_only_the_first_does_that_and_nobody_where_it_is_not_wanted(
    compacts: bool, first: bool
) -> None:
    assert Rounds(compacts, first).go(50) == []


def test_who_becomes_the_first_goes_on() -> None:
    rounds = Rounds(first=False)
    rounds.go(30)
    rounds.first = True
    assert len(rounds.go(1)) == 1


def test_it_is_said_once_that_etcd_does_not_let_us() -> None:
    rounds = Rounds()
    said: list[str] = []
    log: Any = type("Log", (), {"warn": lambda self, text, **more: said.append(text)})()
    rounds.upkeep.log = log
    rounds.etcd.denies = {"compact"}
    rounds.go(60)
    assert len(said) == 1
    assert "--auto-compaction-mode" in said[0]
    rounds.etcd.denies = set()
    assert len(rounds.go(12)) == 1


def test_who_may_not_ask_for_the_status_compacts_all_the_same() -> None:
    rounds = Rounds()
    rounds.etcd.denies = {"status"}
    assert rounds.go(12) == [rounds.etcd.revision - 10]


def test_an_etcd_that_says_it_has_no_space_raises_an_alarm_until_it_takes_a_write() -> None:
    rounds = Rounds()
    rounds.etcd.errors = ["memberID:1 alarm:NOSPACE "]
    rounds.go(2)
    assert rounds.alarms == [ALARM]
    assert "NOSPACE" in rounds.upkeep.shown()["etcd_refuses"]
    rounds.etcd.errors = []
    rounds.etcd.denies = {"write"}
    rounds.go(1)
    assert rounds.alarms == [ALARM]
    rounds.etcd.denies = set()
    rounds.go(1)
    assert rounds.alarms == []
    assert rounds.upkeep.shown() == {"etcd_refuses": ""}
    assert rounds.etcd.writes == 2
    rounds.go(1)
    assert rounds.etcd.writes == 2


def test_an_answer_that_says_so_raises_it_at_once() -> None:
    rounds = Rounds()
    rounds.etcd.refused("etcdserver: permission denied")
    assert rounds.alarms == []
    rounds.etcd.refused(FULL)
    assert rounds.alarms == [ALARM]
    assert rounds.upkeep.counters()["cluster_etcd_refuses"] == 1.0
    rounds.go(1)
    assert rounds.alarms == []


def test_no_leader_is_no_such_alarm() -> None:
    rounds = Rounds()
    rounds.etcd.errors = ["etcdserver: no leader"]
    rounds.go(1)
    assert rounds.alarms == []
