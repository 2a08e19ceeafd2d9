"""Layers between a socket and its channel: PROXY header, TLS records, WebSocket frames.

    socket --bytes--> [proxy] --> [tls] --> [websocket] --> Channel.feed
           <--------- answers of a layer go through those below it
           <--bytes-- [tls] <---- [websocket] <------------ channel.out, once per turn

A layer does no input or output: bytes go in, bytes come out, so one stack serves the epoll engine
(`LayeredEdge`, with a descriptor) and any Twisted transport (`layered_stream`), and is tested
without sockets. Plain TCP has no layer, and costs nothing for those that have.

Promise: whatever a peer sends, a layer keeps no more of it than one header; what it answers by
itself waits for a peer that does not read up to `MAX_ANSWERS` bytes, then the connection ends.
"""

from __future__ import annotations

import errno
import os
from typing import Any, Final

from mqttd.session.channel import CLOSED, NEW, Channel, Server
from mqttd.session.connection import Connection
from mqttd.session.output import gather
from mqttd.session.unfinished import READ
from mqttd.transports.lobby import House
from mqttd.transports.ports import Carrier, Port, Sockets

__all__ = ["MAX_ANSWERS", "SERVED", "Layer", "LayeredEdge", "Stack"]

#: Unread bytes of answers (pongs, handshake records, a page) a connection may have.
MAX_ANSWERS: Final = 1 << 20

#: Why a connection ends that was no WebSocket, after its HTTP request was answered.
SERVED: Final = "answered over HTTP"

_IN: Final = 1
_OUT: Final = 4
_ERR_HUP: Final = 0x18
#: TLS handshake steps per turn, about a millisecond each: messages wait no longer than for these.
_STEPS: Final = 8
#: Of these for one house, so that a flood from it leaves some to others.
_STEPS_EACH: Final = 4


class Layer:
    """One protocol below MQTT. `received` and `sent` turn bytes into those of the other side.

    After each call the stack takes `answer` (bytes the layer itself has to say to the peer) and
    looks at `ended` (why the connection is over; empty while it is not) and `wrong` (what the peer
    speaks instead of this layer's protocol).
    """

    def __init__(self) -> None:
        self.answer: bytes = b""
        self.ended: str = ""
        #: The layer is still busy with its handshake; nothing may be sent through it.
        self.shaking: bool = False
        #: That handshake costs so much CPU and memory that only `max_handshakes` of them go on at
        #: a time; and whether it has begun, with the peer's first bytes.
        self.costly: bool = False
        self.begun: bool = False
        #: The layer has done its work and can be taken out of the stack.
        self.done: bool = False

    def received(self, data: bytes) -> bytes:
        """Bytes from the peer; returns what they hold for the layer above."""
        raise NotImplementedError

    def sent(self, data: bytes) -> bytes:
        """Bytes for the peer; returns them as this layer writes them."""
        raise NotImplementedError

    def closing(self) -> bytes:
        """The last bytes of this layer to the peer."""
        return b""

    def holding(self) -> int:
        """Bytes that the layer holds for its peer."""
        return 0

    def identity(self) -> object | None:
        """What the layer knows of its peer, a `mqttd.types.PeerIdentity`."""
        return None


class Stack:
    """The layers of one connection, the one next to the socket first."""

    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers
        self.ended: str = ""
        self.known: object | None = None

    def received(self, data: bytes) -> bytes:
        """Bytes from the socket upwards; `answers` has what goes back at once."""
        layers = self.layers
        at = 0
        while at < len(layers):
            layer = layers[at]
            data = layer.received(data)
            if layer.ended and not self.ended:
                self.ended = layer.ended
            if layer.done:
                known = layer.identity()
                if known is not None:
                    self.known = known
                del layers[at]
            else:
                at += 1
            if not data:
                break
        return data

    def answers(self) -> bytes:
        """What the layers themselves have to say, written by those below."""
        said = b""
        layers = self.layers
        at = len(layers)
        while at > 0:
            at -= 1
            layer = layers[at]
            if said:
                said = layer.sent(said)
            if layer.answer:
                # What a layer says itself was made before what came from above.
                said = layer.answer + said
                layer.answer = b""
        return said

    def sent(self, data: bytes) -> bytes:
        """Bytes of the channel as they go to the socket."""
        layers = self.layers
        at = len(layers)
        while at > 0:
            at -= 1
            data = layers[at].sent(data)
        return data

    def closing(self) -> bytes:
        """The last bytes of all layers."""
        last = b""
        for at in range(len(self.layers) - 1, -1, -1):
            layer = self.layers[at]
            if layer.shaking:
                last = b""
                continue
            if last:
                last = layer.sent(last)
            last = last + layer.closing()
        return last

    def shaking(self) -> bool:
        """Whether any layer is still busy with its handshake."""
        for layer in self.layers:
            if layer.shaking:
                return True
        return False

    def costly(self) -> bool:
        """Whether a costly handshake is still to come, or under way."""
        for layer in self.layers:
            if layer.costly:
                return True
        return False

    def begun(self) -> bool:
        """Whether a costly handshake is under way."""
        for layer in self.layers:
            if layer.costly and layer.begun:
                return True
        return False

    def identity(self) -> object | None:
        """What is known of the peer: by its certificate, else by the proxy's word."""
        for layer in self.layers:
            known = layer.identity()
            if known is not None:
                return known
        return self.known


