"""One attack in a process of its own: python -m benchmarks.hostile.opened ROW PORT

It goes on until its standard input ends, and then prints what it did, as JSON. So those who
measure beside it do not wait for it in their interpreter; it is nice to them as well.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from benchmarks.hostile.rows import ROWS
from benchmarks.running import raise_file_limit

__all__ = ["Opened"]

#: An attack begun late is no weaker; honest clients that wait for the load's core look slow.
NICE = 10


class Opened:
    """An attack that has begun."""

    def __init__(self, row: str, port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.hostile.opened", row, str(port)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def stop(self) -> dict[str, int]:
        """End it: steps, bytes sent, steps that failed."""
        out, _ = self._process.communicate(timeout=60)
        told: dict[str, int] = json.loads(out)
        return told


def main(arguments: list[str]) -> int:
    """Run until nobody is there any more."""
    os.nice(NICE)
    raise_file_limit()
    attack = ROWS[arguments[0]].open(int(arguments[1]))
    sys.stdin.read()
    attack.stop()
    print(json.dumps({"steps": attack.steps, "sent": attack.sent, "failed": attack.failed}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
