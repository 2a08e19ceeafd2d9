"""What a TLS listener shows and asks: certificates by host name, authorities, revocation lists.

    files --read--> Tls --+-- context            ssl.SSLContext, for the engine's record layer
      ^               |   +-- openssl_context    pyOpenSSL, for Twisted's TLS transport
      +--- changed? --+   |
           SIGHUP, ctl    +-- per host name (SNI) another context with the same demands

`reload` is all or nothing: with a fault in any file the old contexts stay in force, and the caller
raises an alarm. Connections keep the context they began with, so a reload drops nobody; tickets of
the old context are not honoured by the new one, so a revoked certificate does not resume either.
"""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime
from typing import Any

from mqttd.config.schema import SslListener
from mqttd.net.tls import CIPHERS, TlsError, pair_fault
from mqttd.transports.certificates import (
    by_name,
    certificate_identity,
    check_dates,
    host_names,
    leaf_of,
    list_ends,
    map_identity,
)
from mqttd.types import PeerIdentity

__all__ = ["Tls", "TlsError"]


class Tls:
    """The TLS side of one listener.

    Arguments: its settings; the ALPN protocols it speaks. Raises `TlsError` if a file cannot be
    used. `expired` says which file has been since when (empty while all are good); `not_after`
    is the end of the certificate.
    """

    def __init__(self, settings: SslListener, alpn: tuple[str, ...] = ("mqtt",)) -> None:
        self.settings = settings
        self.alpn = list(alpn)
        self.names: dict[str, ssl.SSLContext] = {}
        self._openssl: Any = None
        self.not_after = datetime.max.replace(tzinfo=UTC)
        self._ends: list[tuple[str, datetime]] = []
        self.context = self._load(first=True)
        self._seen = self._signature()

    # -- reading --------------------------------------------------------------------------------

    def files(self) -> list[str]:
        """Every file that is read."""
        settings = self.settings
        found = [settings.certificate, settings.private_key, settings.ca_file, settings.crl_file]
        for certificate, key in self._pairs():
            found += [certificate, key]
        return [path for path in found if path]

    def changed(self) -> bool:
        """Whether a file is another than at the last look."""
        now = self._signature()
        was, self._seen = self._seen, now
        return now != was

    def reload(self) -> None:
        """Read everything again. Raises `TlsError`, and then what was read before stays."""
        before = self.context, self.names, self.not_after, self._ends, self._openssl
        try:
            self.context = self._load(first=False)
            self._openssl = None
            if self.settings.transport == "twisted":
                self.openssl_context()
        except TlsError:
            self.context, self.names, self.not_after, self._ends, self._openssl = before
            raise
        self._seen = self._signature()

    def expired(self) -> str:
        """Which certificate or revocation list is over, and since when; empty while none is."""
        now = datetime.now(UTC)
        for path, end in self._ends:
            if end < now:
                return f"{path}: expired on {end:%Y-%m-%d %H:%M} UTC"
        return ""

    def _signature(self) -> list[tuple[str, int, int, int]]:
        seen = []
        for path in self.files():
            try:
                info = os.stat(path)
                seen.append((path, info.st_mtime_ns, info.st_size, info.st_ino))
            except OSError:
                seen.append((path, 0, 0, 0))
        return seen

    def _pairs(self) -> list[tuple[str, str]]:
        """Certificate and key files of the SNI directory."""
        directory = self.settings.sni_directory
        if not directory:
            return []
        try:
            names = sorted(name for name in os.listdir(directory) if name.endswith(".crt"))
        except OSError:
            return []
        return [
            (os.path.join(directory, name), os.path.join(directory, name[:-4] + ".key"))
            for name in names
        ]

    def _load(self, first: bool) -> ssl.SSLContext:
        settings = self.settings
        if settings.sni_directory and not os.path.isdir(settings.sni_directory):
            raise TlsError(f"{settings.sni_directory}: no such directory")
        context = self._context(settings.certificate, settings.private_key)
        leaf = leaf_of(settings.certificate)
        if not first:
            check_dates(settings.certificate, leaf)
        ends = [(settings.certificate, leaf.not_valid_after_utc)]
        names: dict[str, ssl.SSLContext] = {}
        for certificate, key in self._pairs():
            other = self._context(certificate, key)
            own = leaf_of(certificate)
            if not first:
                check_dates(certificate, own)
            ends.append((certificate, own.not_valid_after_utc))
            for name in host_names(certificate):
                names[name] = other
        if names:
            context.sni_callback = self._choose
        if settings.verify != "none" and settings.crl_file:
            # OpenSSL takes nobody's certificate on the word of a list that is over.
            ends += [(settings.crl_file, end) for end in list_ends(settings.crl_file)]
        self.names = names
        self.not_after = leaf.not_valid_after_utc
        self._ends = ends
        return context

    def _choose(self, connection: Any, name: str | None, context: Any) -> None:
        """SNI: the context for the host name that the client asks for."""
        if name:
            found = by_name(self.names, name)
            if found is not None:
                connection.context = found

    def _context(self, certificate: str, key: str) -> ssl.SSLContext:
        settings = self.settings
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = (
            ssl.TLSVersion.TLSv1_3 if settings.tls_version == "1.3" else ssl.TLSVersion.TLSv1_2
        )
        context.options |= (
            ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        )
        try:
            context.set_ciphers(settings.ciphers or CIPHERS)
        except ssl.SSLError:
            raise TlsError(f"ciphers = {settings.ciphers!r}: OpenSSL knows none of them") from None
        _readable(certificate)
        _readable(key)
        try:
            context.load_cert_chain(certificate, key, password=_no_password)
        except (ssl.SSLError, OSError, ValueError) as error:
            text = pair_fault(certificate, key) or _ssl_reason(error)
            raise TlsError(f"{certificate} with {key}: {text}") from None
        if not settings.session_resumption:
            context.num_tickets = 0
            context.options |= ssl.OP_NO_TICKET
        context.set_alpn_protocols(self.alpn)
        if settings.verify != "none":
            context.verify_mode = (
                ssl.CERT_REQUIRED if settings.verify == "required" else ssl.CERT_OPTIONAL
            )
            _trust(context, settings.ca_file)
            if settings.crl_file:
                _trust(context, settings.crl_file)
                context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        return context

    # -- the peer -------------------------------------------------------------------------------

    def identify(self, connection: Any) -> PeerIdentity | None:
        """Who the client is by the certificate it has shown on an `ssl` connection."""
        der = connection.getpeercert(True)
        if not der:
            return None
        return map_identity(certificate_identity(der), self.settings)

    # -- pyOpenSSL ------------------------------------------------------------------------------

    def openssl_context(self) -> Any:
        """The same demands as a pyOpenSSL context, by Twisted's `CertificateOptions`."""
        if self._openssl is None:
            from mqttd.transports.tls_openssl import openssl_context

            self._openssl = openssl_context(self.settings, self._pairs(), self.alpn)
        return self._openssl


def _trust(context: ssl.SSLContext, path: str) -> None:
    _readable(path)
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise TlsError(f"{path}: {_ssl_reason(error)}") from None


def _readable(path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise TlsError(f"{path}: {error.strerror}") from None


def _no_password() -> str:
    raise ValueError("the key is encrypted; take its password off (openssl pkey)")


def _ssl_reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    if reason == "KEY_VALUES_MISMATCH":
        return "key values mismatch: the key is that of another certificate"
    return reason.replace("_", " ").lower() if isinstance(reason, str) else str(error)
