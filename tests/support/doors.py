"""Ways into a broker: plain TCP, TLS, WebSocket, both, a Unix socket, as blocking sockets.

    dial(Door("wss", "engine", 8084), ...)  ->  something with sendall, recv, shutdown, close

`WebSocketWire` frames by hand, strictly: each `sendall` is one masked binary frame, and what the
broker sends must be binary frames that are not masked.
"""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from mqttd.admin.ctl.main import Client
from tests.support.broker import Broker, start_broker
from tests.support.certificates import Authority
from tests.support.waiting import LONG

__all__ = [
    "KINDS",
    "TRANSPORTS",
    "Door",
    "WebSocketWire",
    "client_context",
    "dial",
    "doors_of",
    "start_with_doors",
    "write_certificates",
]

KINDS: Final = ("tcp", "ssl", "ws", "wss", "unix")
TRANSPORTS: Final = ("engine", "twisted")
DEADLINE: Final = LONG


class Door(NamedTuple):
    kind: str
    name: str
    host: str  # an address, or the path of a Unix socket
    port: int

    def __str__(self) -> str:
        return f"{self.kind}-{self.name}"


def write_certificates(folder: Path) -> Authority:
    """An authority, a server `localhost` and a client `device-7` in `folder`."""
    authority = Authority()
    authority.write(folder)
    authority.server("localhost").write(folder, "server")
    authority.client("device-7", "seven.example").write(folder, "client")
    return authority


def start_with_doors(
    folder: Path, kinds: tuple[str, ...] = KINDS, more: Mapping[str, Any] = {}, **overrides: Any
) -> Broker:
    """A broker with a listener of every kind on each of the two transports."""
    write_certificates(folder / "etc" / "certs")
    listener: dict[str, dict[str, Any]] = {}
    for kind in kinds:
        for transport in TRANSPORTS:
            settings: dict[str, Any] = {"transport": transport}
            if kind == "unix":
                settings["path"] = str(folder / f"{transport}.sock")
            else:
                settings["bind"] = "127.0.0.1:0"
            listener.setdefault(kind, {})[transport] = settings
    for kind, names in more.items():
        listener.setdefault(kind, {}).update(names)
    # A plain port of the default name is always there: the ready line shows it.
    return start_broker(folder, listener=listener, **overrides)


def doors_of(broker: Broker) -> dict[str, Door]:
    """Every listener, `KIND:NAME` -> where it is."""
    assert broker.directory is not None
    listed = Client(str(broker.directory / "data" / "mqttd.sock")).get("/listeners")["listeners"]
    return {
        entry["id"]: Door(entry["kind"], entry["name"], entry["host"], entry["port"])
        for entry in listed
    }


def client_context(folder: Path, client: str = "") -> ssl.SSLContext:
    """A TLS context that trusts the authority in `folder` and shows the certificate `client`."""
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    if client:
        context.load_cert_chain(str(folder / f"{client}.crt"), str(folder / f"{client}.key"))
    return context


def dial(door: Door, certificates: Path | None = None, client: str = "", room: int = 0) -> Any:
    """A connection through this door, its handshakes done; `room` for what it has not read."""
    if door.kind == "unix":
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        plain.settimeout(DEADLINE)
        plain.connect(door.host)
        return plain
    sock: Any = socket.socket(socket.AF_INET6 if ":" in door.host else socket.AF_INET)
    if room:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    sock.settimeout(DEADLINE)
    sock.connect((door.host, door.port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if door.kind in ("ssl", "wss"):
        assert certificates is not None
        context = client_context(certificates, client)
        context.sslsocket_class = _TlsSocket
        sock = context.wrap_socket(sock, server_hostname="localhost")
    if door.kind in ("ws", "wss"):
        return WebSocketWire(sock)
    return sock


class _TlsSocket(ssl.SSLSocket):
    """A TLS socket whose half can be closed while the other still reads."""

    def shutdown(self, how: int) -> None:
        socket.socket.shutdown(self, how)


class WebSocketWire:
    """The client's end of a WebSocket over a connected socket, which looks like a socket."""

    def __init__(self, sock: Any, path: str = "/mqtt", protocols: str = "mqtt", **headers: str):
        self.sock = sock
        self.close_code: int | None = None
        self.pongs: list[bytes] = []
        self._rest = b""
        key = base64.b64encode(os.urandom(16)).decode()
        fields = {
            "Host": "localhost",
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": key,
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Protocol": protocols,
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        lines = [f"GET {path} HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items() if v)]
        sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        while b"\r\n\r\n" not in self._rest:
            data = sock.recv(65536)
            if not data:
                raise ConnectionError(f"no WebSocket: {self._rest!r}")
            self._rest += data
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        self.status, *answer = head.decode().split("\r\n")
        self.headers = {line.split(":", 1)[0].lower(): line.split(":", 1)[1].strip()
                        for line in answer}  # fmt: skip
        if " 101 " not in self.status:
            raise ConnectionError(self.status)
        accept = hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()
        assert self.headers["sec-websocket-accept"] == base64.b64encode(accept).decode()

    def sendall(self, data: bytes) -> None:
        self.send_frame(0x82, data)

    def send_frame(self, first: int, payload: bytes, mask: bytes | None = None) -> None:
        """One frame with this first byte, masked."""
        self.sock.sendall(frame(first, payload, os.urandom(4) if mask is None else mask))

    def recv(self, size: int) -> bytes:
        """Payload of the next binary frames; empty at the end."""
        while True:
            found = self._frame()
            if found is None:
                data = self.sock.recv(size)
                if not data:
                    return b""
                self._rest += data
                continue
            opcode, payload = found
            if opcode == 2 and payload:
                return payload
            if opcode == 8:
                self.close_code = int.from_bytes(payload[:2], "big") if payload else 1005
            elif opcode == 10:
                self.pongs.append(payload)
            else:
                assert opcode == 2, f"unexpected opcode {opcode}"

    def _frame(self) -> tuple[int, bytes] | None:
        rest = self._rest
        if len(rest) < 2:
            return None
        assert rest[0] & 0x80, "the broker fragments nothing"
        assert not rest[1] & 0x80, "a server's frame must not be masked"
        length, at = rest[1], 2
        if length >= 126:
            width = 2 if length == 126 else 8
            at += width
            if len(rest) < at:
                return None
            length = int.from_bytes(rest[2:at], "big")
        if len(rest) < at + length:
            return None
        self._rest = rest[at + length :]
        return rest[0] & 0x0F, rest[at : at + length]

    def settimeout(self, seconds: float | None) -> None:
        self.sock.settimeout(seconds)

    def fileno(self) -> int:
        return int(self.sock.fileno())

    def setsockopt(self, *args: Any) -> None:
        self.sock.setsockopt(*args)

    def shutdown(self, how: int) -> None:
        self.sock.shutdown(how)

    def close(self) -> None:
        self.sock.close()


def frame(first: int, payload: bytes, mask: bytes = b"\x01\x02\x03\x04") -> bytes:
    """A masked frame."""
    n = len(payload)
    if n < 126:
        head = bytes((first, 0x80 | n))
    elif n < 65536:
        head = bytes((first, 0x80 | 126)) + n.to_bytes(2, "big")
    else:
        head = bytes((first, 0x80 | 127)) + n.to_bytes(8, "big")
    key = mask * (n // 4 + 1)
    masked = int.from_bytes(payload, "big") ^ int.from_bytes(key[:n], "big")
    return head + mask + masked.to_bytes(n, "big")
