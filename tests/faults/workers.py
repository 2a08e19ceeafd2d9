"""kill -9 of workers under load, again and again: the ledgers of a crowd against each other.

    python -m tests.faults.workers ROUNDS [--seed N] [--workers N] [--log FILE]

A round: load, one worker (now and then a second one) is killed in its midst, load goes on with who
is there, then everybody is waited for and the ledgers are compared. Who was connected to the worker
that died connects again, as a client does. Before, between and after it an operator changes what is
nothing to them (`tests.faults.operator`).

What the ledgers hold against workers is what they hold against one process (`tests.faults.crowd`):
nothing that was acknowledged is lost, QoS 2 and wills never come twice.

At each worker there is one more publisher whose messages go to all (`Pulse`), one after another:
how long the longest of them waits for its PUBACK while another worker dies is the pause, and how
long the one at the worker that died is without one, how soon that is back.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from mqttd.admin.ctl.client import Client, CtlError
from mqttd.workers.place import worker_of
from tests.faults.crashes import retained
from tests.faults.crowd import Crowd
from tests.faults.members import Member
from tests.faults.operator import ACL, Operator, complaints
from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.waiting import Patience

__all__ = ["Kills"]

#: Seconds for a worker to be there again.
_BACK = 60.0


class Pulse(threading.Thread):
    """Publishes at QoS 1 to all workers, and looks at the clock."""

    def __init__(self, port: int, number: int, count: int) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.client_id = next(
            name for name in (f"pulse{n}" for n in range(1000)) if worker_of(name, count) == number
        )
        #: When each was sent, and how long it took.
        self.beats: list[tuple[float, float]] = []
        self.over = False

    def run(self) -> None:
        """Until it is over."""
        while not self.over:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=_BACK) as sock:
                    self._beat(sock)
            except OSError:
                time.sleep(0.01)

    def _beat(self, sock: socket.socket) -> None:
        sock.sendall(mq.connect(self.client_id, mq.V5))
        if len(sock.recv(1024)) < 5:
            raise ConnectionError
        number = 0
        while not self.over:
            number = number % 65535 + 1
            began = time.monotonic()
            sock.sendall(mq.publish("c/pulse", b"pulse 0", 1, number, version=mq.V5))
            if len(sock.recv(64)) < 4:
                raise ConnectionError
            self.beats.append((began, time.monotonic() - began))
            time.sleep(0.005)

    def pause(self, died: float) -> float:
        """The longest wait for a PUBACK from then on, in seconds."""
        return max((took for began, took in self.beats if began + took >= died), default=0.0)

    def back(self, died: float) -> float:
        """How long after that it had the next one, in seconds."""
        found = [began + took - died for began, took in self.beats if began > died]
        return min(found, default=_BACK)


class Kills:
    """A broker of several workers, its crowd, and who kills them."""

    def __init__(self, path: Path, seed: int, count: int = 2) -> None:
        self.count = count
        self.dice = random.Random(seed)
        self.crowd = Crowd(seed)
        settings: dict[str, Any] = {
            "store": {"kind": "sqlite"},
            "mqueue": {"max_length": 1_000_000, "max_bytes": "1GiB", "in_memory": "2KiB"},
            "node": {"workers": count},
        }
        self.broker: Broker = start_broker(path, acl=ACL, **settings)
        self.control = Client(str(path / "data" / "mqttd.sock"))
        assert self.broker.process is not None
        self.pid = self.broker.process.pid
        self.operator = Operator(path, seed)
        self.kills = 0
        #: The longest pause of a publisher at another worker, and until one was back, in seconds.
        self.pause = 0.0
        self.back = 0.0
        self.pulses = {number: Pulse(0, number, count) for number in range(1, count + 1)}
        self.crowd.begin(self.broker.port)
        for pulse in self.pulses.values():
            pulse.port = self.broker.port
            pulse.start()

    def close(self) -> None:
        """End the broker."""
        for pulse in self.pulses.values():
            pulse.over = True
        self.broker.stop()
        self.crowd.gone()

    def round(self) -> list[str]:
        """Load, a kill, load, comparison; what is wrong."""
        self._load(self.dice.randint(1, 150))
        self.operator.maybe(self.pid)
        victims = self.dice.sample(range(1, self.count + 1), 1 + (self.dice.random() < 0.1))
        for number in victims:
            pid = self._pid_of(number)
            for pulse in self.pulses.values():
                del pulse.beats[:-1]
            with self.operator.meanwhile(self.pid, 0.5):
                died = time.monotonic()
                os.kill(pid, signal.SIGKILL)
                self.kills += 1
                self._load(self.dice.randint(0, 60))
            self._look(number, died)
            self.operator.maybe(self.pid)
        self._load(self.dice.randint(0, 150))
        self._back()
        self.operator.maybe(self.pid)
        self._connect()
        return [
            *self.crowd.finish(),
            *self.crowd.retained_faults(retained(self.broker.port)),
            *self.operator.gone(self.crowd.subscriptions()),
            *self.operator.faults,
            *complaints(self.broker.output),
        ]

    def _look(self, victim: int, died: float) -> None:
        """How long everybody has waited for this death."""
        self._back()
        patience = Patience(_BACK)
        while self.pulses[victim].back(died) >= _BACK and patience.left():
            self.crowd.turn()
        self.back = max(self.back, self.pulses[victim].back(died))
        for number, pulse in self.pulses.items():
            if number != victim:
                self.pause = max(self.pause, pulse.pause(died))

    def _load(self, acknowledgements: int) -> None:
        """Publish until so many acknowledgements have come, from whoever is let in."""
        crowd = self.crowd
        count = 0
        patience = Patience(_BACK)
        while count < acknowledgements and patience.left():
            for member in [*crowd.alive, crowd.stays, crowd.comes]:
                if member.sock is None or (member in crowd.publishers and self._is_due(0.005)):
                    self._dial(member)
            for member in (crowd.comes, *crowd.fleeting):
                if self._is_due(0.01):
                    self._dial(member)
            for publisher in crowd.publishers:
                for _ in range(self.dice.randint(0, 4)):
                    publisher.publish(crowd.dice)
            if self._is_due(0.2):
                crowd.reborn.talk()
            count += crowd.turn()

    def _is_due(self, share: float) -> bool:
        return self.dice.random() < share

    def _dial(self, member: Member) -> None:
        crowd = self.crowd
        if member.sock is not None and not member.connected:
            return  # who waits to be let in does not come twice: either could be let in first
        if member is crowd.reborn:
            crowd.reborn.choose(crowd.dice)
        try:
            member.connect(self.broker.port)
        except OSError:
            member.close()

    def _connect(self) -> None:
        """Everybody is connected, and has subscribed."""
        crowd = self.crowd
        patience = Patience(_BACK)
        there = [*crowd.alive, *crowd.subscribers]
        while not all(member.connected for member in there):
            for member in there:
                if member.sock is None:
                    self._dial(member)
            crowd.turn()
            if not patience.left():
                missing = [member.name for member in there if not member.connected]
                raise AssertionError(f"not let in: {missing}")

    def _pid_of(self, number: int) -> int:
        self._back()
        workers = self.control.get("/workers")["workers"]
        return next(int(each["pid"]) for each in workers if each["worker"] == number)

    def _back(self) -> None:
        """Wait until all workers are there (again); the crowd goes on meanwhile."""
        patience = Patience(_BACK)
        while True:
            workers = self.control.get("/workers")["workers"]
            starts = sum(int(each["starts"]) for each in workers)
            if starts == self.count + self.kills and all(
                each["state"] == "running" for each in workers
            ):
                return
            self.crowd.turn()
            assert patience.left(), "a worker does not come back"


def main() -> int:
    """The command; its status is 1 if something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.workers")
    parser.add_argument("rounds", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--log", type=Path, default=Path(os.devnull))
    asked = parser.parse_args()
    path = Path(tempfile.mkdtemp(prefix="workers-"))
    began = time.monotonic()
    with asked.log.open("a", buffering=1) as log:

        def tell(**fields: object) -> None:
            log.write(json.dumps(fields) + "\n")
            print(json.dumps(fields), flush=True)

        kills = Kills(path, asked.seed, asked.workers)
        wrong: list[str] = []
        try:
            for number in range(asked.rounds):
                try:
                    wrong = kills.round()
                except (AssertionError, CtlError) as error:
                    wrong = [repr(error)]
                pause, back = round(kills.pause * 1000), round(kills.back * 1000)
                tell(round=number, kills=kills.kills, pause_ms=pause, back_ms=back, wrong=wrong)
                if wrong:
                    tell(path=str(path), output=kills.broker.output[-4000:])
                    break
        finally:
            kills.close()
        homes = {member.name: worker_of(member.name, asked.workers)
                 for member in kills.crowd.everybody}  # fmt: skip
        seconds = round(time.monotonic() - began, 1)
        done = kills.operator.done
        tell(rounds=asked.rounds, kills=kills.kills, changes=done, seconds=seconds, homes=homes)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
