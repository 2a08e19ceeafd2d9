"""A request that is over is gone: nothing of it is left for the collector, which may never come."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.web.resource import IResource
from zope.interface import implementer

from mqttd.admin.api import Api
from mqttd.admin.doors.site import site_of
from mqttd.admin.doors.streams import EVERY
from mqttd.admin.http.parts import Parts
from mqttd.admin.http.requests import LOCAL, Caller, set_caller
from mqttd.pipeline.endpoint import LogResource
from mqttd.readmodel.feed import Feed
from mqttd.readmodel.model import Model
from tests.unit.admin.node import make_broker

LOG = "/api/v1/plugins/spark/log"


@implementer(IResource)
class Site:
    """The API at a door, what connects to it, and which requests are still there."""

    isLeaf = True

    def __init__(self, path: Path) -> None:
        self.clock = Clock()
        self.waiting: list[Deferred[Any]] = []
        broker = make_broker(path)
        parts = Parts(broker, Model(broker, run=self.later), in_thread=self.later)
        parts.feed = Feed(parts.model.figures, lambda tell: None, lambda tell: None, self.clock)
        pages = SimpleNamespace(routes={"log": LogResource(str(path / "log"), self.later)})
        parts.plugins = cast(Any, SimpleNamespace(handle=lambda name: pages))
        self.api = Api(parts)
        self.inner = self.api.resource()
        self.caller: Caller | None = LOCAL
        self.site = site_of(self, 1000, reactor=self.clock)
        make = self.site.requestFactory
        self.made: list[weakref.ref[Any]] = []

        def made(*args: Any) -> Any:
            request = make(*args)
            self.made.append(weakref.ref(request))
            return request

        self.site.requestFactory = made

    def getChildWithDefault(self, name: bytes, request: Any) -> Any:
        return self

    def putChild(self, path: bytes, child: Any) -> None:
        raise TypeError("a leaf")

    def render(self, request: Any) -> Any:
        set_caller(request, LOCAL, lambda shown: self.caller)
        return self.inner.render(request)

    def later(self, *work: object) -> Deferred[Any]:
        """What takes a while: until the test has the answer."""
        self.waiting.append(Deferred())
        return self.waiting[-1]

    def ask(self, path: str, method: str = "GET") -> tuple[Any, StringTransport]:
        channel = self.site.buildProtocol(IPv4Address("TCP", "127.0.0.1", 1))
        transport = StringTransport()
        channel.makeConnection(transport)
        channel.dataReceived(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return channel, transport

    def there(self) -> int:
        return sum(one() is not None for one in self.made)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    gc.disable()
    yield made
    gc.enable()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/v1/status", 200),
        ("HEAD", "/api/v1/status", 200),
        ("GET", "/api/v1/nothing", 404),
        ("GET", "/%ff", 400),
        ("POST", "/api/v1/status", 405),
        ("GET", "/api/v1/clients?misspelt=1", 400),
        ("GET", f"{LOG}/nothing", 404),
    ],
)
def test_answered_at_once(site: Site, method: str, path: str, status: int) -> None:
    channel, transport = site.ask(path, method)
    assert transport.value().startswith(b"HTTP/1.1 %d " % status)
    assert len(site.made) == 1 and site.there() == 0


@pytest.mark.parametrize("path", ["/api/v1/clients", f"{LOG}/bounds"])
@pytest.mark.parametrize("end", ["answered", "failed", "left", "late"])
def test_answered_later(site: Site, path: str, end: str) -> None:
    """What had grown old meanwhile stayed, in a large broker for ever."""
    channel, transport = site.ask(path)
    assert site.there() == 1 and not transport.value()
    if end in ("left", "late"):
        channel.connectionLost(Failure(ConnectionDone()))
    for waiting in [] if end == "left" else site.waiting:
        if end == "failed":
            waiting.errback(Failure(OSError("gone")))
        elif not waiting.called:
            waiting.callback(b"{}")
    status = {"answered": b" 200 ", "failed": b" 500 "}.get(end, b"")
    assert status in transport.value() and bool(status) == bool(transport.value())
    site.waiting.clear()
    assert site.there() == 0


@pytest.mark.parametrize("left", [True, False])
def test_a_stream_of_events(site: Site, left: bool) -> None:
    channel, transport = site.ask("/api/v1/events")
    assert b" 200 OK" in transport.value() and site.there() == 1
    if left:
        channel.connectionLost(Failure(ConnectionDone()))
    else:
        site.caller = None
        site.clock.advance(EVERY)
        assert transport.value().endswith(b"0\r\n\r\n")
    assert site.there() == 0
