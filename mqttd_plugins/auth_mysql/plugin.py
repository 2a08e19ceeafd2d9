"""Authenticates clients against a MySQL or MariaDB data base, with PyMySQL.

    CONNECT --> query --> row --> password hash --> acl_query --> rows --> rules of this client
                '---- a thread of the plugin, a connection of its pool ----'

Promise: values are parameters, escaped by the library for the connection's character set (utf8mb4);
a placeholder within quotes is refused when the plugin is loaded. Connections only read, give up
after `timeout`, send the server no file, and verify its certificate unless it is on this machine.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any, Final

import pymysql
from zope.interface import implementer

from mqttd.interfaces import IPlugin, IPluginHandle
from mqttd.plugins.backends.asking import Threaded
from mqttd.plugins.backends.settings import is_local, read_secret, require_encryption
from mqttd.plugins.backends.sql import Sql, SqlSettings

__all__ = ["AuthMysql", "Settings"]

_PORT: Final = 3306
_LOST: Final = (pymysql.OperationalError, pymysql.InterfaceError, OSError)


class Settings(SqlSettings, frozen=True, kw_only=True):
    """What ``etc/plugins/auth_mysql.conf`` may say."""

    #: Encrypt: by default wherever the server is not on this machine.
    tls: bool | None = None


@implementer(IPlugin)
class AuthMysql:
    """The running part. `connect` is how tests stand in for PyMySQL."""

    def __init__(self, connect: Callable[..., Any] | None = None) -> None:
        self._connect = connect or pymysql.connect
        self._sql: Sql | None = None

    def load(self, handle: IPluginHandle, config: Settings) -> None:
        """Register the module; nothing is connected before a client is asked about."""
        port = config.port or _PORT
        tls = not is_local(config.host) if config.tls is None else config.tls
        require_encryption(f"host = {config.host!r}", config.host, tls, config.plaintext)
        parameters = _parameters(config, port, tls)
        self._sql = sql = Sql(
            config,
            lambda: self._connect(**parameters),
            _LOST,
            (pymysql.DataError,),
            lambda connection: bool(connection.open),
        )
        text = f"auth_mysql: {config.user}@{config.host}:{port}/{config.database}"
        module = Threaded(handle, text, sql.needs, sql.ask, config.timeout)
        handle.register_mod("auth", handle.name, module)

    def unload(self) -> None:
        """Close the connections."""
        if self._sql is not None:
            self._sql.close()


def _parameters(config: Settings, port: int, tls: bool) -> dict[str, Any]:
    server = {"unix_socket": config.host} if config.host.startswith("/") else {"host": config.host}
    encrypted: dict[str, Any] = {"ssl_disabled": True}
    if tls:
        encrypted = {"ssl": ssl.create_default_context(cafile=config.ca_file or None)}
    return {
        **server,
        **encrypted,
        "port": port,
        "user": config.user,
        "password": read_secret("password", config.password, config.password_file),
        "database": config.database,
        "charset": "utf8mb4",
        "autocommit": True,
        "connect_timeout": config.timeout,
        "read_timeout": config.timeout,
        "write_timeout": config.timeout,
        "init_command": "SET SESSION TRANSACTION READ ONLY",
        "local_infile": False,
    }
