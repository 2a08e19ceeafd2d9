"""What plugins serve over HTTP where there are several workers: of one that is named, or of any."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.test_workers_admin import Asked, port_of
from tests.support.broker import Broker, start_broker
from tests.support.waiting import until

TOKEN, PULL = "x" * 32, "p" * 32
#: Bytes of the page `large`, far more than all sockets between hold.
LARGE = 64 << 20

SHOWN = """\
import json

from twisted.internet.interfaces import IPullProducer
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET
from zope.interface import implementer

from mqttd.interfaces import IPlugin
from mqttd.plugins.declare import MqttdPlugin

shown = MqttdPlugin(name="shown", version="1.0", description="Serves pages.",
                    factory="mqttd_plugins.shown:Plugin")


class Page(Resource):
    isLeaf = True

    def __init__(self, answer):
        super().__init__()
        self.render = answer


@implementer(IPullProducer)
class Large:
    def __init__(self, plugin, request):
        self.plugin, self.request, self.left = plugin, request, 64 << 20
        request.notifyFinish().addErrback(lambda _: setattr(plugin, "gone", plugin.gone + 1))
        request.setHeader(b"content-length", b"%d" % self.left)
        request.registerProducer(self, False)

    def resumeProducing(self):
        self.request.write(b"x" * 65536)
        self.left -= 65536
        self.plugin.produced += 65536
        if not self.left:
            self.request.unregisterProducer()
            self.request.finish()

    def stopProducing(self):
        pass


@implementer(IPlugin)
class Plugin:
    def load(self, handle, config):
        self.worker, self.produced, self.gone = handle.worker, 0, 0
        self.waiting = []
        handle.add_route("own", Page(self.tell))
        handle.add_route("any", Page(self.tell), alike=True)
        handle.add_route("large", Page(self.large))
        handle.add_route("wait", Page(self.wait))
        handle.add_route("empty", Page(self.empty))
        handle.add_route("broken", Page(self.broken))

    def unload(self):
        pass

    def tell(self, request):
        body = request.content.read()
        for waiting in self.waiting if body else ():
            waiting.write(body)
            waiting.finish()
        self.waiting = [] if body else self.waiting
        request.setHeader(b"x-shown", b"yes")
        request.setResponseCode(202)
        return json.dumps({
            "worker": self.worker, "produced": self.produced, "gone": self.gone,
            "waiting": len(self.waiting), "path": [each.decode() for each in request.postpath],
            "args": {k.decode(): [v.decode() for v in vs] for k, vs in request.args.items()},
            "headers": [name.decode().lower() for name, _ in
                        request.requestHeaders.getAllRawHeaders()],
        }).encode()

    def empty(self, request):
        request.setResponseCode(204)
        return b""

    def large(self, request):
        Large(self, request)
        return NOT_DONE_YET

    def wait(self, request):
        self.waiting.append(request)

        def gone(_):
            self.gone += 1
            self.waiting.remove(request)

        request.notifyFinish().addErrback(gone)
        return NOT_DONE_YET

    def broken(self, request):
        request.setHeader(b"content-length", b"10")
        request.write(b"123")
        request.loseConnection()
        return NOT_DONE_YET
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    made = start_broker(
        tmp_path_factory.mktemp("pages"),
        node={"workers": 2},
        plugins={"load": ["shown"]},
        admin={"tcp": {"bind": "127.0.0.1:0", "token_file": "all", "pull_token_file": "pull"}},
        files={"plugins/shown.py": SHOWN, "all": TOKEN, "pull": PULL},
    )
    yield made
    made.stop()


def page(worker: int, path: str) -> str:
    return f"/api/v1/workers/{worker}/plugins/shown/{path}"


def told(broker: Broker, worker: int) -> dict[str, Any]:
    """What the plugin tells of itself in a worker."""
    answer = Asked(broker, "GET", page(worker, "own"))
    assert answer.status == 202
    found: dict[str, Any] = json.loads(answer.told)
    assert found["worker"] == worker
    return found


def opened(broker: Broker, path: str) -> socket.socket:
    """A request of which nobody reads the answer yet."""
    made = socket.create_connection(("127.0.0.1", port_of(broker, "HTTP interface")), 30)
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    made.sendall(head.encode())
    return made


def test_the_page_of_a_worker_is_that_of_the_one_that_is_named(broker: Broker) -> None:
    for worker in (1, 2):
        answer = Asked(broker, "GET", page(worker, "own/a/b%20c?x=1&x=2"))
        assert (answer.status, answer.headers["x-shown"]) == (202, "yes")
        found = json.loads(answer.told)
        assert (found["worker"], found["path"]) == (worker, ["a", "b c"])
        assert found["args"] == {"x": ["1", "2"]}
        assert not {"authorization", "cookie"} & set(found["headers"])
    assert Asked(broker, "GET", page(3, "own")).status == 404
    assert Asked(broker, "GET", page(1, "none")).status == 404
    assert Asked(broker, "GET", "/api/v1/workers/x/plugins/shown/own").status == 404
    assert Asked(broker, "GET", "/api/v1/workers/1/plugins/nobody/own").status == 404


