"""A member of etcd that hangs is asked no more where others answer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from mqttd.cluster.etcd.client import TIMEOUT, Etcd, EtcdError, Hangs, put
from mqttd.cluster.etcd.many import Many
from mqttd.cluster.etcd.watch import Watch

A, B, C = ENDPOINTS = ("http://a", "http://b", "http://c")


class Response:
    def __init__(self, code: int, body: dict[str, Any]) -> None:
        self.code = code
        self.body = msgspec.json.encode(body)


class Members:
    """etcd as a client sees it: those in `hang` answer nothing, all others at once."""

    def __init__(self, *hang: str) -> None:
        self.hang = set(hang)
        self.asked: list[tuple[str, str]] = []
        self.code = 200

    def post(self, url: str, data: bytes, headers: object, unbuffered: bool = False) -> Any:
        endpoint, path = url[:8], url[8:]
        self.asked.append((endpoint, path))
        if endpoint in self.hang or path == "/v3/watch":
            return Deferred()
        responses = [{"response_txn": {"succeeded": True}}]
        body = {"header": {"revision": "7"}, "responses": responses, "succeeded": True}
        return succeed(Response(self.code, body))

    def took(self, path: str) -> list[str]:
        return [endpoint for endpoint, each in self.asked if each == path]


def etcd_of(clock: Clock, members: Any) -> Etcd:
    """An etcd that asks these, who answer as treq does."""
    etcd = Etcd(clock, ENDPOINTS)
    etcd.client = members

    def collect(response: Response, take: Any) -> Deferred[None]:
        take(response.body)
        return succeed(None)

    etcd._collect = collect  # type: ignore[assignment]
    return etcd


def turns(clock: Clock, seconds: float) -> None:
    for _ in range(round(seconds * 20)):
        clock.advance(0.05)


def failed(asked: Deferred[Any]) -> list[BaseException | None]:
    errors: list[BaseException | None] = []

    def take(failure: Failure) -> None:
        errors.append(failure.value)

    asked.addErrback(take)
    return errors


def done(asked: Deferred[Any]) -> Any:
    assert asked.called
    return asked.result


def test_who_asks_a_member_that_hangs_hears_of_it_and_asks_another() -> None:
    clock, members = Clock(), Members(A)
    etcd = etcd_of(clock, members)
    told: list[str] = []
    etcd.hung = told.append
    errors = failed(Deferred.fromCoroutine(etcd.transaction([], [put(b"k", b"v")])))
    turns(clock, 0.4)
    assert not errors
    turns(clock, 0.4)
    assert [type(each) for each in errors] == [Hangs]
    assert len(told) == etcd.hangs == 1 and told[0].startswith(A)
    assert etcd.endpoints[etcd.at] == B
    again = done(Deferred.fromCoroutine(etcd.transaction([], [put(b"k", b"v")])))
    assert again.done
    assert not clock.getDelayedCalls()


def test_reads_and_what_goes_together_are_asked_again_elsewhere() -> None:
    clock, members = Clock(), Members(A)
    etcd = etcd_of(clock, members)
    found = Deferred.fromCoroutine(etcd.range_of(b"k"))
    turns(clock, 1.0)
    assert done(found).revision == 7
    etcd.at = 0
    answer = Many(etcd, clock).transaction([], [put(b"k", b"v")])
    turns(clock, 1.0)
    assert done(answer).done
    assert members.took("/v3/kv/txn") == [A, B]


@pytest.mark.parametrize("code", [200, 503])
def test_an_etcd_of_which_none_answers_is_waited_for_as_ever(code: int) -> None:
    clock, members = Clock(), Members(A, B, C)
    if code != 200:
        members.hang, members.code = {A}, code  # who has no majority says so
    etcd = etcd_of(clock, members)
    errors = failed(Deferred.fromCoroutine(etcd.transaction([], [put(b"k", b"v")])))
    turns(clock, TIMEOUT - 0.1)
    assert not errors
    turns(clock, 0.2)
    assert [type(each) for each in errors] == [EtcdError]


def test_a_member_whose_writes_alone_are_slow_does_not_hang() -> None:
    clock, members = Clock(), Members()
    etcd = etcd_of(clock, members)
    slow: Deferred[Any] = Deferred()
    post = members.post

    def slowly(url: str, **more: Any) -> Any:
        return slow if url.endswith("/txn") else post(url, **more)

    members.post = slowly  # type: ignore[assignment, method-assign]
    asked = Deferred.fromCoroutine(etcd.transaction([], [put(b"k", b"v")]))
    turns(clock, 1.5)
    assert not asked.called
    slow.callback(Response(200, {"header": {"revision": "8"}, "succeeded": True}))
    assert done(asked).revision == 8 and etcd.at == 0


def test_a_watch_of_a_member_that_hangs_ends_though_nothing_is_asked() -> None:
    clock, members = Clock(), Members()
    etcd = etcd_of(clock, members)
    ended: list[str] = []
    Watch(etcd, b"k", 1, lambda revision, events: None, ended.append)
    etcd.tick()
    assert members.took("/v3/kv/range") == [A] and not ended
    members.hang.add(A)
    turns(clock, 1.0)
    etcd.tick()
    turns(clock, 0.9)
    assert len(ended) == 1 and "hangs" in ended[0]
    assert not etcd.watches and etcd.endpoints[etcd.at] != A


def test_others_that_cannot_say_keep_nobody_from_being_compared_anew() -> None:
    """As while a leader is elected; else a watch would stay there until its own read times out."""
    clock, members = Clock(), Members(A)
    etcd = etcd_of(clock, members)
    found: list[float] = []
    etcd.hung = lambda why: found.append(clock.seconds())
    Watch(etcd, b"p", 1, lambda *_: None, lambda text: None)
    members.code = 503
    etcd.tick()
    turns(clock, 0.5)
    assert not found
    members.code = 200
    for _ in range(10):
        etcd.tick()
        turns(clock, 0.15)
    assert found and found[0] < TIMEOUT
