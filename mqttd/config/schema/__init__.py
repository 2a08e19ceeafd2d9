"""The broker's configuration as immutable values, one struct per table of ``etc/mqttd.conf``.

The structs are the single source: the loader takes types, ranges and defaults from here, the
reference page and the shipped file are written from the descriptions here, so none can disagree.

    etc/mqttd.conf ─┐
    MQTTD__… ───────┴─> load ──> Config ─┬─ .mqtt.max_packet_size         int, bytes
                                         ├─ .session.retry_interval       float, seconds
                                         └─ .listener["tcp"]["default"]   TcpListener

Once loaded, sizes are ``int`` bytes; durations that travel in packets are ``int`` seconds, the
others ``float`` seconds; ``"never"`` is `NEVER`, the value MQTT 5.0 gives to an interval that does
not end (3.1.2.11.2). ``Config()`` alone holds the defaults, its paths still relative.

Imports the standard library and msgspec only: every layer may depend on this module.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from mqttd.config.schema.acl import Acl, AclShadow
from mqttd.config.schema.auth import (
    Auth,
    AuthBackend,
    AuthFailures,
    CertificateAuth,
    ClientidAuth,
    JwtAuth,
    PasswordAuth,
    ScramAuth,
    UsernameAuth,
)
from mqttd.config.schema.cluster import Cluster
from mqttd.config.schema.jetstream import Jetstream
from mqttd.config.schema.keys import DAY, GIB, HOUR, KIB, MIB, MINUTE, NEVER
from mqttd.config.schema.listener import Listener, Network, SocketListener
from mqttd.config.schema.listener_kinds import (
    LISTENER_KINDS,
    EndpointListener,
    SslListener,
    TcpListener,
    UnixListener,
    WsListener,
    WssListener,
)
from mqttd.config.schema.mqtt import Memory, Mqtt, Mqueue, Retained, Session
from mqttd.config.schema.node import Admin, AdminPage, AdminTcp, Log, Node, Plugins, Sys
from mqttd.config.schema.output import Output, Overload
from mqttd.config.schema.store import Durability, Store
from mqttd.config.schema.trace import Trace

__all__ = [
    "Acl",
    "AclShadow",
    "Admin",
    "AdminPage",
    "AdminTcp",
    "Auth",
    "AuthBackend",
    "AuthFailures",
    "CertificateAuth",
    "ClientidAuth",
    "Cluster",
    "Config",
    "DAY",
    "Durability",
    "EndpointListener",
    "GIB",
    "HOUR",
    "Jetstream",
    "JwtAuth",
    "KIB",
    "LISTENER_KINDS",
    "Listener",
    "Log",
    "MIB",
    "MINUTE",
    "Memory",
    "Mqtt",
    "Mqueue",
    "NEVER",
    "Network",
    "Node",
    "Output",
    "Overload",
    "PasswordAuth",
    "Plugins",
    "Retained",
    "ScramAuth",
    "Session",
    "SocketListener",
    "SslListener",
    "Store",
    "Sys",
    "TcpListener",
    "Trace",
    "UnixListener",
    "UsernameAuth",
    "WsListener",
    "WssListener",
]


class Config(Struct, frozen=True, kw_only=True):
    """Everything the file can say; `Config()` alone holds the defaults."""

    node: Node = Node()
    cluster: Cluster = Cluster()
    jetstream: Jetstream = Jetstream()
    mqtt: Mqtt = Mqtt()
    session: Session = Session()
    mqueue: Mqueue = field(default_factory=Mqueue)
    retained: Retained = Retained()
    store: Store = Store()
    durability: Durability = field(default_factory=Durability)
    memory: Memory = Memory()
    output: Output = Output()
    overload: Overload = Overload()
    listener: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {"tcp": {"default": TcpListener()}}
    )
    """Listener kind -> name -> listener; never empty."""
    auth: Auth = Auth()
    acl: Acl = Acl()
    plugins: Plugins = Plugins()
    admin: Admin = Admin()
    log: Log = field(default_factory=Log)
    trace: Trace = Trace()
    sys: Sys = Sys()

    path: str = ""
    """Absolute path of the file this was read from; empty when there was none."""
    given: dict[str, str] = field(default_factory=dict)
    """Dotted path of each key that was set, `auth.username.file`, and where: `mqttd.conf:12`."""

    def at(self, key: str) -> str:
        """A key, behind file and line where it was set."""
        where = self.given.get(key)
        return key if where is None else f"{where}: {key}"
