"""TLS between nodes, and what etcd and NATS are shown: who is believed, by what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from twisted.internet.ssl import (
    Certificate,
    CertificateOptions,
    PrivateCertificate,
    optionsForClientTLS,
    trustRootFromCertificates,
)
from twisted.web.iweb import IPolicyForHTTPS
from zope.interface import implementer

from mqttd.config.schema.cluster import Cluster
from mqttd.config.schema.jetstream import Jetstream
from mqttd.net.addresses import is_local
from mqttd.net.tls import TlsError, load_pair

__all__ = ["etcd_access", "names_of", "nats_access", "node_options", "plain_etcd"]


def node_options(config: Cluster) -> Any:
    """The context factory of both ends of a stream between nodes; None: plain. Raises TlsError.

    Both show a certificate of the cluster's authority that names who they are, or there is no
    stream (`names_of`).
    """
    if not config.certificate:
        return None
    return CertificateOptions(
        **_pair(config.certificate, config.private_key), trustRoot=roots_of(config.ca_file)
    )


def names_of(certificate: Any) -> set[str]:
    """The nodes that a certificate (OpenSSL's X509) is of: its DNS names and its common name."""
    from cryptography import x509

    shown = certificate.to_cryptography()
    names = {
        str(each.value) for each in shown.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    }
    try:
        found = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return names
    return names.union(found.value.get_values_for_type(x509.DNSName))


def etcd_access(config: Cluster) -> tuple[Any, tuple[str, str] | None]:
    """What `Agent` takes for TLS with etcd (None: what it has by itself), and user and password.

    Raises TlsError.
    """
    login = None
    if config.etcd_user:
        password = _line("cluster.etcd_password_file", config.etcd_password_file)
        login = config.etcd_user, password
    if not config.etcd_ca_file and not config.etcd_certificate:
        return None, login
    roots = roots_of(config.etcd_ca_file, "cluster.etcd_ca_file") if config.etcd_ca_file else None
    own = None
    if config.etcd_certificate:
        own = private_of(config.etcd_certificate, config.etcd_private_key, "cluster.etcd_")
    return _Policy(roots, own), login


def plain_etcd(config: Cluster) -> str:
    """What it means that etcd is spoken to in plain beyond this machine; empty where it is not."""
    for endpoint in config.endpoints:
        parts = urlsplit(endpoint)
        if parts.scheme == "http" and not is_local(parts.hostname or ""):
            return (
                f"cluster.endpoints: {endpoint} is no https: what nodes and etcd say to each other"
                " can be read and changed on its way. Whoever may write to etcd has every right of"
                " a node: roles, bans, who owns a session, wills and where messages go, which all"
                " stand there in clear; https:// and cluster.etcd_ca_file protect it"
            )
    return ""


def nats_access(config: Jetstream) -> tuple[dict[str, Any], Callable[[str], Any] | None]:
    """What NATS is told of us, and what makes TLS of a connection to a host (None: plain).

    Raises TlsError.
    """
    said: dict[str, Any] = {}
    if config.user:
        said["user"] = config.user
    if config.password_file:
        said["pass"] = _line("jetstream.password_file", config.password_file)
    if config.token_file:
        said["auth_token"] = _line("jetstream.token_file", config.token_file)
    if not config.tls:
        return said, None
    roots = roots_of(config.ca_file, "jetstream.ca_file") if config.ca_file else None
    own = None
    if config.certificate:
        own = private_of(config.certificate, config.private_key, "jetstream.")
    return said, lambda host: optionsForClientTLS(host, roots, own)


def _line(key: str, path: str) -> str:
    """What stands in a file, without the end of its line."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise TlsError(f"{key} = {path!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TlsError(f"{key} = {path!r}: expected text in UTF-8") from None


@implementer(IPolicyForHTTPS)
class _Policy:
    def __init__(self, roots: Any, own: Any) -> None:
        self.roots = roots
        self.own = own

    def creatorForNetloc(self, hostname: bytes, port: int) -> Any:
        """See `IPolicyForHTTPS`."""
        return optionsForClientTLS(hostname.decode("ascii"), self.roots, self.own)


def _pair(certificate: str, private_key: str) -> dict[str, Any]:
    try:
        key, certificates = load_pair(certificate, private_key)
        return {
            "privateKey": key,
            "certificate": certificates[0],
            "extraCertChain": certificates[1:],
        }
    except Exception as error:
        raise TlsError(f"{certificate}, {private_key}: {error}") from None


def private_of(certificate: str, private_key: str, keys: str) -> Any:
    """A certificate with its key, which are named below `keys`. Raises TlsError."""
    at = f"{keys}certificate = {certificate!r}, {keys}private_key = {private_key!r}"
    try:
        with open(certificate, "rb") as file, open(private_key, "rb") as other:
            return PrivateCertificate.loadPEM(file.read() + b"\n" + other.read())
    except Exception as error:
        raise TlsError(f"{at}: {error}") from None


def roots_of(path: str, key: str = "cluster.ca_file") -> Any:
    """Those in the file that `key` names who vouch for others. Raises TlsError."""
    end = b"-----END CERTIFICATE-----"
    try:
        with open(path, "rb") as file:
            parts = file.read().split(end)[:-1]
        found = [Certificate.loadPEM(part + end + b"\n") for part in parts]
    except OSError as error:
        raise TlsError(f"{key} = {path!r}: {error.strerror}") from None
    except Exception as error:
        raise TlsError(f"{key} = {path!r}: {error}") from None
    if not found:
        raise TlsError(f"{key} = {path!r}: holds no certificate")
    return trustRootFromCertificates(found)
