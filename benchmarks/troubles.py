"""What befalls a broker beside being killed: a full disk, a clock that jumps, an archive under way.

disk     no file of the broker may grow by more than a little, for up to three seconds
         (RLIMIT_FSIZE: its writes fail half-way, as on a full disk)
clock    the broker's clock goes up to two hours forth or back (libfaketime, of the package
         faketime); what it waits for goes on
archive  segments are small, archived to another folder, and deleted as soon as they are safe;
         the stream reads log and archive as one
"""

from __future__ import annotations

import random
import resource
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

__all__ = ["NAMES", "Troubles", "archive_of", "environment", "plugin_conf", "stream_options"]

NAMES: Final = ("disk", "clock", "archive")

#: Where Debian has it.
FAKETIME: Final = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
HOURS: Final = 2.0

_SMALL: Final = """\
segment_bytes = 100_000
retention_bytes = 300_000
"""


def archive_of(folder: Path) -> str:
    """The archive's URL."""
    return (folder / "archive").as_uri()


def plugin_conf(conf: str, names: Sequence[str], folder: Path) -> str:
    """The plugin's configuration, as these troubles need it."""
    if "archive" not in names:
        return conf
    kept = [line for line in conf.splitlines() if not line.startswith("retention_bytes")]
    return "\n".join([*kept, f'archive = "{archive_of(folder)}"', _SMALL])


def stream_options(names: Sequence[str], folder: Path) -> dict[str, str]:
    """Options of the stream."""
    return {"archive": archive_of(folder)} if "archive" in names else {}


def environment(names: Sequence[str], folder: Path) -> dict[str, str]:
    """Of the broker. Raises FileNotFoundError without libfaketime."""
    if "clock" not in names:
        return {}
    if not FAKETIME.exists():
        raise FileNotFoundError(f"{FAKETIME}: apt-get install faketime")
    (folder / "clock").write_text("+0\n")
    return {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(folder / "clock"),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_CACHE_DURATION": "1",
    }


class Troubles(threading.Thread):
    """Makes them, until `ending`, one each some seconds.

    pid: the broker's process, 0 for none; `made` is how many there were of each.
    """

    def __init__(
        self,
        names: Sequence[str],
        folder: Path,
        pid: Callable[[], int],
        chance: random.Random,
        ending: threading.Event,
    ) -> None:
        super().__init__(daemon=True)
        self.made: Counter[str] = Counter()
        self._do = [getattr(self, f"_{name}") for name in names if name != "archive"]
        self._folder = folder
        self._pid = pid
        self._chance = chance
        self._ending = ending

    def run(self) -> None:
        """Make them."""
        while self._do and not self._ending.wait(self._chance.uniform(0.5, 4.0)):
            self._chance.choice(self._do)()

    def _disk(self) -> None:
        pid = self._pid()
        if not pid:
            return  # 0 would be this process, and the driver that it starts had the limit
        found = [one.stat().st_size for one in self._folder.glob("data/events/*/*.events")]
        most = max(found, default=0) + self._chance.randrange(1, 20_000)
        try:
            before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, before[1]))
            self._ending.wait(self._chance.uniform(0.2, 3.0))
            self.made["disk"] += 1
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
        except ProcessLookupError:
            pass  # it is killed: the next one has no such limit

    def _clock(self) -> None:
        seconds = self._chance.uniform(-HOURS, HOURS) * 3600
        beside = self._folder / "clock.new"
        beside.write_text(f"{seconds:+.0f}\n")
        beside.rename(self._folder / "clock")
        self.made["clock"] += 1
