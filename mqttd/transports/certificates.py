"""What certificates say: who a client is, for which hosts and until when a server's are good."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID

from mqttd.net.tls import TlsError
from mqttd.types import PeerIdentity

__all__ = [
    "by_name",
    "certificate_identity",
    "check_dates",
    "host_names",
    "leaf_of",
    "list_ends",
    "map_identity",
    "subject_of",
]


def certificate_identity(der: bytes) -> PeerIdentity | None:
    """What a verified certificate says; None for one that cannot be read."""
    try:
        certificate = x509.load_der_x509_certificate(der)
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        common_name = str(names[0].value) if names else None
        return PeerIdentity(
            common_name=common_name,
            subject=certificate.subject.rfc4514_string(),
            sans=tuple(_sans(certificate)),
        )
    except ValueError:
        return None


def subject_of(common_name: str) -> str:
    """The subject of a certificate of which only the common name is known, escaped (RFC 4514)."""
    name = x509.NameAttribute(NameOID.COMMON_NAME, common_name, _validate=False)
    return x509.Name([name]).rfc4514_string()


def map_identity(identity: PeerIdentity | None, settings: Any) -> PeerIdentity | None:
    """Fill in the user name and client id that the listener takes from the certificate."""
    if identity is not None:
        identity.username = _part(identity, settings.cert_as_username)
        identity.client_id = _part(identity, settings.cert_as_client_id)
    return identity


def _part(identity: PeerIdentity, part: str) -> str | None:
    if part == "cn":
        return identity.common_name
    if part == "dn":
        return identity.subject
    if part == "san" and identity.sans:
        return identity.sans[0].partition(":")[2]
    return None


def _sans(certificate: x509.Certificate) -> list[str]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    found = []
    for name in extension.value:
        if isinstance(name, x509.DNSName):
            found.append(f"DNS:{name.value}")
        elif isinstance(name, x509.UniformResourceIdentifier):
            found.append(f"URI:{name.value}")
        elif isinstance(name, x509.RFC822Name):
            found.append(f"email:{name.value}")
        elif isinstance(name, x509.IPAddress):
            found.append(f"IP:{name.value}")
    return found


def host_names(path: str) -> list[str]:
    """The host names a certificate file is for."""
    return [san[4:].lower() for san in _sans(leaf_of(path)) if san.startswith("DNS:")]


def by_name(names: dict[str, Any], name: str) -> Any:
    """The entry for a host name: its own, else that of the wildcard above it."""
    name = name.lower()
    found = names.get(name)
    if found is None and "." in name:
        found = names.get("*." + name.partition(".")[2])
    return found


def leaf_of(path: str) -> x509.Certificate:
    """The first certificate in a PEM file. Raises `TlsError`."""
    try:
        with open(path, "rb") as file:
            return x509.load_pem_x509_certificates(file.read())[0]
    except (OSError, ValueError, IndexError) as error:
        raise TlsError(f"{path}: holds no certificate: {error}") from None


def list_ends(path: str) -> list[datetime]:
    """Until when the revocation lists in a file say that they hold."""
    end = b"-----END X509 CRL-----"
    with open(path, "rb") as file:
        parts = file.read().split(end)[:-1]
    try:
        lists = [x509.load_pem_x509_crl(part + end + b"\n") for part in parts]
    except ValueError as error:
        raise TlsError(f"{path}: {error}") from None
    return [each.next_update_utc for each in lists if each.next_update_utc is not None]


def check_dates(path: str, certificate: x509.Certificate) -> None:
    """Raise `TlsError` for a certificate that does not hold today."""
    now = datetime.now(UTC)
    if certificate.not_valid_after_utc < now:
        raise TlsError(f"{path}: expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
    if certificate.not_valid_before_utc > now:
        begins = certificate.not_valid_before_utc
        raise TlsError(f"{path}: not valid before {begins:%Y-%m-%d %H:%M} UTC")
