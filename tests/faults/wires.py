"""The wires between nodes and etcd: what was asked is done, and its answer is lost, or late.

    node --asks--> a port of its own for each member --> the member
         ---- HELD: it comes there after some seconds, whether or not somebody still waits --->
         <--- LOST: the connection is cut in the place of the answer -------------------------
         <--- LATE: after some seconds; who has asked gives up after two ---------------------
    node --X  CUT: nothing comes there, so leases end ----------------------------------------

Of a wire that is well nothing is lost, and nothing is late.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

__all__ = ["Trouble", "Wires"]

#: Seconds that something takes, and that a member has for what nobody waits for any more.
_LEAST, _MOST = 1.0, 8.0
_LINGERS = 1.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """The chances of what is asked to be held, and of an answer to be lost, or else late; `cut`:
    there is no way."""

    held: float = 0.0
    lost: float = 0.0
    late: float = 0.0
    cut: bool = False


_WELL = Trouble()


class Wires:
    """From each node of `names` to each member, which listen at `members`."""

    def __init__(self, names: str, members: Sequence[int], dice: random.Random) -> None:
        self.members = members
        self.dice = dice
        self.of = {(name, number): _WELL for name in names for number in range(len(members))}
        self._well = {wire: asyncio.Event() for wire in self.of}
        #: What was held, lost and late.
        self.done: Counter[str] = Counter()
        self._ports: dict[tuple[str, int], int] = {}
        self._servers: list[asyncio.Server] = []
        self._ways: dict[tuple[str, int], set[asyncio.StreamWriter]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self) -> None:
        """Be reached."""
        for wire in self.of:

            def came(reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
                     wire: tuple[str, int] = wire) -> None:  # fmt: skip
                task = asyncio.create_task(self._came(wire, reader, writer))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

            server = await asyncio.start_server(came, "127.0.0.1", 0)
            self._servers.append(server)
            self._ports[wire] = server.sockets[0].getsockname()[1]

    def end(self) -> None:
        """No more."""
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()

    def endpoints(self, name: str) -> list[str]:
        """Where a node finds the members."""
        numbers = range(len(self.members))
        return [f"http://127.0.0.1:{self._ports[name, number]}" for number in numbers]

    def trouble(self, names: str, numbers: Sequence[int], trouble: Trouble = _WELL) -> None:
        """From now on it is so between these nodes and these members; what waits does no more."""
        for wire in [(name, number) for name in names for number in numbers]:
            self.of[wire] = trouble
            self._well[wire].set() if trouble == _WELL else self._well[wire].clear()
            for way in self._ways.get(wire, ()) if trouble.cut else ():
                way.transport.abort()

    async def _came(
        self, wire: tuple[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            there, to = await asyncio.open_connection("127.0.0.1", self.members[wire[1]])
        except OSError:
            return writer.transport.abort()
        ways = self._ways.setdefault(wire, set())
        if self.of[wire].cut:
            writer.transport.abort()
            return to.transport.abort()
        ways |= {writer, to}
        asks = asyncio.create_task(self._ask(wire, reader, to))
        answers = asyncio.create_task(self._answer(wire, there, writer))
        try:
            await asyncio.wait({asks, answers}, return_when=asyncio.FIRST_COMPLETED)
            if self.of[wire] != _WELL:
                await asyncio.wait({answers}, timeout=_LINGERS)
        finally:
            for task in (asks, answers):
                task.cancel()
            ways -= {writer, to}
            for end in (writer, to):
                end.transport.abort()

    async def _ask(
        self, wire: tuple[str, int], reader: asyncio.StreamReader, to: asyncio.StreamWriter
    ) -> None:
        while data := await _read(reader):
            if self._falls(self.of[wire].held):
                await self._wait(wire, "held")
            to.write(data)

    async def _answer(
        self, wire: tuple[str, int], there: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await _read(there):
            if self._falls(self.of[wire].lost):
                self.done["lost"] += 1
                return writer.transport.abort()
            if self._falls(self.of[wire].late):
                await self._wait(wire, "late")
            if not writer.transport.is_closing():
                writer.write(data)

    def _falls(self, chance: float) -> bool:
        return self.dice.random() < chance

    async def _wait(self, wire: tuple[str, int], what: str) -> None:
        self.done[what] += 1
        with suppress(TimeoutError):
            await asyncio.wait_for(self._well[wire].wait(), self.dice.uniform(_LEAST, _MOST))


async def _read(reader: asyncio.StreamReader) -> bytes:
    """What has come; nothing at the end."""
    try:
        return await reader.read(65536)
    except OSError:
        return b""
