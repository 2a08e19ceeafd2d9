"""The kinds of listeners, ``[listener.KIND.NAME]``: by what carries their bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from msgspec import Meta

from mqttd.config.schema import keys
from mqttd.config.schema.keys import DAY, HOUR, Bind
from mqttd.config.schema.listener import Listener, SocketListener

__all__ = [
    "EndpointListener",
    "LISTENER_KINDS",
    "SslListener",
    "TcpListener",
    "UnixListener",
    "WsListener",
    "WssListener",
]


class TcpListener(SocketListener, frozen=True, kw_only=True):
    """MQTT over plain TCP; any number of listeners, each in a table with a name of its own."""


WebPath = Annotated[
    str,
    keys.plain(
        "Path of the WebSocket.",
        "listener",
        pattern=r"^/[!-~]*\Z",
        expects='a path such as "/mqtt"',
    ),
]


Origins = Annotated[
    tuple[Annotated[str, Meta(min_length=1)], ...],
    keys.plain(
        'Pages that may connect, such as `["https://app.example.com"]`; `["*"]` is any, an empty'
        " list only the built-in page, opened by an IP address or as localhost; clients"
        " that are no browsers name no page and may always connect.",
        "listener",
    ),
]


Page = Annotated[
    bool,
    keys.plain("Serve the built-in page, an MQTT client in the browser, at `/`.", "listener"),
]


class SslListener(SocketListener, frozen=True, kw_only=True):
    """MQTT over TLS."""

    bind: Bind = "127.0.0.1:8883"
    certificate: Annotated[
        str,
        keys.path(
            "PEM file with the certificate, then those that lead to its issuer.", reload=True
        ),
    ] = "certs/server.crt"
    private_key: Annotated[
        str, keys.path("PEM file with the certificate's private key.", reload=True)
    ] = "certs/server.key"
    sni_directory: Annotated[
        str,
        keys.path(
            "Directory of further certificates, `NAME.crt` beside `NAME.key`, each served to"
            " clients that ask for a host name in it; empty: none.",
            reload=True,
            pattern=r"^[^\0]*$",
        ),
    ] = ""
    tls_version: Annotated[
        Literal["1.2", "1.3"],
        keys.plain("Lowest TLS version a client may speak.", "listener"),
    ] = "1.2"
    ciphers: Annotated[
        str,
        keys.plain(
            "Cipher suites of TLS 1.2 in OpenSSL's words; empty takes those with forward secrecy"
            " and authenticated encryption; TLS 1.3 has its own.",
            "listener",
        ),
    ] = ""
    session_resumption: Annotated[
        bool,
        keys.plain(
            "Give tickets, so that a client that comes back saves most of the handshake.",
            "listener",
        ),
    ] = True
    verify: Annotated[
        Literal["none", "optional", "required"],
        keys.plain(
            "Whether a client's certificate is asked for: not at all, checked where there is one,"
            " or connections without a good one are refused.",
            "listener",
        ),
    ] = "none"
    ca_file: Annotated[
        str,
        keys.path(
            "PEM file with the authorities that may have issued a client's certificate.",
            reload=True,
            pattern=r"^[^\0]*$",
        ),
    ] = ""
    crl_file: Annotated[
        str,
        keys.path(
            "PEM file with the revocation list of each authority in `ca_file`; empty: no check.",
            reload=True,
            pattern=r"^[^\0]*$",
        ),
    ] = ""
    watch_interval: Annotated[
        float,
        keys.duration(
            "Time between two looks at these files; a change is taken over at once, connected"
            " clients stay.",
            "listener",
            0.1,
            DAY,
        ),
    ] = 10.0
    handshake_timeout: Annotated[
        float,
        keys.duration("Time for the whole TLS handshake.", "connection", 0.1, HOUR),
    ] = 5.0
    max_handshakes: Annotated[
        int,
        keys.count(
            "TLS handshakes under way at the same time; whoever would begin one more waits for its"
            " turn, address by address, at most for `handshake_timeout`; one whose client is silent"
            " for half a second goes on without its place.",
            "listener",
            1,
            1_000_000,
            reload=False,
        ),
    ] = 512
    max_handshakes_per_address: Annotated[
        int,
        keys.count(
            "Of these, how many of one address; 0 has no limit.",
            "listener",
            0,
            1_000_000,
        ),
    ] = 384


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

    path: Annotated[
        str, keys.path("Path of the socket; one that nobody listens on is replaced.")
    ] = "../data/mqtt.sock"
    mode: Annotated[
        str,
        keys.plain(
            "Who may open it, in octal.",
            "listener",
            reload=False,
            pattern=r"^0?[0-7]{3}\Z",
            expects='an octal mode such as "0660"',
        ),
    ] = "0660"
    owner: Annotated[
        str,
        keys.plain(
            "User the socket belongs to, by name or number; empty leaves the broker's own.",
            "listener",
            reload=False,
        ),
    ] = ""
    group: Annotated[
        str,
        keys.plain(
            "Group the socket belongs to, by name or number; empty leaves the broker's own.",
            "listener",
            reload=False,
        ),
    ] = ""
    backlog: Annotated[
        int,
        keys.count("Connections the kernel keeps waiting.", "listener", 1, 65535, reload=False),
    ] = 4096


class EndpointListener(Listener, frozen=True, kw_only=True):
    """MQTT over any Twisted server endpoint; Twisted's transports carry it."""

    endpoint: Annotated[
        str,
        keys.plain(
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
