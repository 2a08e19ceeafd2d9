"""A broker and a Spark driver that can be killed, stopped and started again, in one folder.

What is killed is a process group of its own session: a driver with its JVM and workers.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.brokers import Mqttd, StartError
from benchmarks.conf import ALLOW_ALL, conf

__all__ = ["DEADLINE", "Failed", "Run", "attempt", "driver", "quiet_port"]

TABLES: Final = """\
[auth]
anonymous = "always"

[plugins]
load = ["spark"]
"""

#: A stream into a table or a broker, as long as it is let live, or until it has read the rest.
_DRIVER: Final = """
import json, sys
from mqttd.pipeline.spark import register, session
folder, most, mode = sys.argv[1:]
spark = register(session("driver", "local[2]", spark__ui__enabled="false",
                         spark__driver__memory="{memory}",
                         spark__driver__extraJavaOptions="{java}"))
spark.sparkContext.setLogLevel("ERROR")
frame = (spark.readStream.format("mqttd"){path}
         .options(**json.load(open(folder + "/options.json")))
         .option("startingOffsets", "earliest").option("maxEventsPerTrigger", most).load())
stream = {stream}
stream = stream.option("checkpointLocation", folder + "/checkpoint")
if mode == "run":
    stream.trigger(processingTime="{pause} milliseconds").start().awaitTermination()
stream.trigger(availableNow=True).start().awaitTermination()
{after}
"""

#: How much longer than the process itself a start, a micro-batch or the rest may take.
DEADLINE: Final = 240.0


def quiet_port() -> int:
    """A port that no connection is given by the system while the broker is away."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


class Failed(Exception):
    """What should be equal is not; the text says what."""


def attempt(
    given: Path | None, measure: Callable[[Path, Callable[[str], None]], dict[str, Any]]
) -> tuple[int, dict[str, Any]]:
    """Measure in a folder of its own, or in the one that is given, where everything stays.

    The exit status with what was found, which is printed but for its lists; `measure` gets the
    folder, and who says how far it is.
    """
    folder = given or Path(tempfile.mkdtemp(prefix="bench-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        found = measure(
            folder, lambda text: print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)
        )
    except Failed as error:
        print(f"not exactly once: {error}; everything is in {folder}", file=sys.stderr)
        return 1, {}
    except StartError as error:
        print(error, file=sys.stderr)
        return 2, {}
    if given is None:
        shutil.rmtree(folder)
    shown = {name: one for name, one in found.items() if not isinstance(one, list)}
    print(json.dumps(shown, indent=1))
    return 0, found


def driver(log: str, stream: str, pause: int, memory: str, after: str = "", java: str = "") -> str:
    """The program of a driver for `Run`.

    :param log: the event log's place in the folder; empty where the options say it.
    :param stream: an expression of ``frame`` and ``folder``, the stream that is written.
    :param pause: milliseconds between the starts of two micro-batches at least.
    :param memory: of the JVM, as Spark says it.
    :param after: what is done when the rest is read.
    :param java: options of the JVM.
    """
    path = f'.option("path", folder + "/{log}")' if log else ""
    return _DRIVER.format(
        path=path, stream=stream, pause=pause, memory=memory, after=after, java=java
    )


