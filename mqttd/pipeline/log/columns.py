"""Events on their way to a block, column by column.

    append(row)            what happened to a client       --+
    note(packet or run)    messages as they came, in bytes --+-->  columns  --take-->  packed.pack
    note_message(message)  messages that are whole already --+
    note_deliveries(runs)  what becomes of them -------------+
    note_dropped(run)      what one receiver misses ---------+
    note_unheard(runs)     what reaches nobody --------------+
    note_denied(runs)      what a client may not do ---------+

Packets that follow one another in the bytes received and differ in their payloads alone are one
run. What many runs say is made at once: of all that a client has published in a turn, and of what
was delivered once for all clients that were sent the same (`parts`).

Promise: a message that is noted costs two appends here and a look at it later, a delivery that look
alone, where there are some of them; `encode_block`, the slow twin, says the same
(tests/unit/pipeline/test_notes.py). Compiled with the hot path.
"""

from __future__ import annotations

from typing import Final

from mqttd.codec import properties as prop
from mqttd.codec.properties import encode_properties
from mqttd.pipeline.log.batch import AHEAD, ALL, TEXT, WORTH, Batch
from mqttd.pipeline.log.blocks import HAS_QOS, RETAIN
from mqttd.pipeline.log.parts import flags_of, size_of, texts
from mqttd.pipeline.log.schema import CODES
from mqttd.session.ground.message import Message
from mqttd.session.ground.runs import Run, goes_on

__all__ = ["TEXT", "Columns", "peer_text"]

_PUBLISH: Final = CODES["message.publish"]
_DELIVERED: Final = CODES["message.delivered"]
_ACKED: Final = CODES["message.acked"]
_DROPPED: Final = CODES["delivery.dropped"]
_UNHEARD: Final = CODES["message.dropped"]
_DENIED: Final = CODES["client.authorize"]
_ASKED: Final[int] = HAS_QOS
_RETAIN: Final[int] = RETAIN
_NO_ID: Final = bytes(8)
_HALF: Final = (1 << 64) - 1
#: What Spark's sink says to the plugin itself is no event.
_OWN: Final = b"$mqttd/"
_DOLLAR: Final = 36


