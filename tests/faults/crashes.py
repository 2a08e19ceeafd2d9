"""Crashes by the thousand: a broker under load is killed or ends, is started again, and compared.

    python -m tests.faults.crashes KIND COUNT [--seed N] [--lanes N] [--cycles N] [--log FILE]

KIND is `kill`, `power` (`fsync`, and a disk that forgets what no fsync has covered) or `disk` (one
that fails in the midst of it, at any call that writes, in the start as well). Every other end or so
is in order: SIGTERM or a drain, while the crowd publishes on, and some are killed in the midst of
that. Before anybody is back and at the end an operator changes what is nothing to the crowd
(`tests.faults.operator`). The seeds from N on are a run each: a store and a crowd of their own,
`--cycles` ends of the broker; those that are odd have a plugin that judges log-ins and access.
Lanes are brokers side by side. Before anything else the mutants have to be found. Each run is one
line of JSON in FILE: its seed, its cycles, what was wrong; the data of one that was wrong are kept.
"""

from __future__ import annotations

import argparse
import errno
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from mqttd import compiled
from mqttd.admin.ctl.client import Client, CtlError
from tests.faults import judge
from tests.faults.crowd import Crowd
from tests.faults.disk import Disk
from tests.faults.nursery import Nursery, Started
from tests.faults.operator import ACL, Operator, complaints
from tests.support import packets as mq
from tests.support.client import RawClient

__all__ = ["Lane", "mutants"]

MUTANTS = {
    # PUBACK and PUBREC go before what they promise is written.
    "early": """
from mqttd.storage.journal import StoreJournal
StoreJournal.wait = lambda self, promise: promise.keep(self)
""",
    # An incoming QoS 2 id is not written with its message.
    "no id": """
from mqttd.storage.journal import StoreJournal
StoreJournal.received = lambda self, owner, packet_id: 0
""",
    # A message to a client that is there is not written: gone before it is acknowledged.
    "not kept": """
from mqttd.storage.journal import StoreJournal
sent = StoreJournal.sent
StoreJournal.sent = lambda self, owner, packet_id, entry, v5: (
    0 if packet_id else sent(self, owner, packet_id, entry, v5)
)
""",
    # CONNACK goes before the session, its end or its will is written.
    "connack": """
from mqttd.storage.journal import StoreJournal
StoreJournal.cork = lambda self, channel: None
""",
    # What else waits (PUBREC, PUBCOMP, SUBACK, UNSUBACK, QoS 2 on its way out) does not.
    "held": """
from mqttd.storage.journal import StoreJournal
StoreJournal.hold = lambda self, channel, data: channel.send(data)
""",
    # Rights are looked at again when the plugin that knows them has gone before the broker.
    "rights": """
from mqttd.broker.sessions.revision import Revision
Revision.close = lambda self: None
""",
    # Rights are looked at by an address that nobody knows: the client is not back yet.
    "address": """
from mqttd.broker.sessions import revision
revision._is_unknown = lambda session: False
""",
}
#: With a disk that fails: a group that could not be written is taken for one that is.
UNWRITTEN = """
from mqttd.storage.writer import Writer
write = Writer._write
def once(self, group):
    self._stopping.wait = lambda seconds: True
    write(self, group)
    return True
Writer._write = once
"""
ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS)


def mutants(kind: str) -> dict[str, str]:
    """Those that a kind of end has to find."""
    return {"unwritten": UNWRITTEN} if kind == "disk" else MUTANTS


def retained(port: int, **login: Any) -> dict[str, int]:
    """What a new subscriber of r/# gets."""
    client = RawClient(port, mq.V5, deadline=60.0).connect(**login)
    client.subscribe("r/#", qos=0)
    client.ping()
    found = {}
    while client._aside:
        packet = client.expect(mq.PUBLISH)
        found[packet.topic] = int(packet.payload)
    client.disconnect()
    return found


