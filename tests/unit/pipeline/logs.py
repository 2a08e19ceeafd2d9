"""Logs for tests: written in a moment, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mqttd.pipeline.log.blocks import HAS_PAYLOAD, HAS_QOS, HAS_SIZE, NO_ID, Row, encode_block
from mqttd.pipeline.log.files import STATE_FILE, base_of, read_json, segments_in, write_json
from mqttd.pipeline.log.reader import EventLog, events
from mqttd.pipeline.log.schema import CODES, Event
from mqttd.pipeline.log.writer import Encoded, Writer

START = 1_700_000_000_000_000
NODE = "mqttd"


def row(i: int, event: str = "message.publish", topic: str = "", payload: bytes = b"") -> Row:
    """The event with number `i`: its payload and time say which it is."""
    message = event.startswith("message.")
    data = payload or b"%d" % i
    return (
        CODES[event],
        START + i,
        (1 | HAS_QOS | HAS_SIZE | HAS_PAYLOAD) if message else 0,
        (START + i << 64 | i).to_bytes(16, "big") if message else NO_ID,
        f"client{i % 7}",
        "",
        "127.0.0.1:1",
        (topic or f"t/{i % 5}") if message else "",
        "",
        len(data) if message else 0,
        data if message else b"",
        b"",
    )


def block(base: int, count: int = 10, **more: Any) -> Encoded:
    """A block of `count` events, the first of which has offset `base`."""
    return Encoded(
        base, count, encode_block([row(i, **more) for i in range(base, base + count)], base)
    )


def fill(writer: Writer, count: int, size: int = 10, **more: Any) -> None:
    """Write `count` blocks of `size` events."""
    for _ in range(count):
        writer.write([block(writer.next, size, **more)])


def written(path: Path, blocks: int = 10, size: int = 10, node: str = NODE, **options: Any) -> Path:
    """A closed log with so many blocks."""
    writer = Writer(str(path), node, **options)
    fill(writer, blocks, size)
    writer.close()
    return path


def all_events(log: EventLog) -> list[Event]:
    """Every event of the node."""
    bounds = log.bounds()[NODE]
    return list(events(log, NODE, *bounds))


def offsets(found: Sequence[Event]) -> list[int]:
    """Their offsets."""
    return [event.seq for event in found]


def delete_first(folder: Path, count: int = 1) -> None:
    """Delete the first segments of a node, as retention does."""
    names = segments_in(str(folder))
    state = str(folder / STATE_FILE)
    write_json(state, {**read_json(state), "deleted": base_of(names[count])})
    for name in names[:count]:
        (folder / name).unlink()
