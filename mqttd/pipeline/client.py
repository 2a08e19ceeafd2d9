"""A plain MQTT 5.0 client: publishes much, and knows what was acknowledged. Standard library only.

    publish ... publish --window--> broker --PUBACK--> flush() returns when none is open

For programs that write to a broker and do little else: Spark's executors, `mqttd-ctl replay`. Built
on `mqttd.codec`; no thread, no callback: what comes is read while something is waited for.

Promise: `flush` returns only when every message of QoS 1 and 2 was acknowledged with success. When
the connection breaks, what is open is sent again over a new one, a few times: at least once. Of
several addresses of the broker the next one is tried each time, also when one says that another
server is to be used. A broker that is busy, or about to end, is tried again as one that is away.
"""

from __future__ import annotations

import socket
import ssl
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mqttd.codec import properties as prop
from mqttd.codec.client import ClientCore
from mqttd.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    Subscription,
)
from mqttd.codec.reasons import MqttError, name_of
from mqttd.codec.serializer import serialize
from mqttd.printable import said_by

__all__ = ["Address", "Client", "ClientError", "Refused", "parse_address"]

#: Messages of QoS 1 and 2 under way at once, if the broker allows as many.
WINDOW: Final = 512
#: Bytes collected before they are sent.
BUFFER: Final = 1 << 16
#: How often each address is tried before giving up, and seconds after they all were for once.
TRIES: Final = 6
PAUSE: Final = 0.25

_SUCCESS_BELOW: Final = 0x80
#: Who says so may take us later: server unavailable, busy, shutting down, connection rate exceeded.
_LATER: Final = frozenset({0x88, 0x89, 0x8B, 0x9F})
#: Or another address may serve: these, use another server, server moved.
_ELSEWHERE: Final = _LATER | {0x9C, 0x9D}
#: Bad user name or password, not authorized: who says so knows us by another name, or by none.
_STRANGER: Final = frozenset({0x86, 0x87})


class ClientError(Exception):
    """The broker cannot be reached or does not answer; the text says which and why."""


