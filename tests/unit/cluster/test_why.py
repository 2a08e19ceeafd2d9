"""What an operator reads of an endpoint that is no etcd, or is spoken to in the wrong way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from OpenSSL import SSL
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.python.failure import Failure
from twisted.web._newclient import (
    ParseError,
    RequestTransmissionFailed,
    ResponseFailed,
    ResponseNeverReceived,
)

from mqttd.cluster.etcd.client import EtcdError
from mqttd.cluster.etcd.why import why_of, why_of_one
from mqttd.cluster.probe import members_at
from mqttd.config.schema import Config

INFO = b'INFO {"server_id":"x"}\r\n'
NATS = "this is no answer of etcd to a client: 'INFO {"
TLS, PLAIN = "does it speak TLS (https)?", "does it speak plain HTTP (http)?"


@pytest.mark.parametrize(
    ("error", "scheme", "has_answered", "said"),
    [
        (ResponseNeverReceived([Failure(ConnectionDone())]), "http", False, TLS),
        (ResponseNeverReceived([Failure(ConnectionLost())]), "http", True, "without an answer"),
        (RequestTransmissionFailed([Failure(ConnectionLost())]), "https", False, PLAIN),
        (RequestTransmissionFailed([Failure(ConnectionLost())]), "https", True, "non-clean"),
        (
            RequestTransmissionFailed([Failure(SSL.Error([("", "", "wrong version number")]))]),
            "https", False, PLAIN,
        ),
        (
            RequestTransmissionFailed([Failure(SSL.Error([("", "", "alert unknown ca")]))]),
            "https", False, "alert unknown ca",
        ),
        (ResponseFailed([Failure(ParseError("no status", INFO))]), "http", False, NATS),
    ],
)  # fmt: skip
def test_the_node_says(error: Exception, scheme: str, has_answered: bool, said: str) -> None:
    text = why_of(error, f"{scheme}://h:1", has_answered)
    assert said in text
    for hint in (TLS, PLAIN):
        assert (hint in text) is (hint == said)


@contextmanager
def answers(data: bytes) -> Iterator[int]:
    """A port where one who comes is said this, and no more."""
    door = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        came, _ = door.accept()
        with came:
            came.sendall(data)
            came.recv(65536)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield door.getsockname()[1]
    finally:
        thread.join(20)
        door.close()


@pytest.mark.parametrize(
    ("data", "scheme", "said"), [(INFO, "http", NATS), (b"", "http", TLS), (b"", "https", PLAIN),
                                 (b"HTTP/1.1 400 Bad Request\r\n\r\n", "https", PLAIN)],
)  # fmt: skip
def test_who_joins_is_told(data: bytes, scheme: str, said: str) -> None:
    with answers(data) as port:
        config = Config()
        cluster = msgspec.structs.replace(
            config.cluster, endpoints=(f"{scheme}://127.0.0.1:{port}",)
        )
        with pytest.raises(EtcdError) as failed:
            members_at(msgspec.structs.replace(config, cluster=cluster))
    assert said in str(failed.value)


def test_who_is_reset_may_have_met_tls() -> None:
    """As by one that closes without having read all: that it has ended may be overtaken so."""
    reset = ConnectionResetError(104, "Connection reset by peer")
    assert TLS in why_of_one(reset, "http://h:1")
    assert TLS not in why_of_one(reset, "https://h:1")
