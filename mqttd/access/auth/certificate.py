"""Clients that hold a certificate: who they are stands in it.

::

    TLS listener --(verified by its CA)--> subject CN=pump-7,O=plant   SAN DNS:pump-7.plant
                                              |                            |
                               user name:  cn | dn                    dns | uri | email

The listener has verified the chain and that the client holds the key; this module takes the name.
The promise: no certificate is IGNORE, a certificate without the name that was asked for refuses;
the user name that the client says does not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from zope.interface import implementer

from mqttd.interfaces import IAuthenticator
from mqttd.types import AUTH_IGNORE, AuthError, AuthOk, AuthVerdict, ClientInfo

__all__ = ["CertificateName"]

_SANS: Final = {"dns": "DNS:", "uri": "URI:", "email": "email:"}
_CHOICES: Final = ("cn", "dn", *_SANS)


@implementer(IAuthenticator)
class CertificateName:
    """Accepts clients with a verified certificate.

    Options: ``username``, what of it is the user name: cn, dn, dns, uri or email;
    ``same_client_id`` (False): the client identifier has to be that name.
    """

    def __init__(self) -> None:
        self._username = "cn"
        self._same_client_id = False

    def init(self, opts: Mapping[str, object]) -> None:
        """Take the options; ValueError if one is none of those."""
        username = str(opts.get("username", "cn"))
        if username not in _CHOICES:
            raise ValueError(
                f"auth.certificate.username = {username!r}: expected one of {', '.join(_CHOICES)}"
            )
        self._username = username
        self._same_client_id = bool(opts.get("same_client_id", False))

    def check(self, client: ClientInfo, password: bytes | None) -> AuthVerdict:
        """IGNORE without a certificate, OK with the name in it, ERROR if there is none."""
        if client.cert_subject is None:
            return AUTH_IGNORE
        name = self._name(client)
        # A name with a line end or a NUL in it was not meant for anything good.
        if not name or not name.isprintable():
            return AuthError(f"the certificate has no usable {self._username}", 0x87)
        if self._same_client_id and client.client_id != name:
            return AuthError("the client identifier is not the name in the certificate", 0x85)
        return AuthOk(username=name)

    def description(self) -> str:
        """What of the certificate is the user name."""
        also = ", which is the client identifier too" if self._same_client_id else ""
        return f"certificate: user name from {self._username}{also}"

    def _name(self, client: ClientInfo) -> str | None:
        if self._username == "cn":
            return client.cert_common_name
        if self._username == "dn":
            return client.cert_subject
        prefix = _SANS[self._username]
        for san in client.cert_sans:
            if san.startswith(prefix):
                return san[len(prefix) :]
        return None
