"""The second lane of a link between nodes, for what waits for a store: QoS 2.

    QoS 0, 1, all else --> Link ------------------------------------.
    QoS 2 --> Lane, behind its gates until the store has its row --> LANE frames --> the other node

What may come once only goes when its publisher's packet id is written (`mqttd.mesh.ferry`), and
what is behind it waits, too. So that this is QoS 2 alone, it has frames, numbers and
acknowledgements of its own, as a link has, and they go in pieces by the link. Of one publisher QoS
1 may so come before QoS 2 that was sent before it; within each there is the order of the publisher
(MQTT 5.0, 4.6).

Promise: without a store, and while nothing waits, it is written in the turn that brings it, all of
a turn in one piece.
"""

from __future__ import annotations

from typing import Final

from mqttd.mesh.frames import LANE, frame
from mqttd.mesh.link import Link
from mqttd.session.ground.connection import Connection, Edge

__all__ = ["Lane"]

#: Bytes of a piece at most.
_PIECE: Final = 1 << 20


class _Onward(Edge):
    """The output of a lane goes on by its link."""

    def __init__(self, main: Link) -> None:
        self.main = main

    def flush(self, channel: Connection) -> None:
        """See `Edge.flush`."""
        out = channel.out
        if out is None:
            return
        channel.out = None
        channel.out_bytes = 0
        data = out[0] if len(out) == 1 else b"".join(out)
        for at in range(0, len(data), _PIECE):
            self.main.send(frame(LANE, data[at : at + _PIECE]))
        channel.account()

    def shut(self, channel: Connection) -> None:
        """See `Edge.shut`."""
        self.main.end("its lane has ended")

    def pause(self, channel: Connection) -> None:
        """A link is always read."""

    def resume(self, channel: Connection) -> None:
        """A link is always read."""

    def peer(self, channel: Connection) -> tuple[str, int]:
        """Nobody asks."""
        return ("", 0)


class Lane(Link):
    """A link of its own, whose bytes go by `main`."""

    __slots__ = ("main",)

    def __init__(self, main: Link) -> None:
        super().__init__(main.turn, _Onward(main), main.number)
        self.main = main

    def brought(self, size: int) -> None:
        """See `Link.brought`: it came by the link."""

    def leaves(self, later: int, begun: int) -> None:
        """See `Link.leaves`."""
        self.main.handled.beside = later + begun
        self.main.tell(later > 0)

    def put(self, data: bytes) -> None:
        """See `Link.put`; who sends too much waits until the link has room."""
        self.send(data)
        main = self.main
        if main.out_bytes + self.out_bytes + self.shut_in > main.limit or main.is_late():
            main.cram(len(data))
