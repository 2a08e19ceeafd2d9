"""`mqttd-ctl events verify`: whether a log is what was written, byte by byte and offset by offset.

Looks at every segment from its first byte to its last, and at what the writer noted: nothing that a
reader of the log keeps in memory is believed. A log that is being written to may be looked at.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from mqttd.pipeline.log.blocks import Block
from mqttd.pipeline.log.files import (
    LOG_FILE,
    STATE_FILE,
    Damaged,
    base_of,
    first_kept,
    log_id_at,
    nodes_in,
    nodes_known,
    read_json,
    segments_in,
    set_aside_in,
)
from mqttd.pipeline.log.reader import holes
from mqttd.pipeline.log.recovery import mark_in
from mqttd.pipeline.log.scan import Harm, walk

__all__ = ["Finding", "check"]


class Finding(NamedTuple):
    """One line of the answer, and whether it says that something is wrong."""

    text: str
    bad: bool


def check(path: str) -> Iterator[Finding]:
    """What is to be said of the log at `path`.

    Raises OSError or ValueError if there is none that this program reads.
    """
    log_id_at(path)
    try:
        read_json(os.path.join(path, LOG_FILE))
    except (FileNotFoundError, Damaged) as error:
        yield Finding(f"{LOG_FILE}: {error}; it is made again when the broker starts", True)
    nodes = nodes_in(path)
    for node in nodes_known(path):
        if node not in nodes:
            yield Finding(f"{node}: its folder is gone", True)
    for node in nodes:
        yield from _node(path, node)


def _node(path: str, node: str) -> Iterator[Finding]:
    folder = os.path.join(path, node)
    noted, trouble = _noted(folder)
    bad = bool(trouble)
    if trouble:
        yield Finding(f"{node}: {trouble}", True)
    for name in set_aside_in(folder):
        yield Finding(
            f"{node}/{name}: a damaged file that is kept; delete it when it was seen", False
        )
    every: list[Block] = []
    tail = 0
    names = segments_in(folder)
    for i, name in enumerate(names):
        place, newest = f"{node}/{name}", i + 1 == len(names)
        limit = None if newest else base_of(names[i + 1])
        blocks: list[Block] = []
        at = base_of(name)
        try:
            harms: list[Harm] = []
            for one in _walk(os.path.join(folder, name)):
                if isinstance(one, Harm):
                    harms.append(one)
                    continue
                if one.base != at:
                    yield Finding(
                        f"{place}: byte {one.position}: event {at} expected, {one.base} found", True
                    )
                    bad = True
                blocks.append(one)
                at = one.end
        except FileNotFoundError:
            continue  # retention was faster
        if newest and harms and not harms[-1].foreign:
            if not blocks or harms[-1].position > blocks[-1].position:
                tail = harms.pop().size
        for harm in harms:
            what = "of another format" if harm.foreign else "damaged"
            yield Finding(f"{place}: {harm.size} bytes are {what}: {harm.why}", True)
            bad = True
        if limit is not None and at != limit:
            yield Finding(f"{place}: ends at event {at}, the next begins with {limit}", True)
            bad = True
        every += blocks
    every.sort(key=lambda block: block.base)
    first = first_kept(folder, base_of(names[0])) if names else 0
    latest = max((block.end for block in every), default=first)
    for base, end in holes(every, first, latest):
        yield Finding(f"{node}: events {base} to {end - 1} are missing ({end - base} events)", True)
        bad = True
    if noted > latest:
        count = noted - latest
        yield Finding(
            f"{node}: events {latest} to {noted - 1} are missing at the end ({count} events)", True
        )
        bad = True
    lost = sum(block.lost for block in every)
    text = f"{node}: {len(every)} blocks, events {first} to {latest}"
    text += " are NOT whole" if bad else " are whole"
    if lost:
        text += f"; gaps stand for {lost} events"
    if tail:
        text += f"; {tail} bytes behind the last block (being written, or torn)"
    yield Finding(text, False)


def _walk(name: str) -> Iterator[Block | Harm]:
    with open(name, "rb", buffering=0) as file:
        fd = file.fileno()
        yield from walk(
            lambda at, count: os.pread(fd, count, at), 0, os.fstat(fd).st_size, True, "", name
        )


def _noted(folder: str) -> tuple[int, str]:
    """How far the writer had come when it was asked first, and what is wrong with its notes."""
    try:
        state = read_json(os.path.join(folder, STATE_FILE))
        if int(state.get("end", -1)) >= 0:
            return int(state["end"]), ""
    except FileNotFoundError:
        return 0, f"{STATE_FILE} is gone; it is made again when the broker starts"
    except (Damaged, ValueError, TypeError) as error:
        return 0, f"{error}; it is made again when the broker starts"
    mark = None
    with contextlib.suppress(FileNotFoundError):
        mark = mark_in(folder)
    if mark is None and "log" in state:
        return 0, "its mark (the file lock) is gone: how far it was written is not known"
    return mark or 0, ""
