"""Feeds the codec what nobody should send, and watches that it only ever says no.

    python -m fuzz.codec --executions 1000000 --seed 1
    python -m fuzz.codec --seconds 60 --target stream

Seeds are the wire cases of ``tests/cases/packets.py``, mutated (bits, bytes, splices, cuts), and
plain random bytes. One execution is one input through one target:

    packet    `parse_packet`: a packet, or a `MqttError` and nothing else; what is read can be
              written, and reads as the same packet again
    stream    `Parser`, the input cut at random places: the same packets and the same error as
              from the whole, and no more bytes kept than one packet has
    frame     `header` and `size_at` anywhere in the input, against the standard's own words
    property  `decode_properties` and back, for every packet type
    topic     filters and names of strange texts: validated or refused; `match` against a reference

The same seed makes the same inputs. A fault prints the input as hex, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable

from mqttd.codec import parser as parser_module
from mqttd.codec.frame import body_at, header, size_at
from mqttd.codec.packets import TYPE_NAMES, Packet
from mqttd.codec.parser import Parser, parse_packet
from mqttd.codec.properties import PROPERTIES, decode_properties, encode_properties
from mqttd.codec.reasons import MqttError, TopicFilterInvalid, TopicNameInvalid
from mqttd.codec.serializer import serialize
from mqttd.codec.topic import match, split_shared, validate_topic_filter, validate_topic_name
from tests.cases.packets import CASES, ONE_OF_EACH, connect

__all__ = ["TARGETS", "Inputs", "Oracle", "main"]

INTERESTING = [0x00, 0x01, 0x02, 0x04, 0x7F, 0x80, 0x81, 0xC0, 0xED, 0xEF, 0xFE, 0xFF]
TOPIC_ALPHABET = ["a", "b", "a", "b", "", "+", "#", "/", "/", "/", "$", "$share/g/", "$queue/"]
TOPIC_ALPHABET += ["\0", "é", "\U0001f980"]
MAX_MUTATED = 400


class Oracle(Exception):
    """The codec gave an answer, and it was wrong."""


class Inputs:
    """Random inputs, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        short = [case for case in CASES if len(case.wire) <= MAX_MUTATED]
        self.seeds = [case.wire for case in short]
        # Faults outnumber packets in the table; half of the inputs should begin as a good one.
        self.good = {
            (version, role): [
                case.wire
                for case in short
                if case.packet and case.version == version and role in (case.role, "")
            ]
            for version in (3, 4, 5)
            for role in ("server", "client", "")
        }

    def version(self) -> int:
        return self.random.choice((3, 4, 5, 5))

    def data(self, version: int, role: str = "") -> bytes:
        """A mutated case, mostly one that this role reads; bytes of no meaning, sometimes."""
        rnd = self.random
        if rnd.random() < 0.1:
            return rnd.randbytes(rnd.randrange(1, 80))
        good = self.good[version, role]
        data = bytearray(rnd.choice(good if rnd.random() < 0.8 else self.seeds))
        for _ in range(rnd.choice((0, 0, 1, 1, 1, 2, 2, 5))):
            self.mutate(data)
        return bytes(data) or b"\0"

    def body(self, version: int) -> tuple[int, bytes]:
        """First byte and body of a packet, the remaining length taken to be right."""
        data = self.data(version)
        start = 1
        while start < len(data) - 1 and start < 4 and data[start] & 0x80:
            start += 1
        return data[0], data[start + 1 :]

    def mutate(self, data: bytearray) -> None:
        rnd = self.random
        kind = rnd.randrange(9)
        at = rnd.randrange(len(data) + 1)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rnd.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = rnd.randrange(256)
        elif kind == 2 and at < len(data):
            data[at] = rnd.choice(INTERESTING)
        elif kind == 3 and at < len(data):
            data[at] = (data[at] + rnd.choice((-2, -1, 1, 2))) & 0xFF
        elif kind == 4:
            data[at:at] = rnd.randbytes(rnd.randrange(1, 5))
        elif kind == 5:
            del data[at : at + rnd.randrange(1, 5)]
        elif kind == 6:
            del data[at:]
        elif kind == 7:
            other = rnd.choice(self.seeds)
            begin = rnd.randrange(len(other))
            data[at:] = other[begin:]
        else:
            piece = data[at : at + rnd.randrange(1, 12)]
            data[at:at] = piece

    def properties(self, packet_type: int) -> bytes:
        """A few properties with their length before them, mutated or not."""
        rnd = self.random
        allowed = [i for i, info in PROPERTIES.items() if packet_type in info.packets]
        body = bytearray()
        for _ in range(rnd.randrange(1, 5)):
            fitting = allowed if allowed and rnd.random() < 0.9 else list(ONE_OF_EACH)
            body += ONE_OF_EACH[rnd.choice(fitting)]
        if rnd.random() < 0.5:
            self.mutate(body)
        length = len(body) + (rnd.randrange(-2, 3) if rnd.random() < 0.1 else 0)
        return bytes([max(0, length) & 0x7F]) + bytes(body)

    def pieces(self, data: bytes) -> list[bytes]:
        rnd = self.random
        if rnd.random() < 0.3:
            return [data[i : i + 1] for i in range(len(data))]
        places = sorted(rnd.randrange(len(data) + 1) for _ in range(rnd.randrange(1, 5)))
        edges = [0, *places, len(data)]
        return [data[a:b] for a, b in zip(edges, edges[1:], strict=False)]

    def text(self) -> str:
        rnd = self.random
        return "".join([rnd.choice(TOPIC_ALPHABET) for _ in range(rnd.randrange(12))])


