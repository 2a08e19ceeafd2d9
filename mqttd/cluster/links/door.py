"""The door of a node for other nodes: who has said no hello yet is a stranger, and there are few.

    accept --> a place among the strangers? --> TLS, some steps a turn --> hello --> a node
                 '-- no: closed at once, before TLS

A handshake costs 100 KiB and a millisecond, and whoever reaches the port may begin one. Nodes come
from houses that are known after their first hello, or from the address that etcd has of them: those
find a place whoever else comes (`mqttd.net.strangers`); who was refused dials again.

Promise: a line in ten seconds at most about those who are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from typing import Any, Final

from twisted.internet.protocol import Factory
from twisted.protocols.tls import TLSMemoryBIOFactory

from mqttd.net.fair import house_of
from mqttd.net.handshakes import Handshakes
from mqttd.net.records import Records
from mqttd.net.strangers import Strangers

__all__ = ["EACH", "MOST", "Door", "dialling"]

#: Strangers in all, and of one house: a descriptor and 100 KiB each.
MOST: Final = 64
EACH: Final = 16
#: Seconds between two lines.
_QUIET: Final = 10.0


class Door(Factory):
    """Lets in who comes for `wrapped`, with `tls` if that is not None.

    `log(event, fields)` hears of those who are refused.
    """

    noisy = False

    def __init__(
        self,
        tls: Any,
        wrapped: Factory,
        reactor: Any,
        log: Callable[[str, dict[str, object]], None],
    ) -> None:
        self.inner: Any = wrapped if tls is None else Handshakes(tls, wrapped, reactor, 2 * MOST)
        self.reactor = reactor
        self.log = log
        #: The houses of nodes, by their names.
        self.houses: dict[str, str] = {}
        self.strangers: Strangers[Any] = Strangers(MOST, EACH, _Values(self.houses))
        self._quiet = -_QUIET
        self._told = 0

    def buildProtocol(self, addr: Any) -> Any:
        """See `IProtocolFactory`."""
        now = self.reactor.seconds()
        if self.strangers.admits(house_of(addr.host), now):
            return self.inner.buildProtocol(addr)
        if now >= self._quiet + _QUIET:
            count = self.strangers.refused - self._told
            self._quiet, self._told = now, self.strangers.refused
            self.log("node strangers refused", {"peer": addr.host, "count": count})
        return None

    def came(self, stranger: Any) -> None:
        """Somebody has come through it; he has a `transport`."""
        host = stranger.transport.getPeer().host
        self.strangers.enter(stranger, house_of(host), self.reactor.seconds())

    def greeted(self, stranger: Any, name: str) -> None:
        """He is this node."""
        self.strangers.leave(stranger)
        self.houses[name] = house_of(stranger.transport.getPeer().host)

    def expect(self, name: str, host: str) -> None:
        """A node is there, and says that it is reached at `host`."""
        try:
            ip_address(host)
        except ValueError:
            return  # a name: it is known when it has come
        self.houses.setdefault(name, house_of(host))

    def counters(self) -> dict[str, float]:
        """Those who were refused, and those who made room, for the metrics."""
        return {
            "cluster_strangers_refused": self.strangers.refused,
            "cluster_strangers_ended": self.strangers.ended,
        }


class _Values:
    """Whether something is among the values of a dict."""

    def __init__(self, of: dict[str, str]) -> None:
        self.of = of

    def __contains__(self, one: object) -> bool:
        return one in self.of.values()


def dialling(tls: Any, wrapped: Factory) -> Any:
    """What dials for `wrapped`, with `tls` if that is not None."""
    if tls is None:
        return wrapped
    make: Any = TLSMemoryBIOFactory
    made = make(tls, True, wrapped)
    made.protocol = Records
    return made
