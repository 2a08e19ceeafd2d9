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

import ipaddress
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, field

__all__ = [
    "DAY",
    "GIB",
    "HOUR",
    "KIB",
    "LISTENER_KINDS",
    "MIB",
    "MINUTE",
    "NEVER",
    "Acl",
    "AclShadow",
    "Admin",
    "AdminTcp",
    "Auth",
    "AuthBackend",
    "CertificateAuth",
    "ClientidAuth",
    "Config",
    "JwtAuth",
    "Log",
    "Mqtt",
    "Mqueue",
    "Node",
    "Output",
    "Overload",
    "Plugins",
    "Retained",
    "ScramAuth",
    "Session",
    "SocketListener",
    "SslListener",
    "Sys",
    "TcpListener",
    "UnixListener",
    "UsernameAuth",
    "WsListener",
    "WssListener",
]

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

NEVER: Final = 0xFFFFFFFF
"""Seconds of an interval that does not end: ``"never"`` in the file, 0xFFFFFFFF on the wire."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

Scope = Literal["broker", "listener", "connection", "session", "message"]


def _about(description: str, kind: str, scope: Scope, reload: bool, **more: Any) -> Meta:
    """What the loader and the reference know of one key: its kind, range, scope and reload."""
    limits = {key: more.pop(key) for key in ("ge", "le", "pattern", "max_length") if key in more}
    extra = {"kind": kind, "scope": scope, "reload": reload, **more}
    return Meta(description=description, extra=extra, **limits)


def _plain(text: str, scope: Scope = "broker", reload: bool = True, **more: Any) -> Meta:
    """A string, a boolean, a choice or a list."""
    return _about(text, "plain", scope, reload, **more)


def _count(text: str, scope: Scope, ge: float, le: float, reload: bool = True, **more: Any) -> Meta:
    """A number without a unit, between `ge` and `le`."""
    return _about(text, "count", scope, reload, ge=ge, le=le, **more)


def _size(text: str, scope: Scope, ge: int, le: int, reload: bool = True) -> Meta:
    """A number of bytes, written with its unit."""
    return _about(text, "size", scope, reload, ge=ge, le=le)


def _time(text: str, scope: Scope, ge: float, le: float, reload: bool = True) -> Meta:
    """A number of seconds, written with its unit; a range up to `NEVER` admits ``"never"``."""
    return _about(text, "duration", scope, reload, ge=ge, le=le)


def _path(text: str, reload: bool = False, **more: Any) -> Meta:
    """A file or directory, relative to the directory of the configuration file."""
    return _about(text, "path", "broker", reload, **{"pattern": r"^[^\0]+$", **more})


Bind = Annotated[
    str,
    _about(
        "Address and port to listen on: `host:port`, `[ipv6]:port`, or `:port` for all"
        " addresses; port 0 takes a free port, which the ready line names.",
        "bind",
        "listener",
        False,
    ),
]


class Listener(Struct, frozen=True, kw_only=True):
    """What every listener has, whatever carries its bytes."""

    max_connections: Annotated[
        int,
        _count(
            "Connections open at the same time; further ones wait in the kernel; 0 takes what the"
            " open-file limit of the process leaves.",
            "listener",
            0,
            10_000_000,
        ),
    ] = 0
    accept_rate: Annotated[
        int,
        _count(
            "Connections accepted a second, twice as many at once after a pause; further ones wait"
            " in the kernel; 0 has no limit.",
            "listener",
            0,
            1_000_000,
        ),
    ] = 5000
    first_byte_timeout: Annotated[
        float,
        _time(
            "Time from an accepted connection to its first byte, where nothing comes before MQTT"
            " (TLS has `handshake_timeout`); 0 gives it as long as for CONNECT.",
            "connection",
            0,
            HOUR,
        ),
    ] = 5.0
    connect_timeout: Annotated[
        float,
        _time(
            "Time from an accepted connection to its complete CONNECT; 0 takes"
            " `mqtt.connect_timeout`.",
            "connection",
            0,
            HOUR,
        ),
    ] = 0.0
    max_packet_size: Annotated[
        int,
        _size(
            "Largest packet a client may send here; 0 takes `mqtt.max_packet_size`.",
            "connection",
            0,
            256 * MIB,
        ),
    ] = 0
    bytes_rate: Annotated[
        int,
        _size(
            "Bytes a second that are read from one connection; above it, reading pauses; 0 has no"
            " limit.",
            "connection",
            0,
            1024 * GIB,
        ),
    ] = 0
    messages_rate: Annotated[
        int,
        _count(
            "Messages (PUBLISH) a second that are taken from one connection, in the same way.",
            "connection",
            0,
            100_000_000,
        ),
    ] = 0
    all_bytes_rate: Annotated[
        int,
        _size(
            "Bytes a second that are read from all connections of the listener together.",
            "listener",
            0,
            1024 * GIB,
        ),
    ] = 0
    all_messages_rate: Annotated[
        int,
        _count(
            "Messages a second that are taken from all connections of the listener together.",
            "listener",
            0,
            100_000_000,
        ),
    ] = 0
    send_rate: Annotated[
        int,
        _size(
            "Bytes a second that are written to one connection; what waits longer counts for"
            " `output.high_watermark`; 0 has no limit.",
            "connection",
            0,
            1024 * GIB,
        ),
    ] = 0
    burst: Annotated[
        float,
        _time(
            "How much of these rates may come at once after a pause, as the time it would take.",
            "listener",
            0.5,
            HOUR,
        ),
    ] = 1.0
    flapping_disconnects: Annotated[
        int,
        _count(
            "Disconnects of one client id within `flapping_window` for which it is banned; 0 bans"
            " nobody.",
            "listener",
            0,
            1_000_000,
        ),
    ] = 0
    flapping_window: Annotated[
        float,
        _time("Time within which they count.", "listener", 1, DAY),
    ] = 60.0
    flapping_ban: Annotated[
        float,
        _time("Time such a client is banned.", "listener", 1, NEVER),
    ] = 300.0
    transport: Annotated[
        Literal["engine", "twisted"],
        _plain(
            "Which code moves the bytes: `engine`, the broker's own socket loop, or `twisted`, the"
            " reactor's transports.",
            "listener",
            reload=False,
        ),
    ] = "engine"
    protocol_versions: Annotated[
        tuple[Literal["3.1", "3.1.1", "5.0"], ...],
        _plain(
            "MQTT versions a client may speak here; others are refused with reason 0x84.",
            "listener",
            expects='a list of "3.1", "3.1.1" and "5.0"',
        ),
    ] = ("3.1", "3.1.1", "5.0")
    auth_chain: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        _plain(
            "Authentication modules of this listener; empty takes `auth.chain`.",
            "listener",
            reload=False,
        ),
    ] = ()
    acl_file: Annotated[
        str,
        _path(
            "File with the access rules of this listener; empty takes `acl.file`.",
            pattern=r"^[^\0]*$",
        ),
    ] = ""
    mountpoint: Annotated[
        str,
        _plain(
            "Prefix of every topic name and filter of the clients here, put on and taken off by the"
            " broker, such as `dev/%c/`: `%c` is the client id, `%u` the user name, at most one in"
            " a level, and a client whose value has `/`, `+` or `#` in it is refused; access rules"
            " see the full names; empty: none.",
            "listener",
            reload=False,
            pattern=r"^(?!\$)([^/+#%\0]*(%[cu][^/+#%\0]*)?/)*\Z",
            expects='levels that each end with "/", without wildcards, such as "dev/%c/"',
        ),
    ] = ""


class SocketListener(Listener, frozen=True, kw_only=True):
    """What the listeners on a TCP port have."""

    bind: Bind = "127.0.0.1:1883"
    backlog: Annotated[
        int,
        _count(
            "Connections the kernel keeps waiting until the broker accepts them; the kernel's own"
            " limit (net.core.somaxconn) caps it.",
            "listener",
            1,
            65535,
            reload=False,
        ),
    ] = 4096
    nodelay: Annotated[
        bool,
        _plain(
            "Send small packets at once (TCP_NODELAY) instead of gathering them.",
            "listener",
            reload=False,
        ),
    ] = True
    defer_accept: Annotated[
        bool,
        _plain(
            "Leave a connection to the kernel until its first bytes are there (TCP_DEFER_ACCEPT,"
            " Linux): saves a fifth of what a connection costs; one that sends nothing comes a"
            " second later.",
            "listener",
            reload=False,
        ),
    ] = True
    access: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        _plain(
            'Who may connect by address, such as `["deny 10.0.0.7", "allow 10.0.0.0/8", "deny'
            ' all"]`: the first rule that matches decides; with `proxy_protocol`, by the address'
            " the proxy names.",
            "listener",
            expects='a list of "allow NETWORK" or "deny NETWORK", the last one for "all"',
        ),
    ] = ("allow all",)
    proxy_protocol: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        _plain(
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
        _plain(
            "Part of the client's certificate that becomes its user name: common name, whole"
            " subject, or first subject alternative name; a PROXY header can give `cn`.",
            "listener",
        ),
    ] = "none"
    cert_as_client_id: Annotated[
        Literal["none", "cn", "dn", "san"],
        _plain(
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

    @property
    def address(self) -> tuple[str, int]:
        """`bind` as (host, port); an empty host is every address."""
        host, _, port = self.bind.rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)


class TcpListener(SocketListener, frozen=True, kw_only=True):
    """MQTT over plain TCP; any number of listeners, each in a table with a name of its own."""


WebPath = Annotated[
    str,
    _plain(
        "Path of the WebSocket.",
        "listener",
        pattern=r"^/[!-~]*\Z",
        expects='a path such as "/mqtt"',
    ),
]
Origins = Annotated[
    tuple[Annotated[str, Meta(min_length=1)], ...],
    _plain(
        'Pages that may connect, such as `["https://app.example.com"]`; `["*"]` is any, an empty'
        " list only the built-in page, opened by an IP address or as localhost; clients"
        " that are no browsers name no page and may always connect.",
        "listener",
    ),
]
Page = Annotated[
    bool,
    _plain("Serve the built-in page, an MQTT client in the browser, at `/`.", "listener"),
]


class SslListener(SocketListener, frozen=True, kw_only=True):
    """MQTT over TLS."""

    bind: Bind = "127.0.0.1:8883"
    certificate: Annotated[
        str,
        _path("PEM file with the certificate, then those that lead to its issuer.", reload=True),
    ] = "certs/server.crt"
    private_key: Annotated[
        str, _path("PEM file with the certificate's private key.", reload=True)
    ] = "certs/server.key"
    sni_directory: Annotated[
        str,
        _path(
            "Directory of further certificates, `NAME.crt` beside `NAME.key`, each served to"
            " clients that ask for a host name in it; empty: none.",
            reload=True,
            pattern=r"^[^\0]*$",
        ),
    ] = ""
    tls_version: Annotated[
        Literal["1.2", "1.3"],
        _plain("Lowest TLS version a client may speak.", "listener"),
    ] = "1.2"
    ciphers: Annotated[
        str,
        _plain(
            "Cipher suites of TLS 1.2 in OpenSSL's words; empty takes those with forward secrecy"
            " and authenticated encryption; TLS 1.3 has its own.",
            "listener",
        ),
    ] = ""
    session_resumption: Annotated[
        bool,
        _plain(
            "Give tickets, so that a client that comes back saves most of the handshake.",
            "listener",
        ),
    ] = True
    verify: Annotated[
        Literal["none", "optional", "required"],
        _plain(
            "Whether a client's certificate is asked for: not at all, checked where there is one,"
            " or connections without a good one are refused.",
            "listener",
        ),
    ] = "none"
    ca_file: Annotated[
        str,
        _path(
            "PEM file with the authorities that may have issued a client's certificate.",
            reload=True,
            pattern=r"^[^\0]*$",
        ),
    ] = ""
    crl_file: Annotated[
        str,
        _path(
            "PEM file with the revocation list of each authority in `ca_file`; empty: no check.",
            reload=True,
            pattern=r"^[^\0]*$",
        ),
    ] = ""
    watch_interval: Annotated[
        float,
        _time(
            "Time between two looks at these files; a change is taken over at once, connected"
            " clients stay.",
            "listener",
            0.1,
            DAY,
        ),
    ] = 10.0
    handshake_timeout: Annotated[
        float,
        _time("Time for the whole TLS handshake.", "connection", 0.1, HOUR),
    ] = 5.0
    max_handshakes: Annotated[
        int,
        _count(
            "TLS handshakes under way at the same time; whoever would begin one more waits for its"
            " turn, at most for `handshake_timeout`.",
            "listener",
            1,
            1_000_000,
            reload=False,
        ),
    ] = 512


class WsListener(SocketListener, frozen=True, kw_only=True):
    """MQTT over WebSocket."""

    bind: Bind = "127.0.0.1:8083"
    path: WebPath = "/mqtt"
    origins: Origins = ()
    page: Page = True


class WssListener(SslListener, frozen=True, kw_only=True):
    """MQTT over WebSocket over TLS."""

    bind: Bind = "127.0.0.1:8084"
    path: WebPath = "/mqtt"
    origins: Origins = ()
    page: Page = True


class UnixListener(Listener, frozen=True, kw_only=True):
    """MQTT over a Unix socket."""

    path: Annotated[str, _path("Path of the socket; one that nobody listens on is replaced.")] = (
        "../data/mqtt.sock"
    )
    mode: Annotated[
        str,
        _plain(
            "Who may open it, in octal.",
            "listener",
            reload=False,
            pattern=r"^0?[0-7]{3}\Z",
            expects='an octal mode such as "0660"',
        ),
    ] = "0660"
    owner: Annotated[
        str,
        _plain(
            "User the socket belongs to, by name or number; empty leaves the broker's own.",
            "listener",
            reload=False,
        ),
    ] = ""
    group: Annotated[
        str,
        _plain(
            "Group the socket belongs to, by name or number; empty leaves the broker's own.",
            "listener",
            reload=False,
        ),
    ] = ""
    backlog: Annotated[
        int,
        _count("Connections the kernel keeps waiting.", "listener", 1, 65535, reload=False),
    ] = 4096


class EndpointListener(Listener, frozen=True, kw_only=True):
    """MQTT over any Twisted server endpoint; Twisted's transports carry it."""

    endpoint: Annotated[
        str,
        _plain(
            "Server endpoint in Twisted's words, such as `systemd:domain=INET:index=0`; plugins of"
            " Twisted bring more kinds.",
            "listener",
            reload=False,
        ),
    ] = "tcp:1884:interface=127.0.0.1"


