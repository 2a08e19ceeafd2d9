"""Connections that stay where they were accepted, and are served by another worker.

    client <-TLS, WebSocket-> Channel --Outlet--> UP ----> Channel of its worker
                              (bytes)  <--------- DOWN --- Inland (its edge)

The keys of a TLS connection are in the process that shook hands, so its bytes travel: the channel
there takes nothing apart any more, and its worker has a channel whose edge is the mesh. At most
`WINDOW` bytes are under way to a client (`CREDIT`), and a client whose worker does not read is not
read from (`PAUSE`). All of them share the link with everybody, and half of its room is for those
who publish: when the other half is full each waits for its turn, and puts `PIECE` bytes then.

Promise: bytes arrive in their order and none is dropped; when either end is over, or the worker of
one, so is the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from mqttd.broker.broker import Broker
from mqttd.mesh import frames
from mqttd.mesh.frames import number_of, numbered, packed, unpacked
from mqttd.mesh.link import Link
from mqttd.mesh.mesh import Other
from mqttd.session.channel.channel import Channel
from mqttd.session.channel.framing import Inlet
from mqttd.session.ground.connection import CLOSED, OPEN, Connection, Edge
from mqttd.session.ground.output import GATHER, LARGE, give_back, take
from mqttd.types import PeerIdentity

__all__ = ["PIECE", "WINDOW", "Relays"]

#: Bytes under way to one client.
WINDOW: Final = 256 << 10
#: Bytes of a client that go at once, where others wait for the link.
PIECE: Final = 4 << 10

_GONE: Final = "its worker is gone"


class Outlet(Inlet):
    """Where what a client sends goes on to its worker."""

    def __init__(self, relays: Relays, channel: Channel, link: Link, number: int) -> None:
        super().__init__()
        self.relays = relays
        self.channel = channel
        self.link = link
        self.number = number
        #: Bytes that came for the client, and were not said to be written.
        self.owed: int = 0
        #: The other end has said that it is over.
        self.ended: bool = False
        #: What has come and waits for room on the link.
        self.held: bytes = b""
        #: It waits for that; its worker does not read for now; the client is gone.
        self.full: bool = False
        self.stopped: bool = False
        self.closed: bool = False
        #: Why nothing more comes of it, though it may read yet.
        self.cut: str = ""

    def take(self, data: bytes) -> None:
        """See `Inlet.take`."""
        if data:
            self.held += data
            if not self.full:
                self._pass(not self.link.is_awaited())

    def go_on(self) -> None:
        """There is room on the link."""
        self._pass(True)
        if not self.closed:
            self.channel.weigh()

    def _pass(self, is_next: bool) -> None:
        """As much goes as there is room for, but a piece where others wait."""
        link = self.link
        self.held = _passed(link, frames.UP, self.number, self.held, is_next)
        self.full = len(self.held) > 0 and link.state == OPEN
        if self.full:
            link.line_up(self.go_on)
        elif self.closed or self.cut:
            self.relays.say_closed(self)
        self.settle()

    def settle(self) -> None:
        """Read from the client, or do not."""
        waited = self.waiting
        self.waiting = self.full or self.stopped
        channel = self.channel
        if self.waiting:
            channel.pause()
        elif waited and channel not in self.relays.broker.stalled:
            channel.resume()

    def size(self) -> int:
        """See `Inlet.size`."""
        return len(self.held)

    def ends(self, detail: str) -> bool:
        """See `Inlet.ends`: its worker does, which has yet to answer what came before."""
        self.cut = detail
        self.channel.begin_work()  # for good
        if not self.held:
            self.relays.say_closed(self)
        return True

    def close(self) -> None:
        """See `Inlet.close`; what has come of it goes first."""
        self.relays.broker.registry.channels += 1  # is about to be counted off again
        self.closed = True
        self.relays.closed(self)


class Inland(Edge):
    """The edge of a channel whose client is connected elsewhere."""

    def __init__(self, relays: Relays, link: Link, number: int, host: str, port: int) -> None:
        self.relays = relays
        self.link = link
        self.number = number
        self.host = host
        self.port = port
        self.known: object | None = None
        self.channel: Channel | None = None
        #: Bytes under way to the client.
        self.flying: int = 0
        #: Others fill the link.
        self.waits: bool = False
        #: What is still to go of a channel that is over, and what says that it is.
        self.rest: bytes = b""
        self.last: bytes = b""

    def flush(self, channel: Connection) -> None:
        """See `Edge.flush`."""
        if not self.waits:
            self._pass(channel, not self.link.is_awaited())

    def _pass(self, channel: Connection, is_next: bool) -> None:
        """As much goes as there is room for, but a piece where others wait."""
        server = self.relays.broker
        link = self.link
        while channel.out is not None and not channel.corked and self.flying < WINDOW:
            if not is_next or not link.has_place():
                self.waits = True
                link.line_up(self.go_on)
                break
            data = _some(channel, PIECE if link.is_awaited() else GATHER)
            self.flying += len(data)
            channel.bytes_sent += len(data)
            link.send(numbered(frames.DOWN, self.number, data))
            is_next = not link.is_awaited()
        if channel.out is None:
            channel.blocked = False
        elif not channel.blocked:
            channel.blocked = True
            server.slow[channel] = server.now
        channel.account()

    def credit(self, count: int) -> None:
        """So many bytes are written."""
        self.flying -= count
        self._flush(not self.link.is_awaited())

    def go_on(self) -> None:
        """There is room on the link."""
        self.waits = False
        if self.last:
            self._part(True)
        else:
            self._flush(True)

    def _flush(self, is_next: bool) -> None:
        channel = self.channel
        if channel is not None and channel.blocked:
            self.relays.broker.slow[channel] = self.relays.broker.now
            if not self.waits:
                channel.blocked = False
                self._pass(channel, is_next)

    def shut(self, channel: Connection) -> None:
        """See `Edge.shut`; what the client would take, and the link had no room for, goes first."""
        self.relays.shut(self)
        link = self.link
        if link.state == OPEN:
            said = bytes((channel.reason_code,)) + channel.close_reason.encode()
            self.last = numbered(frames.DOWN_END, self.number, said)
            if channel.out is not None and self.flying < WINDOW:
                self.rest = _some(channel, WINDOW - self.flying)
                channel.bytes_sent += len(self.rest)
            if not self.waits:
                self._part(not link.is_awaited())
        self.relays.broker.backlog -= channel.backlogged
        channel.backlogged = 0
        self.channel = None

    def _part(self, is_next: bool) -> None:
        """As `_pass`, of what is left; then the end."""
        link = self.link
        self.rest = _passed(link, frames.DOWN, self.number, self.rest, is_next)
        if link.state != OPEN:
            return
        if self.rest:
            self.waits = True
            link.line_up(self.go_on)
        else:
            link.put(self.last)

    def pause(self, channel: Connection) -> None:
        """See `Edge.pause`."""
        self.link.send(numbered(frames.PAUSE, self.number))

    def resume(self, channel: Connection) -> None:
        """See `Edge.resume`."""
        self.link.send(numbered(frames.RESUME, self.number))

    def peer(self, channel: Connection) -> tuple[str, int]:
        """See `Edge.peer`."""
        return (self.host, self.port)

    def identity(self, channel: Connection) -> object | None:
        """See `Edge.identity`."""
        return self.known


class Relays(Other):
    """All connections of a worker that are served elsewhere, or come from there.

    `others` takes the frames that mean something else.
    """

    def __init__(self, broker: Broker, others: Callable[[int, int, bytes], object]) -> None:
        self.broker = broker
        self.others = others
        self.outlets: dict[tuple[int, int], Outlet] = {}
        self.inlands: dict[tuple[int, int], Inland] = {}
        self._made: int = 0
        self._owing: dict[tuple[int, int], Outlet] = {}
        self._looking: bool = False

    # -- here, of a client that belongs elsewhere ----------------------------------------------

    def send_away(self, channel: Channel, link: Link, data: bytes) -> None:
        """Have a client that has sent CONNECT served by another worker; `data`: all it sent."""
        broker = self.broker
        self._made += 1
        outlet = Outlet(self, channel, link, self._made)
        self.outlets[(link.number, outlet.number)] = outlet
        host, port = channel.edge.peer(channel)
        fields = [
            channel.listener.encode(),
            host.encode(),
            port.to_bytes(4, "big"),
            _written(channel.edge.identity(channel)),
            data,
        ]
        link.put(numbered(frames.OPEN, outlet.number, packed(fields)))
        # From here on it is bytes, and nothing of ours goes between them.
        channel.rest = None
        channel.connect = None
        channel.v5 = False
        channel.state = OPEN
        channel.intake = outlet
        channel.let_in()
        broker.wheel.cancel(channel)
        broker.registry.channels -= 1
        broker.metrics.connections_closed -= 1  # it is counted where it is served
        channel.resume()

    def closed(self, outlet: Outlet) -> None:
        """A client is gone."""
        key = (outlet.link.number, outlet.number)
        self.outlets.pop(key, None)
        self._owing.pop(key, None)
        if not outlet.held or outlet.ended:
            self.say_closed(outlet)

    def say_closed(self, outlet: Outlet) -> None:
        """All that it has sent has gone."""
        outlet.held = b""
        if not outlet.ended and outlet.link.state == OPEN:
            said = (outlet.channel.close_reason or outlet.cut).encode()
            outlet.link.send(numbered(frames.UP_END, outlet.number, said))

    def tick(self) -> None:
        """A few times a second, and when bytes have come: what is written is said to be."""
        low = self.broker.settings.low_watermark
        for key, outlet in list(self._owing.items()):
            if outlet.channel.out_bytes <= low:
                del self._owing[key]
                said = outlet.owed.to_bytes(8, "big")
                outlet.owed = 0
                outlet.link.send(numbered(frames.CREDIT, outlet.number, said))

    def look(self) -> None:
        """The turn in which bytes came is over."""
        self._looking = False
        self.tick()
        self.broker.perform()

    # -- frames --------------------------------------------------------------------------------

    def other(self, link: Link, kind: int, body: bytes) -> None:
        """See `Other.other`."""
        if kind == frames.CALL or kind == frames.FIGURES:
            self.others(link.number, kind, body)
            return
        number = number_of(body)
        rest = body[8:]
        key = (link.number, number)
        if kind == frames.OPEN:
            self._opened(link, number, rest)
        elif kind == frames.UP or kind == frames.UP_END or kind == frames.CREDIT:
            inland = self.inlands.get(key)
            if inland is not None:
                self._from_client(inland, kind, rest)
        else:
            outlet = self.outlets.get(key)
            if outlet is not None:
                self._to_client(key, outlet, kind, rest)

    def _opened(self, link: Link, number: int, body: bytes) -> None:
        listener, host, port, known, data = unpacked(body)
        inland = Inland(self, link, number, host.decode(), int.from_bytes(port, "big"))
        inland.known = _read(known)
        self.inlands[(link.number, number)] = inland
        inland.channel = Channel(self.broker, inland, -1, listener.decode())
        self._feed(inland.channel, data)

    def _feed(self, channel: Channel, data: bytes) -> None:
        self.broker.metrics.bytes_received -= len(data)  # counted where they were read
        try:
            channel.feed(data)
        except Exception as error:  # as in the edges: it must end this connection only
            self.broker.crashed(channel, error)

    def _from_client(self, inland: Inland, kind: int, body: bytes) -> None:
        channel = inland.channel
        if channel is None:
            return
        if kind == frames.UP:
            self._feed(channel, body)
        elif kind == frames.CREDIT:
            inland.credit(number_of(body))
        else:
            channel.input_ended(body.decode() or "closed by the client")

    def _to_client(self, key: tuple[int, int], outlet: Outlet, kind: int, body: bytes) -> None:
        channel = outlet.channel
        if channel.state == CLOSED:
            return
        if kind == frames.DOWN:
            channel.send(body)
            outlet.owed += len(body)
            self._owing[key] = outlet
            if not self._looking:
                self._looking = True
                self.broker.soon(self.look)
        elif kind == frames.PAUSE:
            outlet.stopped = True
            outlet.settle()
        elif kind == frames.RESUME:
            outlet.stopped = False
            outlet.settle()
        elif kind == frames.DOWN_END:
            outlet.ended = True
            channel.reason_code = body[0]
            channel.end(body[1:].decode())

    # -- ends ----------------------------------------------------------------------------------

    def shut(self, inland: Inland) -> None:
        """A channel of a client that is connected elsewhere is over."""
        self.inlands.pop((inland.link.number, inland.number), None)

    def gone(self, link: Link) -> None:
        """See `Other.gone`."""
        for outlet in list(self.outlets.values()):
            if outlet.link is link:
                outlet.ended = True
                outlet.channel.end(_GONE)
        for inland in list(self.inlands.values()):
            if inland.link is link and inland.channel is not None:
                inland.channel.end(_GONE)

    def close_all(self) -> None:
        """The worker stops: tell those that are served here."""
        for inland in list(self.inlands.values()):
            if inland.channel is not None:
                inland.channel.close(0x8B, "server shutting down")


def _passed(link: Link, kind: int, number: int, data: bytes, is_next: bool) -> bytes:
    """Send as many pieces as there is room for, but one where others wait; what is left."""
    while data and is_next and link.state == OPEN and link.has_place():
        link.send(numbered(kind, number, data[:PIECE]))
        data = data[PIECE:]
        is_next = not link.is_awaited()
    return data


def _some(channel: Connection, most: int) -> bytes:
    """Take about so many of the bytes that wait."""
    pieces = take(channel, most)
    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    at: int = channel.out_at
    end = at + most
    if at or len(data) > end + LARGE:
        data = data[at : end if len(data) > end + LARGE else len(data)]
    give_back(channel, pieces, len(data))
    return data


def _written(known: object | None) -> bytes:
    """A `PeerIdentity` as bytes."""
    if not isinstance(known, PeerIdentity):
        return b""
    fields: dict[str, Any] = {
        "host": known.host,
        "port": known.port,
        "common_name": known.common_name,
        "subject": known.subject,
        "sans": list(known.sans),
        "username": known.username,
        "client_id": known.client_id,
        "attributes": None if known.attributes is None else dict(known.attributes),
    }
    return json.dumps(fields).encode()


def _read(data: bytes) -> object | None:
    if not data:
        return None
    fields: dict[str, Any] = json.loads(data)
    fields["sans"] = tuple(fields["sans"])
    return PeerIdentity(**fields)
