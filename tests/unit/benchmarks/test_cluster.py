"""A rolling restart: its operator asks a node again that does not answer, until he gives up.

Its clients are there when their SUBACK is.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from typing import Any

import pytest

from benchmarks import cluster
from tests.support import packets as mq


class Process:
    """One that ends when it was asked so often."""

    def __init__(self, ends_after: int) -> None:
        self.ends_after = ends_after
        self.count = 0

    def poll(self) -> int | None:
        return 0 if self.count >= self.ends_after else None


class Node:
    def __init__(self, ends_after: int) -> None:
        self.process = Process(ends_after)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Exception | None]:
    """What becomes of each question, the first first; no answer when there are none left."""
    said: list[Exception | None] = []

    def asked(node: Any, *words: str) -> None:
        assert words[:2] == ("cluster", "leave")
        node.process.count += 1
        error = said.pop(0) if said else subprocess.TimeoutExpired("mqttd-ctl", 60)
        if error is not None:
            raise error

    monkeypatch.setattr(cluster, "asked", asked)
    return said


def leave(node: Any) -> int:
    return cluster.leave(node)


def test_a_node_that_does_not_answer_is_asked_again(answers: list[Exception | None]) -> None:
    answers += [subprocess.TimeoutExpired("mqttd-ctl", 60), AssertionError("no answer"), None]
    assert leave(Node(9)) == 2


def test_one_that_has_ended_is_not(answers: list[Exception | None]) -> None:
    assert leave(Node(1)) == 0


def test_one_that_never_ends_is_given_up(answers: list[Exception | None]) -> None:
    with pytest.raises(RuntimeError, match="asked 10 times"):
        leave(Node(99))


class Server:
    """A node that one client connects to, packet by packet."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
            asyncio.Queue()
        )

    async def accept(self, present: bool) -> None:
        """The next connection, whose CONNECT is answered."""
        self.reader, self.writer = await self.begun.get()
        assert await self.next() == 1
        self.writer.write(bytes([0x20, 3, present, 0, 0]))

    async def next(self) -> int:
        """The type of the next packet."""
        first, length = await self.reader.readexactly(2)
        await self.reader.readexactly(length)
        return first >> 4

    def end(self) -> None:
        self.writer.transport.abort()


@contextlib.asynccontextmanager
async def member() -> Any:
    """One member of a ring of two, and the node it is at."""
    node = Server()

    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await node.begun.put((reader, writer))

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    found = cluster.Member(0, 2, {"a": server.sockets[0].getsockname()[1]}, 1.0)
    task = asyncio.create_task(found.run())
    async with asyncio.timeout(20):
        yield found, node
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    node.end()
    server.close()


SUBACK = bytes([0x90, 4, 0, 1, 0, 1])


def test_a_client_is_there_when_its_subscription_is() -> None:
    async def story() -> None:
        async with member() as (found, node):
            await node.accept(False)
            assert await node.next() == mq.SUBSCRIBE
            # Nobody waits for it yet, but it is not lost either.
            node.writer.write(mq.publish(found.topic, b"7", 1, 1, version=mq.V5))
            assert await node.next() == mq.PUBACK
            assert found.seen == {7}
            assert not found.connected.is_set()
            node.writer.write(SUBACK)
            await found.connected.wait()

    asyncio.run(story())


def test_a_client_without_its_suback_subscribes_in_the_session_that_it_has() -> None:
    async def story() -> None:
        async with member() as (found, node):
            await node.accept(False)
            assert await node.next() == mq.SUBSCRIBE
            node.end()
            await node.accept(True)
            assert await node.next() == mq.SUBSCRIBE
            node.writer.write(SUBACK)
            await found.connected.wait()
            node.end()
            found.open = 3
            await node.accept(True)
            assert await node.next() == mq.PUBLISH  # and no SUBSCRIBE again

    asyncio.run(story())
