"""How fast one connection may send, and be sent to: leaky buckets of bytes and messages.

    socket --> feed --> Intake -- complete packets that fit --> the loop of the channel
                           '-- the rest waits here, reading stops, the wheel goes on with it

    channel.out --> PacedEdge -- what fits --> the edge of the transport
                        '-- the rest stays in the output, where the watermarks count it

A bucket holds at most a burst and fills at its rate. A packet passes while every bucket of its
connection and its listener holds something, and may leave a debt: so packets of any size pass, and
over time no more than the rate. What a topic alias stands for is paid for as if it had been sent.
Nothing is lost: what waits in the kernel slows the sender.

Promise: a connection without limits has neither object, and pays one comparison per chunk read.
Resolution is the wheel's quarter second, which is why a burst is half a second's worth at least.
"""

from __future__ import annotations

from typing import Final

from mqttd.codec.frame import size_at
from mqttd.codec.reasons import MalformedPacket
from mqttd.session.channel.channel import Channel
from mqttd.session.channel.framing import Inlet
from mqttd.session.ground.connection import CLOSED, Connection, Edge, Turn
from mqttd.session.ground.wheel import TICK_MS, Timer

__all__ = ["Bucket", "Intake", "Limits", "PacedEdge"]

#: Milliseconds between two log lines about one connection.
_TELL: Final = 60_000


class Bucket:
    """Fills by `rate` a second up to `seconds` worth of it; `level` below 0 is a debt."""

    __slots__ = ("at", "burst", "level", "rate")

    def __init__(self, rate: float, seconds: float, now: int) -> None:
        self.rate: float = rate
        self.burst: float = max(rate * max(seconds, 0.5), 1.0)
        self.level: float = self.burst
        self.at: int = now

    def fill(self, now: int) -> float:
        """Add what has come since the last call, and return what it holds."""
        if now > self.at:
            self.level = min(self.burst, self.level + self.rate * (now - self.at) / 1000.0)
            self.at = now
        return self.level

    def wait(self) -> int:
        """Milliseconds until it holds something."""
        return 0 if self.level > 0.0 else int(-self.level * 1000.0 / self.rate) + 1


class Limits:
    """What a listener allows each connection, and all of them together; 0 is no limit.

    Rates are bytes or messages (PUBLISH packets) a second, `seconds` how much may come at once,
    `largest` the largest packet in bytes.
    """

    def __init__(
        self,
        now: int,
        bytes_rate: int = 0,
        messages_rate: int = 0,
        all_bytes_rate: int = 0,
        all_messages_rate: int = 0,
        send_rate: int = 0,
        seconds: float = 1.0,
        largest: int = 0,
    ) -> None:
        self.bytes_rate: int = bytes_rate
        self.messages_rate: int = messages_rate
        self.send_rate: int = send_rate
        self.seconds: float = seconds
        self.largest: int = largest
        self.all_bytes: Bucket | None = None
        self.all_messages: Bucket | None = None
        if all_bytes_rate:
            self.all_bytes = Bucket(all_bytes_rate, seconds, now)
        if all_messages_rate:
            self.all_messages = Bucket(all_messages_rate, seconds, now)

    def apply(self, channel: Channel) -> None:
        """A connection is accepted: what is read from now on and written is limited."""
        now = channel.server.now
        if self.largest:
            channel.largest = self.largest
        mine: list[Bucket] = []
        counted: list[Bucket] = []
        if self.bytes_rate:
            mine.append(Bucket(self.bytes_rate, self.seconds, now))
        if self.all_bytes is not None:
            mine.append(self.all_bytes)
        if self.messages_rate:
            counted.append(Bucket(self.messages_rate, self.seconds, now))
        if self.all_messages is not None:
            counted.append(self.all_messages)
        if mine or counted:
            channel.intake = Intake(channel, mine, counted)
        if self.send_rate:
            bucket = Bucket(self.send_rate, self.seconds, now)
            channel.edge = PacedEdge(channel, channel.edge, bucket)
            channel.paced = True