def test_an_answer_without_a_body_is_passed_as_well(broker: Broker) -> None:
    answer = Asked(broker, "HEAD", page(2, "own"))
    assert (answer.status, answer.headers["x-shown"], answer.told) == (202, "yes", "")
    answer = Asked(broker, "GET", page(2, "empty"))
    assert (answer.status, answer.told) == (204, "")


def test_without_a_worker_any_answers_where_all_are_alike(broker: Broker) -> None:
    assert json.loads(Asked(broker, "GET", "/api/v1/plugins/shown/any").told)["worker"] == 1
    answer = Asked(broker, "GET", "/api/v1/plugins/shown/own")
    assert (answer.status, answer.told["code"]) == (400, "name_a_worker")
    assert "/api/v1/workers/N/plugins/shown/own, N from 1 to 2" in answer.told["detail"]
    assert Asked(broker, "GET", "/api/v1/plugins/shown/none").status == 404


def test_roles_are_those_of_one_process(broker: Broker) -> None:
    """The event log alone is for tokens that read it, at each worker."""
    assert Asked(broker, "GET", page(2, "own"), token="").status == 401
    assert Asked(broker, "GET", page(2, "own"), token=PULL).status == 403
    log = "/api/v1/workers/2/plugins/spark/log/bounds"
    assert Asked(broker, "GET", log, token=PULL).status == 404  # not loaded: was let through
    for path in (page(2, "load"), "/api/v1/workers/2/plugins/shown/load"):
        assert Asked(broker, "POST", path).status == 405
    assert Asked(broker, "GET", "/api/v1/workers/2/plugins%2Fshown/own").status == 404
    made = Asked(broker, "POST", "/api/v1/api-users", {"name": "watcher", "role": "viewer"})
    watcher = made.told["token"]
    assert Asked(broker, "GET", page(2, "own"), token=watcher).status == 202
    assert Asked(broker, "POST", page(2, "own"), {}, token=watcher).status == 403


def test_an_answer_is_passed_as_it_is_read(broker: Broker) -> None:
    with opened(broker, page(2, "large")) as slow:
        until(lambda: told(broker, 2)["produced"], "it begins")
        # What is on its way is what sockets hold, and stays that.
        seen = [0, 1]
        while len(set(seen[-10:])) > 1:
            seen.append(told(broker, 2)["produced"])
        assert seen[-1] < LARGE // 4
        slow.settimeout(60)
        reader = slow.makefile("rb")
        head = []
        while (line := reader.readline().strip()) != b"":
            head.append(line.lower())
        assert b"content-length: %d" % LARGE in head
        assert reader.read(LARGE).count(b"x") == LARGE
    assert told(broker, 2)["produced"] == LARGE


def test_who_waits_is_answered_and_who_goes_is_told(broker: Broker) -> None:
    with opened(broker, page(1, "wait")) as waiting:
        until(lambda: told(broker, 1)["waiting"] == 1, "it waits")
        Asked(broker, "POST", page(1, "own"), "at last")
        answer = http.client.HTTPResponse(waiting)
        answer.begin()
        assert (answer.status, answer.read()) == (200, b'"at last"')
    for path in ("wait", "large"):
        before = told(broker, 1)["gone"]
        with opened(broker, page(1, path)):
            until(lambda: told(broker, 1)["waiting"] or told(broker, 1)["produced"], "it began")
        until(lambda before=before: told(broker, 1)["gone"] > before, "it is told")


def test_an_answer_that_breaks_off_is_no_whole_one(broker: Broker) -> None:
    with pytest.raises(http.client.IncompleteRead):
        Asked(broker, "GET", page(1, "broken"))


def test_a_worker_that_dies_breaks_its_answers_off(broker: Broker) -> None:
    workers = Asked(broker, "GET", "/api/v1/workers").told["workers"]
    with opened(broker, page(1, "large")) as made:
        answer = http.client.HTTPResponse(made)
        answer.begin()
        answer.read(1000)
        os.kill(workers[0]["pid"], signal.SIGKILL)
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            answer.read()

    def answers() -> bool:
        """Whichever worker is there answers; the one that is named is said to be away."""
        alike = Asked(broker, "GET", "/api/v1/plugins/shown/any")
        assert alike.status in (202, 502)
        own = Asked(broker, "GET", page(1, "own"))
        assert own.status in (202, 502, 503)
        return own.status == 202

    until(answers, "worker 1 is back")
