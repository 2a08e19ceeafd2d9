"""Twisted's TLS transport, but that nothing of a connection is left for the collector of garbage.

    an error of OpenSSL's --> Failure --> exception --> traceback --> frame --> Failure, transport

A failed handshake is such a circle, and so is a connection that is cut: 50 KiB each with OpenSSL's
object, which nobody refers to and which goes when garbage is collected, if it has not grown old by
then (`mqttd.monitor.garbage`).

Promise: a connection that is over is freed with the last reference to it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from twisted.internet.tcp import Server
from twisted.protocols.tls import BufferingTLSTransport
from twisted.python.failure import Failure
from zope.interface import implementedBy
from zope.interface.declarations import Provides

__all__ = ["Records"]


class Records(BufferingTLSTransport):
    """TLS for one connection."""

    #: What each connection says it provides: made once, for it is remembered while somebody has it.
    provided: ClassVar[list[object]] = []

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        make: Any = Provides
        provided: Any = implementedBy
        cls.provided = [make(cls, one) for one in provided(Server)]

    def _tlsShutdownFinished(self, reason: Failure | None) -> None:
        super()._tlsShutdownFinished(reason)  # type: ignore[no-untyped-call]
        if reason is not None:
            reason.cleanFailure()

    def _shutdownTLS(self) -> None:
        if self._tlsConnection is not None:  # else it is gone, and nobody hears a goodbye
            super()._shutdownTLS()  # type: ignore[no-untyped-call]
