"""Wrong tokens wait, longer with each; good ones do not."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.web.server import NOT_DONE_YET

from mqttd.admin.http import slow as module
from mqttd.admin.http.slow import FIRST, MOST, WAITING, Slow


class Request:
    """As far as an answer needs one."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.code = 401
        self.written = b""
        self.headers: dict[bytes, bytes] = {}
        self.gone: Deferred[None] = Deferred()

    def getClientAddress(self) -> Any:
        return IPv4Address("TCP", self.host, 1)

    def notifyFinish(self) -> Deferred[None]:
        return self.gone

    def setResponseCode(self, code: int) -> None:
        self.code = code

    def setHeader(self, name: bytes, value: bytes) -> None:
        self.headers[name] = value

    def write(self, data: bytes) -> None:
        self.written += data

    def finish(self) -> None:
        self.gone.callback(None)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def waits(slow: Slow, clock: Clock, host: str = "10.0.0.1") -> float:
    """Seconds until an answer comes."""
    request = Request(host)
    assert slow.refuse(request, b"no") is NOT_DONE_YET
    seconds = 0.0
    while not request.written:
        clock.advance(0.25)
        seconds += 0.25
    return seconds


def test_each_wrong_token_waits_longer_than_the_last(clock: Clock) -> None:
    slow = Slow(clock)
    assert [waits(slow, clock) for _ in range(7)] == [FIRST, 1, 2, 4, MOST, MOST, MOST]
    assert waits(slow, clock, "10.0.0.2") == FIRST
    clock.advance(61)
    assert waits(slow, clock) == FIRST


def test_of_many_at_once_the_rest_is_sent_away(clock: Clock) -> None:
    slow = Slow(clock)
    requests = [Request("10.0.0.1") for _ in range(WAITING + 2)]
    answers = [slow.refuse(request, b"no") for request in requests]
    assert answers == [NOT_DONE_YET] * WAITING + [b"no", b"no"]
    assert requests[-1].code == 429 and requests[-1].headers == {b"connection": b"close"}
    requests[0].gone.errback(ConnectionError())  # one has gone, and its place is free
    assert slow.refuse(Request("10.0.0.1"), b"no") is NOT_DONE_YET
    clock.advance(600)
    assert not requests[0].written and requests[1].written == b"no"
    assert all(known.waiting == 0 for known in slow._addresses.values())


def test_so_many_addresses_are_remembered(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ADDRESSES", 3)
    slow = Slow(clock)
    for number in range(9):
        slow.refuse(Request(f"10.0.0.{number}"), b"no")
    assert list(slow._addresses) == ["10.0.0.6", "10.0.0.7", "10.0.0.8"]
    clock.advance(10)


def test_an_address_of_ipv6_is_its_network(clock: Clock) -> None:
    slow = Slow(clock)
    first = [waits(slow, clock, f"2001:db8::{number}") for number in range(1, 4)]
    assert first == [FIRST, 2 * FIRST, 4 * FIRST]
    assert waits(slow, clock, "2001:db8:0:1::1") == FIRST
