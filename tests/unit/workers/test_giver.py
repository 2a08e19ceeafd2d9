"""Whose retained messages a worker takes over that begins, and what if that one dies meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import Logger

from mqttd.workers.process import WorkerProcess
from mqttd.workers.supervisor import WorkersService
from mqttd.workers.worker import Worker as Process
from tests.unit.workers.test_ferry import Worker


class Control:
    """What a worker is told."""

    def __init__(self) -> None:
        self.links: list[tuple[int, bool]] = []

    def send(self, message: dict[str, Any], fds: list[int]) -> None:
        self.links.append((message["link"], message["takes"]))


class Told:
    """Three workers; 1 and 2 serve, 3 begins."""

    def __init__(self) -> None:
        supervisor = self.supervisor = object.__new__(WorkersService)
        supervisor.log = Logger()
        supervisor.reactor = Clock()
        supervisor.stopping = supervisor.opened = False
        supervisor._down = []
        supervisor._calls = []
        self.controls = [Control() for _ in range(3)]
        supervisor.workers = self.workers = [
            WorkerProcess(number, None, lambda *_: None, supervisor._told, supervisor._ended)
            for number in (1, 2, 3)
        ]
        for worker, control in zip(self.workers, self.controls, strict=True):
            worker.control = control  # type: ignore[assignment]
        for worker in self.workers[:2]:
            worker.up = worker.ready = True

    def begins(self) -> None:
        self.workers[2].said({"up": True})

    def dies(self, number: int) -> None:
        worker = self.workers[number - 1]
        worker.control = None
        worker.up = worker.ready = False
        worker.ended(worker, "ended by SIGKILL")

    def links(self) -> list[tuple[int, bool]]:
        links, self.controls[2].links = self.controls[2].links, []
        return links


@pytest.fixture
def told() -> Told:
    return Told()


def test_who_takes_over_from_one_that_dies_takes_over_from_another(told: Told) -> None:
    told.begins()
    assert told.links() == [(1, True), (2, False)]
    told.dies(1)
    assert told.links() == [(2, True)]


def test_another_one_that_dies_is_no_matter(told: Told) -> None:
    told.begins()
    told.links()
    told.dies(2)
    assert not told.links()


def test_who_serves_takes_over_nothing_any_more(told: Told) -> None:
    told.begins()
    told.links()
    told.workers[2].ready = True
    told.dies(1)
    assert not told.links()


def test_nobody_is_let_in_while_all_are_told() -> None:
    """Of a link before, the supervisor may have heard that this one was met."""
    begins, giver = Worker(1), Worker(2)
    process = object.__new__(Process)
    process.broker, process.mesh = begins.node.broker, begins.mesh
    process.broker.wills.hold()
    opened: Deferred[None] = Deferred()
    process._opened = opened
    begins.link(takes=True)
    giver.link()
    process._told({"opened": True}, [])
    assert not opened.called
    giver.arriving.take(begins.turn())
    begins.arriving.take(giver.turn())
    process._told({"opened": True}, [])
    assert opened.called
