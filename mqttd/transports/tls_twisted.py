"""TLS by Twisted and pyOpenSSL, for listeners with `transport = "twisted"`.

    transport --> [PROXY header] --> TLSMemoryBIOProtocol --> MqttProtocol

The same certificates and demands as the engine's record layer (`mqttd.transports.tls.Tls`), made
into a context by `mqttd.transports.tls_openssl`.

Twisted hands on each TLS record by itself, and does not stop when told to pause: so what one read
holds is gathered, and fed at once, as the engine does. What a client may do in a turn then holds
here too, whatever the size of its records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure
from zope.interface import implementer

from mqttd.codec.sniff import looks_like
from mqttd.net.records import Records
from mqttd.transports.protocol import MqttFactory, MqttProtocol
from mqttd.transports.proxy import ProxyLayer
from mqttd.transports.tls import Tls

__all__ = ["tls_factory"]

#: Seconds a closing connection waits for the peer's close_notify.
GOODBYE: Final = 2.0
#: Handshakes that begin in one turn of the reactor, about a millisecond each.
_TURN: Final = 16
#: Seconds for which a handshake holds its place while the peer says nothing.
PATIENCE: Final = 0.5

ProxyFor = Callable[[Any], ProxyLayer | None]


def tls_factory(tls: Tls, factory: MqttFactory, proxy_for: ProxyFor | None) -> Any:
    """`factory` behind TLS, and behind the PROXY header where one is expected."""
    wrapped = _Handshakes(tls, factory)
    return _ProxyFactory(wrapped, factory, proxy_for) if proxy_for is not None else wrapped


@implementer(IOpenSSLServerConnectionCreator)
class _Creator:
    """Every connection begins with the context that is in force then."""

    def __init__(self, tls: Tls) -> None:
        self.tls = tls

    def serverConnectionForTLS(self, tlsProtocol: Any) -> Any:
        return SSL.Connection(self.tls.openssl_context(), None)


class _Handshakes(TLSMemoryBIOFactory):
    """TLS for a factory, with a bound on handshakes under way.

    One is under way from its first byte to its end, but for those that leave us waiting for
    `PATIENCE`: they go on without a place. Who would begin one too many is not read from until it
    is its turn; who says nothing takes no place.
    """

    noisy = False

    def __init__(self, tls: Tls, mqtt: MqttFactory) -> None:
        make: Any = super().__init__
        make(_Creator(tls), False, mqtt)
        self.protocol = _Records
        self.mqtt = mqtt
        self.clock: Any = mqtt.reactor
        self.tls = tls
        self.most: int = tls.settings.max_handshakes
        self.shaking = 0
        #: Of them: begun in this turn.
        self.begun = 0
        #: Connections whose handshake has not begun, in order.
        self.waiting: dict[_Records, None] = {}
        #: Those that hold a place, and since when they have said nothing; the longest first.
        self.busy_with: dict[_Records, float] = {}
        self._looking: Any = None

    def begins(self, records: _Records) -> bool:
        """Whether one more handshake may begin; if not, `records` is told when it may."""
        if self.shaking >= self.most:
            self._relieve()
        if self.shaking >= self.most or self.begun >= _TURN:
            self.waiting[records] = None
            self._look_again()
            return False
        self._take(records)
        return True

    def heard(self, records: _Records) -> None:
        """The peer has answered: its place is worked in."""
        if self.busy_with.pop(records, None) is not None:
            self.busy_with[records] = self.clock.seconds()

    def ends(self, records: _Records) -> None:
        """One handshake less, or one less that waits."""
        if records in self.waiting:
            del self.waiting[records]
            return
        if self.busy_with.pop(records, None) is not None:
            self.shaking -= 1
        self._go_on()

    def _take(self, records: _Records) -> None:
        self.shaking += 1
        if not self.begun:
            self.clock.callLater(0, self._next_turn)
        self.begun += 1
        self.busy_with[records] = self.clock.seconds()

    def _next_turn(self) -> None:
        self.begun = 0
        self._go_on()

    def _go_on(self) -> None:
        while self.waiting and self.shaking < self.most and self.begun < _TURN:
            following = next(iter(self.waiting))
            del self.waiting[following]
            self._take(following)
            following.go()

    def _relieve(self) -> None:
        """Take their places from those that leave us waiting."""
        silent = self.clock.seconds() - PATIENCE
        for records, heard in list(self.busy_with.items()):
            if heard > silent:
                break
            del self.busy_with[records]
            self.shaking -= 1

    def _look_again(self) -> None:
        if self._looking is None:
            self._looking = self.clock.callLater(PATIENCE / 2, self._look)

    def _look(self) -> None:
        self._looking = None
        self._relieve()
        self._go_on()
        if self.waiting:
            self._look_again()


class _Records(Records):
    """Twisted's TLS, which tells what came when it was no TLS, and does not wait for ever at the
    end for a peer that says no goodbye."""

    begun = False
    shaking = False
    #: The first bytes, while it is not their turn.
    held = b""
    deadline: Any = None

    def makeConnection(self, transport: Any) -> None:
        factory: Any = self.factory
        seconds = factory.tls.settings.handshake_timeout
        self.deadline = factory.mqtt.reactor.callLater(seconds, self.abortConnection)
        super().makeConnection(transport)  # type: ignore[no-untyped-call]

    def go(self) -> None:
        """It is our turn to shake hands."""
        held, self.held = self.held, b""
        self.transport.resumeProducing()  # type: ignore[union-attr]
        self._records(held)

    def _shaken(self) -> None:
        if self.shaking:
            self.shaking = False
            factory: Any = self.factory
            factory.ends(self)

    def _cancel(self) -> None:
        deadline, self.deadline = self.deadline, None
        if deadline is not None and deadline.active():
            deadline.cancel()

    def loseConnection(self) -> None:
        # A producer that stays registered would put the end off.
        self.unregisterProducer()  # type: ignore[no-untyped-call]
        super().loseConnection()
        inner: Any = self.wrappedProtocol
        if self.connected and self.deadline is None:
            reactor = inner.factory.reactor
            self.deadline = reactor.callLater(GOODBYE, self.abortConnection)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._shaken()
        self._cancel()
        super().connectionLost(reason)

    def dataReceived(self, data: bytes) -> None:
        if not self.begun:
            self.begun = self.shaking = True
            if data[0] != 0x16:
                seen = looks_like(data) or f"bytes that begin with {data[:4].hex(' ')}"
                inner: Any = self.wrappedProtocol
                inner.wrong = f"expected TLS, got {seen}"
            factory: Any = self.factory
            if not factory.begins(self):
                self.held = data
                self.transport.pauseProducing()  # type: ignore[union-attr]
                return
        if self.held:
            self.held += data
            return
        if self.shaking:
            factory = self.factory
            factory.heard(self)
        self._records(data)

    def _records(self, data: bytes) -> None:
        mqtt = self.wrappedProtocol
        if isinstance(mqtt, MqttProtocol):
            mqtt.gather()
        try:
            super().dataReceived(data)  # type: ignore[no-untyped-call]
        finally:
            if isinstance(mqtt, MqttProtocol):
                mqtt.gathered()
        if self.shaking and self._handshakeDone:
            self._cancel()
            self._shaken()


class _ProxyFactory(Factory):
    """Puts a protocol that takes the PROXY header in front of another factory's."""

    noisy = False

    def __init__(self, wrapped: Any, mqtt: MqttFactory, proxy_for: ProxyFor) -> None:
        self.wrapped = wrapped
        self.mqtt = mqtt
        self.proxy_for = proxy_for

    def buildProtocol(self, addr: Any) -> Protocol | None:
        layer = self.proxy_for((addr.host, addr.port))
        return None if layer is None else _ProxyProtocol(self, addr, layer)


