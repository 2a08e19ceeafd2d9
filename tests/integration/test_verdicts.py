"""Plugins that raise, or answer what is no verdict: one client is refused, and nobody else.

A plugin judges clients by their user name, in each of the places where one is judged. Each mistake
is made more often than a breaker or a quarantine would take, by bytes to a live broker; then an
honest client connects from the same address, past the very same module.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient

TIMES = 11
DEADLINE = 20.0

PLUGIN = """
from twisted.internet.defer import fail, succeed
from zope.interface import implementer

from mqttd.interfaces import IAccessControl, IAuthenticator, IEnhancedAuthenticator, IPlugin
from mqttd.plugins.declare import MqttdPlugin
from mqttd.types import *

careless = MqttdPlugin(
    name="careless",
    version="1.0",
    description="Answers what is none.",
    factory="mqttd_plugins.careless:Careless",
)

ANSWERS = {
    "none": lambda: None,
    "true": lambda: True,
    "class": lambda: AuthOk,
    "reason": lambda: AuthError(0x86),
    "reason_code": lambda: AuthError("no", "0x86"),
    "success": lambda: AuthError("no", 0),
    "acl": lambda: AuthOk(acl=["{allow, all}."]),
    "username": lambda: AuthOk(username=7),
    "expires": lambda: AuthOk(expires_at="soon"),
    "superuser": lambda: AuthOk(superuser="no"),
    "data": lambda: AuthContinue("text"),
    "key": lambda: {}["key"],
    "unicode": lambda: "\\ud800".encode(),
    "exit": lambda: exit(1),
}


def judge(client, place):
    where, _, what = (client.username or "").partition("/")
    if where == place:
        return ANSWERS[what]()
    if where == "late " + place:
        try:
            return succeed(ANSWERS[what]())
        except Exception:
            return fail()
    return AUTH_IGNORE


@implementer(IAuthenticator, IEnhancedAuthenticator, IAccessControl)
class Module:
    method = "CARELESS"
    depends_on_qos_retain = False

    def init(self, opts): ...

    def check(self, client, password):
        answer = judge(client, "check")
        return AUTH_OK if answer is AUTH_IGNORE else answer

    def begin(self, client):
        judge(client, "begin")
        return Exchange(client)

    def check_acl(self, client, action, topic):
        answer = judge(client, "acl")
        return Verdict.ALLOW if answer is AUTH_IGNORE else answer

    def reload_acl(self): ...

    def description(self):
        return "careless"


class Exchange:
    def __init__(self, client):
        self.client = client

    def step(self, data):
        if data == b"bad":
            self.client.username = "step/" + str(self.client.username)
            return judge(self.client, "step")
        answer = judge(self.client, "step")
        if answer is AUTH_IGNORE:
            answer = judge(self.client, "late step")
        return AUTH_OK if answer is AUTH_IGNORE else answer


@implementer(IPlugin)
class Careless:
    def load(self, handle, config):
        module = Module()
        handle.register_mod("auth", "careless", module)
        handle.register_mod("acl", "careless", module, 0)
        for point in ("client.connect", "client.authenticate", "client.authorize"):
            handle.hook(point, self.asked(point))

    def asked(self, point):
        def callback(client, *rest):
            answer = judge(client, point)
            return OK if answer is AUTH_IGNORE else OK(answer)

        return callback

    def unload(self): ...
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("verdicts")
    (folder / "etc/plugins").mkdir(parents=True, mode=0o755)
    broker = start_broker(
        folder,
        files={"plugins/careless.py": PLUGIN},
        plugins={"load": ["careless"]},
        auth={"chain": ["careless"]},
    )
    try:
        yield broker
    finally:
        broker.stop()


def client_of(broker: Broker) -> RawClient:
    return RawClient(broker.port, mq.V5, DEADLINE)


def honest(broker: Broker) -> None:
    """Somebody honest connects, and is allowed what it does."""
    client = client_of(broker)
    client.connect("honest", username="alice", password=b"x")
    assert client.subscribe(("t", 0)) == [0]
    client.close()


MISTAKES = [
    "none", "true", "class", "reason_code", "success", "acl", "username", "expires", "superuser",
    "data", "key", "unicode", "exit",
]  # fmt: skip


@pytest.mark.parametrize("place", ["check", "late check", "client.authenticate", "client.connect"])
def test_at_connect(broker: Broker, place: str) -> None:
    for what in [*MISTAKES, "reason"]:
        if place.startswith("client.") and what in ("key", "unicode", "exit"):
            continue  # a hook that raises is answered by its plugin's policy
        if place == "client.connect" and what == "none":
            continue  # no properties
        if place == "late check" and what == "exit":
            continue
        for _ in range(TIMES if what in ("key", "acl") else 2):
            client = client_of(broker)
            client.send(mq.connect("odd", mq.V5, username=f"{place}/{what}", password=b"x"))
            reason = client.expect(mq.CONNACK).reason
            assert reason in (0x86, 0x87, 0x88), (place, what, reason)
            client.expect_close()
            client.close()
    honest(broker)


@pytest.mark.parametrize("place", ["begin", "step", "late step"])
def test_in_an_enhanced_authentication(broker: Broker, place: str) -> None:
    for what in MISTAKES:
        if place == "begin" and what not in ("key", "unicode", "exit"):
            continue
        if place != "begin" and what == "exit":
            continue
        for _ in range(TIMES if what == "key" else 2):
            client = client_of(broker)
            client.send(
                mq.connect(
                    "odd", mq.V5, username=f"{place}/{what}",
                    props=[(mq.AUTH_METHOD, "CARELESS"), (mq.AUTH_DATA, b"x")],
                )
            )  # fmt: skip
            reason = client.expect(mq.CONNACK).reason
            assert reason in (0x86, 0x87, 0x88), (place, what, reason)
            client.close()
    client = client_of(broker)
    client.connect("good", username="alice", props=[(mq.AUTH_METHOD, "CARELESS")])
    client.close()


@pytest.mark.parametrize("what", ["key", "acl", "reason", "data"])
def test_in_a_re_authentication(broker: Broker, what: str) -> None:
    client = client_of(broker)
    client.connect("again", username=what, props=[(mq.AUTH_METHOD, "CARELESS")])
    client.send(mq.auth(0x19, [(mq.AUTH_METHOD, "CARELESS"), (mq.AUTH_DATA, b"bad")]))
    assert client.expect(mq.DISCONNECT).reason in (0x87, 0x88, 0x89, 0x8B)
    client.close()


@pytest.mark.parametrize("place", ["acl", "client.authorize"])
def test_in_access_control(broker: Broker, place: str) -> None:
    for what in ("none", "true", "acl", "key"):
        if place == "client.authorize" and what == "key":
            continue
        client = client_of(broker)
        client.connect("odd", username=f"{place}/{what}", password=b"x")
        for n in range(TIMES):
            assert client.subscribe((f"t/{n}", 0)) == [0x87], what
        client.close()
    honest(broker)


def test_the_log_names_the_plugin_and_the_plugin_is_charged(broker: Broker) -> None:
    assert broker.says("module failed")
    told = [line for line in broker.lines if "module failed" in line]
    assert any("auth careless" in line and "error" in line for line in told)
    assert not [line for line in broker.lines if "internal error" in line]
    assert not [line for line in broker.lines if "breaker opened" in line or "quarantine" in line]
