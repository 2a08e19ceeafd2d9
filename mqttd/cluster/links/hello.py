"""The first frame between two nodes: who each is, and how much it has of the other.

    dialled --hello--> accepted by a node that knows such a member, of this epoch
            <--hello--

Promise: sans-I/O; what is no hello raises ValueError. Versions: each says the least and the most it
speaks, and the highest that both do is spoken, so that two neighbouring versions talk. Those of
version 1 have no lane of their own for QoS 2 (`mqttd.mesh.lane`); below 3 nobody says that his
store takes nothing (`mqttd.mesh.frames.STUCK`), below 4 a retained message's end is told by the
clock of the machine (`mqttd.mesh.retained`), and nobody says how much he has handled
(`mqttd.mesh.flight`); below 5 the queue of a session that moves is in one frame
(`mqttd.cluster.sessions.parts`).
"""

from __future__ import annotations

from dataclasses import dataclass

from mqttd.mesh.frames import HELLO, frame, packed, split, unpacked

__all__ = ["MOST", "SPEAKS", "Hello", "hello_of"]

#: The versions of the frames that this one speaks.
SPEAKS = (1, 5)
#: Bytes of a hello.
MOST = 4096

#: What is said of one that speaks TLS to a node that does not; how that begins.
SPEAKS_TLS = "it speaks TLS, and this node does not (cluster.certificate)"
_HANDSHAKE = b"\x16\x03"

_MARK = b"mqttd-node"


@dataclass(frozen=True, slots=True)
class Hello:
    """What a node says of itself."""

    cluster: str
    node: str
    epoch: int
    #: The epoch of who it speaks to.
    to: int
    #: The number of this stream, which its dialler has chosen.
    stream: int
    #: So many counted frames of the other it has taken on that stream, the last that brought any.
    had: int
    of: int
    speaks: tuple[int, int] = SPEAKS

    def dump(self) -> bytes:
        """As a frame."""
        numbers = (self.epoch, self.to, self.stream, self.had, self.of)
        fields = [_MARK, bytes(self.speaks), self.cluster.encode(), self.node.encode()]
        return frame(HELLO, packed(fields + [each.to_bytes(8, "big") for each in numbers]))

    def version(self) -> int:
        """The version that both speak; 0: there is none."""
        most = min(self.speaks[1], SPEAKS[1])
        return most if most >= max(self.speaks[0], SPEAKS[0]) else 0


def hello_of(data: bytes) -> tuple[Hello, bytes] | None:
    """The hello with which `data` begins, and what is behind it; None while it has not come."""
    if not data:
        return None
    if data[:2] == _HANDSHAKE:
        raise ValueError(SPEAKS_TLS)
    if data[0] != HELLO:
        raise ValueError("this is no node")
    body, end = split(data, 0)
    if not end:
        if len(data) > MOST:
            raise ValueError("a hello is too long")
        return None
    fields = unpacked(data[body:end])
    if len(fields) < 9 or fields[0] != _MARK or len(fields[1]) != 2:
        raise ValueError("this is no node")
    epoch, to, stream, had, of = (int.from_bytes(each, "big") for each in fields[4:9])
    speaks = (fields[1][0], fields[1][1])
    cluster, node = fields[2].decode(), fields[3].decode()
    return Hello(cluster, node, epoch, to, stream, had, of, speaks), data[end:]
