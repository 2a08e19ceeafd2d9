"""Plays a sequence against the model and a broker in lockstep, up to the first difference.

    step --> Stage of the model --> what each client should see
         --> Stage of the broker -> await that; PINGREQ and PINGRESP of all; what each has seen

What should come is awaited, so a broker may take its time (a store writes before PUBACK); what
should not come is before a PINGRESP, or is seen in the next step.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

from fuzz.lockstep.clients import DEADLINE, Client, Flight
from fuzz.lockstep.model import Connection, Model
from fuzz.lockstep.seen import Seen, differing
from fuzz.lockstep.steps import (
    Answer,
    Automatic,
    Close,
    Connect,
    Disconnect,
    Kill,
    Pause,
    Publish,
    Sequence,
    Step,
    Write,
)
from fuzz.lockstep.writing import Names, encode
from tests.support.waiting import Patience

__all__ = ["BrokerStage", "Difference", "Duel", "ModelStage", "Stage"]

#: What each client that has seen something has seen in a step; None: the step could not be done.
Sight = dict[int, Seen] | None


class Stage:
    """The clients of a sequence at one broker."""

    def __init__(self, clients: int, names: Names) -> None:
        self.names = names
        flights: dict[str, dict[int, Flight]] = {}
        self.clients = [Client(number, names, flights) for number in range(clients)]

    def dial(self) -> Any:
        """A new connection: a socket, or what looks like one."""
        raise NotImplementedError

    def hear(self, others: Many[Client]) -> None:
        """Have the broker read what was written so far; these are pinged."""

    def settle(self, expected: Sight) -> None:
        """Read until nothing more comes."""
        raise NotImplementedError

    def pause(self, seconds: float) -> None:
        """Time passes."""
        raise NotImplementedError

    def close(self) -> None:
        """The playing is over."""
        for client in self.clients:
            client.shut()

    # -- steps ---------------------------------------------------------------------------------

    def play(self, step: Step, expected: Sight = None) -> Sight:
        """Do a step, and what the clients see of it; None if it cannot be done as things are."""
        for client in self.clients:
            client.seen = Seen()
        if not self.do(step):
            return None
        self.settle(expected)
        for client in self.clients:
            if client.raw is not None and not client.connected:
                client.drop()  # neither CONNACK nor the end
        sight = {client.number: client.seen.comparable() for client in self.clients}
        return {number: seen for number, seen in sight.items() if seen != Seen()}

    def do(self, step: Step) -> bool:
        """The client's part of a step; False if it cannot be done."""
        if isinstance(step, Pause):
            self.pause(step.seconds)
            return True
        assert not isinstance(step, Kill)  # see `Duel`
        client = self.clients[step.client]
        if isinstance(step, Write):
            return self.write(client, step)
        if client.raw is None:
            return False
        if isinstance(step, Close):
            client.drop()
        elif isinstance(step, Automatic):
            client.automatic = step.on
            if step.on:
                client.acknowledge_all()
        elif isinstance(step, Answer):
            if not client.due:
                return False
            due = sorted(client.due)[step.which % len(client.due)]
            client.acknowledge(due, step.reason, step.type)
        return True

    def write(self, client: Client, step: Write) -> bool:
        """Packets, on a new connection if the first is CONNECT."""
        first = step.packets[0]
        if isinstance(first, Connect):
            if client.raw is not None:
                return False
            try:
                client.connect(self.dial(), first)
            except OSError as error:
                client.fault(f"no connection: {error}")
                return True
            if step.mutation:
                client.client_id = f"mutated {id(step)}"  # who knows
        elif client.raw is None:
            return False
        data = b""
        for packet in step.packets:
            wire = encode(packet, client.version, self.names)
            if packet is first and step.mutation and wire:
                wire = step.mutation.of(wire)
            elif isinstance(packet, Publish) and wire:
                client.will_release(packet)
            elif isinstance(packet, Disconnect):
                client.automatic = False  # nothing is sent behind it (MQTT-3.14.4-1)
            data += wire
        if not data:
            return False
        begin = 0
        for cut in sorted({cut % len(data) for cut in step.cuts} - {0}):
            client.write(data[begin:cut])
            self.hear([other for other in self.clients if other is not client])
            begin = cut
        client.write(data[begin:])
        return True


class ModelStage(Stage):
    """At the model, where everything happens at once."""

    def __init__(self, clients: int, names: Names) -> None:
        super().__init__(clients, names)
        self.model = Model()

    def dial(self) -> Connection:
        """See `Stage`."""
        return Connection(self.model)

    def settle(self, expected: Sight) -> None:
        """See `Stage`."""
        while ready := [c for c in self.clients if c.raw is not None and c.raw.sock.readable()]:
            for client in ready:
                client.read()

    def pause(self, seconds: float) -> None:
        """See `Stage`."""
        self.model.sleep(seconds)


