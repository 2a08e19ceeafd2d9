"""WebSocket frames of which one read brings more than a step's work wait for later turns."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from mqttd.codec.packets import Connect, Publish, Subscribe, Subscription
from mqttd.codec.serializer import serialize
from mqttd.session.channel.channel import CLOSED, OPEN, Channel
from mqttd.session.ground.unfinished import READ
from mqttd.transports.frames import FRAMES, WebSocketLayer, close_frame
from mqttd.transports.layered_stream import LayeredStream
from mqttd.transports.layers import Stack
from tests.support.doors import frame
from tests.support.memory import MemoryBroker
from tests.unit.transports.pairs import Pair

CONNECT = serialize(Connect("ws"), 4)
PING = frame(0x89, b"")
PINGREQ = b"\xc0\x00"


def publishes(count: int) -> list[bytes]:
    return [serialize(Publish("a/b", b"%d" % number), 4) for number in range(count)]


def in_bytes(data: bytes) -> bytes:
    """A frame for each byte."""
    return b"".join(frame(0x82, bytes((byte,))) for byte in data)


def payloads(data: bytes) -> bytes:
    """What is in the short frames of a server, pongs left out."""
    found, pos = b"", 0
    while pos < len(data):
        size, start = data[pos + 1], pos + 2
        if size == 126:
            size, start = int.from_bytes(data[pos + 2 : pos + 4], "big"), pos + 4
        if data[pos] == 0x82:
            found += data[start : start + size]
        pos = start + size
    return found


class Door(Pair):
    """A WebSocket connection, open already."""

    def __init__(self) -> None:
        super().__init__(WebSocketLayer(None))

    def later(self) -> None:
        """The next turn of the loop: what was put off until then, and what has come."""
        tasks, self.node.tasks = self.node.tasks, []
        for task in tasks:
            task()
        self.engine.doRead()

    def read(self) -> bytes:
        try:
            return self.far.recv(1 << 20)
        except BlockingIOError:
            return b""


@pytest.fixture
def pair() -> Iterator[Door]:
    made = Door()
    yield made
    made.close()


def test_a_step_takes_no_more_frames_than_it_may() -> None:
    layer = WebSocketLayer(None)
    for kind, most in ((b"\x82", FRAMES), (b"\x89", FRAMES // 3 + 1)):
        layer.received(frame(kind[0], b"") * 10_000)
        assert len(layer.behind) == (10_000 - most) * 6
        assert layer.work > 0
        steps = 0
        while layer.behind:
            before = len(layer.behind)
            layer.received(b"")
            assert before - len(layer.behind) <= most * 6
            steps += 1
        assert steps == -(-(10_000 - most) // most)
    assert layer.answer == b"\x8a\x00" * 10_000 and not layer.ended


@pytest.mark.parametrize("seed", range(5))
def test_the_same_bytes_come_out_in_steps(seed: int) -> None:
    rng = random.Random(seed)
    wire, sent, pongs = b"", b"", b""
    for number in range(12_000):
        payload = rng.randbytes(rng.choice((0, 1, 2, 4, 7)))
        if rng.random() < 0.3:
            wire += frame(0x89, payload)
            pongs += bytes((0x8A, len(payload))) + payload
        elif rng.random() < 0.3:
            wire += frame(0x02, payload) + PING + frame(0x80, b"%d" % number)
            sent += payload + b"%d" % number
            pongs += b"\x8a\x00"
        else:
            wire += frame(0x82, payload)
            sent += payload
    stack = Stack([WebSocketLayer(None)])
    got, said, pos, steps = b"", b"", 0, 0
    while pos < len(wire) or stack.behind():
        if stack.behind() and rng.random() < 0.9:
            got += stack.go_on()
            steps += 1
        else:
            size = rng.choice((1, 5, 30_000))
            got += stack.received(wire[pos : pos + size])  # waits behind what is put off
            pos += size
        said += stack.answers()
    assert got == sent and said == pongs and not stack.ended
    assert steps > 2


def test_what_is_behind_a_close_is_gone() -> None:
    stack = Stack([WebSocketLayer(None)])
    empty = frame(0x82, b"")
    assert stack.received(empty * FRAMES + frame(0x82, b"x") + frame(0x88, b"") + empty) == b""
    assert stack.go_on() == b"x"
    assert stack.behind() == 0 and stack.ended
    assert stack.answers() == close_frame(1000)


def test_it_is_not_read_from_until_all_is_done_and_charged(pair: Door) -> None:
    account = pair.node.broker.account
    pair.send(frame(0x82, CONNECT))
    before = account.unfinished
    data = frame(0x82, b"") * 9_000 + frame(0x82, PINGREQ)
    pair.read()
    pair.send(data)
    assert account.unfinished - before == len(data) - FRAMES * 6
    assert pair.channel.unfinished() == account.unfinished - before
    pair.far.sendall(frame(0x82, PINGREQ))
    received = pair.channel.bytes_received
    pair.engine.doRead()
    assert pair.channel.bytes_received == received and pair.read() == b""
    pair.later()
    assert 0 < account.unfinished - before < len(data) - FRAMES * 6
    for _ in range(5):
        pair.later()
    assert payloads(pair.read()) == b"\xd0\x00" * 2
    assert account.unfinished == before and not pair.node.tasks


def test_packets_in_single_bytes_keep_their_order(pair: Door) -> None:
    pair.send(frame(0x82, CONNECT))
    reader = pair.node.connect("reader")
    reader.send(Subscribe(1, [Subscription("a/#", 0)]))
    reader.take()
    sent = publishes(1_000)
    wire = in_bytes(b"".join(sent)) + frame(0x82, PINGREQ)
    for at in range(0, len(wire), READ):
        pair.send(wire[at : at + READ])
        assert pair.edge.left > 0 or at + READ >= len(wire)
        while pair.edge.left:
            pair.later()
    numbers = [int(bytes(packet.payload)) for packet in reader.published()]
    assert numbers == list(range(1_000))


def test_before_connect_it_is_the_same(pair: Door) -> None:
    """Pings of nobody in particular; and the handshake behind them."""
    account = pair.node.broker.account
    before = account.unauthenticated
    pair.send(PING * 5_000 + frame(0x82, CONNECT))
    assert account.unauthenticated - before > 20_000
    for _ in range(10):
        pair.later()
    assert pair.channel.state == OPEN
    assert account.unauthenticated < before + 20_000 and account.unfinished == 0


def test_who_is_paused_meanwhile_goes_on_when_it_is_resumed(pair: Door) -> None:
    pair.send(frame(0x82, CONNECT))
    pair.read()
    pair.send(frame(0x82, b"") * 9_000 + frame(0x82, PINGREQ))
    pair.channel.pause()
    for _ in range(5):
        pair.later()
    assert pair.edge.left > 20_000 and not pair.node.tasks
    pair.channel.resume()
    pair.channel.resume()
    assert len(pair.node.tasks) == 1
    for _ in range(5):
        pair.later()
    assert payloads(pair.read()) == b"\xd0\x00" and pair.edge.left == 0


def test_the_end_of_a_connection_gives_back_what_was_charged(pair: Door) -> None:
    account = pair.node.broker.account
    pair.send(frame(0x82, CONNECT))
    pair.send(frame(0x82, b"") * 9_000)
    assert account.unfinished > 20_000
    pair.channel.end("enough")
    pair.node.broker.perform()
    assert account.unfinished == 0
    pair.later()
    assert not pair.node.tasks


def test_twisted_transports_do_the_same() -> None:
    node = MemoryBroker()
    written: list[bytes] = []
    calls: list[str] = []
    transport = SimpleNamespace(
        write=written.append,
        loseConnection=lambda: calls.append("lose"),
        pauseProducing=lambda: calls.append("pause"),
        resumeProducing=lambda: calls.append("resume"),
    )
    edge = LayeredStream(node.broker, transport, "192.0.2.7", 40_000, Stack([WebSocketLayer(None)]))
    channel = edge.channel = Channel(node.broker, edge, -1, "ws:door")
    edge.received(frame(0x82, CONNECT))
    node.broker.perform()
    written.clear()
    edge.received(frame(0x82, b"") * 9_000)
    assert calls == ["pause"] and channel.unfinished() > 20_000
    edge.received(frame(0x82, PINGREQ))  # what the transport had when it was paused
    node.run_soon()
    assert calls == ["pause", "resume"] and channel.unfinished() == 0
    assert payloads(b"".join(written)) == b"\xd0\x00"
    edge.received(frame(0x82, b"") * 9_000)
    channel.pause()
    node.run_soon()
    assert channel.unfinished() > 20_000
    channel.resume()
    node.run_soon()
    assert channel.unfinished() == 0 and calls[-1] == "resume"
    edge.received(frame(0x82, b"") * 9_000)
    channel.end("enough")
    node.broker.perform()
    node.run_soon()
    assert node.broker.account.unfinished == 0 and channel.state == CLOSED
