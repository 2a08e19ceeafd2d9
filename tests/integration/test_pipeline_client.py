"""The client of Spark's sink and of replay, at a broker that does not take it at once."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest

from mqttd.codec.packets import Connack
from mqttd.codec.serializer import serialize
from mqttd.pipeline.client import TRIES, Address, Client, ClientError, Refused

OK, UNAVAILABLE, BUSY, BANNED, ELSEWHERE, RATE = 0, 0x88, 0x89, 0x8A, 0x9C, 0x9F


@contextmanager
def door(answers: Sequence[int]) -> Iterator[Address]:
    """Where each connection gets the next of these reason codes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for code in answers:
                try:
                    taken, _ = listening.accept()
                except OSError:
                    return
                with taken:
                    taken.recv(1 << 16)
                    taken.sendall(serialize(Connack(False, code), 5))

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield Address("127.0.0.1", listening.getsockname()[1])
        listening.shutdown(socket.SHUT_RDWR)
        serving.join(30)


def test_a_broker_that_is_busy_is_tried_again_as_one_that_is_away() -> None:
    """A batch of Spark's failed, and its query, where the broker was overloaded for a moment."""
    pauses: list[float] = []
    with door([BUSY, UNAVAILABLE, RATE, OK]) as address:
        client = Client(address, sleep=pauses.append)
        client.connect()
        client.close()
    assert pauses == sorted(pauses) and len(pauses) == 3


@pytest.mark.parametrize(("code", "tries"), [(BUSY, TRIES), (ELSEWHERE, 1), (BANNED, 1)])
def test_what_it_says_is_told_in_the_end(code: int, tries: int) -> None:
    pauses: list[float] = []
    with door([code] * (TRIES + 1)) as address, pytest.raises(Refused) as refused:
        Client(address, sleep=pauses.append).connect()
    assert refused.value.code == code and len(pauses) == tries - 1


@pytest.mark.parametrize(("user", "told"), [(None, "no user name"), ("spark", "user spark")])
def test_who_is_not_let_in_is_told_by_which_name(user: str | None, told: str) -> None:
    with door([0x87]) as address, pytest.raises(Refused, match=rf"\(0x87\); {told} was given$"):
        Client(replace(address, username=user)).connect()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "reached: Connection refused"),
        (
            ssl.SSLEOFError(8, "[SSL] EOF (_ssl.c:1006)"),
            "reached: [SSL] EOF (is TLS spoken there?)",
        ),
        (EOFError(), "reached: it hung up"),
    ],
)
def test_why_a_broker_cannot_be_reached_is_told_in_the_words_of_the_system(
    monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    def fail(self: Client) -> None:
        raise error

    monkeypatch.setattr(Client, "_connect", fail)
    with pytest.raises(ClientError) as caught:
        Client(Address("b", 1883), sleep=lambda seconds: None).connect()
    assert str(caught.value) == f"the broker b:1883 cannot be {told}"
