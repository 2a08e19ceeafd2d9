"""What all that serves TLS shares: its error, its ciphers, PEM files as pyOpenSSL objects."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["CIPHERS", "TlsError", "load_pair", "pair_fault"]

#: TLS 1.2 suites with forward secrecy and authenticated encryption.
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20:!aNULL:!eNULL"

_END: Final = b"-----END CERTIFICATE-----"


class TlsError(Exception):
    """Certificates cannot be used; the text names the file and what is wrong with it."""


def load_pair(certificate: str, private_key: str) -> tuple[Any, list[Any]]:
    """The key, and the certificate with those behind it in its file, for pyOpenSSL.

    Raises OSError, or ValueError and `OpenSSL.crypto.Error` for what is no PEM; an encrypted key
    is one of them, nobody is asked for its password.
    """
    from OpenSSL import crypto

    with open(certificate, "rb") as file:
        parts = file.read().split(_END)[:-1]
    with open(private_key, "rb") as file:
        key = crypto.load_privatekey(crypto.FILETYPE_PEM, file.read(), b"")
    pem = crypto.FILETYPE_PEM
    return key, [crypto.load_certificate(pem, part + _END + b"\n") for part in parts]


def pair_fault(certificate: str, private_key: str) -> str:
    """What two files lack that are no certificate with its key; "" where both have something."""
    with open(certificate, "rb") as file:
        first = file.read()
    with open(private_key, "rb") as file:
        second = file.read()
    begins, key = b"-----BEGIN CERTIFICATE-----", b"PRIVATE KEY-----"
    if begins not in first and key in first and begins in second and key not in second:
        return "the certificate's file holds a private key, the key's a certificate: swap them"
    if begins not in first:
        return f"{certificate} holds no certificate (PEM)"
    if key not in second:
        return f"{private_key} holds no private key (PEM)"
    return ""