LISTENER_KINDS: Final[Mapping[str, type[Listener]]] = {
    "tcp": TcpListener,
    "ssl": SslListener,
    "ws": WsListener,
    "wss": WssListener,
    "unix": UnixListener,
    "endpoint": EndpointListener,
}
"""KIND in ``[listener.KIND.NAME]`` and the struct that describes it."""


class Node(Struct, frozen=True, kw_only=True):
    """Who this broker is and where it keeps its data."""

    name: Annotated[
        str,
        _plain(
            "Name of this broker, as $SYS topics, logs and message ids show it; letters, digits"
            " and `_ . @ -`, at most 64.",
            reload=False,
            pattern=r"^[A-Za-z0-9_.@-]{1,64}\Z",
            expects="a name of 1 to 64 letters, digits and _ . @ -",
        ),
    ] = "mqttd"
    data_dir: Annotated[
        str,
        _path("Directory for what the broker stores; created when missing, used by one broker."),
    ] = "../data"


class Mqtt(Struct, frozen=True, kw_only=True):
    """What the protocol allows a client, announced in CONNACK to MQTT 5.0 clients."""

    max_packet_size: Annotated[
        int,
        _size(
            "Largest packet a client may send, in bytes; a larger one ends the connection with"
            " reason 0x95 before it is buffered.",
            "connection",
            KIB,
            256 * MIB,
        ),
    ] = MIB
    max_client_id_length: Annotated[
        int,
        _count(
            "Longest client identifier, in UTF-8 bytes; the standard asks for at least 23.",
            "connection",
            23,
            65535,
        ),
    ] = 256
    max_topic_levels: Annotated[
        int,
        _count("Most levels in a topic name or filter.", "message", 1, 65535),
    ] = 128
    max_topic_length: Annotated[
        int,
        _count("Longest topic name or filter, in UTF-8 bytes.", "message", 1, 65535),
    ] = 65535
    max_topic_alias: Annotated[
        int,
        _count(
            "Topic aliases a 5.0 client may use (Topic Alias Maximum); 0 allows none.",
            "connection",
            0,
            65535,
        ),
    ] = 65535
    max_qos: Annotated[
        int,
        _count(
            "Highest QoS a client may publish with (Maximum QoS); subscriptions are granted at"
            " most this.",
            "message",
            0,
            2,
        ),
    ] = 2
    retain_available: Annotated[
        bool,
        _plain("Whether clients may publish retained messages (Retain Available).", "message"),
    ] = True
    wildcard_subscription: Annotated[
        bool,
        _plain(
            "Whether filters may hold `+` and `#` (Wildcard Subscription Available).", "session"
        ),
    ] = True
    shared_subscription: Annotated[
        bool,
        _plain(
            "Whether `$share/group/filter` and `$queue/filter` work (Shared Subscription"
            " Available).",
            "session",
        ),
    ] = True
    shared_strategy: Annotated[
        Literal["round_robin", "random", "sticky", "hash_clientid", "hash_topic"],
        _plain(
            "How a shared subscription picks the member for a message: in turn per publisher, at"
            " random, the same while it lasts, by publisher's client id, or by topic.",
        ),
    ] = "round_robin"
    server_keepalive: Annotated[
        int,
        _time(
            "Keep alive that replaces every client's own (Server Keep Alive), in whole seconds; 0"
            " keeps the client's.",
            "connection",
            0,
            65535,
        ),
    ] = 0
    keepalive_multiplier: Annotated[
        float,
        _count(
            "A client silent for its keep alive times this is disconnected; the standard says 1.5.",
            "connection",
            1,
            10,
        ),
    ] = 1.5
    connect_timeout: Annotated[
        float,
        _time(
            "Time from an accepted connection to its complete CONNECT, after which it is closed.",
            "connection",
            0.1,
            HOUR,
        ),
    ] = 10.0
    response_information: Annotated[
        str,
        _plain(
            "Response Information given to 5.0 clients that ask for it, usually a topic prefix;"
            " empty gives none.",
            "connection",
            max_length=1024,
            pattern=r"^[^\0]*\Z",
            expects="a text of at most 1024 characters without U+0000",
        ),
    ] = ""