class Lane:
    """Brokers one after the other: a nursery, and the disk that they have."""

    def __init__(self, folder: Path, kind: str = "kill", faulty: bool = False) -> None:
        self.kind = kind
        self.disk = None if kind == "kill" else Disk(folder, undo=kind == "power")
        environment = {} if self.disk is None else dict(self.disk.environment)
        if faulty:
            environment["MQTTD_PURE"] = "1"  # what is compiled does not look its methods up
        self.nursery = Nursery(environment)

    def __enter__(self) -> Lane:
        return self

    def __exit__(self, *error: object) -> None:
        self.nursery.close()

    def run(
        self, path: Path, seed: int, count: int, program: str = "", every: int = 10, **more: object
    ) -> list[str]:
        """End a broker over one store so often, and compare each `every` times; what was wrong."""
        queue = {"max_length": 1_000_000, "max_bytes": "1GiB"}
        settings: dict[str, Any] = {
            "store": {"kind": "sqlite"}, "mqueue": queue, "acl": ACL, **more,
        }  # fmt: skip
        dice = random.Random(seed)
        if self.disk is not None:
            settings["durability"] = {"default": "fsync"}
        if self.kind == "disk":
            settings["durability"] = {"default": dice.choice(("os", "fsync"))}
        judged = seed % 2 == 1
        if judged:
            settings |= {**judge.SETTINGS, "acl": judge.ACL, "files": judge.FILES}
        visitor = judge.login("visitor") if judged else {}
        crowd = Crowd(seed, self.kind == "disk", judged)
        operator = Operator(path, seed, self.kind == "disk")
        for number in range(count):
            # Payloads are in memory, on disk, or some here and some there.
            settings["mqueue"] = {**queue, "in_memory": dice.choice(("0B", "2KiB", "1MiB"))}
            compare = number % every == every - 1 or number == count - 1
            broker = self._start(path, program, dice, settings)
            wrong: list[str] = []
            try:
                operator.maybe(broker.pid)
                crowd.begin(broker.port)
                if compare:
                    operator.maybe(broker.pid)
                    wrong = crowd.retained_faults(retained(broker.port, **visitor))
                    wrong += crowd.finish() + operator.gone(crowd.subscriptions())
                else:
                    if self.kind == "disk":
                        self._fail(dice, 200)
                        crowd.burst(dice.randint(1, 100))
                        self._mend()
                        crowd.settle()
                    crowd.burst(dice.randint(1, dice.choice((10, 100, 300))))
                if not wrong:
                    with operator.meanwhile(broker.pid) as busy:
                        if busy:
                            crowd.see_off(dice.randrange(5))
                        wrong = self._end(broker, path, crowd, dice)
            except (AssertionError, RuntimeError, OSError, CtlError) as error:
                broker.stop()
                wrong = [repr(error), broker.output]
            broker.stop()
            crowd.gone()
            wrong += operator.faults + complaints(broker.output)
            if self.disk is not None and self.kind == "power":
                self.disk.lose_power(path / "data", dice)
            if wrong:
                return [f"seed {seed}, cycle {number}", *wrong]
        return []

    def _end(self, broker: Started, path: Path, crowd: Crowd, dice: random.Random) -> list[str]:
        """End a broker, in order or not; what was wrong with that."""
        how = dice.choice(("kill", "kill", "stop", "drain"))
        if how == "kill":
            broker.stop()
            return []
        if how == "drain":
            control = Client(str(path / "data" / "mqttd.sock"))
            control.request("POST", "/drain", {"rate": dice.choice((50, 1000))})
        else:
            os.kill(broker.pid, signal.SIGTERM)
        if dice.random() < 0.3:
            crowd.see_off(dice.randrange(5))
            broker.stop()
            return []
        crowd.see_off()
        status = broker.stop(0)
        due = 0 if how == "drain" else -signal.SIGTERM
        if status == -signal.SIGHUP and "mqttd stopped" in broker.output:
            return []  # that came behind the last that was to be done
        if status != due:
            return [f"{how}: ended with {status}", broker.output]
        return []

    def _start(
        self, path: Path, program: str, dice: random.Random, settings: dict[str, Any]
    ) -> Started:
        """A broker; where the disk fails while it starts, the next one."""
        if self.kind == "disk" and dice.random() < 0.3:
            self._fail(dice, 40)
            try:
                return self.nursery.start(path, program, **settings)
            except RuntimeError:
                pass  # it has said why, and ended
            finally:
                self._mend()
        return self.nursery.start(path, program, **settings)

    def _fail(self, dice: random.Random, calls: int) -> None:
        """Have the disk fail some of the next calls, write half, or take its time."""
        assert self.disk is not None
        how = dice.choice(("fail", "fail", "short", "slow"))
        skip, count = dice.randrange(calls), dice.randint(1, 4)
        if how == "fail":
            self.disk.fail(dice.choice(ERRORS), skip, count)
        elif how == "short":
            self.disk.cut_short(skip, 10 * count)
        else:
            self.disk.slow(100)

    def _mend(self) -> None:
        """A disk as others."""
        assert self.disk is not None
        self.disk.work()
        self.disk.slow(0)


