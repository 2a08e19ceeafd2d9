"""What layers answer by themselves waits for a peer that does not read, up to a limit."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

import mqttd
from mqttd.session.channel.channel import CLOSED, Channel
from mqttd.transports.layered_stream import LayeredStream
from mqttd.transports.layers import MAX_ANSWERS, Layer, Stack
from tests.support.memory import MemoryBroker
from tests.unit.transports.pairs import Pair

PING = b"p" * 10_000

pytestmark = pytest.mark.skipif(mqttd.compiled(), reason="derives from a compiled class")


class Echo(Layer):
    """Answers whatever comes."""

    def received(self, data: bytes) -> bytes:
        self.answer += data
        return b""

    def sent(self, data: bytes) -> bytes:
        return data


class Talker(Pair):
    """Its layer answers whatever comes."""

    def __init__(self) -> None:
        super().__init__(Echo())

    def ping(self) -> None:
        self.send(PING)

    def read(self) -> int:
        size = 0
        for _ in range(1000):
            try:
                size += len(self.far.recv(1 << 20))
            except BlockingIOError:
                if not self.channel.blocked:
                    break
            self.engine.doRead()
        return size


@pytest.fixture
def pair() -> Iterator[Talker]:
    made = Talker()
    yield made
    made.close()


def test_a_large_message_on_its_way_is_no_answer(pair: Talker) -> None:
    """Who was being sent more than a mebibyte was ended for its first ping."""
    for _ in range(3):
        pair.channel.send(b"m" * (3 * MAX_ANSWERS))
        pair.edge.flush(pair.channel)
        for _ in range(MAX_ANSWERS // len(PING) // 2):
            pair.ping()
        assert pair.channel.state != CLOSED
        assert pair.channel.blocked
        assert pair.read() == 3 * MAX_ANSWERS + MAX_ANSWERS // len(PING) // 2 * len(PING)
        assert pair.edge.said == 0
        assert pair.channel.out_bytes == 0


def test_who_reads_none_of_the_answers_is_ended(pair: Talker) -> None:
    for _ in range(2 * MAX_ANSWERS // len(PING)):
        if pair.channel.state == CLOSED:
            break
        pair.ping()
    assert pair.channel.close_reason == "reads none of the answers"


@pytest.mark.parametrize("reads", [True, False])
def test_twisted_transports_keep_to_the_same_limit(reads: bool) -> None:
    """There, answers of any number of bytes waited in the transport."""
    node = MemoryBroker()
    written: list[bytes] = []
    aborted: list[bool] = []
    transport = SimpleNamespace(
        write=written.append,
        loseConnection=lambda: None,
        abortConnection=lambda: aborted.append(True),
    )
    edge = LayeredStream(node.broker, transport, "192.0.2.7", 40_000, Stack([Echo()]))
    channel = edge.channel = Channel(node.broker, edge, -1, "ws:door")
    for _ in range(3 * MAX_ANSWERS // len(PING)):
        edge.received(PING)
        edge.pauseProducing()
        if reads:
            edge.resumeProducing()
    if reads:
        assert channel.state != CLOSED
        assert not aborted
    else:
        assert channel.close_reason == "reads none of the answers"
        assert aborted
        assert sum(map(len, written)) <= MAX_ANSWERS + 2 * len(PING)