class Session(Struct, frozen=True, kw_only=True):
    """What the broker keeps for one client, connected or not."""

    max_inflight: Annotated[
        int,
        _count(
            "QoS 1 and 2 messages sent and not yet acknowledged, a client's smaller Receive"
            " Maximum wins; the rest wait in the mqueue.",
            "session",
            1,
            65535,
        ),
    ] = 100
    receive_maximum: Annotated[
        int,
        _count(
            "QoS 1 and 2 messages a 5.0 client may have unacknowledged towards the broker"
            " (Receive Maximum).",
            "session",
            1,
            65535,
        ),
    ] = 1000
    retry_interval: Annotated[
        float,
        _time(
            "Time after which an unacknowledged message is sent again to a 3.1 or 3.1.1 client;"
            " 0 sends again only on resume, as 5.0 does always.",
            "session",
            0,
            DAY,
        ),
    ] = 30.0
    max_awaiting_rel: Annotated[
        int,
        _count("Incoming QoS 2 messages that wait for their PUBREL.", "session", 1, 65535),
    ] = 1000
    await_rel_timeout: Annotated[
        float,
        _time(
            "Time after which an incoming QoS 2 message that got no PUBREL is forgotten.",
            "session",
            1,
            NEVER,
        ),
    ] = 300.0
    expiry_interval: Annotated[
        int,
        _time(
            "Time the session of a 3.1 or 3.1.1 client with clean session 0 outlives its"
            ' connection, in whole seconds; `"never"` keeps it.',
            "session",
            0,
            NEVER,
        ),
    ] = 2 * HOUR
    max_expiry_interval: Annotated[
        int,
        _time(
            "Longest Session Expiry Interval a 5.0 client gets, in whole seconds; a longer wish is"
            " lowered to this.",
            "session",
            0,
            NEVER,
        ),
    ] = NEVER
    max_subscriptions: Annotated[
        int,
        _count(
            "Subscriptions one session may hold; a further one is refused with reason 0x97.",
            "session",
            1,
            10_000_000,
        ),
    ] = 10_000
    upgrade_qos: Annotated[
        bool,
        _plain(
            "Deliver with the subscription's QoS even where the message was published with a"
            " lower one; the standard says no.",
            "session",
        ),
    ] = False


