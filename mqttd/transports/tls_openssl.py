"""A listener's certificates and demands as a pyOpenSSL context, for Twisted's TLS transport.

The same as `mqttd.transports.tls.Tls` makes for the engine's record layer, by Twisted's
`CertificateOptions`; imported only where a listener has `transport = "twisted"`.
"""

from __future__ import annotations

from typing import Any

from OpenSSL import SSL, crypto
from twisted.internet.ssl import AcceptableCiphers, CertificateOptions, TLSVersion

from mqttd.config.schema import SslListener
from mqttd.net.tls import CIPHERS, TlsError, load_pair
from mqttd.transports.certificates import by_name, host_names

__all__ = ["openssl_context"]


def openssl_context(settings: SslListener, pairs: list[tuple[str, str]], alpn: list[str]) -> Any:
    """A pyOpenSSL context with the certificates and demands of a listener. Raises `TlsError`."""
    context = _context(settings, alpn, settings.certificate, settings.private_key)
    names: dict[str, Any] = {}
    for certificate, key in pairs:
        other = _context(settings, alpn, certificate, key)
        names.update(dict.fromkeys(host_names(certificate), other))

    def choose(connection: Any) -> None:
        asked = connection.get_servername()
        found = by_name(names, asked.decode("ascii", "replace")) if asked else None
        if found is not None:
            connection.set_context(found)

    if names:
        context.set_tlsext_servername_callback(choose)
    return context


def _context(settings: SslListener, alpn: list[str], certificate: str, key: str) -> Any:
    try:
        private_key, chain = load_pair(certificate, key)
        options = CertificateOptions(
            privateKey=private_key,
            certificate=chain[0],
            extraCertChain=chain[1:],
            acceptableCiphers=AcceptableCiphers.fromOpenSSLCipherString(
                settings.ciphers or CIPHERS
            ),
            acceptableProtocols=[name.encode() for name in alpn],
            raiseMinimumTo=TLSVersion.TLSv1_3
            if settings.tls_version == "1.3"
            else TLSVersion.TLSv1_2,
            enableSessions=settings.session_resumption,
            enableSessionTickets=settings.session_resumption,
        )
        context = options.getContext()
        if settings.verify != "none":
            mode = SSL.VERIFY_PEER
            if settings.verify == "required":
                mode |= SSL.VERIFY_FAIL_IF_NO_PEER_CERT
            context.set_verify(mode, lambda connection, cert, code, depth, ok: bool(ok))
            context.load_verify_locations(settings.ca_file)
            context.set_session_id(b"mqttd")
            if settings.crl_file:
                store: Any = context.get_cert_store()
                store.load_locations(settings.crl_file)
                store.set_flags(crypto.X509StoreFlags.CRL_CHECK)
    except (SSL.Error, crypto.Error, OSError, ValueError) as error:
        raise TlsError(f"{certificate} with {key}: {error}") from None
    return context
