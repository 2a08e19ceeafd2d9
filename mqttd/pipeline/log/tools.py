"""`mqttd-ctl events ...`: look at an event log, with or without a broker that writes it.

info      what there is: nodes, offsets, segments, times, groups
tail      the last events, then what comes
dump      a range as JSON lines
verify    every block against its checksum, every offset against its place
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TextIO

from mqttd.pipeline.log.blocks import Corrupt
from mqttd.pipeline.log.check import check
from mqttd.pipeline.log.files import segments_in
from mqttd.pipeline.log.groups import groups, reads, unread
from mqttd.pipeline.log.reader import (
    Bounds,
    DataLoss,
    EventLog,
    LogReader,
    events,
    find_time,
    holes,
)
from mqttd.pipeline.log.schema import EVENTS, SCHEMA_VERSION, Event
from mqttd.printable import printable

__all__ = ["LogToolError", "add_arguments", "as_json", "run", "select"]

#: Events read at a time.
STEP: Final = 10_000
#: Events behind which the last ones that are wanted are not looked for.
_FAR: Final = 1_000_000
#: Files that are no group's that are told one by one.
MOST_SKIPPED: Final = 20
#: Seconds between two looks at a log that is followed.
LOOK_EVERY: Final = 0.2


class LogToolError(Exception):
    """What was asked cannot be done; the text is one line."""


def add_arguments(add: Any) -> None:
    """Add the commands: ``add(name, text)`` gives an argparse parser."""
    add("info", "What the event log holds: nodes, offsets, size, times, groups.")
    tail = add("tail", "Print the last events, and with -f those that come.")
    tail.add_argument(
        "-n", type=int, default=10, metavar="COUNT", help="so many that are wanted (default 10)"
    )
    tail.add_argument("-f", "--follow", action="store_true", help="go on with what comes")
    dump = add("dump", "Print events as JSON lines.")
    for name, text in (("--from", "offset or ISO 8601 time"), ("--to", "the same, not included")):
        dump.add_argument(name, dest=name[2:] + "_", metavar="PLACE", help=text)
    for command in (tail, dump):
        command.add_argument("--node", metavar="NAME", help="of this node only")
        command.add_argument("--event", metavar="GLOB", help="such as client.*")
        command.add_argument("--filter", metavar="FILTER", help="topic filter")
    add("verify", "Check every block; exit status 1 if anything is wrong.")


def run(options: argparse.Namespace, path: str, out: TextIO | None = None) -> int:
    """Run a command on the log at `path`; returns the exit status.

    Raises LogToolError.
    """
    out = sys.stdout if out is None else out
    wanted = getattr(options, "event", None)
    if wanted is not None and not fnmatch.filter(EVENTS, wanted):
        raise LogToolError(f"--event {wanted}: no such event; there are: {', '.join(EVENTS)}")
    if getattr(options, "filter", None) is not None:
        _check_filter(options.filter)
    try:
        log = LogReader(path)
        if options.events_command == "info":
            return _info(options, log, out)
        if options.events_command == "verify":
            return _verify(log, out)
        if options.events_command == "tail":
            return _tail(options, log, out)
        return _dump(options, log, out)
    except BrokenPipeError:
        raise  # who reads what is written has seen enough
    except (OSError, ValueError, DataLoss, Corrupt) as error:
        raise LogToolError(str(error)) from None


# -- commands


def _info(options: argparse.Namespace, log: LogReader, out: TextIO) -> int:
    bounds = log.bounds()
    nodes = {}
    for node, (earliest, latest) in bounds.items():
        folder = os.path.join(log.path, node)
        sizes = []
        for name in segments_in(folder):
            try:
                sizes.append(os.path.getsize(os.path.join(folder, name)))
            except FileNotFoundError:
                continue
        blocks = log.blocks(node, earliest, latest, whole=False)
        nodes[node] = {
            "earliest": earliest,
            "latest": latest,
            "segments": len(sizes),
            "bytes": sum(sizes),
            "blocks": len(blocks),
            "lost": sum(one.lost for one in blocks)
            + sum(end - base for base, end in holes(blocks, earliest, latest)),
            "first_time": _time(min((one.first_time for one in blocks), default=0)),
            "last_time": _time(max((one.last_time for one in blocks), default=0)),
        }
    skipped: list[str] = []
    known = groups(log.path, skipped)
    found = {
        "path": log.path,
        "log": log.log_id,
        "schema": SCHEMA_VERSION,
        "nodes": nodes,
        "groups": known,
        "skipped": skipped,
    }
    if getattr(options, "json", False):
        print(json.dumps(found, indent=2), file=out)
        return 0
    print(f"log     {log.log_id}, schema {SCHEMA_VERSION}, {log.path}", file=out)
    for node, one in nodes.items():
        print(
            f"node    {node}: events {one['earliest']} to {one['latest']}, {one['bytes']} bytes in"
            f" {one['segments']} segments, {one['lost']} lost, {one['first_time']} to"
            f" {one['last_time']}",
            file=out,
        )
    for name, group in known.items():
        print(f"group   {name}: {_group(group, log, bounds)}", file=out)
    for line in skipped[:MOST_SKIPPED]:
        print(f"skipped {line}; it keeps nothing", file=out)
    if len(skipped) > MOST_SKIPPED:
        print(f"skipped {len(skipped) - MOST_SKIPPED} more files in groups/", file=out)
    return 0


def _group(group: dict[str, Any], log: LogReader, bounds: dict[str, Bounds]) -> str:
    """How far a group is; one that does not read is not behind."""
    read = ", ".join(f"{node} {offset}" for node, offset in group["nodes"].items())
    if group["readers"] > 1:
        read += f" by the slowest of {group['readers']} queries"
    if group.get("log") != log.log_id:
        return f"read to {read} of another log"
    at = _time(round(group["time"] * 1e6))
    if group.get("stopped"):
        return f"read to {read}; done at {at}"
    if not reads(group):
        return f"read to {read}; not heard of since {at}"
    behind = unread(partial(log.blocks, whole=False), bounds, group["nodes"])
    return f"read to {read}; {behind} behind"


def _verify(log: LogReader, out: TextIO) -> int:
    found = list(check(log.path))
    bad = sum(one.bad for one in found)
    for one in found:
        print(one.text, file=out)
    return 1 if bad else 0


def _tail(options: argparse.Namespace, log: LogReader, out: TextIO) -> int:
    at: dict[str, int] = {}
    for node, (earliest, latest) in _nodes(options, log).items():
        for one in _last(options, log, node, earliest, latest):
            print(_line(one), file=out)
        at[node] = latest
    while options.follow:
        time.sleep(LOOK_EVERY)
        for node, (earliest, latest) in _nodes(options, log).items():
            start = at.get(node, earliest)
            if start < latest:
                for one in events(log, node, start, latest, whole=False):
                    if _wanted(options, one):
                        print(_line(one), file=out, flush=True)
            at[node] = latest
    return 0


def _last(
    options: argparse.Namespace, log: LogReader, node: str, earliest: int, latest: int
) -> list[Event]:
    """The last events that are wanted, of the last `_FAR`."""
    count = far = max(options.n, 0)
    while True:
        start = max(earliest, latest - far)
        every = events(log, node, start, latest, whole=False)
        found = [one for one in every if _wanted(options, one)]
        if len(found) >= count or start == earliest or far >= _FAR:
            return found[len(found) - count :] if len(found) > count else found
        far = min(far * 16, _FAR)


def _dump(options: argparse.Namespace, log: LogReader, out: TextIO) -> int:
    for one in select(log, options.from_, options.to_, options.node):
        if _wanted(options, one):
            print(_escaped(json.dumps(as_json(one), ensure_ascii=False)), file=out)
    return 0


# -- parts of them, for replay too


def select(
    log: EventLog, start: str | None, end: str | None, node: str | None = None
) -> Iterator[Event]:
    """The events from `start` up to `end` (offsets, or ISO 8601 times), node after node.

    Raises ValueError for a place that is neither, DataLoss for offsets that are gone.
    """
    bounds = log.bounds()
    for name in [node] if node is not None else list(bounds):
        if name not in bounds:
            raise ValueError(f"no node {name!r} in the log; there are: {', '.join(bounds)}")
        earliest, latest = bounds[name]
        first = _place(log, name, start, earliest)
        last = min(_place(log, name, end, latest), latest)
        if first < earliest:
            raise DataLoss(
                f"events {first} to {earliest - 1} of node {name} were deleted by retention"
            )
        for at in range(first, last, STEP):
            yield from events(log, name, at, min(at + STEP, last), whole=False)


def _place(log: EventLog, node: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r}: expected an offset or a time such as 2026-01-31T12:00:00Z"
        ) from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return find_time(log, node, round(when.timestamp() * 1e6))


def as_json(event: Event) -> dict[str, Any]:
    """An event for JSON: what it has not is left out, payloads are text or else base64."""
    import base64

    found: dict[str, Any] = {}
    for name, value in event._asdict().items():
        if value is None or value == b"" or (name == "lost" and not value):
            continue
        if name == "timestamp":
            value = _time(value) if value else None
        elif name == "message_id":
            value = value.hex()
        elif name == "payload":
            try:
                value = value.decode()
            except UnicodeDecodeError:
                name, value = "payload_base64", base64.b64encode(value).decode()
        elif name == "properties":
            value = value.hex()
        found[name] = value
    return found


def _nodes(options: argparse.Namespace, log: LogReader) -> dict[str, Bounds]:
    bounds = log.bounds()
    if options.node is None:
        return bounds
    if options.node not in bounds:
        raise ValueError(f"no node {options.node!r} in the log; there are: {', '.join(bounds)}")
    return {options.node: bounds[options.node]}


def _check_filter(topic_filter: str) -> None:
    from mqttd.codec.reasons import MqttError
    from mqttd.codec.topic import validate_topic_filter

    try:
        validate_topic_filter(topic_filter)
    except MqttError as error:
        raise LogToolError(f"--filter {topic_filter}: {error.detail}") from None


def _wanted(options: argparse.Namespace, event: Event) -> bool:
    if options.event is not None and not fnmatch.fnmatchcase(event.event, options.event):
        return False
    if options.filter is not None:
        from mqttd.codec.topic import match

        return event.topic is not None and match(event.topic, options.filter)
    return True


def _line(event: Event) -> str:
    parts = [_time(event.timestamp), f"{event.node}/{event.seq}", event.event]
    for name in ("client_id", "peer", "topic", "qos", "reason"):
        value = getattr(event, name)
        if value is not None:
            parts.append(f"{name}={printable(str(value))}")
    if event.payload is not None:
        text = printable(event.payload[:60].decode("utf-8", "replace"))
        parts.append(f"payload={text!r}" + ("..." if len(event.payload) > 60 else ""))
    return " ".join(parts)


def _escaped(line: str) -> str:
    """JSON with what a terminal or a reader of lines might obey escaped as JSON has it."""
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in line)


def _time(microseconds: int) -> str:
    if not microseconds:
        return "-"
    text = datetime.fromtimestamp(microseconds / 1e6, UTC).isoformat(timespec="microseconds")
    return text.replace("+00:00", "Z")