class Refused(ClientError):
    """The broker said no; `code` is its reason code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Address:
    """Where a broker is, and who one is there."""

    host: str
    port: int = 1883
    username: str | None = None
    password: str | None = None
    tls: bool = False
    ca_file: str | None = None
    certificate: str | None = None
    private_key: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_address(text: str) -> tuple[str, int, bool]:
    """Host, port and whether TLS is meant, of ``host``, ``host:port``, ``mqtt[s]://host:port``.

    Raises ValueError.
    """
    rest = text
    tls = False
    for scheme, secure in (("mqtts://", True), ("mqtt://", False)):
        if text.startswith(scheme):
            rest, tls = text[len(scheme) :].rstrip("/"), secure
    host, colon, port = rest.rpartition(":")
    if not colon or (rest.startswith("[") and rest.endswith("]")):
        host, port = rest, "8883" if tls else "1883"
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or "/" in host or not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise ValueError(
            f"{text!r}: expected host:port, mqtt://host:port or mqtts://host:port of a broker"
        )
    return host, int(port), tls


class Client:
    """One connection to a broker, made when it is first needed.

    :param address: where and who; several addresses of a broker are tried in turn.
    :param client_id: its name there; by default one of its own.
    :param timeout: seconds the broker has for each answer.
    """

    def __init__(
        self,
        address: Address | Sequence[Address],
        client_id: str = "",
        timeout: float = 30.0,
        window: int = WINDOW,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._addresses = [address] if isinstance(address, Address) else list(address)
        self.client_id = client_id or f"mqttd-{uuid.uuid4().hex[:16]}"
        self.timeout = timeout
        self.published = 0
        #: Of messages nobody subscribes to: the broker took them all the same.
        self.unheard = 0
        self.max_packet_size = 268_435_460
        self._most = max(window, 1)
        self._room = self._most
        self._sleep = sleep
        self._socket: socket.socket | None = None
        self._core = ClientCore(5)
        self._refused: Refused | None = None
        self._pings = 0
        self._answers: list[Packet] = []
        self._subscribed: dict[str, int] = {}
        self._inbox: list[Publish] = []

    @property
    def address(self) -> Address:
        """The one that is connected to, or is tried next."""
        return self._addresses[0]

    # -- what it is for

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 1,
        retain: bool = False,
        properties: prop.Properties | None = None,
    ) -> None:
        """Send a message, or put it where it is sent soon.

        Raises Refused for one before it that was refused, ClientError, or ValueError for a message
        that cannot be one.
        """
        self._check()
        self._connected()
        while qos and len(self._core.in_flight) >= self._room:
            self._again(self._receive)
            self._check()
        packet = Publish(topic, payload, qos, retain, properties=properties)
        if qos:
            packet.packet_id = self._core.packet_id()
        try:
            data = serialize(packet, 5)
        except MqttError as error:
            raise ValueError(f"topic {topic!r}: {error.detail}") from None
        if len(data) > self.max_packet_size:
            raise ValueError(
                f"topic {topic!r}: a message of {len(data)} bytes; {self.address} takes"
                f" {self.max_packet_size}"
            )
        if qos:
            self._core.in_flight[packet.packet_id] = packet
        self.published += 1
        self._core.put(data)
        if self._core.unsent >= BUFFER:
            self._again(self._send)

    def flush(self) -> None:
        """Wait until everything was acknowledged; QoS 0: was read by the broker.

        Raises Refused or ClientError.
        """
        self._check()
        if self._socket is None and not self._core.in_flight:
            return
        self._connected()
        while self._core.in_flight:
            self._again(self._receive)
            self._check()
        self.ping()

    def ping(self) -> None:
        """Ask, and wait for the answer: what the broker had sent before has come then."""

        def round_trip() -> None:
            before = self._pings
            self._core.send(Pingreq())
            while self._pings == before:
                self._receive()

        self._connected()
        self._again(round_trip)

    def subscribe(self, topic_filter: str, qos: int = 1) -> None:
        """Subscribe; what comes is taken by `receive`."""
        self._subscribed[topic_filter] = qos
        if self._socket is None:
            self._connected()
        else:
            self._again(self._subscribe)

    def receive(self, timeout: float) -> Publish | None:
        """The next message of a subscription, None if none comes in `timeout` seconds."""
        end = time.monotonic() + timeout
        while not self._inbox:
            left = end - time.monotonic()
            if left <= 0:
                return None
            if self._socket is None:
                raise EOFError
            self._socket.settimeout(left)
            try:
                self._receive()
            except TimeoutError:
                return None
            finally:
                if self._socket is not None:
                    self._socket.settimeout(self.timeout)
        return self._inbox.pop(0)

    def close(self) -> None:
        """Disconnect; what is open is given up."""
        if self._socket is not None:
            try:
                self._core.send(Disconnect())
                self._send()
            except OSError:
                pass
            self._drop()
        self._core.in_flight.clear()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the connection

    def connect(self) -> None:
        """Connect now, to learn that it works; raises Refused or ClientError."""
        self._connected()

    def reconnect(self) -> None:
        """Let go of a connection that is broken, and make another."""
        self._drop()
        self._connected()

    def _connected(self) -> None:
        if self._socket is None:
            self._again(lambda: None)

    def _again(self, step: Callable[[], None]) -> None:
        """Do a step that talks; when the connection breaks, reconnect and do it again."""
        pause = PAUSE
        addresses = self._addresses
        for left in range(TRIES * len(addresses) - 1, -1, -1):
            try:
                if self._socket is None:
                    self._connect()
                step()
                return
            except (OSError, EOFError, Refused) as error:
                self._drop()
                if isinstance(error, Refused):
                    worth = _ELSEWHERE if len(addresses) > 1 else _LATER
                    if not left or error.code not in worth:
                        raise
                elif not left:
                    where = ", ".join(str(one) for one in addresses)
                    why = said_by(error) if str(error) else "it hung up"
                    if isinstance(error, ssl.SSLError):
                        why += " (is TLS spoken there?)"
                    raise ClientError(f"the broker {where} cannot be reached: {why}") from None
                addresses.append(addresses.pop(0))
                if left % len(addresses) == 0:
                    self._sleep(pause)
                    pause = min(pause * 2, 4.0)
            except MqttError as error:
                self._drop()
                raise ClientError(f"{self.address} does not speak MQTT 5.0: {error}") from None

    def _connect(self) -> None:
        address = self.address
        context = _trust(address) if address.tls else None
        raw = socket.create_connection((address.host, address.port), self.timeout)
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                raw = context.wrap_socket(raw, server_hostname=address.host)
        except ssl.SSLCertVerificationError as error:
            raw.close()
            raise ClientError(
                f"the certificate of {address} is not trusted: {error.verify_message}"
            ) from None
        except BaseException:
            raw.close()
            raise
        self._socket = raw
        core = self._core
        core.restart()
        password = None if address.password is None else address.password.encode()
        core.send(
            Connect(
                self.client_id,
                5,
                username=address.username,
                password=password,
                properties={prop.RECEIVE_MAXIMUM: 1000},
            )
        )
        found: Connack = self._answer()
        if found.reason_code >= _SUCCESS_BELOW:
            self._drop()
            told = f"{address} refused the connection: {_reason(found)}"
            if found.reason_code in _STRANGER:
                who = "no user name" if address.username is None else f"user {address.username}"
                told += f"; {who} was given"
            raise Refused(told, found.reason_code)
        given = found.properties or {}
        self._room = min(self._most, _number(given, prop.RECEIVE_MAXIMUM, 65535))
        self.max_packet_size = _number(given, prop.MAXIMUM_PACKET_SIZE, 268_435_460)
        if self._subscribed:
            self._subscribe()
        core.send_again()

    def _answer(self) -> Any:
        """The CONNACK or SUBACK that is awaited."""
        self._answers.clear()
        while not self._answers:
            self._receive()
        return self._answers.pop()

    def _subscribe(self) -> None:
        asked = [Subscription(name, qos) for name, qos in self._subscribed.items()]
        self._core.send(Subscribe(self._core.packet_id(), asked))
        for one, code in zip(asked, self._answer().reason_codes, strict=True):
            if code >= _SUCCESS_BELOW:
                raise Refused(
                    f"{self.address} refused to subscribe {self.client_id} to"
                    f" {one.topic_filter}: {name_of(code)}",
                    code,
                )

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._core.take_out()

    def _send(self) -> None:
        assert self._socket is not None
        data = self._core.take_out()
        if data:
            self._socket.sendall(data)

    def _receive(self) -> None:
        """Send what is to be sent, then wait for something and take it in."""
        self._send()
        assert self._socket is not None
        data = self._socket.recv(1 << 16)
        if not data:
            raise EOFError
        for packet in self._core.feed(data):
            self._take(packet)

    def _take(self, packet: Any) -> None:
        if isinstance(packet, Puback | Pubrec | Pubcomp):
            self._done(packet)
        elif isinstance(packet, Publish):
            self._inbox.append(packet)
        elif isinstance(packet, Pingresp):
            self._pings += 1
        elif isinstance(packet, Suback | Connack):
            self._answers.append(packet)
        elif isinstance(packet, Disconnect):
            raise EOFError(f"it hung up: {_reason(packet)}")

    def _done(self, packet: Puback | Pubcomp | Pubrec) -> None:
        asked = self._core.in_flight.pop(packet.packet_id, None)
        if asked is None:
            return
        if packet.reason_code == 0x10:
            self.unheard += 1
        if packet.reason_code >= _SUCCESS_BELOW and self._refused is None:
            topic = asked.topic if isinstance(asked, Publish) else "a message"
            self._refused = Refused(
                f"{self.address} refused a message to {topic}: {_reason(packet)}",
                packet.reason_code,
            )

    def _check(self) -> None:
        if self._refused is not None:
            found, self._refused = self._refused, None
            raise found


def _trust(address: Address) -> ssl.SSLContext:
    """Who is trusted at `address`, and who we are; raises ClientError that names a wrong file."""
    names = address.ca_file or "the system's certificates"
    try:
        context = ssl.create_default_context(cafile=address.ca_file)
        if address.certificate:
            names = f"{address.certificate}, {address.private_key}"
            context.load_cert_chain(address.certificate, address.private_key)
    except OSError as error:
        why = "expected PEM" if isinstance(error, ssl.SSLError) else error.strerror
        raise ClientError(f"TLS with {address}: {names}: {why}") from None
    return context


def _reason(packet: Any) -> str:
    text = (packet.properties or {}).get(prop.REASON_STRING)
    name = name_of(packet.reason_code)
    return f"{name} (0x{packet.reason_code:02x})" + (f", {text}" if text else "")


def _number(given: prop.Properties, identifier: int, default: int) -> int:
    value = given.get(identifier, default)
    return value if isinstance(value, int) else default
