"""Whatever a log's blocks look like, Spark gets the rows that the plain decoder gives."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from mqttd.codec import properties as prop
from mqttd.codec.packet_types import PUBLISH
from mqttd.codec.properties import Properties, decode_properties, encode_properties
from mqttd.codec.topic import match
from mqttd.pipeline.log.blocks import (
    HAS_PAYLOAD,
    HAS_QOS,
    HAS_SIZE,
    NO_ID,
    RETAIN,
    Row,
    encode_block,
    encode_gap,
)
from mqttd.pipeline.log.columns import Columns
from mqttd.pipeline.log.packed import pack, taken_of
from mqttd.pipeline.log.reader import LogReader, events
from mqttd.pipeline.log.schema import CODES, COLUMNS, EVENTS, GAP, Event
from mqttd.pipeline.log.writer import Encoded, Writer
from mqttd.pipeline.log.zstd import zstd
from mqttd.pipeline.spark import arrow
from mqttd.session.ground.runs import Run
from tests.unit.pipeline.logs import NODE, START
from tests.unit.pipeline.test_source import batch, rows

TEXTS = ["", "", "a", "ü/ß", "t/1", "t/" + "long/" * 40, "\U0001f40d"]
PAYLOADS = [b"", b"\xff\xfe\0", b"21.5", b"\0" * 300, bytes(range(256)) * 3]
GIVEN: list[Properties] = [
    {},
    {prop.USER_PROPERTY: [("k", "v")]},
    {prop.USER_PROPERTY: [("k", ""), ("", "w"), ("k", "last")], prop.CONTENT_TYPE: ""},
    {prop.USER_PROPERTY: [(f"k{i % 9}", "ß" * i) for i in range(40)]},
    {prop.RESPONSE_TOPIC: "r", prop.CORRELATION_DATA: b"\xff\0"},
    {prop.MESSAGE_EXPIRY_INTERVAL: 0xFFFFFFFF, prop.PAYLOAD_FORMAT_INDICATOR: 1},
]


def odd(chance: random.Random, i: int, texts: list[str]) -> Row:
    """Some event or other; of a message with or without payload, properties, an id."""
    at = START + i + chance.randrange(-1000, 1000)
    client, user, peer, topic, reason = (chance.choice(texts) for _ in range(5))
    if chance.random() < 0.3:
        code = chance.choice([0, 1, 4, 10, 20])
        return code, at, 0, NO_ID, client, user, peer, topic, reason, 0, b"", b""
    flags = HAS_SIZE | chance.choice([0, HAS_QOS, HAS_QOS | RETAIN | 2])
    payload = chance.choice(PAYLOADS)
    size = len(payload)
    if chance.random() < 0.8:
        flags |= HAS_PAYLOAD
    else:
        payload, size = b"", 1 << 20
    given = chance.choice(GIVEN)
    block = encode_properties(given) if given and chance.random() < 0.7 else b""
    name = chance.choice([NO_ID, (at << 64 | i).to_bytes(16, "big"), bytes([255]) * 16])
    code = CODES[chance.choice(["message.publish", "message.dropped", "message.acked"])]
    return code, at, flags, name, client, user, peer, topic, reason, size, payload, block


def run_of(chance: random.Random, base: int) -> tuple[bytes, int]:
    """A block of events one of which stands for many."""
    columns = Columns(10_000, lambda: None, lambda: None)
    columns.append(odd(chance, base, TEXTS))
    count = chance.choice([2, 40])
    data = b"".join(b"0\x05\0\1a%02d" % i for i in range(count))
    columns.note(Run(START + base, base + 1, b"a", 0x30, 2, count), "bob", None, data, b"", 5, 7, 7)
    taken = columns.take()
    return pack(taken, base, 1, chance.choice([None, zstd()])), taken.rows


def fill(writer: Writer, chance: random.Random) -> None:
    """Blocks of one event and of many, of all formats, with gaps between."""
    for _ in range(chance.randrange(40, 120)):
        base = writer.next
        how = chance.random()
        if how < 0.05:
            count = chance.randrange(1, 50)
            data = encode_gap(base, count, START + base, "queue full")
        elif how < 0.15:
            data, count = run_of(chance, base)
        else:
            count = chance.choice([1, 1, 1, 2, 7, 300])
            texts = chance.choice([TEXTS, TEXTS, [""], ["same"]])
            found = [odd(chance, base + i, texts) for i in range(count)]
            if chance.random() < 0.2:
                data = encode_block(found, base)
            else:
                data = pack(taken_of(found), base, 1, chance.choice([None, zstd()]))
        writer.write([Encoded(base, count, data)])


def row_of(event: Event) -> dict[str, Any]:
    """The columns of an event, as its properties are read by the codec."""
    block = event.properties
    given: Any = decode_properties(block, 0, len(block), PUBLISH)[0] if block else {}
    pairs = given.get(prop.USER_PROPERTY, [])
    seconds = given.get(prop.MESSAGE_EXPIRY_INTERVAL)
    of_properties = {
        "content_type": given.get(prop.CONTENT_TYPE),
        "response_topic": given.get(prop.RESPONSE_TOPIC),
        "correlation_data": given.get(prop.CORRELATION_DATA),
        "message_expiry": None if seconds is None else min(seconds, 0x7FFFFFFF),
        "headers": [{"key": key, "value": value} for key, value in pairs] or None,
        "user_properties": list(dict(pairs).items()) or None,
    }
    return {
        name: of_properties[name] if name in of_properties else getattr(event, name)
        for name in COLUMNS
    }


@pytest.fixture(params=range(8))
def odd_log(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, random.Random]:
    """A log of all shapes."""
    chance = random.Random(request.param)
    writer = Writer(str(tmp_path), NODE)
    fill(writer, chance)
    writer.close()
    return tmp_path, chance


@pytest.mark.parametrize("least", [1, 50, 40_000])
def test_the_rows_are_those_of_the_plain_decoder(
    odd_log: tuple[Path, random.Random], least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow, "BATCH_ROWS", least)
    path, chance = odd_log
    log = LogReader(str(path))
    end = log.bounds()[NODE].latest
    for _ in range(4):
        first, behind = sorted(chance.sample(range(end + 1), 2))
        (holding,) = log.blocks(NODE, first, first + 1)
        if holding.gap:  # the plain one tells of it where it begins
            first = holding.base
        reader = batch(
            path,
            startingOffsets=f'{{"{NODE}": {first}}}',
            endingOffsets=f'{{"{NODE}": {behind}}}',
            includeHeaders="true",
            includeUserProperties="true",
        )
        found = rows(reader, reader.partitions())
        for one in found:
            one["timestamp"] = round(one["timestamp"].timestamp() * 1_000_000)
        wanted = [row_of(event) for event in events(log, NODE, first, behind)]
        assert [*map(whole, found)] == [*map(whole, wanted)]


def whole(row: dict[str, Any]) -> dict[str, Any]:
    """The row; of a gap without what tells a part of it, in which the range ends, from all."""
    return row if row["event"] != EVENTS[GAP] else {"seq": row["seq"]}


def test_so_are_those_that_are_chosen_by_event_topic_and_column(
    odd_log: tuple[Path, random.Random],
) -> None:
    path, chance = odd_log
    log = LogReader(str(path))
    plain = [row_of(event) for event in events(log, NODE, *log.bounds()[NODE])]
    for _ in range(4):
        columns = chance.sample([name for name in COLUMNS if name != "timestamp"], 4)
        event = chance.choice(["message.publish", "client.connected"])
        topic = chance.choice(["t/#", "+", "ü/ß"])
        reader = batch(path, columns=",".join(columns), events=event, subscribe=topic)
        assert rows(reader, reader.partitions()) == [
            {name: one[name] for name in columns}
            for one in plain
            if one["event"] == event and one["topic"] and match(one["topic"], topic)
        ]


def test_what_compresses_well_is_not_read_into_more_than_an_array_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(str(tmp_path), NODE)
    payload = bytes(1 << 16)
    flags = HAS_PAYLOAD | HAS_SIZE
    for base in range(0, 64, 4):
        found: list[Row] = [
            (11, START, flags, NO_ID, "c", "", "", "t", "", len(payload), payload, b"")
            for _ in range(4)
        ]
        writer.write([Encoded(base, 4, pack(taken_of(found), base, 0, zstd()))])
    writer.close()
    monkeypatch.setattr(arrow, "MOST_BYTES", 1 << 20)
    reader = batch(tmp_path, columns="seq,payload")
    (task,) = reader.partitions()
    batches = list(reader.read(task))
    assert max(one.nbytes for one in batches) < 2 << 20
    assert [seq for one in batches for seq in one.column(0).to_pylist()] == list(range(64))
    assert all(value == payload for one in batches for value in one.column(1).to_pylist())
