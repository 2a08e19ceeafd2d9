"""Layers between a socket and its channel: PROXY header, TLS records, WebSocket frames.

    socket --bytes--> [proxy] --> [tls] --> [websocket] --> Channel.feed
           <--------- answers of a layer go through those below it
           <--bytes-- [tls] <---- [websocket] <------------ channel.out, once per turn

A layer does no input or output: bytes go in, bytes come out, so one stack serves the epoll engine
(`layered_edge`, with a descriptor) and any Twisted transport (`layered_stream`), and is tested
without sockets. Plain TCP has no layer, and costs nothing for those that have.

Promise: whatever a peer sends, a layer keeps no more of it than one header, beside what it puts off
until it is asked to go on, of one read; what it answers by itself waits for a peer that does not
read up to `MAX_ANSWERS` bytes, then the connection ends.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_ANSWERS", "SERVED", "Layer", "Stack"]

#: Unread bytes of answers (pongs, handshake records, a page) a connection may have.
MAX_ANSWERS: Final = 1 << 20

#: Why a connection ends that was no WebSocket, after its HTTP request was answered.
SERVED: Final = "answered over HTTP"


class Layer:
    """One protocol below MQTT. `received` and `sent` turn bytes into those of the other side.

    After each call the stack takes `answer` (bytes the layer itself has to say to the peer) and
    looks at `ended` (why the connection is over; empty while it is not) and `wrong` (what the peer
    speaks instead of this layer's protocol).
    """

    def __init__(self) -> None:
        self.answer: bytes = b""
        self.ended: str = ""
        #: Its end is that of what the peer sends: it may read yet.
        self.half: bool = False
        #: The layer is still busy with its handshake; nothing may be sent through it.
        self.shaking: bool = False
        #: That handshake costs so much CPU and memory that only `max_handshakes` of them go on at
        #: a time; and whether it has begun, with the peer's first bytes.
        self.costly: bool = False
        self.begun: bool = False
        #: The layer has done its work and can be taken out of the stack.
        self.done: bool = False
        #: What the layer has put off, as too much for one step: `received(b"")` goes on with it.
        self.behind: bytes = b""
        #: Units of a turn's work that it has done, for the stack to take.
        self.work: int = 0

    def received(self, data: bytes) -> bytes:
        """Bytes from the peer; returns what they hold for the layer above.

        One that puts something `behind` has put off all that comes until it is called without any.
        """
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
        #: That is so of what the peer sends alone.
        self.half: bool = False
        self.known: object | None = None
        #: Units of a turn's work in the last step.
        self.work: int = 0

    def received(self, data: bytes) -> bytes:
        """Bytes from the socket upwards; `answers` has what goes back at once."""
        return self._rise(0, data)

    def behind(self) -> int:
        """Bytes that have been put off."""
        size = 0
        for layer in self.layers:
            size += len(layer.behind)
        return size

    def go_on(self) -> bytes:
        """As `received`, of what has been put off."""
        at = 0
        for layer in self.layers:
            if layer.behind:
                return self._rise(at, b"")
            at += 1
        return b""

    def _rise(self, at: int, data: bytes) -> bytes:
        layers = self.layers
        self.work = 0
        while at < len(layers):
            layer = layers[at]
            data = layer.received(data)
            self.work += layer.work
            layer.work = 0
            if layer.ended and not self.ended:
                self.ended = layer.ended
                self.half = layer.half
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
