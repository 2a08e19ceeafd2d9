"""The streams to other nodes: one to each, dialled by the node whose name comes first.

    a member is there --> dial, again after 0.1 s ... 5 s --> hello --> Link, Arriving
    somebody dials us --> `Door` --> hello of a member that we know, of this epoch --> hello
                                 --> the same

Mutual TLS, by certificates of the cluster's own authority that name their nodes; plain TCP on
loopback alone, which the configuration sees to. A node that has a link and is dialled by the same
member again takes the new one: what was taken on the old one is said in the hello, so nothing comes
twice.

Promise: what comes before a hello is at most `hello.MOST` bytes, and `PATIENCE` seconds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.protocol import Factory, Protocol
from twisted.python.failure import Failure

from mqttd.broker.broker import Broker
from mqttd.cluster.etcd.keys import Member
from mqttd.cluster.links.door import Door, dialling
from mqttd.cluster.links.hello import SPEAKS_TLS, Hello, hello_of
from mqttd.cluster.links.nodes import Node, NodeMesh
from mqttd.cluster.links.tls import names_of
from mqttd.cluster.links.unlinked import SPEAKS_PLAIN, reason_of
from mqttd.mesh.arriving import Arriving
from mqttd.mesh.flight import FAR
from mqttd.mesh.link import Link, Stream

__all__ = ["Streams"]

#: Seconds for a hello, and for a connection.
PATIENCE: Final = 5.0
_FIRST: Final = 0.1
_LONGEST: Final = 5.0
#: Connections that the kernel keeps for us while we do other things.
_BACKLOG: Final = 512
#: From this pause on it is worth a line.
_NEWS: Final = 0.5


class _NodeStream(Protocol):
    """One connection; `dialled` is who is expected, where it was dialled."""

    def __init__(self, streams: Streams, dialled: Member | None) -> None:
        self.streams = streams
        self.dialled = dialled
        self.node: Node | None = None
        self.link: Link | None = None
        self.edge: Stream | None = None
        self.arriving: Arriving | None = None
        self.number = 0
        #: Why we have ended it; empty: we have not.
        self.error = ""
        self._data = b""
        #: Nothing is read for now; whether something has come since it was looked at (`Mute`), and
        #: how often nothing had.
        self.rests = False
        self.came = True
        self.mute = 0
        self._late: Any = None

    def connectionMade(self) -> None:
        """Say who we are, where we have dialled."""
        transport: Any = self.transport
        transport.setTcpNoDelay(True)
        transport.setTcpKeepAlive(True)
        self.streams.open.add(self)
        if self.dialled is None:
            self.streams.door.came(self)
        late = f"it has not said who it is in {PATIENCE:g} s"
        self._late = self.streams.reactor.callLater(PATIENCE, self.give_up, late)
        if self.dialled is not None:
            node = self.streams.mesh.nodes.get(self.dialled.name)
            if node is None or node.epoch != self.dialled.epoch:
                transport.abortConnection()
            else:
                self.number = random.getrandbits(62)
                transport.write(self.streams.hello(node, self.number).dump())

    def dataReceived(self, data: bytes) -> None:
        """A hello first, then frames."""
        broker = self.streams.broker
        broker.now = time.monotonic_ns() // 1_000_000
        self.came = True
        try:
            if self.arriving is None:
                self._data += data
                found = hello_of(self._data)
                if found is None:
                    return
                hello, data = found
                self._data = b""
                self._greeted(hello)
            if data and self.arriving is not None and self.node is not None:
                self.streams.mesh.choice.link = self.node.number
                self.arriving.take(data)
                self._rest()
        except Exception as error:
            self._faulty(error)
        finally:
            self.streams.mesh.choice.link = 0
        broker.perform()

    def _faulty(self, error: Exception) -> None:
        """The stream makes no sense (any more): begin a new one."""
        broker = self.streams.broker
        broker.log("node link failed", {"error": repr(error), "node": self._whose()})
        self.error = str(error)
        self.close()

    def give_up(self, why: str) -> None:
        """It is of no use (any more): begin a new one."""
        linked = self.link is not None
        self.error = why
        self.close()
        if linked and self.node is not None:
            self.streams.unlinked(self.node, why)

    def _ways(self) -> list[Arriving]:
        """What takes the bytes that come, of both lanes."""
        lane = None if self.node is None else self.node.lane_arriving
        return [each for each in (self.arriving, lane) if each is not None]

    def _rest(self) -> None:
        """Read no more while what has come is more than a turn had time for."""
        for way in self._ways():
            if way.busy():
                way.caught_up = self._go_on
                way.faulty = self._faulty
                if not self.rests:
                    self.rests = True
                    self.transport.pauseProducing()  # type: ignore[union-attr]

    def _go_on(self) -> None:
        self._rest()  # one may have brought the other too much
        if self.rests and self.arriving is not None and not any(w.busy() for w in self._ways()):
            self.rests = False
            self.transport.resumeProducing()  # type: ignore[union-attr]

    def _whose(self) -> str:
        if self.node is not None:
            return self.node.name
        return self.dialled.name if self.dialled is not None else str(self.streams.where(self))

    def _greeted(self, hello: Hello) -> None:
        streams = self.streams
        node = streams.mesh.nodes.get(hello.node)
        if hello.cluster != streams.cluster:
            raise ValueError(f"it is of the cluster {hello.cluster!r}")
        if node is None or node.epoch != hello.epoch or hello.to != streams.epoch:
            if self.dialled is None:
                # It knows of us before we know of it, or does not know that we are out.
                self.error = f"{hello.node!r} is not known here as it is there"
                self.close()  # it will dial again
                return
            raise ValueError(f"{hello.node!r} is no member of this epoch")
        if self.dialled is not None and self.dialled.name != hello.node:
            raise ValueError(f"{hello.node!r} has answered")
        self._identify(hello.node)
        if not hello.version():
            raise ValueError(f"it speaks versions {hello.speaks}")
        if self.dialled is None:
            old = streams.of.get(node.name)
            if old is not None:
                old.close()  # what it has brought is counted now
            streams.door.greeted(self, node.name)
            self.number = hello.stream
            said = streams.hello(node, self.number).dump()
            self.transport.write(said)  # type: ignore[union-attr]
        self._late.cancel()
        self.node = node
        streams.of[node.name] = self
        # On another stream than our last it has taken nothing since that one's hello.
        node.ferry.resume(hello.had if hello.of == node.stream else 0)
        node.stream = self.number
        node.version = hello.version()
        node.dated = node.version >= 4
        self.edge = Stream(self.transport)
        self.link = Link(streams.broker, self.edge, node.number)
        if node.version >= 4:
            self.link.bound(FAR)
        self.transport.registerProducer(self, True)  # type: ignore[union-attr]
        self.arriving = streams.mesh.linked(node.number, self.link, streams.takes(node))
        streams.linked(node)

    def _identify(self, name: str) -> None:
        """Who has one node's certificate is that node, and no other."""
        if self.streams.tls is None:
            return
        shown = self.transport.getPeerCertificate()  # type: ignore[union-attr]
        names = set() if shown is None else names_of(shown)
        if name not in names:
            raise ValueError(f"it is {name!r}, with a certificate of {sorted(names)}")

    def close(self) -> None:
        """The end of it."""
        link, self.link = self.link, None
        if self.node is not None and self.streams.of.get(self.node.name) is self:
            del self.streams.of[self.node.name]
        self.arriving = None
        if link is not None:
            self.streams.mesh.unlinked(link)
            self.streams.broker.perform_later()
        if self.transport is not None:
            self.transport.abortConnection()  # type: ignore[attr-defined]

    def connectionLost(self, reason: Failure | None = None) -> None:
        """It is gone."""
        self.streams.open.discard(self)
        self.streams.door.strangers.leave(self)
        if self._late is not None and self._late.active():
            self._late.cancel()
        node = self.node
        was = self.link is not None
        self.close()
        text = self.error or reason_of(reason)
        if self.dialled is not None and node is None:
            text = self.streams.mismatch(self.dialled) or text
        known = node.name if node is not None else self.dialled.name if self.dialled else ""
        self.streams.failed(known, self.streams.where(self), text)
        if was and node is not None:
            self.streams.unlinked(node, text)
        elif self.dialled is not None and node is None:
            self.streams.refused(self.dialled, text)
        if self.dialled is not None:
            self.streams.again(self.dialled, was)

    # -- IPushProducer -------------------------------------------------------------------------

    def pauseProducing(self) -> None:
        """The other end takes no more for now."""
        if self.edge is not None and self.link is not None:
            self.edge.full(self.link)

    def resumeProducing(self) -> None:
        """It takes more."""
        if self.edge is not None and self.link is not None:
            self.edge.room(self.link)
            self.streams.broker.perform_later()

    def stopProducing(self) -> None:
        """`connectionLost` says it, too."""


