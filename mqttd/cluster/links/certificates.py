"""Whether a node's own certificate is one by which other nodes can believe it.

    certificate, key, name, dates, uses, authority --> a line with file, key and what was expected

Promise: what is refused here could not have made a link; it is said before anything begins.
"""

from __future__ import annotations

from typing import Any

from mqttd.cluster.links.tls import names_of
from mqttd.config.schema.cluster import Cluster
from mqttd.net.tls import TlsError, load_pair
from mqttd.transports.certificates import check_dates

__all__ = ["check_own"]


def check_own(config: Cluster, name: str) -> None:
    """Whether the certificate of `config` is good for the node `name`. Raises TlsError."""
    if not config.certificate:
        return
    from OpenSSL import crypto

    try:
        key, chain = load_pair(config.certificate, config.private_key)
    except OSError as error:
        which = "certificate" if error.filename == config.certificate else "private_key"
        raise TlsError(f"{_at(config, which)}: {error.strerror}") from None
    except (ValueError, crypto.Error):
        text = f"this and {config.private_key}: expected PEM, and a key without a password"
        raise TlsError(f"{_at(config, 'certificate')}: {text}") from None
    if not chain:
        raise TlsError(f"{_at(config, 'certificate')}: holds no certificate")
    shown = chain[0].to_cryptography()
    if key.to_cryptography_key().public_key() != shown.public_key():
        text = f"it is not the key of {config.certificate}; expected the one of that certificate"
        raise TlsError(f"{_at(config, 'private_key')}: {text}")
    where = _at(config, "certificate")
    if name not in (names := names_of(chain[0])):
        said = ", ".join(repr(each) for each in sorted(names)) or "nobody"
        text = f"it names {said}; expected node.name, which is {name!r}"
        raise TlsError(f"{where}: {text}, as a DNS name or the common name")
    check_dates(where, shown)
    if missing := _uses_missing(shown):
        text = f"it is not for {missing}; expected serverAuth and clientAuth, as a node is both"
        raise TlsError(f"{where}: {text}")
    _check_chain(config, chain)


def _at(config: Cluster, key: str) -> str:
    return f"cluster.{key} = {getattr(config, key)!r}"


def _uses_missing(shown: Any) -> str:
    """Of server and client what a certificate is not for, where it says what it is for."""
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID as Use

    try:
        uses = set(shown.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        return ""
    if Use.ANY_EXTENDED_KEY_USAGE in uses:
        return ""
    wanted = (("serverAuth", Use.SERVER_AUTH), ("clientAuth", Use.CLIENT_AUTH))
    return " and ".join(word for word, use in wanted if use not in uses)


def _check_chain(config: Cluster, chain: list[Any]) -> None:
    from OpenSSL import crypto

    store = crypto.X509Store()
    try:
        with open(config.ca_file, "rb") as file:
            for each in _certificates(file.read()):
                store.add_cert(each)
    except OSError as error:
        raise TlsError(f"{_at(config, 'ca_file')}: {error.strerror}") from None
    except (ValueError, crypto.Error) as error:
        raise TlsError(f"{_at(config, 'ca_file')}: expected PEM: {error}") from None
    try:
        crypto.X509StoreContext(store, chain[0], chain[1:] or None).verify_certificate()
    except crypto.X509StoreContextError as error:
        text = f"expected one that leads to cluster.ca_file = {config.ca_file!r}: {error}"
        raise TlsError(f"{_at(config, 'certificate')}: {text}") from None


def _certificates(pem: bytes) -> list[Any]:
    from cryptography import x509
    from OpenSSL import crypto

    found = [crypto.X509.from_cryptography(each) for each in x509.load_pem_x509_certificates(pem)]
    return found
