"""What the engine polls for others: the store's writer, which mostly answers within the turn."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from mqttd.testing import MemoryBroker
from mqttd.transports.engine import Engine
from mqttd.transports.reactor import stop_reading
from tests.support.waiting import until


class Bell:
    """An eventfd, and what came of it."""

    def __init__(self, engine: Engine) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.engine = engine
        self.rung = 0
        self.left = False
        engine.watch(self.fd, self.called, self.gone)

    def called(self) -> None:
        os.eventfd_read(self.fd)
        self.rung += 1
        self.engine.server.journal.soon = False

    def gone(self) -> None:
        self.left = True


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine(MemoryBroker().broker)
    yield made
    made.epoll.close()


def test_it_is_told_until_it_wants_no_more(engine: Engine) -> None:
    bell = Bell(engine)
    engine.doRead()
    os.eventfd_write(bell.fd, 1)
    engine.doRead()
    assert bell.rung == 1
    engine.unwatch(bell.fd)
    os.eventfd_write(bell.fd, 1)
    engine.doRead()
    assert (bell.rung, bell.left) == (1, False)
    os.close(bell.fd)


def test_it_is_told_once_for_each_ring_though_nobody_reads_it(engine: Engine) -> None:
    told: list[int] = []
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    engine.watch(fd, lambda: told.append(1), lambda: None)
    for rings in range(1, 4):
        os.eventfd_write(fd, 1)
        engine.doRead()
        engine.doRead()
        assert len(told) == rings
    engine.unwatch(fd)
    os.close(fd)


def test_it_hears_that_the_engine_reads_no_more(engine: Engine) -> None:
    bell = Bell(engine)

    class Reactor:
        def removeReader(self, reader: object) -> None:
            assert reader is engine and bell.left

    stop_reading(Reactor(), engine)
    assert not engine.bells
    os.close(bell.fd)


def test_a_stream_has_its_events_until_the_engine_reads_no_more(engine: Engine) -> None:
    ours, theirs = socket.socketpair()
    came: list[bytes] = []
    left: list[int] = []
    with ours, theirs:
        engine.carry(ours.fileno(), lambda event: came.append(ours.recv(1)), lambda: left.append(1))
        theirs.send(b"12")
        engine.doRead()
        assert came == [b"1"]
        engine.doRead()  # what it has not read is still there
        assert came == [b"1", b"2"]
        engine.leave()
        theirs.send(b"3")
        engine.doRead()
        assert (came, left) == ([b"1", b"2"], [1])
        assert not engine.streams


def test_what_is_being_written_is_waited_for_in_the_same_turn_of_the_reactor(
    engine: Engine,
) -> None:
    bell = Bell(engine)

    def answered() -> bool:
        engine.server.journal.soon = True
        engine.hasty = 0
        writer = threading.Thread(target=os.eventfd_write, args=(bell.fd, 1))
        writer.start()
        engine.doRead()
        writer.join()
        return bell.rung > 0 and engine.hasty == 0

    until(answered, "a writer that is quick")
    os.close(bell.fd)


def test_a_disk_that_is_slow_is_not_waited_for(engine: Engine) -> None:
    bell = Bell(engine)
    engine.server.journal.soon = True
    engine.doRead()
    assert (left := engine.hasty) > 0
    engine.doRead()
    assert engine.hasty == left - 1
    os.close(bell.fd)
