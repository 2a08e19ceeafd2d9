"""A door of the HTTP interface over TCP: its address, its TLS, when it is open.

    DoorService --+-- tcp.AdminTcpService    for programs that show a token
                  '-- page.PageService       for browsers

Promise: the address is taken and the certificate read as soon as the door is made, so that who
cannot have them has changed nothing; at least TLS 1.2, with the certificates that lead to the
issuer; what goes wrong names the key.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Any, cast

from OpenSSL import SSL, crypto
from twisted.application.service import Service
from twisted.internet.ssl import CertificateOptions, TLSVersion
from twisted.logger import Logger
from twisted.web.resource import IResource

from mqttd.admin.doors.site import MOST, Crowd, site_of
from mqttd.config.schema import AdminPage, AdminTcp
from mqttd.net.addresses import address_text
from mqttd.net.handshakes import Handshakes
from mqttd.net.sockets import bound_tcp
from mqttd.net.tls import load_pair, pair_fault

__all__ = ["AddressError", "DoorError", "DoorService", "certificate_options"]


class DoorError(Exception):
    """A door cannot be made; the text names the key and what is wrong."""


class AddressError(DoorError):
    """Its address cannot be had."""


class DoorService(Service):
    """Serves HTTP at ``bind`` while it runs.

    :param key: the table of its settings, ``admin.page``.
    :param resource: what is served.
    :param max_body: bytes that a request's body may have.
    :param before: one whose place it takes: at the same address it takes its socket too.
    :param known: whether a request is one of somebody who is known, see `site_of`.
    :raises DoorError: the address or the certificate cannot be had.

    `port` is the port it got.
    """

    def __init__(
        self,
        key: str,
        settings: AdminPage | AdminTcp,
        resource: IResource,
        reactor: Any,
        max_body: int,
        before: DoorService | None = None,
        known: Callable[[Any], bool] | None = None,
    ) -> None:
        self.settings = settings
        self.reactor = reactor
        self.log = Logger(namespace="mqttd.admin")
        self.site: Any = site_of(resource, max_body, Crowd(), known, reactor)
        self._factory: Any = self.site
        if settings.certificate:
            options = certificate_options(key, settings)
            self._factory = Handshakes(options, self.site, reactor, MOST)
        if before is not None and before.settings.bind == settings.bind:
            self._socket = before.another()
        else:
            self._socket = _bound(key, settings)
        self.port: int = self._socket.getsockname()[1]
        self._port: Any = None

    @property
    def url(self) -> str:
        """Where it is: https://127.0.0.1:8081."""
        scheme = "https" if self.settings.certificate else "http"
        return f"{scheme}://{address_text(self.settings.address[0], self.port)}"

    def startService(self) -> None:
        """Listen."""
        self._socket.listen(128)
        self._socket.setblocking(False)
        self._port = self.reactor.adoptStreamPort(
            self._socket.fileno(), self._socket.family, self._factory
        )
        self._socket.close()
        super().startService()  # type: ignore[no-untyped-call]

    def stopService(self) -> Any:
        """Stop listening; a connection ends with the answer that it waits for."""
        super().stopService()  # type: ignore[no-untyped-call]
        self.site.crowd.close()
        port, self._port = self._port, None
        return port.stopListening() if port is not None else None

    def another(self) -> socket.socket:
        """Its socket once more, for who is to take its place."""
        found = self._socket if self._port is None else self._port.socket
        return cast(socket.socket, found.dup())

    def release(self) -> None:
        """Let go of the address, where it was not started."""
        self._socket.close()


def certificate_options(key: str, settings: AdminPage | AdminTcp) -> CertificateOptions:
    """TLS 1.2 and up with the certificate (and those behind it in the file) and its key.

    Raises DoorError, which names the key and the file.
    """
    certificate, private_key = settings.certificate, settings.private_key
    try:
        pair, chain = load_pair(certificate, private_key)
        options = CertificateOptions(
            pair,
            chain[0],
            extraCertChain=chain[1:],
            raiseMinimumTo=TLSVersion.TLSv1_2,
        )
        options.getContext()  # where the key is found to be another's
        return options
    except OSError as error:
        name = "certificate" if error.filename == certificate else "private_key"
        raise DoorError(f"{key}.{name} = {error.filename!r}: {error.strerror}") from None
    except (crypto.Error, SSL.Error, ValueError, IndexError):
        text = pair_fault(certificate, private_key) or "no certificate with its own key (PEM)"
        raise DoorError(
            f"{key}.certificate = {certificate!r} with {key}.private_key = {private_key!r}: {text}"
        ) from None


def _bound(key: str, settings: AdminPage | AdminTcp) -> socket.socket:
    """A socket bound to the door's address, that does not listen yet; raises AddressError."""
    try:
        return bound_tcp(*settings.address)
    except OSError as error:
        hint = ""
        if error.errno == errno.EADDRINUSE:
            hint = f"; another program listens there: choose another {key}.bind"
        raise AddressError(f"{key}.bind = {settings.bind!r}: {error.strerror}{hint}") from None
