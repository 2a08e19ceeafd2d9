"""One connection as bytes: what goes out, whether it is read from, how it ends.

    transport (Edge)  <->  Connection  --dirty, closing, thirsty-->  Turn

A `Connection` collects output in `out`; an `Edge` (the epoll engine, a Twisted transport) writes
it. Nothing is written while input is handled: a connection with output puts itself on the turn's
`dirty` list and one that ends on `closing`, and `Turn.perform` sees to both at the end of the turn,
with one write per connection. What is made of the bytes is the business of the classes above
(`Forwarding`, `Channel`); who routes them, of those above `Turn`.

Promise: sending is a list append and an addition. Above the high watermark a sender is told so
(`over`), below the low one whoever waited goes on (`thirsty`). No Twisted, socket or clock here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mqttd.session.ground.aliases import Aliases
from mqttd.session.ground.metrics import Metrics
from mqttd.session.ground.mount import Mount
from mqttd.session.ground.settings import Settings
from mqttd.session.ground.wheel import Timer, Wheel

if TYPE_CHECKING:
    from mypy_extensions import i32, u8

__all__ = ["CLOSED", "NEW", "OPEN", "WAITING", "Connection", "Edge", "Ending", "Turn"]

NEW: Final = 0
WAITING: Final = 1
OPEN: Final = 2
CLOSED: Final = 3
_STORE_ALONE: Final = frozenset({"store"})


class Edge:
    """The transport of a connection: writes, closes, and stops or resumes reading."""

    def flush(self, channel: Connection) -> None:
        """Write `channel.out` as far as the peer takes it; the rest goes when it can."""
        raise NotImplementedError

    def shut(self, channel: Connection) -> None:
        """Close the connection after what was already flushed."""
        raise NotImplementedError

    def pause(self, channel: Connection) -> None:
        """Stop reading from the peer."""
        raise NotImplementedError

    def resume(self, channel: Connection) -> None:
        """Read again."""
        raise NotImplementedError

    def peer(self, channel: Connection) -> tuple[str, int]:
        """Address and port of the peer; ("", 0) when unknown."""
        raise NotImplementedError

    def holding(self, channel: Connection) -> int:
        """Bytes that the layers of a connection hold for a peer that has not been let in."""
        return 0

    def behind(self, channel: Connection) -> int:
        """Bytes that came and wait below the channel, because a step is not for all of them."""
        return 0

    def step(self) -> bool:
        """A step with these, for which `Router.step_later` was asked; whether it has one more."""
        return False

    def drop(self, channel: Connection) -> None:
        """Give up what was written and not read, so that closing waits for nothing."""

    def identity(self, channel: Connection) -> object | None:
        """What the connection shows of the peer beyond its address: a `PeerIdentity`, or None."""
        return None


class Connection(Timer):
    """The output and the ends of one connection.

    Arguments: the turn it takes part in, the edge that carries its bytes, the transport's
    descriptor (`fd`, -1 when it has none of its own), the listener's name.
    """

    __slots__ = (
        "aliases",
        "backlogged",
        "blocked",
        "bytes_received",
        "bytes_sent",
        "close_reason",
        "corked",
        "dirty",
        "edge",
        "fd",
        "io",
        "largest",
        "last",
        "leaving",
        "limit",
        "listener",
        "mount",
        "out",
        "out_at",
        "out_bytes",
        "paced",
        "paused",
        "quiet",
        "reason_code",
        "special",
        "state",
        "thirsty",
        "turn",
        "v5",
        "version",
        "withheld",
        "wraps",
    )

    def __init__(self, turn: Turn, edge: Edge, fd: int, listener: str) -> None:
        self.due_at = 0
        self.slotted = 0
        self.turn = turn
        self.edge = edge
        self.listener = listener
        #: What the edge keeps per connection (a frame reader, a transport); None for plain TCP.
        self.io: object | None = None
        self.out: list[bytes] | None = None
        self.out_bytes: int = 0
        self.limit: int = turn.settings.high_watermark
        #: Bytes of this output that the turn's backlog counts.
        self.backlogged: int = 0
        #: When the last complete packet came, in the turn's milliseconds.
        self.last: int = turn.now
        self.aliases: Aliases | None = None
        #: The prefix of every topic name and filter of this client.
        self.mount: Mount | None = None
        self.close_reason: str = ""
        #: What was read and written, in bytes: counted once for each read and write.
        self.bytes_received: int = 0
        self.bytes_sent: int = 0
        # Small things in a row share eight bytes (mypyc): there are as many as connections.
        #: Of the DISCONNECT or CONNACK by which we end it; 0 while we do not.
        self.reason_code: u8 = 0
        self.state: u8 = NEW
        self.version: u8 = 0
        self.v5: bool = False
        self.dirty: bool = False
        #: Nothing is written, CONNACK first of all, until a journal has kept what it says.
        self.corked: bool = False
        #: The peer takes no more for now: the edge waits for it.
        self.blocked: bool = False
        #: Reading is stopped.
        self.paused: bool = False
        #: An output that is full of what it has sent holds it back.
        self.withheld: bool = False
        #: Something waits for the output to empty: call `drained`.
        self.thirsty: bool = False
        #: Deliveries go one by one: the client allows topic aliases (`shorten`), its names are
        #: mounted, or QoS 0 messages that wait go first.
        self.special: bool = False
        #: The rate of its output is limited.
        self.paced: bool = False
        #: Request Problem Information was 0: no Reason String, no User Property in answers.
        self.quiet: bool = False
        #: Its client has said DISCONNECT, or a fault ends it, and some answers are to come.
        self.leaving: bool = False
        #: It leads to another process that takes QoS 0 of either version (`older`).
        self.wraps: bool = False
        #: Bytes of the first piece of `out` that are written (`mqttd.session.ground.output`).
        self.out_at: i32 = 0
        self.fd: i32 = fd
        #: The largest packet taken once the connection is open.
        self.largest: i32 = 0

    # -- output --------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Append bytes to the output; they are written at the end of the turn."""
        out = self.out
        if out is None:
            self.out = [data]
        else:
            out.append(data)
        self.out_bytes += len(data)
        if not self.dirty:
            self.dirty = True
            self.turn.dirty.append(self)

    def over(self, size: int) -> bool:
        """Would `size` more bytes pass the high watermark, even after writing what can be?"""
        if not self.blocked and self.out is not None and not self.corked:
            self.edge.flush(self)
        return self.out_bytes + size > self.limit and self.out_bytes > 0

    def uncork(self) -> None:
        """What was held back is kept: write at the end of the turn."""
        if self.corked:
            self.corked = False
            if self.state == CLOSED:
                self.turn.closing.append(self)
            if not self.dirty:
                self.dirty = True
                self.turn.dirty.append(self)

    def abandon(self, detail: str) -> None:
        """End it now, without a word, though what was held back is not kept yet."""
        if self.corked:
            self.out = None
            self.out_at = 0
            self.out_bytes = 0
            self.account()
            if self.state != CLOSED:
                self.state = CLOSED
                self.close_reason = detail
            self.uncork()

    def older(self, size: int) -> bytes:
        """What says that so many bytes of QoS 0 packets of 3.1.1 follow."""
        raise NotImplementedError

    def hold_back(self, sender: Connection) -> None:
        """This output is full of what `sender` has sent: do not read from it for now."""

    def is_full(self) -> bool:
        """Whether there is no room for what is sent here, be it a message or not."""
        return False

    def lets_wait(self) -> bool:
        """Whether who publishes to here waits, though there may be room."""
        return False

    def when_drained(self, then: Callable[[], object]) -> None:
        """This output is full: call this once when there is room, or it is over."""
        raise NotImplementedError

    def line_up(self, then: Callable[[], object]) -> None:
        """Call this once when there is room here and it is its turn, or it is over."""
        raise NotImplementedError

    def works(self) -> bool:
        """Whether something of this client's is under way, for which it is not read from."""
        return False

    def let_go_on(self) -> None:
        """The output that has held it back has room again."""
        self.withheld = False
        self.resume()

    def account(self) -> None:
        """After a write: tell the turn what still waits, and whether there is room again."""
        turn = self.turn
        if self.out_bytes != self.backlogged:
            turn.backlog += self.out_bytes - self.backlogged
            self.backlogged = self.out_bytes
        if self.thirsty and self.out_bytes <= turn.settings.low_watermark:
            self.thirsty = False
            turn.thirsty.append(self)

    def drained(self) -> None:
        """The edge wrote everything: what waited for room goes on."""
        raise NotImplementedError

    def apart(self) -> bool:
        """Whether this client's bytes differ: it allows topic aliases, or its names are mounted."""
        if self.mount is not None:
            return True
        return self.aliases is not None and self.aliases.outgoing_maximum > 0

    def shorten(self, wire: bytes, largest: int) -> bytes:
        """A PUBLISH for a client that allows topic aliases, with one where that is possible."""
        aliases = self.aliases
        return wire if aliases is None else aliases.shorten(wire, largest)

    def held(self) -> int:
        """What is held for this connection beside its output and its session, in bytes."""
        return 0 if self.aliases is None else self.aliases.bytes

    # -- reading -------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop reading from the peer."""
        if not self.paused and self.state != CLOSED:
            self.paused = True
            self.edge.pause(self)

    def resume(self) -> None:
        """Read from the peer again."""
        if self.paused and self.state != CLOSED:
            self.paused = False
            self.edge.resume(self)

    # -- end -----------------------------------------------------------------------------------

    def end(self, detail: str) -> None:
        """The connection is over: nothing more is read, what is due is written, then closed."""
        if self.state == CLOSED:
            return
        self.state = CLOSED
        self.close_reason = detail
        if self.corked:
            return  # CONNACK goes first: `uncork`
        self.turn.closing.append(self)
        if not self.dirty:
            # `perform` looks at closing after flushing what is dirty.
            self.dirty = True
            self.turn.dirty.append(self)

    def input_ended(self, detail: str) -> None:
        """Nothing more comes from the peer, which may read yet."""
        self.end(detail)

    def part(self, code: int, detail: str) -> None:
        """End behind the answers to what came before; with a reason code it is we who do."""
        raise NotImplementedError

    def leave(self) -> None:
        """Some of what a client that leaves was owed has gone: it ends when all has."""
        raise NotImplementedError

    def left(self) -> None:
        """All of it has gone: now it ends."""
        raise NotImplementedError

    def close(self, code: int, detail: str) -> None:
        """End the connection from our side, with DISCONNECT where 5.0 has one."""
        raise NotImplementedError

    def lost(self) -> None:
        """The connection is gone (called by the edge, once)."""
        raise NotImplementedError