class Mqueue(Struct, frozen=True, kw_only=True):
    """Messages that wait for a client that is offline or whose inflight window is full."""

    max_length: Annotated[
        int,
        _count("Messages one session may queue.", "session", 1, 100_000_000),
    ] = 1000
    max_bytes: Annotated[
        int,
        _size("Bytes one session may queue.", "session", KIB, 1024 * GIB),
    ] = 8 * MIB
    store_qos0: Annotated[
        bool,
        _plain(
            "Queue QoS 0 messages too; when the queue is full they are dropped first, then the"
            " oldest.",
            "session",
        ),
    ] = True
    priorities: Annotated[
        dict[Annotated[str, Meta(min_length=1)], Annotated[int, Meta(ge=0, le=255)]],
        _plain(
            "Topic filters and their priorities, 0 to 255; higher leaves the queue first, topics"
            ' without one have 0; such as `{ "alarm/#" = 9 }`.',
            "session",
            expects="a table of topic filters and priorities from 0 to 255, such as"
            ' { "alarm/#" = 9 }',
        ),
    ] = field(default_factory=dict)


class Retained(Struct, frozen=True, kw_only=True):
    """The last message of a topic, kept for later subscribers."""

    max_messages: Annotated[
        int,
        _count(
            "Retained messages kept; a message for a new topic beyond it is not retained.",
            "broker",
            0,
            1_000_000_000,
        ),
    ] = 1_000_000
    max_bytes: Annotated[
        int,
        _size("Bytes of retained messages kept, topics included.", "broker", 0, 1024 * GIB),
    ] = GIB
    max_payload: Annotated[
        int,
        _size("Largest payload that is retained.", "message", 0, 256 * MIB),
    ] = MIB
    expiry: Annotated[
        int,
        _time(
            "Time a retained message is kept unless it carries its own Message Expiry Interval,"
            " in whole seconds.",
            "message",
            1,
            NEVER,
        ),
    ] = NEVER


