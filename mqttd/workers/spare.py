"""A process that is ready to be a worker: Python is up, all that a worker imports is imported.

    supervisor --starts--> spare   imports, then waits on its channel
               --{"number": 2, "count": 4, "environ": {...}, "sockets": [...]} + descriptors-->
                           worker 2, or by its variables a node: twistd runs

Python and the imports are most of the time that a start takes, so whoever has clients that wait has
that done before. A worker that is started without a spare one goes the same way and waits for
nothing.

Promise: nothing of a configuration is read before it is told which worker it is; it ends when its
channel does.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from mqttd.workers.place import PARENT, VARIABLE, Place

__all__ = ["CHANNEL", "main", "messages", "warm"]

#: The descriptor of the channel.
CHANNEL: Final = 3
_MOST: Final = 1 << 18
#: Descriptors of one message: the kernel takes 253.
_FDS: Final = 200


def messages(
    number: int,
    count: int,
    environ: Mapping[str, str],
    sockets: Mapping[str, socket.socket],
    stopped: Collection[str] = (),
) -> list[tuple[dict[str, Any], Sequence[int]]]:
    """What makes a process worker `number` of `count`: messages and their descriptors.

    `environ` are variables of its own, `sockets` those of its listeners, of which `stopped` are not
    to be opened.
    """
    names = list(sockets)
    some = [names[at : at + _FDS] for at in range(0, len(names), _FDS)] or [[]]
    told: list[tuple[dict[str, Any], Sequence[int]]] = [
        ({"sockets": each}, [sockets[name].fileno() for name in each]) for each in some
    ]
    told[-1][0].update(number=number, count=count, environ=dict(environ), stopped=sorted(stopped))
    return told


def main() -> None:
    """Wait to be told which worker this is, and be it: twistd with the arguments of the process."""
    # What a terminal sends to its group is for the supervisor.
    os.setpgid(0, 0)
    warm()
    end = socket.socket(fileno=CHANNEL)
    sockets: dict[str, int] = {}
    while True:
        data, fds, _, _ = socket.recv_fds(end, _MOST, _FDS)
        if not data:
            sys.exit(0)
        told = json.loads(data)
        sockets.update(zip(told["sockets"], fds, strict=True))
        if "number" in told:
            break
    place = Place(told["number"], told["count"], end.detach(), sockets, told["stopped"])
    os.environ.update(told["environ"])
    if PARENT not in told["environ"]:
        os.environ[VARIABLE] = place.dump()
    from twisted.scripts.twistd import run

    sys.exit(run())


def warm() -> None:
    """Import what every worker does, beginning with the reactor that the arguments ask for."""
    from twisted.application.reactors import installReactor

    for each in [each for each in sys.argv if each.startswith("--reactor=")]:
        installReactor(each.partition("=")[2])
        sys.argv.remove(each)
    for name in ("twisted.scripts.twistd", "mqttd.service", "mqttd.workers.worker"):
        import_module(name)
