"""Shows where mqttd's time goes in one workload: python -m benchmarks.profile WORKLOAD

    --how sample    (default) which function and line was running, every 5 ms of CPU time; plain
                    sources, about as fast as without. Compiled functions are their caller's here.
    --how cprofile  how often each function was called and for how long; plain sources, and calls
                    cost several times more than they do.
    --how perf      Linux perf, where it is installed: the compiled modules, CPython and the kernel.

Always printed: mqttload's figures, and how much of the CPU time the kernel took.
"""

from __future__ import annotations

import argparse
import json
import os
import pstats
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from benchmarks.brokers import Mqttd, Running, StartError, raise_file_limit
from benchmarks.load import Failure, Measurement, Mqttload, NotFound
from benchmarks.workloads import Workload, selected

__all__ = ["Samples", "main", "sampled"]

#: Seconds of CPU time between two samples.
EVERY = 0.005


class Samples:
    """Counts of where the main thread was; `add` is a signal handler."""

    def __init__(self) -> None:
        self.lines: Counter[str] = Counter()
        self.own: Counter[str] = Counter()
        self.total: Counter[str] = Counter()

    def add(self, signum: int, frame: FrameType | None) -> None:
        """Count the function that runs once for itself, all its callers once in total."""
        if frame is None:
            return
        self.lines[f"{_function(frame)}:{frame.f_lineno}"] += 1
        self.own[_function(frame)] += 1
        seen = set()
        caller: FrameType | None = frame
        while caller is not None:
            seen.add(_function(caller))
            caller = caller.f_back
        self.total.update(seen)

    def write(self, path: str) -> None:
        """Keep the counts as JSON."""
        Path(path).write_text(json.dumps([self.lines, self.own, self.total]), "utf-8")

    @staticmethod
    def text(path: Path, top: int) -> str:
        """The counts of a file as three tables, the highest first."""
        parts = json.loads(path.read_text("utf-8"))
        all_samples = sum(parts[1].values()) or 1
        lines = [f"{all_samples} samples, one in {EVERY * 1000:g} ms of CPU time"]
        for title, counts in zip(("function, itself", "line", "function, with what it called"),
                                 (parts[1], parts[0], parts[2]), strict=True):  # fmt: skip
            lines.append(f"\n  share  {title}")
            # What is in every sample, the way down to the reactor, tells nothing.
            some = Counter({name: n for name, n in counts.items() if n < all_samples})
            for name, count in some.most_common(top):
                lines.append(f"{count / all_samples:7.1%}  {name}")
        return "\n".join(lines)


def _function(frame: FrameType) -> str:
    code = frame.f_code
    return f"{'/'.join(Path(code.co_filename).parts[-2:])} {code.co_qualname}"


def sampled(path: str) -> None:
    """Run twistd with the sampler on and write its counts to `path` at the end."""
    samples = Samples()
    signal.signal(signal.SIGPROF, samples.add)

    def end() -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        samples.write(path)

    from twisted.internet import reactor
    from twisted.scripts.twistd import run

    # Not before: what starting up costs is not asked. Not atexit: twistd leaves by the signal.
    reactor.callWhenRunning(signal.setitimer, signal.ITIMER_PROF, EVERY, EVERY)
    reactor.addSystemEventTrigger("after", "shutdown", end)
    run()


def cpu_split(pid: int) -> tuple[float, float]:
    """Seconds of CPU the process used, its own and the kernel's for it."""
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    return int(fields[11]) / ticks, int(fields[12]) / ticks


class Profile:
    """One workload under one way of looking; times in seconds."""

    def __init__(self, workload: Workload, how: str, top: int, load: Mqttload) -> None:
        self.workload = workload
        self.how = how
        self.top = top
        self.load = load

    def run(self, directory: Path, duration: float) -> str:
        """Load the broker and return the report; raises StartError or Failure."""
        broker, out = self._broker(directory)
        before = after = (0.0, 0.0)
        with broker.under(self.workload.setting).start(directory, 0) as running:
            before = cpu_split(running.pid)
            perf = self._perf(running, out)
            asked = self.workload.arguments(duration, 0.5)
            found = self.load.run(running.port, running.pid, asked, duration + 180)
            after = cpu_split(running.pid)
            if perf is not None:
                perf.send_signal(signal.SIGINT)
                perf.wait(30)
        user, system = after[0] - before[0], after[1] - before[1]
        return f"{figures(found, user, system)}\n\n{self._report(out)}"

    def _broker(self, directory: Path) -> tuple[Mqttd, Path]:
        out = directory / "profile"
        if self.how == "perf":
            return Mqttd(), out
        if self.how == "sample":
            code = f"from benchmarks.profile import sampled; sampled({str(out)!r})"
            return Mqttd(pure=True, twistd=("-c", code)), out
        options = ("--profile", str(out), "--profiler", "cprofile", "--savestats")
        return Mqttd(pure=True, twistd=(*Mqttd.TWISTD, *options)), out

    def _perf(self, running: Running, out: Path) -> subprocess.Popen[bytes] | None:
        if self.how != "perf":
            return None
        program = shutil.which("perf")
        if program is None:
            raise StartError("perf is not installed: apt install linux-perf, or --how sample")
        command = [program, "record", "--quiet", "--pid", str(running.pid), "--output", str(out)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def _report(self, out: Path) -> str:
        if not out.exists():
            raise StartError("the profile was not written")
        if self.how == "sample":
            return Samples.text(out, self.top)
        if self.how == "cprofile":
            stats = pstats.Stats(str(out), stream=sys.stdout)
            stats.sort_stats("tottime").print_stats(self.top)
            return ""
        command = ["perf", "report", "--stdio", "--input", str(out), "--sort", "dso,symbol"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=120)
        kept = [line for line in said.stdout.splitlines() if line and not line.startswith("#")]
        return "\n".join(kept[: self.top])


def figures(found: Measurement, user: float, system: float) -> str:
    """mqttload's figures and the kernel's share, in one paragraph."""
    share = system / (user + system) if user + system else 0.0
    return (
        f"{found.rate:,.0f}/s, {found.cpu:.3g} us CPU each, {found.cores:.2f} cores"
        f" (mqttload {found.loader_cores:.2f}), kernel {share:.0%}"
        + (f"\nCHECKS FAILED: {found.deviation()}" if found.deviation() else "")
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Profile, print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile")
    parser.add_argument("workload", help="a workload of python -m benchmarks --list")
    parser.add_argument("--how", choices=("sample", "cprofile", "perf"), default="sample")
    parser.add_argument("--duration", type=float, default=3, help="seconds (%(default)g)")
    parser.add_argument("--top", type=int, default=30, help="lines shown (%(default)s)")
    parser.add_argument("--mqttload", metavar="PATH", help="the load generator ($MQTTLOAD)")
    given = parser.parse_args(arguments)
    try:
        (workload,) = selected(given.workload)
    except ValueError as error:
        parser.error(f"one workload: {error}")
    try:
        raise_file_limit()
        load = Mqttload.find(given.mqttload, 1, os.environ)
        with tempfile.TemporaryDirectory(prefix="profile-") as name:
            profile = Profile(workload, given.how, given.top, load)
            print(profile.run(Path(name), given.duration))
    except (NotFound, StartError, Failure) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
