"""The broker as operators see it: ``[node]``, ``[plugins]``, ``[admin]``, ``[log]``, ``[sys]``."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field

from mqttd.config.schema import keys
from mqttd.config.schema.keys import DAY, GIB, KIB, MIB

__all__ = ["NODE_NAME", "Admin", "AdminPage", "AdminTcp", "Log", "Node", "Plugins", "Sys"]

#: A `node.name`.
NODE_NAME: Final = r"^[A-Za-z0-9_.@-]{1,64}\Z"

Level = Literal["debug", "info", "warn", "error", "critical"]


class Node(Struct, frozen=True, kw_only=True):
    """Who this broker is and where it keeps its data."""

    name: Annotated[
        str,
        keys.plain(
            "Name of this broker, as $SYS topics, logs and message ids show it; letters, digits"
            " and `_ . @ -`, at most 64.",
            reload=False,
            pattern=NODE_NAME,
            expects="a name of 1 to 64 letters, digits and _ . @ -",
        ),
    ] = "mqttd"
    data_dir: Annotated[
        str,
        keys.path(
            "Directory for what the broker stores; created when missing, used by one broker."
        ),
    ] = "../data"
    workers: Annotated[
        Annotated[int, Meta(ge=1, le=64)] | Literal["cores"],
        keys.plain(
            "Processes that serve clients, or `cores` for one on each core; with `cluster.kind`"
            " each is a node; docs/design/workers.md says what they cannot.",
            reload=False,
            expects='a number from 1 to 64, or "cores"',
        ),
    ] = 1


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
    max_store_bytes: Annotated[
        int,
        keys.size(
            "What each plugin may keep by `handle.store`: its keys and values, and 200 bytes for"
            " each; it is in memory, and counts in `memory.budget`.",
            "broker",
            0,
            4 * GIB,
        ),
    ] = 128 * MIB


class AdminTcp(Struct, frozen=True, kw_only=True):
    """The HTTP interface for other machines, closed until a file of tokens is named."""

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


class AdminPage(Struct, frozen=True, kw_only=True):
    """The dashboard in a browser; who may log in, `mqttd-ctl api-users` says."""

    enabled: Annotated[
        bool, keys.plain("Serve the dashboard, and the HTTP interface beside it.", reload=False)
    ] = False
    bind: Annotated[str, keys.address("broker")] = "127.0.0.1:18083"
    certificate: Annotated[
        str,
        keys.path(
            "PEM file with the certificate, then those that lead to its issuer; empty speaks plain"
            " HTTP, which only a loopback address may.",
            pattern=r"^[^\0]*$",
        ),
    ] = ""
    private_key: Annotated[
        str,
        keys.path("PEM file with the certificate's private key.", pattern=r"^[^\0]*$"),
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
    page: AdminPage = AdminPage()


class Log(Struct, frozen=True, kw_only=True):
    """What the broker says about itself."""

    level: Annotated[
        Level,
        keys.plain(
            "Least important level that is logged; of other libraries at least `warn`, that the"
            " broker is ready always."
        ),
    ] = "info"
    modules: Annotated[
        dict[Annotated[str, Meta(min_length=1)], Level],
        keys.plain(
            "Levels of modules of their own, and of what is below them; such as"
            ' `{ "mqttd.access" = "debug", "mqttd.plugin.webhook" = "warn" }`.',
            expects="a table of modules and levels, such as"
            ' { "mqttd.access" = "debug" }; levels are debug, info, warn, error, critical',
        ),
    ] = field(default_factory=dict)
    connections: Annotated[
        Literal["off", "debug", "info"],
        keys.plain(
            "Level of the lines about clients that connect and disconnect; `off` writes only those"
            " about clients that are refused, or that the broker ends."
        ),
    ] = "info"
    subscriptions: Annotated[
        Literal["off", "debug", "info"],
        keys.plain("Level of the lines about SUBSCRIBE and UNSUBSCRIBE; `off` writes none."),
    ] = "debug"
    rate: Annotated[
        int,
        keys.count(
            "Lines a second of each kind of event; those beyond it are counted, and the count is"
            " logged.",
            "broker",
            1,
            100_000,
        ),
    ] = 100
    to: Annotated[
        Literal["auto", "stderr", "file", "journal"],
        keys.plain(
            "Where the log goes: standard error, `file`, systemd's journal; `auto` is what"
            " `twistd --logfile` names, else standard error, of a daemon `twistd.log`.",
            reload=False,
        ),
    ] = "auto"
    format: Annotated[
        Literal["text", "json"],
        keys.plain("Lines for people or, one JSON object each, for programs.", reload=False),
    ] = "text"
    file: Annotated[
        str,
        keys.path('File of `to = "file"`; one that is moved away is opened anew.'),
    ] = "../data/mqttd.log"
    rotate: Annotated[
        int,
        keys.size(
            "Bytes after which the file is moved to `FILE.1` and a new one begun, as SIGUSR1 does;"
            " 0 leaves that to others.",
            "broker",
            0,
            64 * GIB,
            reload=False,
        ),
    ] = 10 * MIB
    keep: Annotated[
        int,
        keys.count("Older files that are kept.", "broker", 0, 1000, reload=False),
    ] = 5
    queue: Annotated[
        int,
        keys.size(
            "Bytes of lines that wait for whoever reads the log; those beyond it are dropped and"
            " counted, because the broker never waits for its log.",
            "broker",
            64 * KIB,
            GIB,
            reload=False,
        ),
    ] = MIB


class Sys(Struct, frozen=True, kw_only=True):
    """The broker's own topics under `$SYS`."""

    interval: Annotated[
        float,
        keys.duration(
            "Time between two publications of `$SYS` topics; 0 publishes none.", "broker", 0, DAY
        ),
    ] = 60.0
