"""Certificates for tests: an authority, servers, clients, a revocation list, made in milliseconds.

authority = Authority()
authority.write(folder)                         ca.crt, ca.crl
authority.server("localhost").write(folder, "server")       server.crt, server.key
authority.client("device-7").write(folder, "client")        client.crt, client.key
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["Authority", "Certificate"]

DAY = timedelta(days=1)


def name(common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "mqttd tests"),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


@dataclass
class Certificate:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    def write(self, folder: Path, stem: str) -> None:
        """As `stem`.crt and `stem`.key."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{stem}.crt").write_bytes(self.pem())
        (folder / f"{stem}.key").write_bytes(self.key_pem())
        (folder / f"{stem}.key").chmod(0o600)


@dataclass
class Authority:
    """A certificate authority of its own."""

    common_name: str = "mqttd test authority"
    key: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )
    revoked: list[Certificate] = field(default_factory=list)

    def __post_init__(self) -> None:
        now = datetime.now(UTC)
        public = self.key.public_key()
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(name(self.common_name))
            .issuer_name(name(self.common_name))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + 30 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=True, content_commitment=False, key_encipherment=False,
                    data_encipherment=False, key_agreement=False, key_cert_sign=True,
                    crl_sign=True, encipher_only=False, decipher_only=False,
                ),
                critical=True,
            )
            .sign(self.key, hashes.SHA256())
        )  # fmt: skip

    def issue(
        self,
        common_name: str,
        names: list[x509.GeneralName],
        server: bool,
        days: float = 10,
        both: bool = False,
    ) -> Certificate:
        """A certificate valid from yesterday for `days` (negative: expired)."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        end = now + days * DAY
        usages = [ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH]
        if both:
            usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            x509.CertificateBuilder()
            .subject_name(name(common_name))
            .issuer_name(self.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, end) - DAY)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return Certificate(builder.sign(self.key, hashes.SHA256()), key)

    def server(self, *hosts: str, days: float = 10) -> Certificate:
        """For a server with these host names (and 127.0.0.1)."""
        names: list[x509.GeneralName] = [x509.DNSName(host) for host in hosts]
        names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        return self.issue(hosts[0], names, True, days)

    def both(self, name: str, address: str) -> Certificate:
        """For a server at this address that is a client of itself, as etcd is."""
        names: list[x509.GeneralName] = [
            x509.DNSName(name),
            x509.IPAddress(ipaddress.ip_address(address)),
        ]
        return self.issue(name, names, True, both=True)

    def node(self, name: str) -> Certificate:
        """For a node of a cluster, which is server and client."""
        return self.issue(name, [x509.DNSName(name)], True, both=True)

    def client(self, common_name: str, san: str = "", days: float = 10) -> Certificate:
        """For a client."""
        names: list[x509.GeneralName] = [x509.DNSName(san)] if san else []
        return self.issue(common_name, names, False, days)

    def write(self, folder: Path, days: float = 7) -> None:
        """The authority's certificate and revocation list (good for `days`), ca.crt and ca.crl."""
        folder.mkdir(parents=True, exist_ok=True)
        pem = self.certificate.public_bytes(serialization.Encoding.PEM)
        (folder / "ca.crt").write_bytes(pem)
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(now - 9 * DAY)
            .next_update(now + days * DAY)
        )
        for each in self.revoked:
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(each.certificate.serial_number)
                .revocation_date(now - timedelta(minutes=1))
                .build()
            )
        crl = builder.sign(self.key, hashes.SHA256())
        (folder / "ca.crl").write_bytes(crl.public_bytes(serialization.Encoding.PEM))