class Ending:
    """Something that is due once for all that a turn has brought."""

    __slots__ = ()

    def end_turn(self) -> None:
        """The turn's input is handled; called before its output is written."""
        raise NotImplementedError


class Turn:
    """What is to be done at the end of a turn of the event loop, and what all of it shares.

    `now` is monotonic milliseconds, set by the edges once per turn.
    """

    def __init__(self, settings: Settings, now: int) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.now: int = now
        self.wheel = Wheel(now)
        #: Bytes waiting in the output of all connections.
        self.backlog: int = 0
        #: What is due before the output of this turn is written.
        self.endings: list[Ending] = []
        #: Connections with output, and those that end.
        self.dirty: list[Connection] = []
        self.closing: list[Connection] = []
        #: Connections whose output became empty while something waits for room.
        self.thirsty: list[Connection] = []
        #: Messages out of queues that this turn has sent, and KiB of them.
        self.drained: int = 0
        #: Memory is nearly full: what is large and has waited waits on.
        self.scarce: bool = False
        #: What of the backlog nobody waits for: its peers have been behind for a while.
        self.overdue: int = 0
        #: Publishers that are not read from while the backlog is over its budget.
        self.stalled: dict[Connection, None] = {}
        #: Connections whose peer takes no more, and when it last took something; a look-out sweeps
        #: it (`mqttd.transports.stalled`), so it may hold some that go on by now.
        self.slow: dict[Connection, int] = {}
        #: Something behind the broker cannot follow: publishers are not read from.
        self.congested: bool = False
        #: It is nothing but the store: who has it keep nothing is read from.
        self.store_alone: bool = False
        #: The bytes of a PUBLISH that went out under another packet id this turn, and those with
        #: it: most often the next receiver has that id free as well.
        self.renumbered: bytes = b""
        self.renumbered_as: bytes = b""
        #: There are other workers, to which a run of QoS 1 goes as it is.
        self.has_workers: bool = False
        #: The way to another process that what is handled now has filled.
        self.clogged: Connection | None = None
        #: What that is, by name.
        self._behind: set[str] = set()

    def congest(self, who: str, on: bool) -> bool:
        """`who` behind the broker cannot follow, or can again; False if that was known."""
        if on == (who in self._behind):
            return False
        if on:
            self._behind.add(who)
        else:
            self._behind.discard(who)
        self.congested = len(self._behind) > 0
        self.store_alone = self.congested and self._behind == _STORE_ALONE
        return True

    def awaited(self) -> int:
        """Bytes of output for which publishers wait, where they are too many."""
        return self.backlog - self.overdue

    def perform(self) -> None:
        """The end of a turn: flush what is dirty, refill what has room, close what ended.

        A connection that was emptied is refilled once per turn, so that one fast reader of many
        retained messages does not keep the others waiting.
        """
        self.renumbered = b""
        self.renumbered_as = b""
        self.drained = 0
        while self.endings:
            endings = self.endings
            self.endings = []
            for ending in endings:
                ending.end_turn()
        if self.dirty:
            self._flush_and_close()
        if self.thirsty:
            thirsty = self.thirsty
            self.thirsty = []
            for channel in thirsty:
                channel.drained()
            self._flush_and_close()
            if self.thirsty:
                self.perform_later()
        if self.stalled and not self.congested and self.awaited() * 2 < self.settings.backlog:
            stalled = self.stalled
            self.stalled = {}
            for channel in stalled:
                channel.resume()
        if self.endings:
            self.perform_later()  # what the last steps have brought

    def _flush_and_close(self) -> None:
        while self.dirty:
            dirty = self.dirty
            self.dirty = []
            for channel in dirty:
                channel.dirty = False
                if channel.out is not None and not channel.blocked and not channel.corked:
                    try:
                        channel.edge.flush(channel)
                    except Exception as error:  # those behind it must not wait for ever
                        self.crashed(channel, error)
            while self.closing:
                closing = self.closing
                self.closing = []
                for channel in closing:
                    try:
                        channel.edge.shut(channel)
                        if not self.puts_off(channel):
                            channel.lost()
                    except Exception as error:
                        self.crashed(channel, error)

    def puts_off(self, channel: Connection) -> bool:
        """Whether what comes of the end of this connection is for a later turn: `lost`, then."""
        return False

    def perform_later(self) -> None:
        """Call `perform` in a later turn."""
        raise NotImplementedError

    def await_room(self, waiting: object) -> None:
        """Have this session go on with what has waited when memory is not `scarce` any more."""
        raise NotImplementedError

    def crashed(self, channel: Connection, error: Exception) -> None:
        """An exception that should not be: log it and end this connection."""
        raise NotImplementedError