def written(packet: Packet, version: int) -> tuple[int, bytes]:
    """First byte and body of a packet as the serialiser writes it."""
    wire = serialize(packet, version)
    return wire[0], wire[body_at(wire) :]


def fuzz_packet(inputs: Inputs, counts: Counter[str]) -> str:
    version = inputs.version()
    first, body = inputs.body(version)
    shown = f"{first:02x} {body.hex()} version {version}"
    try:
        try:
            packet = parse_packet(first, body, version)
        except MqttError as error:
            counts[f"error {type(error).__name__}"] += 1
            return shown
        counts[f"read {TYPE_NAMES[packet.type]}"] += 1
        version = getattr(packet, "version", version)
        first, body = written(packet, version)
        again = parse_packet(first, body, version)
    except Exception as error:
        raise Oracle(shown) from error
    if again != packet:
        raise Oracle(f"{shown}: {packet!r} was written, and read as {again!r}")
    return shown


def fuzz_stream(inputs: Inputs, counts: Counter[str]) -> str:
    version = inputs.version()
    role = inputs.random.choice(("server", "client"))
    data = b"".join([inputs.data(version, role) for _ in range(inputs.random.randrange(1, 4))])
    if role == "server" and inputs.random.random() < 0.9:
        data = connect(version) + data
    pieces = inputs.pieces(data)
    shown = f"{data.hex()} version {version} {role} in pieces of {[len(p) for p in pieces]}"
    try:
        whole = outcome(Parser(version, 1000, role), [data])
        cut = outcome(Parser(version, 1000, role), pieces)
    except Exception as error:
        raise Oracle(shown) from error
    if whole != cut:
        raise Oracle(f"{shown}: {whole!r} in one piece, but cut {cut!r}")
    counts[f"error {whole[1]}" if whole[1] else f"read {len(whole[0])} packets"] += 1
    return shown


def outcome(parser: Parser, pieces: list[bytes]) -> tuple[list[Packet], str]:
    """What came out of a stream, and the name of the error that ended it."""
    packets: list[Packet] = []
    for piece in pieces:
        try:
            packets += parser.feed(piece)
        except MqttError as error:
            return packets + parser.before_fault, type(error).__name__
        if parser.buffered > parser.max_packet_size:
            raise AssertionError(f"{parser.buffered} bytes are kept")
    return packets, ""


def fuzz_frame(inputs: Inputs, counts: Counter[str]) -> str:
    data = inputs.data(inputs.version())
    pos = inputs.random.randrange(len(data))
    end = inputs.random.randrange(pos, len(data) + 1)
    shown = f"{data.hex()} from {pos} to {end}"
    try:
        try:
            answer = str((header(data, pos, end), size_at(data, pos, end)))
        except MqttError as error:
            answer = type(error).__name__
    except Exception as error:
        raise Oracle(shown) from error
    expected = reference_frame(data[pos:end], pos)
    counts["more" if answer.endswith("-1)") else answer if answer.isalpha() else "told"] += 1
    if answer != expected:
        raise Oracle(f"{shown}: {answer}, not {expected}")
    return shown


