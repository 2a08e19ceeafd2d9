"""What one process of `mqttd-bench` does: conn, pub or sub, with a figure every second.

A process has its share of the clients and one asyncio loop. What it did goes to `report` as a
`Figures`, once a second and at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from mqttd.bench.client import Client, Refused
from mqttd.bench.stamp import Arrivals, stamp

__all__ = ["Figures", "Job", "run"]


@dataclass(slots=True)
class Job:
    """What to do; `first` is the number of this process's first client."""

    command: str
    host: str = "127.0.0.1"
    port: int = 1883
    first: int = 0
    clients: int = 1
    rate: float = 0.0
    topic: str = "bench/%i"
    qos: int = 0
    size: int = 64
    retain: bool = False
    messages: int = 0
    duration: float = 0.0
    interval: float = 0.0
    inflight: int = 20
    version: int = 4
    keep_alive: int = 60
    username: str | None = None
    password: str | None = None
    run: int = 0
    prefix: str = "bench"


@dataclass(slots=True)
class Figures:
    """Counters since the start of a process; `late_us` and the faults only at the end."""

    connected: int = 0
    refused: int = 0
    sent: int = 0
    acknowledged: int = 0
    received: int = 0
    lost: int = 0
    duplicates: int = 0
    out_of_order: int = 0
    foreign: int = 0
    faults: list[str] = field(default_factory=list)
    late_us: list[int] = field(default_factory=list)
    done: bool = False


