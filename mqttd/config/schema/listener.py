"""What every listener has, and what every TCP port has: ``[listener.KIND.NAME]``."""

from __future__ import annotations

import ipaddress
import sys
from typing import Annotated, Literal

from msgspec import Meta, Struct

from mqttd.config.schema import keys
from mqttd.config.schema.keys import DAY, GIB, HOUR, MIB, NEVER, Bind

__all__ = ["Listener", "Network", "SocketListener"]

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Listener(Struct, frozen=True, kw_only=True):
    """What every listener has, whatever carries its bytes."""

    max_connections: Annotated[
        int,
        keys.count(
            "Connections open at the same time; further ones wait in the kernel, of several workers"
            " each is told 0x97; 0 takes what the open-file limit of the process leaves.",
            "listener",
            0,
            10_000_000,
        ),
    ] = 0
    max_connections_per_address: Annotated[
        int,
        keys.count(
            "Connections open at the same time from one address (an IPv6 address counts with its"
            " /64, behind a proxy that of the PROXY header, Unix sockets together as one); further"
            " ones are closed; 0 takes all but a fiftieth of `max_connections`, at least 1000.",
            "listener",
            0,
            10_000_000,
        ),
    ] = 0
    max_strangers_per_address: Annotated[
        int,
        keys.count(
            "Of these, how many whose CONNECT has not come; beyond it, or where there are"
            " `max_connections`, whoever was silent for longest, and at least for 1 s, is closed to"
            " make room; 0 has no limit.",
            "listener",
            0,
            10_000_000,
        ),
    ] = 500
    accept_rate: Annotated[
        int,
        keys.count(
            "Connections let in a second, twice as many at once after a pause; further ones stand"
            " in a line of their address, and each address has its turn; 0 has no limit.",
            "listener",
            0,
            1_000_000,
        ),
    ] = 5000
    first_byte_timeout: Annotated[
        float,
        keys.duration(
            "Time from an accepted connection to its first byte, where nothing comes before MQTT"
            " (TLS has `handshake_timeout`); 0 gives it as long as for CONNECT.",
            "connection",
            0,
            HOUR,
        ),
    ] = 5.0
    connect_timeout: Annotated[
        float,
        keys.duration(
            "Time from an accepted connection to its complete CONNECT; 0 takes"
            " `mqtt.connect_timeout`.",
            "connection",
            0,
            HOUR,
        ),
    ] = 0.0
    max_packet_size: Annotated[
        int,
        keys.size(
            "Largest packet a client may send here; 0 takes `mqtt.max_packet_size`.",
            "connection",
            0,
            256 * MIB,
        ),
    ] = 0
    durability: Annotated[
        Literal["", "none", "os", "fsync"],
        keys.plain(
            "What PUBACK and PUBREC promise here, as `durability.default`; empty takes that, and"
            " `durability.topics` comes before it.",
            "message",
        ),
    ] = ""
    bytes_rate: Annotated[
        int,
        keys.size(
            "Bytes a second that are read from one connection; above it, reading pauses; 0 has no"
            " limit.",
            "connection",
            0,
            1024 * GIB,
        ),
    ] = 0
    messages_rate: Annotated[
        int,
        keys.count(
            "Messages (PUBLISH) a second that are taken from one connection, in the same way.",
            "connection",
            0,
            100_000_000,
        ),
    ] = 0
    all_bytes_rate: Annotated[
        int,
        keys.size(
            "Bytes a second that are read from all connections of the listener together.",
            "listener",
            0,
            1024 * GIB,
        ),
    ] = 0
    all_messages_rate: Annotated[
        int,
        keys.count(
            "Messages a second that are taken from all connections of the listener together.",
            "listener",
            0,
            100_000_000,
        ),
    ] = 0
    send_rate: Annotated[
        int,
        keys.size(
            "Bytes a second that are written to one connection; what waits longer counts for"
            " `output.high_watermark`; 0 has no limit.",
            "connection",
            0,
            1024 * GIB,
        ),
    ] = 0
    burst: Annotated[
        float,
        keys.duration(
            "How much of these rates may come at once after a pause, as the time it would take.",
            "listener",
            0.5,
            HOUR,
        ),
    ] = 1.0
    flapping_disconnects: Annotated[
        int,
        keys.count(
            "Disconnects of one client id, of one user or, without a user name, from one address,"
            " within `flapping_window` for which that client is banned; 0 bans nobody.",
            "listener",
            0,
            1_000_000,
        ),
    ] = 0
    flapping_window: Annotated[
        float,
        keys.duration("Time within which they count.", "listener", 1, DAY),
    ] = 60.0
    flapping_ban: Annotated[
        float,
        keys.duration("Time such a client is banned.", "listener", 1, NEVER),
    ] = 300.0
    transport: Annotated[
        Literal["engine", "twisted"],
        keys.plain(
            "Which code moves the bytes: `engine`, the broker's own socket loop, or `twisted`, the"
            " reactor's transports.",
            "listener",
            reload=False,
        ),
    ] = "engine"
    protocol_versions: Annotated[
        tuple[Literal["3.1", "3.1.1", "5.0"], ...],
        keys.plain(
            "MQTT versions a client may speak here; others are refused with reason 0x84.",
            "listener",
            expects='a list of "3.1", "3.1.1" and "5.0"',
        ),
    ] = ("3.1", "3.1.1", "5.0")
    auth_chain: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        keys.plain(
            "Authentication modules of this listener; empty takes `auth.chain`.",
            "listener",
        ),
    ] = ()
    acl_file: Annotated[
        str,
        keys.path(
            "File with the access rules of this listener; empty takes `acl.file`.",
            reload=True,
            pattern=r"^[^\0]*$",
        ),
    ] = ""
    mountpoint: Annotated[
        str,
        keys.plain(
            "Prefix of every topic name and filter of the clients here, put on and taken off by the"
            " broker, such as `dev/%c/`: `%c` is the client id, `%u` the user name, at most one in"
            " a level, and a client whose value has `/`, `+` or `#` in it is refused; access rules"
            " see the full names; empty: none.",
            "listener",
            reload=False,
            pattern=r"^(?!\$|.*\$\{)([^/+#%\0]*(%[cu][^/+#%\0]*)?/)*\Z",
            expects='levels that each end with "/", without wildcards, such as "dev/%c/"',
        ),
    ] = ""


