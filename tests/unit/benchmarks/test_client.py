"""The clients beside mqttload: packets are framed as they come, filters match what they should."""

from __future__ import annotations

import os
import socket
import threading
from fnmatch import fnmatchcase

import pytest

from benchmarks.churn import filter_of
from benchmarks.client import Client, cpu_of
from benchmarks.subscribe import topic_of
from mqttd.codec.topic import validate_topic_filter, validate_topic_name
from tests.support import packets as mq

CONNACK = b"\x20\x02\x00\x00"


def connected(*pieces: bytes) -> Client:
    """A client whose broker says this, piece by piece."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        peer, _ = server.accept()
        peer.recv(100)
        for piece in pieces:
            peer.sendall(piece)
        peer.close()
        server.close()

    threading.Thread(target=serve, daemon=True).start()
    return Client(server.getsockname()[1], "c")


def test_packets_are_framed_however_they_come() -> None:
    long = mq.publish("t", b"x" * 300)
    stream = CONNACK + long + b"\xd0\x00"
    client = connected(*(stream[at : at + 1] for at in range(len(stream))))
    assert client.next() == (0x30, long[3:])
    assert client.next() == (0xD0, b"")
    with pytest.raises(ConnectionError):
        client.next()


def test_who_is_refused_is_told() -> None:
    with pytest.raises(RuntimeError, match="CONNECT was answered with 0x20 0005"):
        connected(b"\x20\x02\x00\x05")


def test_churning_filters_lie_among_the_topics_and_match_none() -> None:
    filters = [filter_of(number) for number in range(400)]
    assert len(set(filters)) == 400
    topic = "bench/t/000017/p00034/m"
    for text in filters:
        validate_topic_filter(text)
        assert text.startswith(("bench/t/", "bench/+/"))
        assert not fnmatchcase(topic, text.replace("+", "*").replace("#", "*"))


def test_topics_in_use_are_of_one_length() -> None:
    topics = [topic_of(number) for number in range(0, 190_000, 997)]
    assert {len(topic) for topic in topics} == {len(topics[0])}
    validate_topic_name(topics[-1])


def test_the_cpu_of_a_process_grows() -> None:
    before = cpu_of(os.getpid())
    sum(range(1_000_000))
    assert cpu_of(os.getpid()) > before > 0
