"""Authenticates clients against a PostgreSQL data base, with psycopg.

    CONNECT --> query --> row --> password hash --> acl_query --> rows --> rules of this client
                '---- a thread of the plugin, a connection of its pool ----'

Promise: values are bound by the server, never put into the query. Connections only read, give up
after `timeout`, and verify the server's certificate unless it is on this machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus
from zope.interface import implementer

from mqttd.interfaces import IPlugin, IPluginHandle
from mqttd.plugins.backends.asking import Threaded
from mqttd.plugins.backends.settings import is_local, read_secret, require_encryption
from mqttd.plugins.backends.sql import Sql, SqlSettings

__all__ = ["AuthPgsql", "Settings"]

_PORT: Final = 5432
_LOST: Final = (psycopg.OperationalError, psycopg.InterfaceError)


class Settings(SqlSettings, frozen=True, kw_only=True):
    """What ``etc/plugins/auth_pgsql.conf`` may say."""

    #: Encrypt: by default wherever the server is not on this machine.
    tls: bool | None = None


@implementer(IPlugin)
class AuthPgsql:
    """The running part. `connect` is how tests stand in for psycopg."""

    def __init__(self, connect: Callable[..., Any] | None = None) -> None:
        self._connect = connect
        self._sql: Sql | None = None

    def load(self, handle: IPluginHandle, config: Settings) -> None:
        """Register the module; nothing is connected before a client is asked about."""
        port = config.port or _PORT
        tls = not is_local(config.host) if config.tls is None else config.tls
        require_encryption(f"host = {config.host!r}", config.host, tls, config.plaintext)
        parameters = _parameters(config, port, tls)
        connect = self._connect or _Bounded.connect

        def opened() -> Any:
            connection = connect(autocommit=True, **parameters)
            connection.patience = config.timeout
            return connection

        self._sql = sql = Sql(config, opened, _LOST, (psycopg.DataError,), _is_idle)
        where = f"{config.host}:{port}/{config.database}"
        text = f"auth_pgsql: {config.user}@{where}"
        module = Threaded(handle, text, sql.needs, sql.ask, config.timeout)
        handle.register_mod("auth", handle.name, module)

    def unload(self) -> None:
        """Close the connections."""
        if self._sql is not None:
            self._sql.close()


def _parameters(config: Settings, port: int, tls: bool) -> dict[str, Any]:
    return {
        "host": config.host,
        "port": port,
        "dbname": config.database,
        "user": config.user,
        "password": read_secret("password", config.password, config.password_file) or None,
        "sslmode": "verify-full" if tls else "disable" if config.tls is False else "prefer",
        "sslrootcert": (config.ca_file or "system") if tls else None,
        "connect_timeout": max(round(config.timeout), 2),
        "application_name": "mqttd",
        "client_encoding": "UTF8",
        "options": (
            f"-c statement_timeout={int(config.timeout * 1000)} -c default_transaction_read_only=on"
        ),
    }


def _is_idle(connection: Any) -> bool:
    """Whether a connection can be used after an error."""
    return bool(
        not connection.broken and connection.info.transaction_status == TransactionStatus.IDLE
    )


class _Bounded(psycopg.Connection[Any]):
    """A connection on which each answer has its time: a server that hangs still acknowledges."""

    patience: float = 3.0

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """As psycopg's, with a time-out."""
        kwargs.setdefault("timeout", self.patience)
        return super().wait(gen, *args, **kwargs)