class Intake(Inlet):
    """What one connection sends, on its way to the loop; `waiting` while nothing may pass."""

    __slots__ = ("by_bytes", "by_messages", "channel", "held", "told_at")

    def __init__(self, channel: Channel, by_bytes: list[Bucket], by_messages: list[Bucket]) -> None:
        super().__init__()
        self.channel: Channel | None = channel
        self.by_bytes = by_bytes
        self.by_messages = by_messages
        self.held: bytes = b""
        self.told_at: int = -_TELL

    def take(self, data: bytes) -> None:
        """Pass on what the buckets allow of these bytes, and wait with the rest."""
        if self.held:
            data = self.held + data
            self.held = b""
        channel = self.channel
        if channel is None or self.waiting or channel.busy:
            self.held = data
            return
        self._fill(channel.server.now)
        if self._plenty(len(data)):
            self._pass(channel, data)
            self._take_back(channel, False)
        else:
            end = self._admit(data)
            if end < len(data):
                self.held = data[end:]
                data = data[:end]
            if data:
                named = channel.server.topics.named
                channel.packets(data)
                self._pay_names(channel, named)
                self._take_back(channel, True)
        wait = self._wait()
        if channel.state == CLOSED:
            self.held = b""
        elif wait:
            self.waiting = True
            channel.pause()
            server = channel.server
            server.metrics.rate_limited += 1
            server.wheel.schedule(self, server.now + wait)
            if server.now - self.told_at >= _TELL:
                self.told_at = server.now
                server.limited(channel)

    def _take_back(self, channel: Channel, paid: bool) -> None:
        """What the channel has put off for a later turn goes before what waits here already."""
        rest = channel.rest
        if rest is None or not channel.busy:
            return
        channel.rest = None
        data = rest.whole()
        if paid:
            self._pay(data, -1)
        self.held = data + self.held

    def due(self, now: int) -> None:
        """The buckets hold something again: go on, unless something else holds up too."""
        channel = self.channel
        if channel is None or channel.state == CLOSED:
            self.held = b""
            return
        server = channel.server
        self._fill(now)
        wait = self._wait()
        congested = server.congested or server.awaited() > server.settings.backlog
        if wait or congested or channel.out_bytes > channel.limit:
            server.wheel.schedule(self, now + (wait if wait > TICK_MS else TICK_MS))
            return
        self.waiting = False
        data = self.held
        self.held = b""
        if data:
            try:
                self.take(data)
                channel.weigh()
            except Exception as error:  # as in the edges: it must end this connection only
                server.crashed(channel, error)
        if not self.waiting:
            channel.resume()

    def close(self) -> None:
        """The connection is gone."""
        channel = self.channel
        if channel is not None:
            channel.server.wheel.cancel(self)
        self.channel = None
        self.held = b""

    def size(self) -> int:
        """Bytes that are kept."""
        return len(self.held)

    def _fill(self, now: int) -> None:
        for bucket in self.by_bytes:
            bucket.fill(now)
        for bucket in self.by_messages:
            bucket.fill(now)

    def _wait(self) -> int:
        """Milliseconds until every bucket holds something."""
        longest = 0
        for bucket in self.by_bytes:
            longest = max(longest, bucket.wait())
        for bucket in self.by_messages:
            longest = max(longest, bucket.wait())
        return longest

    def _plenty(self, size: int) -> bool:
        """Whether the buckets hold enough for so many bytes, whatever they are."""
        for bucket in self.by_bytes:
            if bucket.level <= size:
                return False
        for bucket in self.by_messages:
            if bucket.level * 4.0 <= size:  # no PUBLISH is shorter than four bytes
                return False
        return True

    def _pass(self, channel: Channel, data: bytes) -> None:
        """Pass everything on without looking at it; what was in it is paid for afterwards."""
        metrics = channel.server.metrics
        named = channel.server.topics.named
        before = (
            metrics.messages_received_qos0
            + metrics.messages_received_qos1
            + metrics.messages_received_qos2
        )
        channel.packets(data)
        after = (
            metrics.messages_received_qos0
            + metrics.messages_received_qos1
            + metrics.messages_received_qos2
        )
        rest = channel.rest
        size = len(data) if rest is None else len(data) - len(rest)
        for bucket in self.by_bytes:
            bucket.level -= size
        for bucket in self.by_messages:
            bucket.level -= after - before
        self._pay_names(channel, named)

    def _pay_names(self, channel: Channel, before: int) -> None:
        """Pay for what aliases have stood for since they had for so many bytes in all."""
        size = channel.server.topics.named - before
        if size:
            for bucket in self.by_bytes:
                bucket.level -= size

    def _admit(self, data: bytes) -> int:
        """How many of these bytes may pass: whole packets, and at the end the start of one.

        A packet is paid for when it is complete.
        """
        return self._pay(data, 1)

    def _pay(self, data: bytes, times: int) -> int:
        """Pay for whole packets while there is something to pay with; -1: they are given back."""
        n = len(data)
        pos = 0
        while n - pos >= 2:
            if times > 0 and self._wait():
                return pos
            try:
                size = size_at(data, pos, n)
            except MalformedPacket:
                return n  # the loop tells what is wrong with it
            if size < 0 or pos + size > n:
                return n
            for bucket in self.by_bytes:
                bucket.level -= size * times
            if data[pos] & 0xF0 == 0x30:
                for bucket in self.by_messages:
                    bucket.level -= times
            pos += size
        return n


