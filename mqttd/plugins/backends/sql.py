"""Authentication against a data base of SQL: two queries and what is made of their rows.

    query      --> username, password_hash, salt, is_superuser   at most one row
    acl_query  --> permission, action, topic, qos, retain        a rule each, the password was right

Promise: queries have parameters; what a client calls itself is one of them. A value that the data
base cannot take (a name where a number is wanted) is a user that there is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta, field

from mqttd.plugins.backends.asking import Found, Judge
from mqttd.plugins.backends.hashes import PasswordHash
from mqttd.plugins.backends.pool import Pool
from mqttd.plugins.backends.rules import MOST_RULES, is_superuser
from mqttd.plugins.backends.settings import BackendSettings
from mqttd.plugins.backends.templates import Query
from mqttd.types import AuthError, AuthVerdict

__all__ = ["Sql", "SqlSettings"]


class SqlSettings(BackendSettings, frozen=True, kw_only=True):
    """What the configuration of a data base may say."""

    #: Host name or address of the server; a path that begins with / is its Unix socket.
    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    #: 0 is the server's usual port.
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    database: str = "mqtt"
    user: str = "mqttd"
    #: The password of `user`, or the file that holds it.
    password: str = ""
    password_file: str = ""
    #: The certificates that vouch for the server; empty are those of the system.
    ca_file: str = ""
    #: Columns username (as the data base writes it), password_hash, salt, is_superuser; only the
    #: hash has to be there.
    query: Annotated[str, Meta(min_length=1)] = (
        "SELECT username, password_hash, salt, is_superuser FROM mqtt_user"
        " WHERE username = ${username}"
    )
    #: Columns permission, action, topic, qos, retain; the last two may be missing. Empty: no rules.
    acl_query: str = ""
    #: How passwords are kept.
    password_hash: PasswordHash = field(default_factory=PasswordHash)


class Sql:
    """Asks a data base.

    `connect` opens a connection of DB-API 2.0; `lost` are its exceptions that end a connection,
    `data_errors` those that say that a value cannot be; `keep` says whether a connection can be
    used again after an exception.
    """

    def __init__(
        self,
        settings: SqlSettings,
        connect: Callable[[], Any],
        lost: tuple[type[BaseException], ...],
        data_errors: tuple[type[BaseException], ...],
        keep: Callable[[Any], bool],
    ) -> None:
        self._query = Query(settings.query, "query")
        self._acl_query = Query(settings.acl_query, "acl_query") if settings.acl_query else None
        self._judge = Judge(settings.password_hash, settings.unknown)
        self._pool: Pool[Any] = Pool(connect, lambda connection: connection.close(), lost, keep)
        self._data_errors = data_errors
        self.needs = self._query.names

    def ask(self, values: dict[str, str], password: bytes) -> AuthVerdict:
        """The verdict on a client; blocks."""
        try:
            rows = self._rows(self._query, values, 2)
        except self._data_errors:
            rows = []
        if len(rows) > 1:
            return AuthError("query: more than one row for this client")
        found = None
        if rows:
            row = rows[0]
            found = Found(
                _text(row.get("password_hash", row.get("password"))),
                _text(row.get("salt")) or "",
                is_superuser(row.get("is_superuser")),
                _text(row.get("username")),
            )
            if found.username is not None:
                values = {**values, "username": found.username}
        return self._judge.judge(found, password, lambda: self._rules(values))

    def close(self) -> None:
        """Let the connections go."""
        self._pool.close()

    def _rules(self, values: dict[str, str]) -> list[dict[str, Any]] | None:
        if self._acl_query is None:
            return None
        # A rule may ask for what not every client has; NULL is equal to nothing.
        values = dict.fromkeys(self._acl_query.names) | values  # type: ignore[assignment]
        return self._rows(self._acl_query, values, MOST_RULES + 1)

    def _rows(self, query: Query, values: dict[str, str], most: int) -> list[dict[str, Any]]:
        parameters = query.parameters(values)

        def read(connection: Any) -> list[dict[str, Any]]:
            with connection.cursor() as cursor:
                cursor.execute(query.text, parameters)
                names = [column[0].lower() for column in cursor.description or ()]
                return [dict(zip(names, row, strict=True)) for row in cursor.fetchmany(most)]

        return self._pool.run(read)


def _text(value: Any) -> str | None:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "replace")
    return None if value is None else str(value)