class _Dialler(Factory):
    """Makes one stream."""

    noisy = False

    def __init__(self, streams: Streams, member: Member) -> None:
        self.streams = streams
        self.member = member

    def buildProtocol(self, addr: object) -> _NodeStream:
        """See `IProtocolFactory`."""
        return _NodeStream(self.streams, self.member)

    def startedConnecting(self, connector: object) -> None:
        """See `ClientFactory`."""

    def clientConnectionLost(self, connector: object, reason: Failure) -> None:
        """See `ClientFactory`: the stream sees to it."""

    def clientConnectionFailed(self, connector: object, reason: Failure) -> None:
        """Nobody answers."""
        self.streams.unreached(self.member, reason.getErrorMessage())


class Streams(Factory):
    """The streams of one node.

    `tls` is the context factory of both ends, None for plain TCP. `takes` says whether a node's
    retained messages are to be asked for, `linked` and `unlinked` are told.
    """

    noisy = False

    def __init__(self, broker: Broker, mesh: NodeMesh, reactor: Any, cluster: str, name: str,
                 tls: Any) -> None:  # fmt: skip
        self.broker = broker
        self.mesh = mesh
        self.reactor = reactor
        self.cluster = cluster
        self.name = name
        self.tls = tls
        self.door = Door(tls, self, reactor, broker.log)
        self.epoch = 0
        self.port: Any = None
        self.open: set[_NodeStream] = set()
        self.of: dict[str, _NodeStream] = {}
        self.takes: Callable[[Node], bool] = lambda node: False
        self.linked: Callable[[Node], object] = lambda node: None
        self.unlinked: Callable[[Node, str], object] = lambda node, text: None
        self.not_greeted: Callable[[Member, str], object] = lambda member, text: None
        #: Told of each stream that is over: of which node, or else from where, and why.
        self.failed: Callable[[str, str, str], object] = lambda name, where, text: None
        self._members: dict[str, Member] = {}
        self._pauses: dict[str, float] = {}
        self._calls: dict[str, Any] = {}
        self._stopped = False

    def listen(self, host: str, port: int) -> int:
        """Be reached by others; the port. Raises what Twisted does."""
        self.port = self.reactor.listenTCP(port, self.door, _BACKLOG, host)
        return int(self.port.getHost().port)

    def buildProtocol(self, addr: object) -> _NodeStream:
        """See `IProtocolFactory`."""
        return _NodeStream(self, None)

    def stop(self) -> Any:
        """All of it ends, when what was written has gone."""
        self._stopped = True
        for call in self._calls.values():
            call.cancel()
        self._calls.clear()
        for stream in list(self.open):
            if stream.transport is not None:
                stream.transport.loseConnection()
        return None if self.port is None else self.port.stopListening()

    def where(self, stream: _NodeStream) -> str:
        """Where a stream comes from."""
        peer: Any = stream.transport.getPeer()  # type: ignore[union-attr]
        return str(getattr(peer, "host", ""))

    def hello(self, node: Node, stream: int) -> Hello:
        """What we say to a node."""
        return Hello(self.cluster, self.name, self.epoch, node.epoch, stream, node.had, node.of)

    # -- dialling ------------------------------------------------------------------------------

    def joined(self, member: Member) -> None:
        """A node is there: dial it, if that is ours to do."""
        self.door.expect(member.name, _place(member)[0])
        if self.name < member.name:
            self._members[member.name] = member
            self._pauses[member.name] = _FIRST
            self._dial(member)

    def left(self, member: Member) -> None:
        """A node is gone."""
        self._members.pop(member.name, None)
        call = self._calls.pop(member.name, None)
        if call is not None:
            call.cancel()
        stream = self.of.get(member.name)
        if stream is not None:
            stream.close()

    def _dial(self, member: Member) -> None:
        self._calls.pop(member.name, None)
        if self._members.get(member.name) is not member or self._stopped:
            return
        host, port = _place(member)
        factory = dialling(self.tls, _Dialler(self, member))
        self.reactor.connectTCP(host, int(port), factory, timeout=PATIENCE)

    def again(self, member: Member, was_linked: bool) -> None:
        """A stream that we had dialled is over."""
        if self._stopped or self._members.get(member.name) is not member:
            return
        pause = _FIRST if was_linked else self._pauses[member.name]
        self._pauses[member.name] = min(pause * 2, _LONGEST)
        if member.name not in self._calls:
            self._calls[member.name] = self.reactor.callLater(pause, self._dial, member)

    def mismatch(self, member: Member) -> str:
        """Why a node and this one cannot speak: one of them speaks TLS; else empty."""
        if member.tls is None or member.tls is (self.tls is not None):
            return ""
        return SPEAKS_TLS if member.tls else SPEAKS_PLAIN

    def refused(self, member: Member, text: str) -> None:
        """A stream that we had dialled ended before a hello; a node that begins may do that."""
        if self._pauses.get(member.name, 0.0) > _NEWS:
            self.not_greeted(member, text)

    def unreached(self, member: Member, text: str) -> None:
        """Nobody has answered."""
        self.broker.log("node not reached", {"node": member.name, "error": text})
        self.failed(member.name, member.address, f"{member.address}: {text}")
        self.again(member, False)


def _place(member: Member) -> tuple[str, str]:
    """Host and port where a node says that it is reached."""
    host, _, port = member.address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), port