def reference_frame(data: bytes, pos: int) -> str:
    """2.1.4 read aloud: multiplied, not shifted."""
    multiplier, value = 1, 0
    for count, byte in enumerate(data[1:5], start=1):
        value += (byte % 128) * multiplier
        multiplier *= 128
        if byte < 128:
            return str(((value, pos + 1 + count), 1 + count + value))
    return str(((0, 0), -1)) if len(data) < 5 else "MalformedPacket"


def fuzz_property(inputs: Inputs, counts: Counter[str]) -> str:
    packet_type = inputs.random.randrange(16)
    before = inputs.random.randrange(3)
    data = bytes(before) + inputs.properties(packet_type) + bytes(inputs.random.randrange(3))
    at = before
    shown = f"{data.hex()} at {at} in {TYPE_NAMES[packet_type]}"
    try:
        try:
            props, end = decode_properties(data, at, len(data), packet_type)
        except MqttError as error:
            counts[f"error {type(error).__name__}"] += 1
            return shown
        if not at < end <= len(data):
            raise AssertionError(f"ends at {end}")
        wire = encode_properties(props)
        again, _ = decode_properties(wire, 0, len(wire), packet_type)
    except Exception as error:
        raise Oracle(shown) from error
    counts["read some" if props else "read none"] += 1
    if again != props:
        raise Oracle(f"{shown}: {props!r} was written, and read as {again!r}")
    return shown


def fuzz_topic(inputs: Inputs, counts: Counter[str]) -> str:
    name, topic_filter = inputs.text(), inputs.text()
    shown = f"{name!r} {topic_filter!r}"
    try:
        try:
            validate_topic_filter(topic_filter)
            _, real = split_shared(topic_filter)
        except TopicFilterInvalid:
            counts["filter refused"] += 1
            return shown
        try:
            validate_topic_name(name)
        except TopicNameInvalid:
            counts["name refused"] += 1
            return shown
        found = match(name, real)
    except Exception as error:
        raise Oracle(shown) from error
    counts["matches" if found else "does not match"] += 1
    if found != reference_match(name, real):
        raise Oracle(f"{shown}: match says {found}")
    return shown


def reference_match(name: str, topic_filter: str) -> bool:
    """4.7 read aloud: slow and recursive."""

    def levels(names: list[str], filters: list[str]) -> bool:
        if filters and filters[0] == "#":
            return True
        if not names or not filters:
            return names == filters
        return filters[0] in ("+", names[0]) and levels(names[1:], filters[1:])

    if name[0] == "$" and topic_filter[0] in "+#":
        return False
    return levels(name.split("/"), topic_filter.split("/"))


TARGETS: dict[str, Callable[[Inputs, Counter[str]], str]] = {
    "packet": fuzz_packet,
    "stream": fuzz_stream,
    "frame": fuzz_frame,
    "property": fuzz_property,
    "topic": fuzz_topic,
}


def run(target: str, seed: int, executions: int, deadline: float) -> tuple[int, Counter[str]]:
    """One target with one seed; stops at the count or the deadline, whichever is first."""
    inputs = Inputs(seed)
    counts: Counter[str] = Counter()
    one = TARGETS[target]
    done = 0
    while done < executions:
        one(inputs, counts)
        done += 1
        if not done & 0x3FF and time.monotonic() > deadline:
            break
    return done, counts


def main(arguments: list[str] | None = None) -> int:
    """Run the targets and print the counts; the exit status is 1 if one found a fault."""
    options = argparse.ArgumentParser(
        prog="python -m fuzz.codec", description=__doc__.split("\n")[0]
    )
    options.add_argument("--executions", type=int, default=100_000, help="of each target")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--seconds", type=float, default=float("inf"), help="for each target")
    options.add_argument("--target", choices=sorted(TARGETS), action="append")
    chosen = options.parse_args(arguments)
    compiled = not str(parser_module.__file__).endswith(".py")
    print(f"seed {chosen.seed}, {'compiled' if compiled else 'pure Python'} codec")
    total = 0
    faults = 0
    for target in chosen.target or TARGETS:
        started = time.monotonic()
        try:
            done, counts = run(target, chosen.seed, chosen.executions, started + chosen.seconds)
        except Oracle:
            faults += 1
            print(f"{target}: FAULT, seed {chosen.seed}")
            traceback.print_exc()
            continue
        total += done
        print(f"{target}: {done} executions, {done / (time.monotonic() - started):.0f}/s")
        for what, count in sorted(counts.items()):
            print(f"  {count:>10}  {what}")
    print(f"{total} executions, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