class SocketListener(Listener, frozen=True, kw_only=True):
    """What the listeners on a TCP port have."""

    bind: Bind = "127.0.0.1:1883"
    backlog: Annotated[
        int,
        keys.count(
            "Connections the kernel keeps waiting until the broker accepts them (the kernel's own"
            " limit, net.core.somaxconn, caps it), and as many that wait for `accept_rate`; beyond"
            " these the last of the address of which most wait is closed.",
            "listener",
            1,
            65535,
            reload=False,
        ),
    ] = 4096
    nodelay: Annotated[
        bool,
        keys.plain(
            "Send small packets at once (TCP_NODELAY) instead of gathering them.",
            "listener",
            reload=False,
        ),
    ] = True
    defer_accept: Annotated[
        bool,
        keys.plain(
            "Leave a connection to the kernel until its first bytes are there (TCP_DEFER_ACCEPT,"
            " Linux): saves a fifth of what a connection costs; one that sends nothing comes a"
            " second later.",
            "listener",
            reload=False,
        ),
    ] = True
    reuse_port: Annotated[
        bool,
        keys.plain(
            "Share the port (SO_REUSEPORT, Linux) with other nodes of the cluster on this machine"
            " that say so, too, and run as the same user: the kernel spreads connections over"
            " them.",
            "listener",
            reload=False,
        ),
    ] = False
    access: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        keys.plain(
            'Who may connect by address, such as `["deny 10.0.0.7", "allow 10.0.0.0/8", "deny'
            ' all"]`: the first rule that matches decides; with `proxy_protocol`, by the address'
            " the proxy names.",
            "listener",
            expects='a list of "allow NETWORK" or "deny NETWORK", the last one for "all"',
        ),
    ] = ("allow all",)
    proxy_protocol: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        keys.plain(
            "Networks of the proxies that send a PROXY protocol header (version 1 or 2) before"
            ' anything else, such as `["10.0.0.0/8"]`; connections from elsewhere are then refused;'
            " an empty list expects no header.",
            "listener",
            reload=False,
            expects='a list of networks such as ["10.0.0.0/8", "::1/128"]',
        ),
    ] = ()
    cert_as_username: Annotated[
        Literal["none", "cn", "dn", "san"],
        keys.plain(
            "Part of the client's certificate that becomes its user name: common name, whole"
            " subject, or first subject alternative name; a PROXY header can give `cn`.",
            "listener",
        ),
    ] = "none"
    cert_as_client_id: Annotated[
        Literal["none", "cn", "dn", "san"],
        keys.plain(
            "Part of the client's certificate that becomes its client id, as above.",
            "listener",
        ),
    ] = "none"

    @property
    def rules(self) -> list[tuple[bool, Network | None]]:
        """`access` as (allowed, network), None for all; raises ValueError for what is no rule."""
        parsed: list[tuple[bool, Network | None]] = []
        for rule in self.access:
            word, _, where = rule.strip().partition(" ")
            where = where.strip()
            if word not in ("allow", "deny"):
                raise ValueError(f"{rule!r} is neither `allow` nor `deny` of something")
            try:
                network = None if where == "all" else ipaddress.ip_network(where)
            except ValueError as error:
                raise ValueError(f"{rule!r} names no network ({error})") from None
            parsed.append((word == "allow", network))
        if not parsed or parsed[-1][1] is not None:
            raise ValueError("the last one has to be `allow all` or `deny all`")
        return parsed

    def unshared(self, clustered: bool) -> str:
        """Why `reuse_port` cannot be; empty where it can. `clustered`: this is to be a node."""
        if not self.reuse_port:
            return ""
        if sys.platform != "linux":
            return "only Linux spreads connections over those who share a port"
        if not clustered:
            return 'those who share a port are nodes of one cluster, cluster.kind = "etcd"'
        if not self.address[1]:
            return f"the port of {self.bind} is another one for each node"
        return ""

    @property
    def address(self) -> tuple[str, int]:
        """`bind` as (host, port); an empty host is every address."""
        host, _, port = self.bind.rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)
