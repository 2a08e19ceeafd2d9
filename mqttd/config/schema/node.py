"""The broker as operators see it: ``[node]``, ``[plugins]``, ``[admin]``, ``[log]``, ``[sys]``."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from mqttd.config.schema import keys
from mqttd.config.schema.keys import DAY

__all__ = ["Admin", "AdminTcp", "Log", "Node", "Plugins", "Sys"]


class Node(Struct, frozen=True, kw_only=True):
    """Who this broker is and where it keeps its data."""

    name: Annotated[
        str,
        keys.plain(
            "Name of this broker, as $SYS topics, logs and message ids show it; letters, digits"
            " and `_ . @ -`, at most 64.",
            reload=False,
            pattern=r"^[A-Za-z0-9_.@-]{1,64}\Z",
            expects="a name of 1 to 64 letters, digits and _ . @ -",
        ),
    ] = "mqttd"
    data_dir: Annotated[
        str,
        keys.path(
            "Directory for what the broker stores; created when missing, used by one broker."
        ),
    ] = "../data"


class Plugins(Struct, frozen=True, kw_only=True):
    """Plugins of this broker; an installed plugin does nothing until it is named here."""

    load: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        keys.plain("Plugins to load at start, in this order."),
    ] = ()
    dir: Annotated[
        str,
        keys.path("Directory whose Python files are plugins too; it may be missing.", reload=True),
    ] = "plugins"


class AdminTcp(Struct, frozen=True, kw_only=True):
    """The HTTP interface for other machines, such as Spark's: closed until a file of tokens is
    named."""

    bind: Annotated[str, keys.address("broker", reload=True)] = "127.0.0.1:8081"
    token_file: Annotated[
        str,
        keys.path(
            "File of bearer tokens, one a line, each of which may do everything; empty: none.",
            reload=True,
            pattern=r"^[^\0]*$",
        ),
    ] = ""
    pull_token_file: Annotated[
        str,
        keys.path(
            "File of bearer tokens that may read the event log and nothing else; empty: none.",
            reload=True,
            pattern=r"^[^\0]*$",
        ),
    ] = ""
    certificate: Annotated[
        str,
        keys.path(
            "PEM file with the certificate, then those that lead to its issuer; empty speaks plain"
            " HTTP, which only a loopback address may.",
            reload=True,
            pattern=r"^[^\0]*$",
        ),
    ] = ""
    private_key: Annotated[
        str,
        keys.path("PEM file with the certificate's private key.", reload=True, pattern=r"^[^\0]*$"),
    ] = ""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of `bind`; the host is empty for all addresses."""
        host, _, port = self.bind.rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)


class Admin(Struct, frozen=True, kw_only=True):
    """The operator's door, used by mqttd-ctl."""

    socket: Annotated[
        str,
        keys.path(
            "Unix socket of the HTTP interface, mode 0600; empty is `mqttd.sock` in the data"
            " directory.",
            pattern=r"^[^\0]*$",
        ),
    ] = ""
    tcp: AdminTcp = AdminTcp()


class Log(Struct, frozen=True, kw_only=True):
    """What the broker says about itself."""

    level: Annotated[
        Literal["debug", "info", "warn", "error", "critical"],
        keys.plain("Least important level that is logged."),
    ] = "info"


class Sys(Struct, frozen=True, kw_only=True):
    """The broker's own topics under `$SYS`."""

    interval: Annotated[
        float,
        keys.duration(
            "Time between two publications of `$SYS` topics; 0 publishes none.", "broker", 0, DAY
        ),
    ] = 60.0
