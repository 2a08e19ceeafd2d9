"""A queue that goes to another node in parts: a frame has room for 256 MiB, and a turn for less.

    part_of    what of it goes in one frame
    Rest       the others, one after the other, each when there is room on the link

Promise: a turn packs one part, and what is under way has the bound of its link.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from mqttd.broker.ground.turns import Job
from mqttd.cluster.sessions.packets import size_of

__all__ = ["ONE_FRAME", "PARTS", "Rest", "part_of"]

#: The version from which on a node takes them (`mqttd.cluster.links.hello`).
PARTS: Final = 5
#: Bytes of packets that one frame takes, with a record and what is before each.
ONE_FRAME: Final = 192 << 20
#: Bytes of packets in one, but for the last of them, and how many: each is read and made anew.
_PART: Final = 256 << 10
_MANY: Final = 500


def part_of(queue: Sequence[bytes], at: int) -> tuple[Sequence[bytes], int]:
    """The packets of a queue from `at` on that go in one frame, and where the next ones are."""
    end, size = at, 0
    while end < len(queue) and size < _PART and end - at < _MANY:
        size += size_of(queue, end)
        end += 1
    return [packet for packet in queue[at:end] if packet], end


class Rest(Job):
    """What of a queue is to go from `at` on; `say` sends a part, if it is still wanted.

    `then` is called when all of it is sent. `has_place` says whether the next part may go now; if
    not, it makes this a job again when it may.
    """

    def __init__(
        self,
        queue: Sequence[bytes],
        at: int,
        say: Callable[[Rest, Sequence[bytes]], bool],
        then: Callable[[], object],
        has_place: Callable[[Rest], bool],
    ) -> None:
        self.queue = queue
        self.at = at
        self.say = say
        self.then = then
        self.has_place = has_place
        self.begun = False

    def slice(self) -> bool:
        """See `Job.slice`."""
        if not self.has_place(self):
            return False
        part, end = part_of(self.queue, self.at)
        if not self.say(self, part):
            return False
        self.at = end
        if self.at < len(self.queue):
            return True
        self.then()
        return False