class Output(Struct, frozen=True, kw_only=True):
    """Bytes written for clients that read slower than the broker writes."""

    high_watermark: Annotated[
        int,
        _size(
            "Unsent bytes from which a connection is slow: QoS 0 is dropped and counted, QoS 1 and"
            " 2 wait in the session.",
            "connection",
            4 * KIB,
            GIB,
        ),
    ] = MIB
    low_watermark: Annotated[
        int,
        _size("Unsent bytes at which a slow connection is written to again.", "connection", 0, GIB),
    ] = 256 * KIB
    send_timeout: Annotated[
        float,
        _time(
            "Time after which a client that reads nothing while output waits for it is"
            " disconnected (0x97); reading slowly is allowed; 0 waits for ever.",
            "connection",
            0,
            DAY,
            reload=False,
        ),
    ] = 60.0
    backlog: Annotated[
        int,
        _size(
            "Unsent bytes of all connections together; while it is reached, publishers are not"
            " read from.",
            "broker",
            MIB,
            1024 * GIB,
        ),
    ] = 256 * MIB


class Overload(Struct, frozen=True, kw_only=True):
    """When the broker has more to do than it can, and new clients have to wait."""

    lag: Annotated[
        float,
        _time(
            "Lateness of the event loop, a whole second long, from which new clients are refused"
            " (0x89 server busy) until it has recovered; 0 refuses nobody.",
            "broker",
            0,
            HOUR,
            reload=False,
        ),
    ] = 0.5