class BrokerStage(Stage):
    """At a broker."""

    def __init__(
        self,
        clients: int,
        names: Names,
        address: Callable[[], tuple[str, int]],
        patience: float = DEADLINE,
    ) -> None:
        super().__init__(clients, names)
        self.address = address
        self.patience = patience

    def dial(self) -> socket.socket:
        """See `Stage`."""
        sock = socket.create_connection(self.address(), DEADLINE)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def pause(self, seconds: float) -> None:
        """See `Stage`."""
        time.sleep(seconds)

    def hear(self, others: Many[Client]) -> None:
        """See `Stage`."""
        pinged = [client for client in others if client.connected]
        for client in pinged:
            client.ping()
        self.read_until(lambda: [c for c in pinged if c.connected and c.pings > 0], pinged)
        for client in pinged:
            if client.connected and client.pings > 0:
                client.fault("no PINGRESP")
                client.pings = 0

    def settle(self, expected: Sight) -> None:
        """See `Stage`: what is expected, and behind it pings, as long as these bring any."""
        if expected is not None:
            self.read_until(
                lambda: [c for c in self.clients if short(c, expected.get(c.number))], self.clients
            )
        before = -1
        while before != (now := sum(client.seen.packets() for client in self.clients)):
            self.hear(self.clients)
            before = now

    def read_until(self, waiting: Callable[[], list[Client]], clients: Many[Client]) -> None:
        """Have these read until none of them waits, or patience is at its end."""
        patience = Patience(self.patience)
        while waiting() and patience.left():
            there = {client.raw.sock: client for client in clients if client.raw is not None}
            for sock in select.select(list(there), [], [], 0.1)[0]:
                there[sock].read()


def short(client: Client, expected: Seen | None) -> bool:
    """Whether more should come to this client."""
    if expected is None or client.raw is None:
        return False
    seen = client.seen
    return seen.packets() < expected.packets() or (bool(expected.end) and not seen.end.strip())


@dataclass
class Difference:
    """Where a broker is not as the model."""

    at: int
    kind: str


@dataclass
class Duel:
    """A sequence played at both, step by step.

    `play` goes on to the first difference or to a `Kill`, before which the broker has heard
    everything: whoever kills it and starts it again calls `killed`, and `play` once more.
    """

    sequence: Sequence
    address: Callable[[], tuple[str, int]]
    #: Seconds for what should come.
    patience: float = DEADLINE
    difference: Difference | None = None
    at: int = 0
    #: What was done and seen: step, the model's sight, the broker's.
    told: list[tuple[Step, Sight, Sight]] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = Names(token_hex(6))
        self.model = ModelStage(self.sequence.clients, names)
        self.broker = BrokerStage(self.sequence.clients, names, self.address, self.patience)

    @property
    def waits(self) -> bool:
        """Whether the next step is a kill."""
        steps = self.sequence.steps
        return self.difference is None and self.at < len(steps) and isinstance(steps[self.at], Kill)

    def play(self) -> None:
        """Go on."""
        try:
            while self.at < len(self.sequence.steps) and not self.difference and not self.waits:
                self.step(self.sequence.steps[self.at])
        finally:
            if not self.waits:
                self.model.close()
                self.broker.close()

    def step(self, step: Step) -> None:
        """One step at both."""
        expected = self.model.play(step)
        if self.model.model.unsure:
            self.at = len(self.sequence.steps)
            return
        seen = self.broker.play(step, expected)
        self.told.append((step, expected, seen))
        if expected != seen:
            kind = differences(expected, seen)
            self.difference = Difference(self.at, f"{type(step).__name__} {kind}")
        self.at += 1

    def killed(self) -> None:
        """The broker was killed and is there again."""
        self.model.model.restart()
        for stage in (self.model, self.broker):
            for client in stage.clients:
                client.ended("killed")
        self.told.append((self.sequence.steps[self.at], {}, {}))
        self.at += 1
        if self.model.model.unsure:
            self.at = len(self.sequence.steps)


def differences(expected: Sight, seen: Sight) -> str:
    """In what two sights differ, for the first client that saw another thing."""
    if expected is None or seen is None:
        return "not done by both"
    for number in sorted({*expected, *seen}):
        mine, its = seen.get(number, Seen()), expected.get(number, Seen())
        if mine != its:
            return differing(mine, its)
    return ""