_lane: Lane | None = None


def _begin(kind: str, faulty: bool) -> None:
    global _lane
    _lane = Lane(Path(tempfile.mkdtemp(prefix="crashes-")), kind, faulty)
    Finalize(None, _lane.nursery.close, exitpriority=1)


def _run(task: tuple[int, int, str]) -> dict[str, Any]:
    """One seed, in a process of the pool."""
    seed, cycles, program = task
    assert _lane is not None
    path = Path(tempfile.mkdtemp(prefix=f"seed-{seed}-"))
    began = time.monotonic()
    try:
        wrong = _lane.run(path, seed, cycles, program, every=20 if not program else 2)
    except Exception as error:
        wrong = [f"seed {seed}", repr(error)]
    if not wrong or program:
        shutil.rmtree(path)
    else:
        wrong.append(str(path))
    seconds = round(time.monotonic() - began, 1)
    return {"seed": seed, "cycles": cycles, "seconds": seconds, "wrong": wrong}


def _used() -> float:
    """Seconds of processor that children which have ended had."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """The command; its status is 1 if something was wrong or a mutant was not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.crashes")
    parser.add_argument("kind", choices=("kill", "power", "disk"))
    parser.add_argument("count", type=int, help="cycles in all")
    parser.add_argument("--seed", type=int, default=1, help="the first; each run has the next")
    parser.add_argument("--lanes", type=int, default=os.cpu_count())
    parser.add_argument("--cycles", type=int, default=50, help="cycles of a run")
    parser.add_argument("--log", type=Path, default=Path(os.devnull))
    parser.add_argument("--no-mutants", action="store_true")
    asked = parser.parse_args()
    assert asked.count > 0, "how many?"
    began = time.monotonic()
    done = failed = 0
    processes = multiprocessing.get_context("spawn")
    with asked.log.open("a", buffering=1) as log:

        def tell(**fields: object) -> None:
            log.write(json.dumps(fields) + "\n")
            print(json.dumps(fields), flush=True)

        tell(kind=asked.kind, compiled=compiled(), began=time.strftime("%FT%TZ", time.gmtime()))
        if not asked.no_mutants:
            with processes.Pool(asked.lanes, _begin, (asked.kind, True)) as pool:
                for name, program in mutants(asked.kind).items():
                    tasks = [(seed, 60, program) for seed in range(asked.lanes)]
                    found = [run["wrong"] for run in pool.imap_unordered(_run, tasks)]
                    tell(mutant=name, found=[wrong[:3] for wrong in found])
                    if not any(found):
                        return 1
                pool.close()
                pool.join()
        before = _used()
        runs = -(-asked.count // asked.cycles)
        tasks = [(seed, asked.cycles, "") for seed in range(asked.seed, asked.seed + runs)]
        with processes.Pool(asked.lanes, _begin, (asked.kind, False)) as pool:
            for run in pool.imap_unordered(_run, tasks):
                done += asked.cycles
                failed += bool(run["wrong"])
                tell(**run, done=done, failed=failed, elapsed=round(time.monotonic() - began))
            pool.close()
            pool.join()
        tell(cycles=done, failed=failed, cpu_seconds_a_cycle=round((_used() - before) / done, 3))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
