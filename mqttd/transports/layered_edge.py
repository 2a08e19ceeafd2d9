"""A descriptor of the engine with layers above it.

    socket --> LayeredEdge.ready --> layers --a step--> channel
                                        '--put off--> LayeredEdge.step, in later turns

What the layers put off, because one read brings more than a step's work, waits in line with that of
other connections (`Router.step_later`). Nothing is read from it meanwhile, so at most one read is
held, and charged like an unfinished packet.
"""

from __future__ import annotations

import errno
import os
from typing import Any, Final

from mqttd.session.channel.channel import CLOSED, NEW, Channel, Server
from mqttd.session.ground.connection import Connection
from mqttd.session.ground.output import gather
from mqttd.session.ground.unfinished import READ
from mqttd.transports.layers import MAX_ANSWERS, SERVED, Stack
from mqttd.transports.lobby import House
from mqttd.transports.ports import Carrier, Port, Sockets

__all__ = ["LayeredEdge", "os_reason", "read_from"]

_IN: Final = 1
_OUT: Final = 4
_ERR_HUP: Final = 0x18
#: TLS handshake steps per turn, about a millisecond each: messages wait no longer than for these.
_STEPS: Final = 8
#: Of these for one house, so that a flood from it leaves some to others.
_STEPS_EACH: Final = 4


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
        #: Bytes that the layers have put off, and whether they stand in line.
        self.left: int = 0
        self.lined: bool = False
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
            if channel.paused or self.left or channel.state == CLOSED:
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
        if not self.ending:
            self._took(self.stack.received(data))

    def step(self) -> bool:
        """See `Edge.step`."""
        channel = self.channel
        if self._may_go_on():
            try:
                self._took(self.stack.go_on())
            except Exception as error:  # as in `ready`
                self.server.crashed(channel, error)
        self.lined = self._may_go_on()
        return self.lined

    def _may_go_on(self) -> bool:
        channel = self.channel
        return self.left > 0 and not channel.paused and channel.state != CLOSED

    def _took(self, plain: bytes) -> None:
        """The layers have taken what they take in one step."""
        channel = self.channel
        stack = self.stack
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
        if stack.work or self.left:
            self.server.topics.work += stack.work
            left = stack.behind()
            if left != self.left:
                self._put_off(left)
        if stack.ended and channel.state != CLOSED:
            if self.shaking and stack.ended != SERVED:
                self.server.refused(channel, stack.ended)
            if stack.half:
                channel.input_ended(stack.ended)
            elif self.rest:
                # The rest of a page or of an alert goes out first.
                self.ending = stack.ended
                self.server.wheel.schedule(channel, self.server.now + 60_000)
            else:
                channel.end(stack.ended)

    def _put_off(self, left: int) -> None:
        """So much is left for later turns; it is read from when nothing is."""
        channel = self.channel
        turned = (left > 0) != (self.left > 0)
        self.left = left
        channel.weigh()
        if channel.state != CLOSED:
            if turned:
                self._watch(channel)
            self._line_up()

    def _line_up(self) -> None:
        if not self.lined and self._may_go_on():
            self.lined = True
            self.server.step_later(self)

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
        mask = 0 if channel.paused or self.waiting or self.left else _IN
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
        """Read from this descriptor again, behind what has been put off."""
        if channel.fd >= 0:
            self._watch(channel)
            self._line_up()

    def holding(self, channel: Connection) -> int:
        """See `Edge.holding`."""
        held = 0
        for layer in self.stack.layers:
            held += layer.holding()
        return held

    def behind(self, channel: Connection) -> int:
        """See `Edge.behind`."""
        return self.left

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
        channel.input_ended("closed by the client")
    return data


def os_reason(error: OSError) -> str:
    """An error of the system in the words of a close reason."""
    return errno.errorcode.get(error.errno or 0, "error").lower().replace("econn", "connection ")
