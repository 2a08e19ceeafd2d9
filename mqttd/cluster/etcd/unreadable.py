"""Keys of etcd that this node cannot read: each is passed by, and said until it is mended.

    a name or a value that is not as expected --> a line in the log, counted, remembered
    it is gone, or can be read --> forgotten      '--> the alarm `cluster_unreadable` as long

Whoever can write to etcd can write such a key: by hand, with a tool that fails in its midst, as a
node of a later version. What it would have said is not known here, and nothing else waits for it.

Promise: a key counts once for each of its revisions; at most `MOST` are remembered, and one line
is written in `_QUIET` seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from twisted.logger import Logger

from mqttd.broker.ground.alarms import Alarms
from mqttd.cluster.etcd.client import Kv
from mqttd.printable import printable

__all__ = ["ALARM", "Unreadable", "shown"]

ALARM: Final = "cluster_unreadable"
#: Keys that are remembered, and bytes of one; those that an alarm names, and characters of each.
MOST: Final = 1000
_LONGEST: Final = 4096
_NAMED: Final = 5
_SHOWN: Final = 160
#: Seconds between two lines.
_QUIET: Final = 10.0


class Unreadable:
    """Those of one node."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.log = Logger(namespace="mqttd.cluster")
        #: Key -> the revision that cannot be read, and what was expected.
        self.keys: dict[bytes, tuple[int, str]] = {}
        self.count = 0
        #: More than are remembered; those of which no line was written; what was known before all
        #: is read again.
        self.more = 0
        self._unsaid = 0
        self._before: dict[bytes, tuple[int, str]] = {}
        self._quiet = 0.0
        self._text = ""

    def note(self, kv: Kv, expected: str, stays: bool = True) -> None:
        """This key cannot be read; `stays` False: who has found that writes it anew."""
        known = self.keys.get(kv.key) or self._before.get(kv.key)
        if stays and len(kv.key) <= _LONGEST and len(self.keys) < MOST:
            self.keys[kv.key] = kv.changed, expected
        elif stays:
            self.more += 1
        if known is None or known[0] != kv.changed:
            self.count += 1
            self._say(kv.key, expected)

    def forget(self, key: bytes) -> None:
        """It is gone, or can be read."""
        self.keys.pop(key, None)

    def again(self, prefix: bytes) -> None:
        """All below is about to be read again: what still cannot be is noted again."""
        self._before, self.more = self.keys, 0
        self.keys = {key: known for key, known in self.keys.items() if not key.startswith(prefix)}

    def tick(self, alarms: Alarms) -> None:
        """A few times a second: the alarm says what there is."""
        text = self._now() if self.keys else ""
        if text != self._text:
            self._text = text
            if text:
                alarms.activate(ALARM, text)
            else:
                alarms.clear(ALARM)

    def counters(self) -> dict[str, float]:
        """For the metrics."""
        return {
            "cluster_unreadable": self.count,
            "cluster_unreadable_keys": len(self.keys) + self.more,
        }

    def _now(self) -> str:
        named = sorted(self.keys)[:_NAMED]
        said = "; ".join(f"{shown(key)}: {self.keys[key][1]}" for key in named)
        others = len(self.keys) + self.more - len(named)
        and_more = f"; and {others} more" if others else ""
        return f"keys in etcd that cannot be read are passed by: {said}{and_more}"

    def _say(self, key: bytes, expected: str) -> None:
        now = self.clock()
        if now < self._quiet:
            self._unsaid += 1
            return
        text = "{key} in etcd cannot be read, and is passed by: {expected}"
        if self._unsaid:
            text += " (and {more} others before it)"
        self.log.error(text, key=shown(key), expected=expected, more=self._unsaid)
        self._quiet, self._unsaid = now + _QUIET, 0


def shown(key: bytes) -> str:
    """A key as a line has it: one that may be anything, and long."""
    text = printable(key[: 4 * _SHOWN].decode(errors="backslashreplace"))
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