class UsernameAuth(Struct, frozen=True, kw_only=True):
    """Clients that show a user name and a password."""

    file: Annotated[
        str,
        _path(
            "File of `user:hash` lines, argon2id or as mosquitto_passwd writes them, read again"
            " when it changes; while this key is not set the file may be missing, which means no"
            " users.",
            reload=True,
        ),
    ] = "users.conf"
    unknown: Annotated[
        Literal["deny", "ignore"],
        _plain(
            "What becomes of a user that is not in the file: `deny` refuses, `ignore` asks the next"
            " module of the chain, after the time a refusal takes.",
        ),
    ] = "deny"


class ClientidAuth(Struct, frozen=True, kw_only=True):
    """Clients known by their client identifier (module `clientid`)."""

    file: Annotated[
        str,
        _path(
            "File of client identifiers, one a line, each with `:hash` behind it if the client has"
            " to show a secret as its password; read again when it changes.",
            reload=True,
        ),
    ] = "clients.conf"


class CertificateAuth(Struct, frozen=True, kw_only=True):
    """Clients that hold a certificate which the listener has verified (module `certificate`)."""

    username: Annotated[
        Literal["cn", "dn", "dns", "uri", "email"],
        _plain(
            "What of the certificate becomes the user name, in place of what the client says: the"
            " subject's common name, the whole subject, or the first alternative name of a kind.",
        ),
    ] = "cn"
    same_client_id: Annotated[
        bool,
        _plain("Whether the client identifier must be that user name."),
    ] = False


