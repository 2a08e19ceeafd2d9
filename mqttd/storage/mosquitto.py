"""A mosquitto.db as JSON lines: sessions with subscriptions and queues, retained messages.

    header   00 B5 00 "mosquitto db", CRC (unused), version          all numbers big-endian but
    chunks   type, length, a fixed part, texts, a property block     ids and times of expiry

    1 configuration   2 message   3 message of a client   4 retained   5 subscription   6 client

Versions 5 and 6, which mosquitto 1.6 and 2.x write, on little-endian machines. A QoS 2 message that
awaits PUBREL is not with its subscribers yet, for mosquitto routes it then; here it would have
been, so it is put in their queues. Shared subscriptions and wills are not in such a file.

Promise: a file that is cut off or is none is refused with the byte where and what was expected.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import Any, Final, Literal

from mqttd.broker.retained.retained import retained_of
from mqttd.codec import properties as prop
from mqttd.codec.packet_types import PUBLISH
from mqttd.codec.properties import decode_properties
from mqttd.codec.reasons import MqttError
from mqttd.codec.topic import match
from mqttd.session.ground.message import Delivery, Message
from mqttd.storage.database import StoreError
from mqttd.storage.entries import dump, dump_retained
from mqttd.storage.lines import (
    VERSION,
    End,
    Header,
    Line,
    MessageLine,
    RetainedLine,
    SessionLine,
)

__all__ = ["MAGIC", "MosquittoFile"]

MAGIC: Final = b"\x00\xb5\x00mosquitto db"

_CONFIG, _MESSAGE, _CLIENT_MESSAGE, _RETAIN, _SUBSCRIPTION, _CLIENT = range(1, 7)

#: Ids and times of expiry stand as the machine had them, the rest in network order.
_IDS: Final = struct.Struct("<Qq")
_LENGTHS: Final = struct.Struct(">IHHHHHBB")
_ID: Final = struct.Struct("<Q")
_OF_CLIENT: Final = struct.Struct(">HHBBBB")
_SUB: Final = struct.Struct(">IHHBBxx")
_EXPIRY: Final = struct.Struct("<q")
_SESSION: Final = struct.Struct(">IHH")
_NAMES: Final = struct.Struct(">HHxxxx")

#: States of a client's message: sent to it, to be sent (again, where it is marked DUP), PUBREL is
#: out, it waits, it came from it.
_INFLIGHT: Final = frozenset((3, 5))
_SENDING: Final = frozenset((2, 4))
_RELEASED: Final = frozenset((6, 9))
_WAITING: Final = frozenset((1, 11))
_RECEIVED: Final = frozenset((7, 10))
#: A session that does not expire.
_NEVER: Final = 0xFFFFFFFF

State = Literal["queued", "inflight", "released", "received"]


class _Session:
    def __init__(self, client_id: str, username: str | None, expiry: int, ends_at: int) -> None:
        self.client_id = client_id
        self.username = username
        self.expiry = expiry
        self.ends_at = ends_at
        #: Filter -> options and identifier.
        self.subscriptions: dict[str, tuple[int, int]] = {}
        self.lines: list[MessageLine] = []
        self.ids: set[tuple[bool, int]] = set()


class MosquittoFile:
    """What a mosquitto.db holds; `path` is for messages.

    Raises StoreError for bytes that are none, and OSError.
    """

    def __init__(self, path: str, seconds: float | None = None) -> None:
        self.path = path
        self.now = int(time.time() if seconds is None else seconds)
        #: What was left out, for the operator.
        self.left: list[str] = []
        self._expired = 0
        self._messages: dict[int, Message] = {}
        self._sessions: dict[str, _Session] = {}
        self._retained: dict[str, Message] = {}
        self._at = 0
        with open(path, "rb") as file:
            self._data = file.read()
        try:
            self._read()
        except (struct.error, UnicodeDecodeError, MqttError, ValueError, IndexError) as error:
            raise StoreError(f"{path}: byte {self._at}: {error or 'cut off'}") from None
        finally:
            self._data = b""
        if self._expired:
            self.left.append(f"{self._expired} messages that have expired")

    def lines(self) -> Iterator[Line]:
        """The same as lines of a store, for `mqttd.storage.transfer.import_lines`."""
        count = 0
        for line in self._lines():
            count += 1
            yield line
        yield End(lines=count)

    def _lines(self) -> Iterator[Line]:
        yield Header(version=VERSION, written_at=self.now, by=f"mosquitto, {self.path}")
        for session in self._sessions.values():
            away = self.now
            if session.ends_at and session.expiry != _NEVER:
                away = min(session.ends_at - session.expiry, self.now)
            yield SessionLine(
                client_id=session.client_id,
                username=session.username,
                expiry=session.expiry,
                away_since=max(away, 1),
                subscriptions=[(name, *given) for name, given in session.subscriptions.items()],
            )
            yield from session.lines
        for message in self._retained.values():
            delivery = Delivery.of(message, message.qos, True, True, None, self.now * 1000)
            kept = retained_of(delivery, message.username)
            yield RetainedLine(
                topic=message.topic,
                version=5,
                expires_at=message.expires_at,
                publisher=message.client_id,
                username=message.username,
                packet=kept.wire,
                record=dump_retained(kept, 0),
            )

    # -- the file --------------------------------------------------------------------------------

    def _read(self) -> None:
        data = self._data
        if not data.startswith(MAGIC):
            raise ValueError("expected a mosquitto.db")
        self._at = 19
        (version,) = struct.unpack_from(">I", data, 19)
        if version not in (5, 6):
            raise ValueError(
                f"version {version}: expected 5 or 6, which mosquitto 1.6 and 2.x write"
            )
        at = 23
        chunks: dict[int, list[int]] = {kind: [] for kind in range(_CONFIG, _CLIENT + 1)}
        while at < len(data):
            self._at = at
            kind, length = struct.unpack_from(">II", data, at)
            if kind not in chunks:
                raise ValueError(f"a chunk of type {kind}: expected one of 1 to 6")
            if at + 8 + length > len(data):
                raise ValueError(
                    f"a chunk of {length} bytes, {len(data) - at - 8} are left: it was cut off"
                )
            chunks[kind].append(at + 8)
            at += 8 + length
        if not chunks[_CONFIG]:
            raise ValueError("expected a configuration (chunk of type 1): it was cut off")
        # Those that others refer to come first, whatever their order in the file.
        readers = (
            (_CONFIG, self._config),
            (_MESSAGE, self._message),
            (_CLIENT, self._client if version == 6 else self._client_5),
            (_SUBSCRIPTION, self._subscription),
            (_CLIENT_MESSAGE, self._client_message),
            (_RETAIN, self._retain),
        )
        for kind, take in readers:
            for at in chunks[kind]:
                self._at = at
                (length,) = struct.unpack_from(">I", data, at - 4)
                take(at, at + length)

    def _text(self, at: int, size: int, end: int) -> str:
        if at + size > end:
            raise ValueError(f"a text of {size} bytes, {end - at} are left")
        return self._data[at : at + size].decode()

    def _config(self, at: int, end: int) -> None:
        if self._data[at + 9] != 8:
            raise ValueError(f"ids of {self._data[at + 9]} bytes: expected 8, little-endian")

    def _message(self, at: int, end: int) -> None:
        number, expiry = _IDS.unpack_from(self._data, at)
        payload, _, source, username, topic, _, qos, retain = _LENGTHS.unpack_from(
            self._data, at + 16
        )
        at += 32
        names = [self._text(at, source, end), self._text(at + source, username, end)]
        at += source + username
        name = self._text(at, topic, end)
        at += topic
        if at + payload > end:
            raise ValueError(f"a payload of {payload} bytes, {end - at} are left")
        if qos > 2:
            raise ValueError(f"QoS {qos}")
        self._messages[number] = Message(
            0,
            name,
            self._data[at : at + payload],
            qos,
            bool(retain),
            self._properties(at + payload, end) or None,
            names[0],
            names[1] or None,
            expiry * 1000 if expiry > 0 else 0,
        )

    def _properties(self, at: int, end: int) -> dict[int, Any]:
        """A block, with its length before it; nothing where there are none."""
        if at >= end:
            return {}
        found, _ = decode_properties(self._data, at, end, PUBLISH)
        for dropped in (prop.MESSAGE_EXPIRY_INTERVAL, prop.TOPIC_ALIAS):
            found.pop(dropped, None)
        return found

    def _client_5(self, at: int, end: int) -> None:
        (ends_at,) = _EXPIRY.unpack_from(self._data, at)
        expiry, _, size = _SESSION.unpack_from(self._data, at + 8)
        self._begin(self._text(at + 16, size, end), None, expiry, ends_at)

    def _client(self, at: int, end: int) -> None:
        (ends_at,) = _EXPIRY.unpack_from(self._data, at)
        expiry, _, size = _SESSION.unpack_from(self._data, at + 8)
        _, named = _NAMES.unpack_from(self._data, at + 16)
        at += 24
        client_id = self._text(at, size, end)
        username: str | None = None
        raw = self._data[at + size : at + size + named]
        # mosquitto 2.0 writes what is left in memory where a client has no user name.
        if raw and len(raw) == named and b"\0" not in raw:
            try:
                username = raw.decode()
            except UnicodeDecodeError:
                username = None
        self._begin(client_id, username, expiry, ends_at)

    def _begin(self, client_id: str, username: str | None, expiry: int, ends_at: int) -> None:
        if not client_id:
            raise ValueError("an empty client id")
        if not expiry:
            self.left.append(f"{client_id!r}: its session ends with its connection")
            return
        self._sessions[client_id] = _Session(client_id, username, expiry, max(ends_at, 0))

    def _subscription(self, at: int, end: int) -> None:
        identifier, size, topic, qos, options = _SUB.unpack_from(self._data, at)
        client_id = self._text(at + 12, size, end)
        topic_filter = self._text(at + 12 + size, topic, end)
        session = self._sessions.get(client_id)
        if session is not None:
            # No local is 4, retain as published 8, in both.
            session.subscriptions[topic_filter] = ((qos & 3) | (options & 12), identifier)

    def _client_message(self, at: int, end: int) -> None:
        (number,) = _ID.unpack_from(self._data, at)
        packet_id, size, qos, state, flags, direction = _OF_CLIENT.unpack_from(self._data, at + 8)
        client_id = self._text(at + 16, size, end)
        identifiers = self._properties(at + 16 + size, end).get(prop.SUBSCRIPTION_IDENTIFIER)
        session = self._sessions.get(client_id)
        if session is None:
            return
        message = self._messages.get(number)
        if message is None:
            self.left.append(f"{client_id!r}: a message that is not in the file")
        elif not direction:
            self._received(session, message, state, packet_id)
        elif state in _RELEASED:
            self._note(session, "released", packet_id)
        elif qos and (state in _INFLIGHT or (state in _SENDING and flags & 15)):
            self._put(session, message, qos, flags >> 4 != 0, identifiers, packet_id)
        elif state in _WAITING or state in _SENDING or not qos:
            self._put(session, message, qos, flags >> 4 != 0, identifiers, 0)
        else:
            self.left.append(f"{client_id!r}: a message in state {state}")

    def _received(self, session: _Session, message: Message, state: int, packet_id: int) -> None:
        """A QoS 2 message of which mosquitto has told nobody: now is the time."""
        if state not in _RECEIVED:
            return
        self._note(session, "received", packet_id)
        if message.retain:
            self._keep(message)
        for other in self._sessions.values():
            wanted = [
                given for name, given in other.subscriptions.items() if match(message.topic, name)
            ]
            if wanted:
                qos = min(message.qos, max(options & 3 for options, _ in wanted))
                named = [identifier for _, identifier in wanted if identifier]
                self._put(other, message, qos, False, named or None, 0)

    def _note(self, session: _Session, state: State, packet_id: int) -> None:
        mine = (state == "received", packet_id)
        if packet_id and mine not in session.ids:
            session.ids.add(mine)
            session.lines.append(
                MessageLine(client_id=session.client_id, packet_id=packet_id, state=state)
            )

    def _put(
        self,
        session: _Session,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: Any,
        packet_id: int,
    ) -> None:
        if message.expires_at and message.expires_at <= self.now * 1000:
            self._expired += 1
            return
        if packet_id:
            if (False, packet_id) in session.ids:
                packet_id = 0
            session.ids.add((False, packet_id))
        if isinstance(identifiers, int):
            identifiers = [identifiers]
        now = self.now * 1000
        made = Delivery.of(message, qos, retain, True, identifiers, now, packet_id or 1)
        session.lines.append(
            MessageLine(
                client_id=session.client_id,
                packet_id=packet_id,
                state="inflight" if packet_id else "queued",
                version=5,
                expires_at=message.expires_at,
                publisher=message.client_id,
                packet=made.wire,
                record=dump(made, 0),
            )
        )

    def _retain(self, at: int, end: int) -> None:
        (number,) = _ID.unpack_from(self._data, at)
        message = self._messages.get(number)
        if message is None:
            self.left.append("a retained message that is not in the file")
        else:
            self._keep(message)

    def _keep(self, message: Message) -> None:
        if message.topic.startswith("$SYS/"):
            return
        if message.expires_at and message.expires_at <= self.now * 1000:
            self._expired += 1
        elif message.payload:
            self._retained[message.topic] = message
        else:
            self._retained.pop(message.topic, None)
