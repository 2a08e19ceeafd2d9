"""A broker whose log is a pipe that nobody reads: unread_log.py COMMAND...

What it writes is passed on until it says that it is ready, and then no more; the pipe stays open.
"""

from __future__ import annotations

import os
import sys
import time

__all__: list[str] = []


def pass_on(source: int) -> None:
    """Read until the broker is ready, then hold the pipe as long as it lives."""
    broker = os.getppid()
    seen = b""
    while b"mqttd ready" not in seen or not seen.endswith(b"\n"):
        more = os.read(source, 65536)
        if not more:
            return
        seen += more
        os.write(2, more)
    while os.getppid() == broker:
        time.sleep(0.2)


def main(command: list[str]) -> None:
    """Become the broker."""
    source, sink = os.pipe()
    if os.fork() == 0:
        os.close(sink)
        pass_on(source)
        os._exit(0)
    os.close(source)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.close(sink)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