class JwtAuth(Struct, frozen=True, kw_only=True):
    """Clients that show a JSON Web Token (module `jwt`); exactly one kind of key is needed."""

    token: Annotated[
        Literal["password", "username"],
        _plain("The field of CONNECT that holds the token."),
    ] = "password"
    secret_file: Annotated[
        str,
        _path(
            "File with the secret of HS256, HS384 and HS512, at least 32 bytes; a line end behind"
            " it does not count.",
            reload=True,
            pattern=r"^[^\0]*$",
        ),
    ] = ""
    public_key_file: Annotated[
        str,
        _path(
            "File with a PEM public key or certificate, for RS, PS, ES or EdDSA signatures.",
            reload=True,
            pattern=r"^[^\0]*$",
        ),
    ] = ""
    jwks_url: Annotated[
        str,
        _plain(
            "Address of a JSON Web Key Set with public keys, `https://...` (or `http://` on"
            " this machine).",
            pattern=r"^(https?://[^\s]+)?\Z",
            expects="an https:// or http:// address",
        ),
    ] = ""
    jwks_refresh: Annotated[
        float,
        _time("Time between two readings of the key set.", "broker", 1, DAY),
    ] = 300.0
    algorithms: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        _plain(
            "Signature algorithms taken, each of which must fit the key; empty takes all that do.",
        ),
    ] = ()
    issuer: Annotated[str, _plain("The `iss` a token must have; empty takes any.")] = ""
    audience: Annotated[
        str, _plain("The `aud` a token must have; empty takes only tokens without `aud`.")
    ] = ""
    leeway: Annotated[
        float,
        _time("How far `exp` and `nbf` may be off, for clocks that disagree.", "broker", 0, 300),
    ] = 0.0
    require_exp: Annotated[bool, _plain("Whether a token must have `exp`.")] = True
    username_claim: Annotated[
        str,
        _plain(
            "The claim that becomes the user name, in place of what the client says; empty keeps"
            " the client's own.",
        ),
    ] = "sub"
    client_id_claim: Annotated[
        str,
        _plain("The claim that the client identifier must be equal to; empty checks none."),
    ] = ""
    acl_claim: Annotated[
        str,
        _plain(
            'The claim with rules of this client, `{"pub": [...], "sub": [...], "all": [...]}`,'
            " looked at before all others; empty takes none.",
        ),
    ] = "acl"
    superuser_claim: Annotated[
        str,
        _plain("The claim that makes a superuser where it is true; empty makes none."),
    ] = ""


class ScramAuth(Struct, frozen=True, kw_only=True):
    """MQTT 5.0 clients that authenticate with SCRAM-SHA-256 (module `scram`)."""

    file: Annotated[
        str,
        _path(
            "File of `user:SCRAM-SHA-256$...` lines, written by `mqttd-ctl users add --scram`; read"
            " again when it changes.",
            reload=True,
        ),
    ] = "scram.conf"


class AuthBackend(Struct, frozen=True, kw_only=True):
    """What an authentication module that has to wait for a back end may cost."""

    deadline: Annotated[
        float,
        _time("Time a client waits for one module, after which it failed.", "connection", 0.1, 60),
    ] = 5.0
    concurrency: Annotated[
        int,
        _count("Clients one module is asked about at the same time.", "broker", 1, 10_000),
    ] = 64
    waiting: Annotated[
        int,
        _count(
            "Clients that wait for their turn at one module; further ones are refused as busy"
            " (0x89).",
            "broker",
            0,
            1_000_000,
        ),
    ] = 1000
    on_error: Annotated[
        Literal["deny", "ignore"],
        _plain(
            "What a module that failed means: `deny` refuses the client (0x88), `ignore` asks the"
            " next module.",
        ),
    ] = "deny"
    ignore_errors_of: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        _plain("Modules for which `on_error` is `ignore`, whatever it says for the others."),
    ] = ()
    cache_ok: Annotated[
        float,
        _time(
            "Time a yes of a back end is kept, under a keyed hash of all the client showed; 0 keeps"
            " none.",
            "broker",
            0,
            HOUR,
        ),
    ] = 10.0
    cache_denied: Annotated[
        float,
        _time("Time a no of a back end is kept.", "broker", 0, HOUR),
    ] = 5.0
    breaker_failures: Annotated[
        int,
        _count(
            "Failures one after the other that open a module's circuit breaker, which then fails"
            " at once; 0 never opens it.",
            "broker",
            0,
            1_000_000,
        ),
    ] = 5
    breaker_retry: Annotated[
        float,
        _time(
            "Time until a module whose breaker is open is tried with one client; doubles with each"
            " try that fails.",
            "broker",
            0.01,
            HOUR,
        ),
    ] = 1.0
    breaker_max_retry: Annotated[
        float,
        _time("The longest time between two tries.", "broker", 0.01, DAY),
    ] = 60.0


