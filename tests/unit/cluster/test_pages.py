"""All that begins with a prefix is read from etcd in pages, all of one revision."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import msgspec
import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from mqttd.cluster.etcd.client import text_of
from mqttd.cluster.etcd.keys import Keys
from tests.unit.cluster.test_hanging import Response, etcd_of

KEYS = Keys("c")


class Kept:
    """An etcd in which somebody writes another key after each answer."""

    def __init__(self, keys: list[bytes]) -> None:
        self.revision = 10
        self.at = dict.fromkeys(keys, 5)
        self.pages: list[list[bytes]] = []

    def post(self, url: str, data: bytes, headers: object) -> Deferred[Response]:
        assert url.endswith("/v3/kv/range")
        body = msgspec.json.decode(data)
        revision = int(body["revision"]) or self.revision
        start, end = b64decode(body["key"]), b64decode(body["range_end"])
        found = sorted(k for k, at in self.at.items() if start <= k < end and at <= revision)
        page = found[: int(body["limit"])]
        self.pages.append(page)
        said: dict[str, Any] = {"header": {"revision": str(self.revision)}}
        if page:
            said["kvs"] = [{"key": text_of(key), "value": text_of(key)} for key in page]
        if page != found:
            said["more"] = True
        self.revision += 1
        self.at[KEYS.all + b"zz%d" % self.revision] = self.revision
        self.at[KEYS.ban("client_id", str(self.revision))] = self.revision
        return succeed(Response(200, said))


@pytest.mark.parametrize("large", [b"", KEYS.routes])
@pytest.mark.parametrize("count", [0, 1, 50, 1000, 2001])
def test_pages_are_of_one_revision_and_leave_nothing_out(count: int, large: bytes) -> None:
    keys = [KEYS.node("a"), KEYS.taken("a", "x")]
    keys += [KEYS.ban("client_id", f"b{number:05}") for number in range(count)]
    keys += [KEYS.route("a", 5, number) for number in range(count)]
    kept = Kept([*keys, KEYS.own("another"), KEYS.will("a", 1, "x")])
    answers: list[Any] = []
    Deferred.fromCoroutine(etcd_of(Clock(), kept).range_of(KEYS.all, large)).addBoth(answers.append)
    assert [kv.key for kv in answers[0].found] == sorted(keys)
    assert all(kv.value == kv.key for kv in answers[0].found)
    assert answers[0].revision == 10
    of_routes = [page for page in kept.pages if any(key.startswith(KEYS.routes) for key in page)]
    if large:
        assert max(map(len, of_routes), default=0) <= 50
    assert len(kept.pages) <= 3 + 2 * count // 1000 + (count // 50 if large else 0)