class Columns(Batch):
    """What the broker says of messages, as events of a batch."""

    def note(
        self,
        run: Run,
        client_id: str,
        username: str | None,
        data: bytes,
        block: bytes,
        body: int,
        end: int,
        size: int,
    ) -> None:
        """See `Notes.note`."""
        if _is_own(run.topic) or (self.wants is not None and not self.wants(client_id)):
            return
        payload = run.size
        count = run.count
        if self.hide_headers:
            block = b""
        text = len(block)
        runs = self._runs
        if (
            runs
            and client_id is self._client
            and run.came == self._came
            and username is self._user
            and len(runs) < AHEAD
        ):
            last = runs[-1]
            if goes_on(last, run):
                if block != self._block:
                    runs.append(run)
                    text += len(run.topic) + self._names
                elif last is self._own:
                    last.count += count
                else:
                    last = last.with_more(count)
                    runs[-1] = last
                    self._own = last
            else:
                runs.append(run)
                text += len(run.topic) + self._names
        else:
            self._close()
            runs = self._runs
            runs.append(run)
            self._client = client_id
            self._user = username
            self._names = len(client_id) + (len(username) if username is not None else 0)
            text += len(run.topic) + self._names
            self._came = run.came
        if block:
            self._blocks[self._sealed + len(self._ids) + len(runs) - 1] = block
        self._block = block
        if payload > self.limit:
            self._grow(count, 0, text)
            return
        self._payloads.cut(data, body, end, size, count)
        self._grow(count, payload * count, text)

    def note_message(self, message: Message, now: int) -> None:
        """See `Notes.note_message`."""
        topic = texts([message.topic])
        client = message.client_id
        if _is_own(topic) or (self.wants is not None and not self.wants(client)):
            return
        payload = message.payload
        size = len(payload)
        flags = flags_of(message.qos << 1 | message.retain, size <= self.limit)
        if size > self.limit:
            payload = b""
        at = message.id >> 64
        username = message.username
        user = "" if username is None or self.hide_user else username
        run = self._begin(_PUBLISH, at, "" if self.hide_client else client, user)
        text = len(topic) + len(client) + len(user)
        if not self.hide_headers:
            block = block_of(message, now)
            if block:
                self._blocks[run] = block
                text += len(block)
        self._ids.append((message.id & _HALF).to_bytes(8, "little"))
        self._flags.append(flags)
        self._topics.append(b"" if self.hide_topic else topic)
        self._sizes.append(size.to_bytes(4, "little"))
        if payload:
            self._payloads.add(payload)
        self._grow(1, len(payload), text)

    def note_deliveries(
        self, acked: bool, at: int, client_id: str, username: str | None, runs: list[Run]
    ) -> None:
        """See `Notes.note_deliveries`; payloads are in the events of their publishes."""
        if self.wants is not None and not self.wants(client_id):
            return
        self._close()
        if runs is not self._told or at != self._told_at:
            self._told = runs
            self._told_at = at
            self._telling = self._chosen(runs)
            self._made = None
            if len(self._telling) >= WORTH and self._topics_told <= TEXT:
                self._made = self._part_again(self._telling, at)
        telling = self._telling
        if not telling:
            return
        code = _ACKED if acked else _DELIVERED
        client = "" if self.hide_client else client_id
        user = "" if username is None or self.hide_user else username
        names = len(client) + len(user)
        made = self._made
        if self._text + self._topics_told + len(telling) * names > TEXT:
            for run in telling:  # more than a batch may hold, perhaps
                self._one_by_one(code, at, client, user, [run], -1)
                self._grow(run.count, 0, len(run.topic) + names)
            return
        rows = 0
        if made is None:
            self._one_by_one(code, at, client, user, telling, -1)
            for run in telling:
                rows += run.count
        else:
            self._put(made, code, at, client, user)
            rows = made.rows
        self._grow(rows, 0, self._topics_told + len(telling) * names)

    def note_dropped(
        self, at: int, client_id: str, username: str | None, run: Run, reason: str
    ) -> None:
        """See `Notes.note_dropped`."""
        if _is_own(run.topic) or (self.wants is not None and not self.wants(client_id)):
            return
        client = "" if self.hide_client else client_id
        user = "" if username is None or self.hide_user else username
        self._one_by_one(_DROPPED, at, client, user, [run], -1)
        self._reasons.append((self._sealed + len(self._ids) - 1, 1, reason))
        self._grow(1, 0, len(run.topic) + len(client) + len(user) + len(reason))

    def note_unheard(
        self, at: int, client_id: str, username: str | None, runs: list[Run], reason: str
    ) -> None:
        """See `Notes.note_unheard`."""
        if self.wants is not None and not self.wants(client_id):
            return
        client = "" if self.hide_client else client_id
        user = "" if username is None or self.hide_user else username
        text = 0
        for run in runs:
            if _is_own(run.topic):
                runs = [run for run in runs if not _is_own(run.topic)]
                text = sum([len(run.topic) for run in runs])
                break
            text += len(run.topic)
        if self._text + text > TEXT:
            for run in runs:  # more than a batch may hold, perhaps
                self._unheard(at, client, user, [run], reason, len(run.topic))
        elif runs:
            self._unheard(at, client, user, runs, reason, text)

    def _unheard(
        self, at: int, client: str, user: str, runs: list[Run], reason: str, text: int
    ) -> None:
        count = len(runs)
        rows = 0
        if count < WORTH:
            self._one_by_one(_UNHEARD, at, client, user, runs, -1)
            for run in runs:
                rows += run.count
        else:
            self._close()
            part = self._part_again(runs, at)
            self._put(part, _UNHEARD, at, client, user)
            rows = part.rows
        self._reasons.append((self._sealed + len(self._ids) - count, count, reason))
        self._grow(rows, 0, text + count * (len(client) + len(user) + len(reason)))

    def note_denied(
        self,
        at: int,
        client_id: str,
        username: str | None,
        peer: tuple[str, int],
        runs: list[Run],
        kind: str,
    ) -> None:
        """See `Notes.note_denied`: events of a client, which have no id and no size."""
        if self.wants is not None and not self.wants(client_id):
            return
        client = "" if self.hide_client else client_id
        user = "" if username is None or self.hide_user else username
        where = "" if self.hide_peer else peer_text(peer[0], peer[1])
        names = len(client) + len(user) + len(where) + len(kind)
        text = names * len(runs)
        for run in runs:
            text += len(run.topic)
        if self._text + text > TEXT:
            for run in runs:  # more than a batch may hold, perhaps
                self._denied(at, client, user, where, [run], kind, len(run.topic) + names)
        else:
            self._denied(at, client, user, where, runs, kind, text)

    def _denied(
        self, at: int, client: str, user: str, where: str, runs: list[Run], kind: str, text: int
    ) -> None:
        first = self._begin(_DENIED, at, client, user)
        number = first
        rows = 0
        for run in runs:
            self._ids.append(_NO_ID)
            self._flags.append(_ASKED | run.first >> 1 & 3 | (_RETAIN if run.first & 1 else 0))
            self._topics.append(b"" if self.hide_topic else run.topic)
            self._sizes.append(size_of(0))
            if run.count != 1:
                self._counts[number] = run.count
            rows += run.count
            number += 1
        if where:
            self._peers.append((first, len(runs), where))
        self._reasons.append((first, len(runs), kind))
        self._grow(rows, 0, text)

    def _chosen(self, runs: list[Run]) -> list[Run]:
        """Those of which is told."""
        text = 0
        for run in runs:
            if self.sample < ALL or _is_own(run.topic):
                break
            text += len(run.topic)
        else:
            self._topics_told = text
            return runs
        # The low bits count the ids of one microsecond; these differ from one to the next.
        chosen = [
            run
            for run in runs
            if not _is_own(run.topic)
            and (self.sample == ALL or run.came * 40503 & 0xFFFF < self.sample)
        ]
        text = 0
        for run in chosen:
            text += len(run.topic)
        self._topics_told = text
        return chosen


def peer_text(host: str, port: int) -> str:
    """An address and a port as the log has them."""
    if not port:
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_own(topic: bytes) -> bool:
    return len(topic) != 0 and topic[0] == _DOLLAR and topic.startswith(_OWN)


def block_of(message: Message, now: int) -> bytes:
    """The properties of a message as on the wire, its expiry from `now` on; empty for none."""
    block = message.block
    if block is not None:
        return block
    properties = message.properties
    if message.expires_at:
        properties = dict(properties) if properties is not None else {}
        left = (message.expires_at - now + 999) // 1000
        properties[prop.MESSAGE_EXPIRY_INTERVAL] = left if left > 0 else 0
    return encode_properties(properties) if properties else b""