class _ProxyProtocol(Protocol):
    """Reads the header, then puts the protocol behind it in its own place."""

    def __init__(self, factory: _ProxyFactory, address: Any, layer: ProxyLayer) -> None:
        self.factory: Any = factory
        self.address = address
        self.layer = layer
        self.deadline: Any = None

    def connectionMade(self) -> None:
        mqtt = self.factory.mqtt
        seconds = mqtt.broker.connect_timeout(mqtt.name) / 1000
        self.deadline = mqtt.reactor.callLater(seconds, self._end, "no PROXY header in time")

    def dataReceived(self, data: bytes) -> None:
        rest = self.layer.received(data)
        if self.layer.ended:
            self._end(self.layer.ended)
        elif self.layer.done:
            self._cancel()
            transport: Any = self.transport
            transport.mqttd_known = self.layer.known
            inner = self.factory.wrapped.buildProtocol(self.address)
            transport.protocol = inner
            inner.makeConnection(transport)
            if rest:
                inner.dataReceived(rest)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._cancel()

    def _cancel(self) -> None:
        deadline, self.deadline = self.deadline, None
        if deadline is not None and deadline.active():
            deadline.cancel()

    def _end(self, reason: str) -> None:
        self._cancel()
        mqtt = self.factory.mqtt
        peer = f"{self.address.host}:{self.address.port}"
        fields = {"listener": mqtt.name, "peer": peer, "reason": reason}
        mqtt.broker.metrics.connections_refused += 1
        mqtt.broker.log("connection refused", fields)
        self.transport.abortConnection()  # type: ignore[union-attr]
