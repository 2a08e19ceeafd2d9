"""Which worker a client belongs to, and which one this process is.

    worker_of(client id)    1 ... count, the same in every process and at every start

A client's session, its store and its order live in one worker, so a takeover never leaves it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

__all__ = ["PARENT", "VARIABLE", "Place", "count_of", "node_names", "place_of", "worker_of"]

#: The environment variable by which a supervisor tells a worker its place.
VARIABLE: Final = "MQTTD_WORKER"
#: The one that tells a broker that it is one of several, from 1, which another process has started.
PARENT: Final = "MQTTD_PARENT"


def count_of(workers: int | str) -> int:
    """How many workers `node.workers` means; "cores" is one for each core we may use."""
    return len(os.sched_getaffinity(0)) if workers == "cores" else int(workers)


def node_names(name: str, count: int) -> list[str]:
    """The names of the nodes of a cluster that one machine has.

    >>> node_names("node-a", 3)
    ['node-a', 'node-a-2', 'node-a-3']
    """
    return [name, *(f"{name}-{number}" for number in range(2, count + 1))]


def worker_of(client_id: str, count: int) -> int:
    """The number of the worker, from 1, that has this client's session.

    >>> [worker_of(f"sensor-{n}", 3) for n in range(5)]
    [3, 2, 2, 1, 3]
    """
    # The last bits of a checksum are a sum of those of the id: all pairs "p1", "s1" would be at
    # two workers of two.
    mixed = crc32(client_id.encode("utf-8", "surrogatepass")) * 0x9E3779B1 & 0xFFFFFFFF
    return (mixed >> 8) % count + 1


@dataclass(frozen=True, slots=True)
class Place:
    """One worker among `count`; `control` is the descriptor of the supervisor's channel.

    `sockets` are the descriptors of the listeners' sockets, by ``KIND:NAME``; `stopped` are the
    listeners that an operator has stopped.
    """

    number: int
    count: int
    control: int
    sockets: dict[str, int] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)

    def dump(self) -> str:
        """The value of the environment variable."""
        return json.dumps(
            {
                "number": self.number,
                "count": self.count,
                "control": self.control,
                "sockets": self.sockets,
                "stopped": self.stopped,
            }
        )


def place_of(environ: Mapping[str, str]) -> Place | None:
    """The place that a supervisor has given this process; None where there is no supervisor."""
    text = environ.get(VARIABLE)
    return None if text is None else Place(**json.loads(text))