def run(job: Job, report: Callable[[Figures], object]) -> None:
    """Do the job; `report` is called about once a second and with the last figures."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_Worker(job, report).main())


class _Worker:
    def __init__(self, job: Job, report: Callable[[Figures], object]) -> None:
        self.job = job
        self.report = report
        self.figures = Figures()
        self.clients: list[Client] = []
        self.arrivals: list[Arrivals] = []
        self.stop = asyncio.Event()
        self.numbers: dict[Client, int] = {}
        self.names: dict[Client, int] = {}

    async def main(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop.set)
        ticking = asyncio.create_task(self._tick())
        try:
            await self._connect_all()
            work = {"conn": self._hold, "pub": self._publish_all, "sub": self._hold}
            await work[self.job.command]()
        finally:
            ticking.cancel()
            for client in self.clients:
                client.close()
            self._sum()
            self.figures.done = True
            self.report(self.figures)

    # -- connecting ----------------------------------------------------------------------------

    async def _connect_all(self) -> None:
        job = self.job
        gate = asyncio.Semaphore(100)
        began = time.monotonic()
        tasks: list[asyncio.Task[None]] = []
        for i in range(job.clients):
            if self.stop.is_set():
                break
            if job.rate:
                await asyncio.sleep(max(0.0, began + i / job.rate - time.monotonic()))
            await gate.acquire()
            task = asyncio.create_task(self._connect(job.first + i))
            task.add_done_callback(lambda _: gate.release())
            tasks.append(task)
        await asyncio.gather(*tasks)

    async def _connect(self, number: int) -> None:
        job, figures = self.job, self.figures
        arrivals = Arrivals()

        def arrived(packet: object) -> None:
            arrivals.message(packet.payload, time.time_ns())  # type: ignore[attr-defined]

        client = Client(
            f"{job.prefix}-{job.command}-{number}", job.version, job.keep_alive, job.username,
            job.password.encode() if job.password is not None else None,
            arrived if job.command == "sub" else None,
            self._room if job.command == "pub" else None, job.inflight,
        )  # fmt: skip
        try:
            async with asyncio.timeout(30):
                await asyncio.get_running_loop().create_connection(
                    lambda: client, job.host, job.port
                )
                await client.opened
                if job.command == "sub":
                    client.subscribe(self._topic(number), job.qos)
                    await client.subscribed
        except (OSError, Refused, TimeoutError) as error:
            figures.refused += 1
            text = str(error) or "no answer within 30 s"
            if text not in figures.faults and len(figures.faults) < 5:
                figures.faults.append(text)
            client.close()
            return
        figures.connected += 1
        self.clients.append(client)
        self.arrivals.append(arrivals)
        self.numbers[client] = 0
        self.names[client] = number

    def _topic(self, number: int) -> str:
        return self.job.topic.replace("%i", str(number))

    # -- work ----------------------------------------------------------------------------------

    async def _hold(self) -> None:
        """Stay until the time is over, everything expected is there, or everybody is gone."""
        job = self.job
        until = time.monotonic() + job.duration if job.duration else float("inf")
        pinged = time.monotonic()
        while self.clients and not self.stop.is_set() and time.monotonic() < until:
            if job.messages and sum(a.received for a in self.arrivals) >= job.messages * len(
                self.clients
            ):
                break
            if job.keep_alive and time.monotonic() - pinged > job.keep_alive / 2:
                pinged = time.monotonic()
                for client in self.clients:
                    client.ping()
            await self._pause(0.1)
            if all(client.ended.done() for client in self.clients):
                self.figures.faults.append("every connection was closed by the broker")
                break

    async def _publish_all(self) -> None:
        job = self.job
        until = time.monotonic() + job.duration if job.duration else float("inf")
        self.until = until
        if job.interval:
            turn = 0
            began = time.monotonic()
            while not self._over():
                for client in self.clients:
                    if self._wants(client):
                        self._one(client)
                turn += 1
                await self._pause(max(0.0, began + turn * job.interval - time.monotonic()))
        else:
            for client in self.clients:
                self._room(client)
            while not self._over():
                if job.qos == 0:
                    for client in self.clients:
                        self._room(client)
                    await asyncio.sleep(0)
                else:
                    await self._pause(0.05)
        # What is on its way still gets its acknowledgement.
        last = time.monotonic() + 10
        while time.monotonic() < last and not self.stop.is_set():
            waiting = [
                c
                for c in self.clients
                if not c.ended.done() and (c.room < job.inflight if job.qos else _unsent(c) > 0)
            ]
            if not waiting:
                break
            await asyncio.sleep(0.01)

    def _over(self) -> bool:
        job = self.job
        return (
            self.stop.is_set()
            or time.monotonic() >= self.until
            or not any(not c.ended.done() for c in self.clients)
            or bool(job.messages and all(n >= job.messages for n in self.numbers.values()))
        )

    def _wants(self, client: Client) -> bool:
        job = self.job
        if client.ended.done() or (job.messages and self.numbers[client] >= job.messages):
            return False
        return client.room > 0 if job.qos else not client.full

    def _room(self, client: Client) -> None:
        """The client may send: fill its window (a batch of 64 with QoS 0)."""
        if self.job.interval or client not in self.numbers or time.monotonic() >= self.until:
            return
        for _ in range(64):
            if not self._wants(client):
                break
            self._one(client)

    def _one(self, client: Client) -> None:
        job = self.job
        number = self.numbers[client]
        self.numbers[client] = number + 1
        name = self.names[client]
        payload = stamp(job.run, name, number, time.time_ns(), job.size)
        client.publish(self._topic(name), payload, job.qos, job.retain)
        self.figures.sent += 1

    until = float("inf")

    # -- figures -------------------------------------------------------------------------------

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stop.wait(), seconds)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1)
            self.figures.received = sum(a.received for a in self.arrivals)
            self.report(self.figures)

    def _sum(self) -> None:
        figures = self.figures
        for arrivals in self.arrivals:
            figures.lost += arrivals.lost
            figures.duplicates += arrivals.duplicates
            figures.out_of_order += arrivals.out_of_order
            figures.foreign += arrivals.foreign
            figures.late_us += arrivals.late_us
        figures.received = sum(a.received for a in self.arrivals)
        if self.job.qos:
            unacknowledged = sum(self.job.inflight - c.room for c in self.clients)
            figures.acknowledged = figures.sent - unacknowledged


def _unsent(client: Client) -> int:
    return client.transport.get_write_buffer_size() if client.transport is not None else 0