class LayeredEdge(Carrier):
    """A descriptor of the engine with layers above it, and the address that `accept` told.

    While its port has as many TLS handshakes under way as it allows, a connection that would begin
    one is not read from: it stands in the port's queue until `go`. It takes its place with its
    first bytes and not before them, and loses it when it leaves us waiting, so that peers who say
    nothing keep nobody out. Of the steps of a turn one house has at most half.
    """

    def __init__(self, engine: Sockets, port: Port, fd: int, address: Any, stack: Stack) -> None:
        self.engine = engine
        self.port = port
        self.server: Server = engine.server
        self.stack = stack
        #: Bytes as the socket takes them, and how many of them it has taken.
        self.rest: bytes = b""
        self.rest_at: int = 0
        #: Of answers in there: what was said since all of it was taken last.
        self.said: int = 0
        self.ending: str = ""
        self.shaking: bool = stack.shaking()
        #: This is one of the port's `handshakes`.
        self.counted: bool = False
        #: It stands in the port's queue, to become one.
        self.waiting: bool = False
        self.host: str = "unix"
        self.number: int = 0
        if isinstance(address, tuple):
            self.host = str(address[0])
            self.number = int(address[1])
        self.channel = Channel(self.server, self, fd, port.name)
        self.worked: int = 0
        #: Nobody's, until the proxy has said whose it is.
        self.nameless: bool = port.proxied
        host = "" if port.proxied else self.host
        self.house: House = port.lobby.enter(self.channel, host, self.server.now)
        if self.shaking and port.handshake_timeout:
            self.server.wheel.schedule(self.channel, self.server.now + port.handshake_timeout)

    def ready(self, event: int) -> None:
        """The engine's poll has found something for this descriptor."""
        channel = self.channel
        if event & _IN:
            if channel.paused or channel.state == CLOSED:
                return
            if self.shaking and self.stack.costly():
                engine = self.engine
                steps = engine.steps_of.get(self.house, 0)
                if engine.steps >= _STEPS or (steps >= _STEPS_EACH and not self.nameless):
                    return  # the poll tells again: other connections first
                if self._waits(channel):
                    return
                engine.steps += 1
                engine.steps_of[self.house] = steps + 1
            data = read_from(channel, channel.fd)
            if not data:
                return
            self.engine.taken += len(data)
            if self.counted:
                self._worked()
            elif self.shaking and self.stack.costly() and not self.stack.begun():
                self._take_place()
            new = channel.state == NEW
            try:
                self.received(data)
            except Exception as error:  # a fault of ours must end this connection only
                self.server.crashed(channel, error)
            if new:
                self.port.lobby.heard(channel, self.house, self.server.now)
                self.channel.weigh()
            if self.counted and (self.stack.ended or not self.stack.begun()):
                self._uncount()
        elif event & _ERR_HUP:
            channel.end("connection reset")
        if event & _OUT:
            self.flush(channel)

    def _waits(self, channel: Connection) -> bool:
        """Whether others shake hands first; it then stands in the queue and is not read from."""
        if self.waiting:
            return True
        if self.counted or self.stack.begun() or not self.stack.costly():
            return False
        if not self.port.busy(self.house, self.server.now):
            return False
        self.waiting = True
        self.port.stand_in_line(self)
        self._watch(channel)
        return True

    def go(self) -> None:
        """Its turn has come: the place is taken for the bytes that wait."""
        self.waiting = False
        self._take_place()
        self._watch(self.channel)

    def give_place(self) -> None:
        """It leaves us waiting: it goes on without a place, when it goes on."""
        self.counted = False
        self.port.leave_place(self)

    def _take_place(self) -> None:
        self.counted = True
        self.port.take_place(self, self.server.now)

    def _worked(self) -> None:
        """The peer has answered: its place is worked in."""
        self.worked = self.server.now
        busy_with = self.port.busy_with
        busy_with.pop(self.channel.fd, None)
        busy_with[self.channel.fd] = self

    def _uncount(self) -> None:
        """Its handshake is over, or has not begun with a PROXY header: the next one's turn."""
        self.give_place()
        self.port.next_handshake()

    def _named(self, known: Any) -> bool:
        """A proxy has said for whom it comes; whether there is room for one more of that house."""
        self.nameless = False
        if not known.host:
            return True
        counted = self.counted
        if counted:
            self.give_place()
        channel = self.channel
        house = self.port.lobby.move(channel, self.house, str(known.host), self.server.now)
        if house is None:
            self.server.house_full(self.port.name, str(known.host))
            channel.end("too many connections of this address")
            return False
        self.house = house
        if counted:
            self._take_place()
        return True

    def received(self, data: bytes) -> None:
        """Bytes from the socket."""
        channel = self.channel
        stack = self.stack
        if self.ending:
            return
        plain = stack.received(data)
        said = stack.answers()
        if said:
            self.rest = self.rest[self.rest_at :] + said
            self.rest_at = 0
            channel.out_bytes += len(said)
            self.said += len(said)
            if self.said > MAX_ANSWERS:
                channel.end("reads none of the answers")
                return
            if not channel.blocked:
                self.flush(channel)
        if self.shaking and not stack.shaking():
            self._shaken()
        if self.nameless and stack.known is not None and not self._named(stack.known):
            return
        if plain:
            channel.feed(plain)
        if stack.ended and channel.state != CLOSED:
            if self.shaking and stack.ended != SERVED:
                self.server.refused(channel, stack.ended)
            if self.rest:
                # The rest of a page or of an alert goes out first.
                self.ending = stack.ended
                self.server.wheel.schedule(channel, self.server.now + 60_000)
            else:
                channel.end(stack.ended)

    def _shaken(self) -> None:
        self.shaking = False
        channel = self.channel
        if channel.version == 0:
            server = self.server
            server.wheel.schedule(channel, server.now + server.connect_timeout(self.port.name))

    def flush(self, channel: Connection) -> None:
        """Write what waits, through the layers, in one call; EPOLLOUT brings the rest."""
        if channel.fd < 0:
            return
        if not self.rest:
            if channel.out is None:
                self._settle(channel)
                return
            self._encode(channel)
        data = self.rest
        at = self.rest_at
        try:
            written = os.write(channel.fd, memoryview(data)[at:] if at else data)
        except BlockingIOError:
            written = 0
        except OSError as error:
            channel.out = None
            channel.out_bytes = 0
            self.rest = b""
            self.rest_at = 0
            channel.end(os_reason(error))
            return
        self.server.metrics.bytes_sent += written
        channel.bytes_sent += written
        channel.out_bytes -= written
        at += written
        if at < len(data):
            self.rest_at = at
        else:
            self.rest = b""
            self.rest_at = 0
            self.said = 0
        if written and channel.blocked:
            self.server.slow[channel] = self.server.now
        self._settle(channel)

    def _encode(self, channel: Connection) -> None:
        """Take what waits in the channel, a bounded part of it, through the layers."""
        data = gather(channel)
        if not data:
            return
        if self.stack.layers:
            self.rest = self.stack.sent(data)
            channel.out_bytes += len(self.rest) - len(data)
        else:
            self.rest = data

    def _settle(self, channel: Connection) -> None:
        """After a write: what to wait for, and who is to hear of the room there is."""
        server = self.server
        waiting = channel.out is not None or len(self.rest) > 0
        if waiting != channel.blocked:
            channel.blocked = waiting
            if waiting:
                server.slow[channel] = server.now
            self._watch(channel)
        channel.account()
        if self.ending and not waiting:
            channel.end(self.ending)

    def _watch(self, channel: Connection) -> None:
        mask = 0 if channel.paused or self.waiting else _IN
        if channel.blocked:
            mask |= _OUT
        self.engine.epoll.modify(channel.fd, mask)

    def shut(self, channel: Connection) -> None:
        """Say goodbye where the layers have a word for it, close the descriptor."""
        fd = channel.fd
        if fd < 0:
            return
        if self.waiting:
            self.waiting = False
            self.port.leave_line(self)
        if self.counted:
            self._uncount()
        if not self.rest:
            last = self.stack.closing()
            if last:
                try:
                    os.write(fd, last)
                except OSError:
                    pass
        self.rest = b""
        channel.fd = -1
        if self.engine.layered.pop(fd, None) is not None:
            self.engine.close(fd, channel)
            self.port.connections -= 1
            self.port.lobby.left(self.channel, self.house)
        self.server.backlog -= channel.backlogged
        channel.backlogged = 0

    def pause(self, channel: Connection) -> None:
        """Stop reading from this descriptor."""
        if channel.fd >= 0:
            self._watch(channel)

    def resume(self, channel: Connection) -> None:
        """Read from this descriptor again."""
        if channel.fd >= 0:
            self._watch(channel)

    def holding(self, channel: Connection) -> int:
        """See `Edge.holding`."""
        held = 0
        for layer in self.stack.layers:
            held += layer.holding()
        return held

    def peer(self, channel: Connection) -> tuple[str, int]:
        """The peer's address: what the proxy said, else what `accept` did."""
        known: Any = self.stack.known
        if known is not None and known.host:
            return (known.host, known.port)
        return (self.host, self.number)

    def identity(self, channel: Connection) -> object | None:
        """What the layers know of the peer."""
        return self.stack.identity()


def read_from(channel: Channel, fd: int, most: int = READ) -> bytes:
    """One read of up to `most` bytes; empty where nothing has come, or the connection has ended."""
    try:
        data = os.read(fd, most)
    except BlockingIOError:
        return b""
    except OSError as error:
        channel.end(os_reason(error))
        return b""
    if not data:
        channel.end("closed by the client")
    return data


def os_reason(error: OSError) -> str:
    """An error of the system in the words of a close reason."""
    return errno.errorcode.get(error.errno or 0, "error").lower().replace("econn", "connection ")
