"""What an etcd answers that is another one than before, or none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from mqttd.cluster.etcd.client import Etcd, EtcdError
from tests.unit.cluster.test_hanging import Response, done, etcd_of, failed


class Member:
    """Answers when it is told to, all in one revision at a time."""

    def __init__(self) -> None:
        self.waiting: list[Deferred[Response]] = []

    def post(self, url: str, data: bytes, headers: object, unbuffered: bool = False) -> Any:
        self.waiting.append(Deferred())
        return self.waiting[-1]

    def answer(self, revision: int, at: int = 0, cluster: str = "17") -> None:
        header = {"revision": str(revision), "cluster_id": cluster}
        body = {"header": header, "succeeded": True}
        self.waiting.pop(at).callback(Response(200, body))


class Nobody:
    """Answers something."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def post(self, url: str, data: bytes, headers: object, unbuffered: bool = False) -> Any:
        said = Response(200, {})
        said.body = self.data
        return succeed(said)


def asked(etcd: Etcd) -> Deferred[Any]:
    return Deferred.fromCoroutine(etcd.transaction([], []))


def test_an_answer_of_before_what_was_known_is_of_an_etcd_that_is_older() -> None:
    member, told = Member(), list[str]()
    etcd = etcd_of(Clock(), member)
    etcd.is_older = told.append
    first, second, late = asked(etcd), asked(etcd), asked(etcd)
    # Answers may overtake each other: what was not known when it was asked for proves nothing.
    for revision in (9, 8, 5):
        member.answer(revision)
    assert [done(each).revision for each in (first, second, late)] == [9, 8, 5] and not told
    same = asked(etcd)
    member.answer(9)
    assert done(same).revision == 9
    older, meanwhile = asked(etcd), asked(etcd)
    member.answer(7)
    member.answer(11)
    for each in (older, meanwhile, asked(etcd)):
        (error,) = failed(each)
        assert isinstance(error, EtcdError) and "revision 7, after 9" in str(error)
    assert len(told) == 1 and not member.waiting


@pytest.mark.parametrize(
    ("revision", "cluster", "why"),
    [
        (1_020_000_000, "17", "revision 1020000000, after 20000000"),
        (20_000_001, "18", "cluster 18, after 17"),
    ],
)
def test_a_copy_whose_revisions_go_on_behind_those_that_were_known_is_older_too(
    revision: int, cluster: str, why: str
) -> None:
    """As `--bump-revision` has them: it was taken for the one of before."""
    member, told = Member(), list[str]()
    etcd = etcd_of(Clock(), member)
    etcd.is_older = told.append
    for last in (9, 20_000_000):
        known = asked(etcd)
        member.answer(last)
        assert done(known).revision == last and not told
    other = asked(etcd)
    member.answer(revision, cluster=cluster)
    (error,) = failed(other)
    assert why in str(error) and told == [etcd.older]


@pytest.mark.parametrize("data", [b"<html></html>", b"[1]", b"", b'{"a":1}', b"\xff", b"{}"])
def test_what_is_no_answer_of_etcd_is_said(data: bytes) -> None:
    """It was a traceback, and the end of a node that began."""
    etcd = etcd_of(Clock(), Nobody(data))
    (error,) = failed(Deferred.fromCoroutine(etcd.lease_grant(5)))
    assert isinstance(error, EtcdError) and "this is no answer of etcd" in str(error)


def test_what_is_one_is_not_more_than_it_says() -> None:
    etcd = etcd_of(Clock(), Nobody(msgspec.json.encode({"result": {"TTL": "3"}})))
    assert done(Deferred.fromCoroutine(etcd.lease_keep(5))) is True
