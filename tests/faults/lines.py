"""The lines between nodes: one port for each that is dialled, one gate for each pair.

    a --dials--> port of c --hello says a--> gate (a, c): open, shut, late by so many seconds --> c

What is on its way through a gate that is shut is gone, as with a cable; the ends hear nothing of it
until they try (`shut` also ends what there is, as a switch that answers for the other end).
"""

from __future__ import annotations

import asyncio
import contextlib

from mqttd.cluster.links.hello import hello_of

__all__ = ["Gate", "Lines"]

#: Pieces that may be under way in one direction.
_MOST = 1000


class Gate:
    """What lies between two nodes."""

    def __init__(self) -> None:
        self.open = True
        #: Seconds that bytes take, each way.
        self.delay = 0.0
        self.writers: set[asyncio.StreamWriter] = set()
        self.cuts = 0

    def shut(self) -> None:
        """No byte goes through."""
        self.open = False
        for writer in list(self.writers):
            writer.transport.abort()
            self.cuts += 1


class Lines:
    """`gates` by the two names in their order."""

    def __init__(self, names: str) -> None:
        self.gates = {(a, b): Gate() for a in names for b in names if a < b}
        self.ports: dict[str, int] = {}
        self.targets: dict[str, int] = {}
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self) -> None:
        """Be reached: `ports` is where for each node."""
        for name in {b for _, b in self.gates}:

            async def came(reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
                           name: str = name) -> None:  # fmt: skip
                await self._came(name, reader, writer)

            server = await asyncio.start_server(came, "127.0.0.1", 0)
            self._servers.append(server)
            self.ports[name] = server.sockets[0].getsockname()[1]

    def end(self) -> None:
        """No more."""
        for server in self._servers:
            server.close()
        for gate in self.gates.values():
            gate.shut()
        for task in self._tasks:
            task.cancel()

    async def _came(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        data = b""
        try:
            while (found := hello_of(data)) is None:
                more = await reader.read(4096)
                if not more:
                    return writer.transport.abort()
                data += more
            gate = self.gates[found[0].node, name]
            if not gate.open:
                return writer.transport.abort()
            there, to = await asyncio.open_connection("127.0.0.1", self.targets[name])
        except (OSError, ValueError):
            return writer.transport.abort()
        ends = {writer, to}
        gate.writers |= ends
        to.write(data)
        for one, other in ((reader, to), (there, writer)):
            task = asyncio.create_task(_pass_on(gate, one, other, ends))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


async def _pass_on(
    gate: Gate,
    one: asyncio.StreamReader,
    other: asyncio.StreamWriter,
    ends: set[asyncio.StreamWriter],
) -> None:
    loop = asyncio.get_running_loop()
    # One behind the other: what is read when the line is fast again must not overtake.
    late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_MOST)
    writing = asyncio.create_task(_write(gate, other, late))
    try:
        while data := await one.read(65536):
            await late.put((loop.time() + gate.delay, data))
    except OSError:
        pass
    finally:
        writing.cancel()
    for writer in ends:
        writer.transport.abort()
    gate.writers -= ends


async def _write(
    gate: Gate, other: asyncio.StreamWriter, late: asyncio.Queue[tuple[float, bytes]]
) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due, data = await late.get()
        if due > loop.time():
            await asyncio.sleep(due - loop.time())
        if gate.open and not other.transport.is_closing():
            other.write(data)
            with contextlib.suppress(OSError):
                await other.drain()