class PacedEdge(Edge):
    """An edge that is written to no faster than a bucket allows; everything else passes through."""

    def __init__(self, channel: Connection, inner: Edge, bucket: Bucket) -> None:
        self.inner = inner
        self.bucket = bucket
        self.again = _Again(channel)

    def flush(self, channel: Connection) -> None:
        """Write what the bucket allows; at the end of a connection, all."""
        out = channel.out
        if out is None or channel.state == CLOSED:
            self.inner.flush(channel)
            return
        if self.again.due_at:
            return
        turn = channel.turn
        level = self.bucket.fill(turn.now)
        if level >= channel.out_bytes:
            self.bucket.level -= channel.out_bytes
            self.inner.flush(channel)
            return
        if level > 0.0:
            count = 0
            size: int = -channel.out_at
            for piece in out:
                if size >= level:
                    break
                size += len(piece)
                count += 1
            self.bucket.level -= size
            if count == len(out):
                self.inner.flush(channel)
                return
            self._part(channel, turn, out, count, size)
        turn.metrics.rate_limited_out += 1
        wait = self.bucket.wait()
        turn.wheel.schedule(self.again, turn.now + (wait if wait > 0 else 1))

    def _part(
        self, channel: Connection, turn: Turn, out: list[bytes], count: int, size: int
    ) -> None:
        """Have the first pieces written, as if they were all."""
        rest = out[count:]
        left = channel.out_bytes - size
        thirsty = channel.thirsty
        channel.out = out[:count]
        channel.out_bytes = size
        channel.thirsty = False
        self.inner.flush(channel)
        unwritten = _output(channel)
        channel.out = rest if unwritten is None else unwritten + rest
        channel.out_bytes += left
        turn.backlog += channel.out_bytes - channel.backlogged
        channel.backlogged = channel.out_bytes
        channel.thirsty = thirsty
        if thirsty and channel.out_bytes <= turn.settings.low_watermark:
            channel.thirsty = False
            turn.thirsty.append(channel)

    def shut(self, channel: Connection) -> None:
        """Close; there is nothing more to wait for."""
        channel.turn.wheel.cancel(self.again)
        self.again.channel = None
        self.inner.shut(channel)

    def behind(self, channel: Connection) -> int:
        """What waits below the channel."""
        return self.inner.behind(channel)

    def drop(self, channel: Connection) -> None:
        """Give up what the peer has not read."""
        self.inner.drop(channel)

    def pause(self, channel: Connection) -> None:
        """Stop reading."""
        self.inner.pause(channel)

    def resume(self, channel: Connection) -> None:
        """Read again."""
        self.inner.resume(channel)

    def peer(self, channel: Connection) -> tuple[str, int]:
        """The peer's address."""
        return self.inner.peer(channel)

    def identity(self, channel: Connection) -> object | None:
        """What is known of the peer."""
        return self.inner.identity(channel)


def _output(channel: Connection) -> list[bytes] | None:
    """What waits. Compiled code takes an attribute to be still what it was set to last."""
    return channel.out


class _Again(Timer):
    """When a paced output goes on."""

    __slots__ = ("channel",)

    def __init__(self, channel: Connection) -> None:
        self.due_at = 0
        self.slotted = 0
        self.channel: Connection | None = channel

    def due(self, now: int) -> None:
        """Have the server flush it at the end of the turn."""
        channel = self.channel
        if channel is not None and channel.out is not None and not channel.dirty:
            channel.dirty = True
            channel.turn.dirty.append(channel)
