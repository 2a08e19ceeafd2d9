"""Clients known by their client identifier, with a secret or without.

::

    # etc/clients.conf, mode 0600
    sensor-17                               may connect as it is
    sensor-18:$argon2id$v=19$...            has to show its secret as the password

A client identifier is said, not proved: list one without a secret only where nobody else can reach
the broker.  The promise: a user name that the client gives is not taken on trust.  With one, a line
without a secret is passed over; with a secret the user name has to be the client identifier (MQTT
3.1.1 has no password without a user name).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.defer import Deferred
from zope.interface import implementer

from mqttd.access.auth.hasher import Hasher, limits_of_hashing
from mqttd.access.auth.secret_file import SecretFileModule
from mqttd.interfaces import IAuthenticator
from mqttd.secrets import lines
from mqttd.secrets.passwords import expects, hash_password
from mqttd.types import AUTH_IGNORE, AUTH_OK, AuthVerdict, ClientInfo

__all__ = ["Clientid", "add_client"]


@implementer(IAuthenticator)
class Clientid(SecretFileModule):
    """Checks client identifiers against a file; options ``file`` and ``required`` (True).

    A client that is not in the file is ignored.  Arguments as
    `mqttd.access.auth.username.Username`; ``on_revoked`` is not called: sessions are not found by
    the identifiers that are gone, they end by `on_gone` (client identifiers).
    """

    def __init__(
        self,
        reactor: Any = None,
        pool: Any = None,
        on_gone: Callable[[str, frozenset[str]], None] | None = None,
        on_event: Callable[[str, dict[str, object]], None] | None = None,
    ) -> None:
        super().__init__("clientid", expects, True, reactor, on_gone, on_event, optional=True)
        self._hasher = Hasher(reactor, pool)
        #: See `IAuthenticator`.
        self.limits: Mapping[str, object] = limits_of_hashing({})

    def init(self, opts: Mapping[str, object]) -> None:
        """Read the file; `PasswordFileError` or OSError if that is not possible."""
        self.limits = self._hasher.settle(opts)
        super().init(opts)

    def recall(self, client: ClientInfo, password: bytes | None) -> AuthVerdict | None:
        """OK for what was verified a while ago, None where that has to be done."""
        if client.username is not None and client.username != client.client_id:
            return None
        known = self._hasher.recall(self._file.names, client.client_id, password)
        return AUTH_OK if known else None

    def check(
        self, client: ClientInfo, password: bytes | None
    ) -> AuthVerdict | Deferred[AuthVerdict]:
        """IGNORE for a client not in the file, else OK or ERROR."""
        proof = self._file.names.get(client.client_id)
        if proof is None:
            return AUTH_IGNORE
        if not proof:
            return AUTH_OK if client.username is None else AUTH_IGNORE
        if client.username is not None and client.username != client.client_id:
            return AUTH_IGNORE
        name = client.client_id
        return self._if_still(self._hasher.check(self._file.names, name, password), name)

    def description(self) -> str:
        """The file, how many clients it holds, and how many have to show a secret."""
        names = self._file.names
        secret = sum(1 for proof in names.values() if proof)
        clients = f"{len(names)} client{'' if len(names) == 1 else 's'}"
        return f"clientid: {clients} in {self._file.path}, {secret} with a secret"

    def close(self) -> None:
        """Stop the threads; waits for those that are hashing."""
        super().close()
        self._hasher.close()


def add_client(
    path: str | os.PathLike[str], client_id: str, secret: str | bytes | None = None
) -> bool:
    """Add a client identifier, or give it a new secret (None: none); True if it is new."""
    lines.check_name(client_id)
    proof = "" if secret is None else hash_password(secret)
    there = lines.read_lines(path, expects, True) if os.path.exists(path) else []
    new = all(line.name != client_id for line in there)
    text = f"{client_id}:{proof}" if proof else client_id
    texts = [text if line.name == client_id else line.text for line in there]
    lines.write(path, [*texts, text] if new else texts)
    return new
