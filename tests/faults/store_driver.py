"""A process that writes to a store until it is killed, and tells of each group that is written.

    python -m tests.faults.store_driver PATH SEED FIRST [MUTANT]

What it does follows from SEED alone, so that whoever kills it can do the same again (`History`) and
knows what the file must hold after each group. MUTANT: a fault that the harness has to find.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections import deque

from mqttd.storage.blocks import Group
from mqttd.storage.database import KEEP, OPEN_SESSION, connect
from mqttd.storage.ledger import DELIVERY, MESSAGE3, MESSAGE5, RECEIVED, Ledger
from mqttd.storage.recovery import read
from mqttd.storage.writer import Writer

OWNERS = 8
#: Groups that are under way at once.
OUTSTANDING = 4

#: What lives: number -> owner, kind, packet id, bytes.
Model = dict[int, tuple[int, int, int, bytes]]


def on_disk(number: int) -> bool:
    """Whether a group is promised to be on the disk, not only with the system."""
    return number % 3 == 0


class History:
    """The groups of one seed, one after the other, in a ledger and as a model."""

    def __init__(self, seed: int, model: Model | None = None) -> None:
        self.dice = random.Random(seed)
        self.model: Model = {} if model is None else dict(model)

    def group(self, ledger: Ledger) -> None:
        """What the next group does."""
        dice = self.dice
        for _ in range(dice.choice((1, 2, 30))):
            roll = dice.random()
            if roll < 0.55:
                owner = dice.randint(1, OWNERS)
                kind = dice.choice((MESSAGE3, MESSAGE5, DELIVERY, RECEIVED))
                data = b"" if kind == RECEIVED else dice.randbytes(dice.randint(1, 400))
                number = ledger.note(owner, kind, 0, data)
                self.model[number] = (owner, kind, 0, data)
            elif self.model:
                numbers = list(self.model)
                number = numbers[min(int(dice.expovariate(0.05)), len(numbers) - 1)]
                owner, kind, packet_id, data = self.model[number]
                if owner == 1 and dice.random() < 0.97:
                    continue  # a slow one, which has blocks moved
                if packet_id or roll < 0.9:
                    ledger.forget(number)
                    del self.model[number]
                else:
                    ledger.send(number, 5)
                    self.model[number] = (owner, kind, 5, data)


def main(path: str, seed: int, first: int, mutant: str) -> None:
    """Write group after group, beginning with number `first`."""
    base = connect(path)
    ledger = Ledger()
    contents = read(base, ledger)
    model: Model = {}
    for mine in contents.records.values():
        for record in mine:
            row = base.execute("SELECT data FROM block WHERE id = ?", (record.block,)).fetchone()
            data = row[0][record.at : record.at + record.length]
            model[record.number] = (record.owner, record.kind, record.packet_id, data)
    history = History(seed, dict(sorted(model.items())))
    ledger.old = 3
    woken = threading.Event()
    writer = Writer(base, woken.set)
    writer.start()
    if first == 1:
        for owner in range(1, OWNERS + 1):
            ledger.row(OPEN_SESSION, (owner, str(owner), None, 1))
    under_way: deque[tuple[Group, int]] = deque()
    number = first
    os.write(1, b"begin\n")
    while True:
        history.group(ledger)
        ledger.row(KEEP, ("driver", "group", str(number).encode()))
        ledger.sweep()
        group = ledger.close()
        assert group is not None
        group.fsync = on_disk(number) and mutant != "os"
        if mutant == "early":
            os.write(1, b"%d\n" % number)
        if mutant == "delete":
            # What FORGET says is lost: deletes are not part of the transaction.
            group.drops = []
        writer.submit(group)
        under_way.append((group, number))
        number += 1
        while len(under_way) >= OUTSTANDING:
            woken.wait()
            woken.clear()
            while writer.done:
                done = writer.done.popleft()
                expected, written = under_way.popleft()
                assert done is expected
                if done.reads:
                    ledger.rewrite(done.found)
                if mutant != "early":
                    os.write(1, b"%d\n" % written)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), (sys.argv[4:] or [""])[0])
