"""What was acknowledged to honest clients, and whether all of it came: the other half of a mixture.

    writer --QoS 1--> broker --QoS 1--> readers, some of them away meanwhile
      `-- acknowledged: in the ledger, until its reader has it

What the broker refuses with a reason code is not in the ledger; what it has acknowledged must come,
in order, once or more. A retained message that it has acknowledged stays until the next one.
"""

from __future__ import annotations

import time
from collections import deque
from random import Random
from typing import Final

from benchmarks.hostile.honest import HonestClient, TurnedAway

__all__ = ["Ledger", "Lost"]

READERS: Final = 6
#: Seconds that the session of a reader outlasts its connection.
AWAY: Final = 3600
#: Seconds for somebody who is told to come later.
LATER: Final = 15.0


class Lost(Exception):
    """What was acknowledged did not come, or somebody honest was dropped; it says which."""


class Ledger:
    """A writer and its readers."""

    def __init__(self, port: int) -> None:
        self.port = port
        #: Messages acknowledged, refused with a reason code, and received.
        self.acknowledged = self.refused = self.received = 0
        self._owed: list[deque[bytes]] = [deque() for _ in range(READERS)]
        self._writer = HonestClient(port, "honest-writer")
        self._readers: list[HonestClient | None] = []
        for number in range(READERS):
            reader = HonestClient(port, self._name(number), expiry=AWAY)
            reader.subscribe()
            self._readers.append(reader)
        self._kept = b""

    def away(self, random: Random) -> None:
        """Some readers leave."""
        for number in range(READERS):
            reader = self._readers[number]
            if reader is not None and random.random() < 0.4:
                reader.leave()
                self._readers[number] = None

    def write(self, random: Random, seed: int, until: float) -> None:
        """Messages to everybody until a time; raises Lost."""
        count = 0
        while time.monotonic() < until:
            count += 1
            said = b"%d/%d" % (seed, count)
            number = random.randrange(READERS)
            code = self._say(b"honest/" + self._name(number).encode(), said)
            if code >= 0x80:
                self.refused += 1
            elif code:
                raise Lost(f"{self._name(number)} has no session any more ({code:#x})")
            else:
                self.acknowledged += 1
                self._owed[number].append(said)
            if count % 10 == 1:
                if self._say(b"honest/kept", said, retain=True) < 0x80:
                    self._kept = said
            # As fast as the broker answers would be an attack as well.
            time.sleep(0.001)

    def settle(self) -> None:
        """Everybody comes back and gets what is owed; raises Lost."""
        for number in range(READERS):
            reader = self._readers[number]
            if reader is None:
                reader = self._readers[number] = self._resume(number)
            self._read(number, reader)
        reader = self._readers[0]
        assert reader is not None
        try:
            self._read_kept(reader)
        except OSError as error:
            raise Lost(f"the retained message: {error}") from error

    def close(self) -> None:
        """Leave."""
        for client in (self._writer, *self._readers):
            if client is not None:
                client.leave()

    @staticmethod
    def _name(number: int) -> str:
        return f"honest-reader-{number}"

    def _say(self, topic: bytes, said: bytes, retain: bool = False) -> int:
        try:
            return self._writer.send(topic, said, retain)
        except OSError as error:
            raise Lost(f"the writer: {error}") from error

    def _resume(self, number: int) -> HonestClient:
        end = time.monotonic() + LATER
        while True:
            try:
                reader = HonestClient(self.port, self._name(number), expiry=AWAY)
            except TurnedAway as error:
                if time.monotonic() > end:
                    raise Lost(f"{self._name(number)} was not let in again: {error}") from error
                time.sleep(0.05)
            except OSError as error:
                raise Lost(f"{self._name(number)} did not get in again: {error}") from error
            else:
                if not reader.resumed:
                    reader.leave()
                    raise Lost(f"{self._name(number)} found its session gone")
                return reader

    def _read(self, number: int, reader: HonestClient) -> None:
        owed = self._owed[number]
        while owed:
            try:
                payload = reader.message()[1:]
            except OSError as error:
                first = owed[0].decode()
                raise Lost(
                    f"{self._name(number)}: {len(owed)} lost from {first}: {error}"
                ) from error
            if payload == owed[0]:
                owed.popleft()
                self.received += 1
            elif payload in owed:
                raise Lost(f"{self._name(number)}: {payload!r} before {owed[0]!r}")

    def _read_kept(self, reader: HonestClient) -> None:
        if not self._kept or reader.subscribe(b"honest/kept") >= 0x80:
            return
        payload = reader.message()[1:]
        if payload != self._kept:
            raise Lost(f"retained: {payload!r} instead of {self._kept!r}")
        reader.unsubscribe(b"honest/kept")
