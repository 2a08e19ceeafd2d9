"""The epoll engine: all plain MQTT sockets behind one descriptor of the Twisted reactor.

    reactor (any)  --- one reader --->  Engine  --- epoll --->  fd, fd, fd ... (channels)

An epoll object is itself pollable, so the reactor sees the engine as one reader; per connection
there is no transport, protocol or socket object, only the channel and its descriptor number.
`doRead`: poll once, one read of up to 64 KiB and one `feed` per readable descriptor, then the
effects of the turn (`Node.perform`): one write per dirty channel, then the closes, so that a
descriptor number is never reused within a batch of events.

Level-triggered with one read per turn is fair between clients. EPOLLOUT is asked for only after a
short write. Measured reasons in docs/design/hot-path.md: Twisted's TCP transport costs two
`epoll_ctl`, a loop turn and a delayed call per write; reads over 64 KiB cost 9 times as much
(malloc's mmap threshold).
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from typing import Final

from mqttd.session.channel import OPEN, Channel
from mqttd.session.node import Edge, Node

__all__ = ["Engine"]

_IN: Final = 1
_OUT: Final = 4
_ERR_HUP: Final = 0x18
_READ: Final = 65536
_EVENTS: Final = 512
#: Accepts per listener and turn, so that a storm of connects leaves room for messages.
_ACCEPTS: Final = 256
#: Bytes joined for one write when more waits.
_WRITE: Final = 262144


class Port:
    """A listening socket of the engine."""

    __slots__ = ("connections", "family", "fd", "max_connections", "name", "paused_until", "socket")

    def __init__(self, name: str, listening: socket.socket, max_connections: int) -> None:
        self.name = name
        self.socket = listening
        self.fd = listening.fileno()
        self.family = int(listening.family)
        self.max_connections = max_connections
        self.connections: int = 0
        self.paused_until: int = 0


class Engine(Edge):
    """The edge of plain TCP connections. Add it to a reactor as a reader."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.epoll = select.epoll()
        self.channels: dict[int, Channel] = {}
        #: Addresses of connections that have not been asked for theirs, as `accept` told them:
        #: CONNECT needs one soon, and asking the kernel again costs 2 us.
        self.fresh: dict[int, tuple[str, int]] = {}
        self.ports: dict[int, Port] = {}
        self.by_name: dict[str, Port] = {}

    # -- Twisted's IReadDescriptor -------------------------------------------------------------

    def fileno(self) -> int:
        """The epoll object's own descriptor."""
        return self.epoll.fileno()

    def logPrefix(self) -> str:
        """How Twisted names us in its log."""
        return "mqttd-engine"

    def connectionLost(self, reason: object) -> None:
        """The reactor let go of us."""

    def doRead(self) -> None:
        """One turn: what is readable is fed, then the effects are performed."""
        node = self.node
        events = self.epoll.poll(0, _EVENTS)
        node.now = time.monotonic_ns() // 1_000_000
        channels = self.channels
        for fd, event in events:
            channel = channels.get(fd)
            if channel is None:
                port = self.ports.get(fd)
                if port is not None:
                    self._accept(port)
                continue
            if event & _IN:
                if channel.paused:
                    continue
                try:
                    data = os.read(fd, _READ)
                except BlockingIOError:
                    continue
                except OSError as error:
                    channel.end(_os_reason(error))
                    continue
                if not data:
                    channel.end("closed by the client")
                    continue
                try:
                    channel.feed(data)
                except Exception as error:  # a fault of ours must end this connection only
                    node.crashed(channel, error)
            elif event & _ERR_HUP:
                channel.end("connection reset")
            if event & _OUT:
                self.flush(channel)
        node.perform()

    # -- listening -----------------------------------------------------------------------------

    def listen(self, name: str, listening: socket.socket, max_connections: int) -> None:
        """Accept connections of a bound, listening, non-blocking socket."""
        port = Port(name, listening, max_connections)
        self.ports[port.fd] = port
        self.by_name[name] = port
        self.epoll.register(port.fd, _IN)

    def unlisten(self, name: str) -> None:
        """Stop accepting and close the listening socket; connections stay."""
        port = self.by_name.pop(name, None)
        if port is not None:
            self.ports.pop(port.fd, None)
            if not port.paused_until:
                self.epoll.unregister(port.fd)
            port.socket.close()

    def _accept(self, port: Port) -> None:
        node = self.node
        for _ in range(_ACCEPTS):
            try:
                fd, address = port.socket._accept()  # type: ignore[attr-defined]
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                    # No descriptor left: look again in a second instead of spinning.
                    port.paused_until = node.now + 1000
                    self.epoll.unregister(port.fd)
                    node.metrics.connections_refused += 1
                    return
                continue  # the peer was gone already
            if port.max_connections and port.connections >= port.max_connections:
                os.close(fd)
                node.metrics.connections_refused += 1
                continue
            os.set_blocking(fd, False)
            port.connections += 1
            node.metrics.connections_accepted += 1
            self.channels[fd] = Channel(node, self, fd, port.name)
            if isinstance(address, tuple):
                self.fresh[fd] = (address[0], address[1])
            self.epoll.register(fd, _IN)

    def tick(self, now: int) -> None:
        """Listen again where descriptors had run out."""
        for port in self.ports.values():
            if port.paused_until and now >= port.paused_until:
                port.paused_until = 0
                self.epoll.register(port.fd, _IN)

    # -- Edge ----------------------------------------------------------------------------------

    def flush(self, channel: Channel) -> None:
        """One write of what waits; EPOLLOUT brings the rest."""
        out = channel.out
        if out is None:
            return
        if len(out) == 1:
            data = out[0]
            channel.out = None
        elif channel.out_bytes <= _WRITE:
            data = b"".join(out)
            channel.out = None
        else:
            size = 0
            count = 0
            for piece in out:
                size += len(piece)
                count += 1
                if size >= _WRITE:
                    break
            data = b"".join(out[:count])
            del out[:count]
            if not out:
                channel.out = None
        length = len(data)
        try:
            written = os.write(channel.fd, data)
        except BlockingIOError:
            written = 0
        except OSError as error:
            channel.out = None
            channel.out_bytes = 0
            channel.end(_os_reason(error))
            return
        node = self.node
        node.metrics.bytes_sent += written
        channel.out_bytes -= written
        if written < length:
            rest = data[written:] if written else data
            left = channel.out
            if left is None:
                channel.out = [rest]
            else:
                left.insert(0, rest)
        if channel.out is not None:
            if not channel.blocked:
                channel.blocked = True
                self._watch(channel)
        elif channel.blocked:
            channel.blocked = False
            self._watch(channel)
        if channel.out_bytes != channel.backlogged:
            node.backlog += channel.out_bytes - channel.backlogged
            channel.backlogged = channel.out_bytes
        if channel.thirsty and channel.out_bytes <= node.settings.low_watermark:
            channel.thirsty = False
            node.thirsty.append(channel)

    def _watch(self, channel: Channel) -> None:
        """Tell epoll what we wait for on this descriptor."""
        mask = 0 if channel.paused else _IN
        if channel.blocked:
            mask |= _OUT
        self.epoll.modify(channel.fd, mask)

    def shut(self, channel: Channel) -> None:
        """Close the descriptor."""
        fd = channel.fd
        if fd < 0:
            return
        channel.fd = -1
        if self.channels.pop(fd, None) is not None:
            os.close(fd)
            self.fresh.pop(fd, None)
            port = self.by_name.get(channel.listener)
            if port is not None:
                port.connections -= 1
        self.node.backlog -= channel.backlogged
        channel.backlogged = 0

    def pause(self, channel: Channel) -> None:
        """Stop reading from this descriptor."""
        if channel.fd >= 0:
            self._watch(channel)

    def resume(self, channel: Channel) -> None:
        """Read from this descriptor again."""
        if channel.fd >= 0:
            self._watch(channel)

    def peer(self, channel: Channel) -> tuple[str, int]:
        """The peer's address, asked of the kernel: nothing is stored of an open connection."""
        if channel.fd < 0:
            return ("", 0)
        fresh = self.fresh.pop(channel.fd, None)
        if fresh is not None:
            return fresh
        port = self.by_name.get(channel.listener)
        family = port.family if port is not None else int(socket.AF_INET)
        peer = socket.socket(family, socket.SOCK_STREAM, 0, channel.fd)
        try:
            name = peer.getpeername()
        except OSError:
            return ("", 0)
        finally:
            peer.detach()
        if isinstance(name, tuple):
            return (str(name[0]), int(name[1]))
        return ("unix", 0)

    def close_all(self) -> None:
        """At shutdown: close every connection and port."""
        for channel in list(self.channels.values()):
            if channel.state == OPEN:
                channel.close(0x8B, "server shutting down")
            else:
                channel.end("server shutting down")
        self.node.perform()
        for name in list(self.by_name):
            self.unlisten(name)
        self.epoll.close()


def _os_reason(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, "error").lower().replace("econn", "connection ")