class Auth(Struct, frozen=True, kw_only=True):
    """Who may connect."""

    chain: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        _plain(
            "Authentication modules asked in this order until one says yes or no; when none does,"
            " the client is refused; built in are username, clientid, certificate, jwt, scram and"
            " anonymous, others come from plugins and refuse everybody while they are missing.",
        ),
    ] = ("username", "anonymous")
    anonymous: Annotated[
        Literal["never", "loopback", "always"],
        _plain(
            "Whether the module `anonymous` admits clients without a user name: never, from this"
            " machine, or from anywhere.",
        ),
    ] = "loopback"
    username: UsernameAuth = UsernameAuth()
    clientid: ClientidAuth = ClientidAuth()
    certificate: CertificateAuth = CertificateAuth()
    jwt: JwtAuth = JwtAuth()
    scram: ScramAuth = ScramAuth()
    backend: AuthBackend = AuthBackend()


class AclShadow(Struct, frozen=True, kw_only=True):
    """A candidate for the access rules that runs beside them and is never enforced."""

    file: Annotated[
        str,
        _path(
            "File with the candidate, empty for none; what it would decide otherwise is counted"
            " and sampled in the log (`mqttd-ctl acl shadow`, `acl promote`).",
            pattern=r"^[^\0]*$",
        ),
    ] = ""


class Acl(Struct, frozen=True, kw_only=True):
    """What a connected client may publish and subscribe to."""

    file: Annotated[str, _path("File with the access rules.", reload=True)] = "acl.conf"
    nomatch: Annotated[
        Literal["allow", "deny"],
        _plain("The answer where no rule matches."),
    ] = "deny"
    deny_action: Annotated[
        Literal["ignore", "disconnect"],
        _plain(
            "What a refused publish gets: `ignore` drops it (5.0 clients see reason 0x87),"
            " `disconnect` ends the connection.",
        ),
    ] = "ignore"
    on_revoke: Annotated[
        Literal["unsubscribe", "disconnect"],
        _plain(
            "What ends when new rules no longer allow a subscription: the subscription alone, or"
            " the connection too (5.0 clients see reason 0x87).",
        ),
    ] = "unsubscribe"
    cache: Annotated[
        bool,
        _plain("Remember each connection's answers per topic until the rules change."),
    ] = True
    shadow: AclShadow = AclShadow()


class Plugins(Struct, frozen=True, kw_only=True):
    """Plugins of this broker; an installed plugin does nothing until it is named here."""

    load: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        _plain("Plugins to load at start, in this order."),
    ] = ()
    dir: Annotated[
        str,
        _path("Directory whose Python files are plugins too; it may be missing."),
    ] = "plugins"


class AdminTcp(Struct, frozen=True, kw_only=True):
    """The HTTP interface for other machines, such as Spark's: closed until a file of tokens is
    named."""

    bind: Bind = "127.0.0.1:8081"
    token_file: Annotated[
        str,
        _path(
            "File of bearer tokens, one a line, each of which may do everything; empty: none.",
            reload=True,
            pattern=r"^[^\0]*$",
        ),
    ] = ""
    pull_token_file: Annotated[
        str,
        _path(
            "File of bearer tokens that may read the event log and nothing else; empty: none.",
            reload=True,
            pattern=r"^[^\0]*$",
        ),
    ] = ""
    certificate: Annotated[
        str,
        _path(
            "PEM file with the certificate, then those that lead to its issuer; empty speaks plain"
            " HTTP, which only a loopback address may.",
            pattern=r"^[^\0]*$",
        ),
    ] = ""
    private_key: Annotated[
        str,
        _path("PEM file with the certificate's private key.", pattern=r"^[^\0]*$"),
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
        _path(
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
        _plain("Least important level that is logged."),
    ] = "info"


class Sys(Struct, frozen=True, kw_only=True):
    """The broker's own topics under `$SYS`."""

    interval: Annotated[
        float,
        _time(
            "Time between two publications of `$SYS` topics; 0 publishes none.", "broker", 0, DAY
        ),
    ] = 60.0


class Config(Struct, frozen=True, kw_only=True):
    """Everything the file can say; `Config()` alone holds the defaults."""

    node: Node = Node()
    mqtt: Mqtt = Mqtt()
    session: Session = Session()
    mqueue: Mqueue = field(default_factory=Mqueue)
    retained: Retained = Retained()
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
    log: Log = Log()
    sys: Sys = Sys()

    path: str = ""
    """Absolute path of the file this was read from; empty when there was none."""
    given: frozenset[str] = frozenset()
    """Dotted paths of the keys that the file or the environment set, `auth.username.file`."""