class Run:
    """The broker and the driver in `folder`, and what was killed when.

    :param driver: the driver's program.
    :param plugin: the plugin's configuration.
    :param options: of the stream, for drivers that read options.json.
    :param environment: what the broker's has beside the rest.
    :param tables: further tables of the broker's configuration.
    :param workers: of the broker.
    :param nice: how far the driver stands behind the broker in the queue for a processor.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        driver: str,
        plugin: str,
        options: dict[str, str] | None = None,
        environment: dict[str, str] | None = None,
        tables: str = "",
        workers: int = 1,
        nice: int = 5,
    ) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        self.broker_kills = 0
        self.broker_absent = 0.0
        #: What the driver was doing when it was killed -> how often.
        self.driver_kills: Counter[str] = Counter()
        self._mqttd = Mqttd()
        self._port = quiet_port()
        self._broker: subprocess.Popen[bytes] | None = None
        self._listening: subprocess.Popen[bytes] | None = None
        self._driver: subprocess.Popen[bytes] | None = None
        self._since = 0
        self._again = (0, "")
        #: How often the machine was too slow for Spark to start.
        self.slow_starts = 0
        self._environment = environment or {}
        self._nice = nice
        made = conf(TABLES, tables, port=self._port)
        for name, text in (
            ("mqttd.conf", made.replace("[node]\n", f"[node]\nworkers = {workers}\n")),
            ("acl.conf", ALLOW_ALL),
            ("plugins/spark.conf", plugin),
            ("driver.py", driver),
            ("options.json", json.dumps(options or {})),
        ):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    # -- the broker

    def start_broker(self) -> int:
        """Start it and wait until it listens; its port. Raises StartError."""
        log = self.folder / "broker.log"
        with log.open("ab") as out:
            seen = out.tell()
            # By way of a pipe: what it says is in no file that may have to stop growing.
            end, says = os.pipe()
            copier = subprocess.Popen(["cat"], stdin=end, stdout=out)
            self._broker = subprocess.Popen(
                self._mqttd.command(self.folder, self._port),
                stdin=subprocess.DEVNULL, stdout=says, stderr=says,
                env={**self._mqttd.environment(), **self._environment}, cwd=self.folder,
            )  # fmt: skip
            os.close(end)
            os.close(says)
            threading.Thread(target=copier.wait, daemon=True).start()
        deadline = time.monotonic() + DEADLINE
        while True:
            said = log.read_bytes()[seen:].decode("utf-8", "replace")
            if self._mqttd.ready_port(said, self._port):
                self._listening = self._broker
                return self._port
            if self._broker.poll() is not None or time.monotonic() > deadline:
                raise StartError(f"the broker does not start:\n{said[-2000:]}")
            time.sleep(0.02)

    @property
    def broker_pid(self) -> int:
        """Its process; 0 for none, or one that does not listen yet."""
        broker = self._broker
        if broker is None or broker.poll() is not None or broker is not self._listening:
            return 0
        return broker.pid

    def kill_broker(self) -> None:
        """kill -9."""
        assert self._broker is not None
        self._broker.kill()
        self._broker.wait()
        self.broker_kills += 1

    def stop_broker(self) -> None:
        """As an operator does."""
        if self._broker is not None and self._broker.poll() is None:
            self._broker.terminate()
            try:
                self._broker.wait(20)
            except subprocess.TimeoutExpired:
                self._broker.kill()
                self._broker.wait()

    # -- the driver

    def start_driver(self, most: int = 400_000, mode: str = "run") -> subprocess.Popen[bytes]:
        """Start Spark; `most`: of a batch."""
        self._since = self.batches()[1]
        self._again = (most, mode)
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
        command = ["nice", "-n", str(self._nice), sys.executable, str(self.folder / "driver.py")]
        with (self.folder / "driver.log").open("ab") as output:
            self._driver = subprocess.Popen(
                [*command, str(self.folder), str(most), mode],
                stdout=subprocess.PIPE if mode != "run" else output,
                stderr=output,
                start_new_session=True,
                env=environment,
            )
        return self._driver

    def batches(self) -> tuple[int, int]:
        """How many micro-batches were begun, and how many are done."""
        found = []
        for name in ("offsets", "commits"):
            path = self.folder / "checkpoint" / name
            numbers = [int(one.name) for one in path.glob("[0-9]*") if one.name.isdigit()]
            found.append(max(numbers, default=-1) + 1)
        return found[0], found[1]

    def kill_driver(self, doing: str = "") -> None:
        """kill -9 of the driver, its JVM and its workers.

        :param doing: what it did, if that is known better than by its micro-batches.
        """
        driver = self._driver
        if driver is None:
            return
        begun, done = self.batches()
        if not doing and done == self._since:
            doing = "starting" if begun == done else "in its first micro-batch"
        elif not doing:
            doing = "in a micro-batch" if begun > done else "between micro-batches"
        self.driver_kills[doing] += 1
        for _ in range(2):  # a worker may be forked meanwhile
            _signal(driver.pid, signal.SIGKILL)
        driver.wait()
        self._driver = None

    def stop_driver(self) -> None:
        """SIGSTOP to the driver, its JVM and its workers: it does nothing more."""
        if self._driver is not None:
            _signal(self._driver.pid, signal.SIGSTOP)

    def resume_driver(self) -> None:
        """SIGCONT: it goes on."""
        if self._driver is not None:
            _signal(self._driver.pid, signal.SIGCONT)

    def adopt_driver(self, driver: subprocess.Popen[bytes]) -> None:
        """One that was started otherwise."""
        self._driver = driver

    def check_driver(self) -> None:
        """Start it again if the machine was too slow for it; raise Failed if it ended otherwise.

        Spark gives a Python worker ten seconds to start.
        """
        if self._driver is not None and self._driver.poll() is not None:
            said = (self.folder / "driver.log").read_text("utf-8", "replace")[-8000:]
            if "worker failed to connect back" not in said:
                raise Failed(f"the driver ended:\n{said}")
            self.slow_starts += 1
            self.start_driver(*self._again)

    def finish_driver(self, most: int = 400_000) -> bytes:
        """Start one that reads the rest and ends; what it printed."""
        driver: subprocess.Popen[bytes] | None = self.start_driver(most, "rest")
        while driver is not None:
            out, _ = driver.communicate(timeout=2 * DEADLINE)
            if not driver.returncode:
                break
            self.check_driver()
            driver = self._driver
        self._driver = None
        return out

    def stop(self) -> None:
        """End what still runs."""
        self.stop_broker()
        if self._driver is not None:
            self.kill_driver()


def _signal(leader: int, number: signal.Signals) -> None:
    """To the processes of a session."""
    for pid in _session(leader):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def _session(leader: int) -> list[int]:
    """The processes of a session (Linux)."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[3]) == leader:
                found.append(int(entry))
    return found
