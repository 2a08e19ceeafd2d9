"""An authenticator, and its tests in memory: run them with pytest."""

from twisted.internet.defer import Deferred
from zope.interface import implementer

from mqttd.interfaces import IAuthenticator, IPlugin
from mqttd.testing import AuthenticatorConformance, FaultInjector, MemoryBroker
from mqttd.types import AUTH_IGNORE, AuthError, AuthOk


@implementer(IAuthenticator)
class Tokens:
    """Clients whose user name is "token"; `find` tells, perhaps later, whose a token is."""

    def __init__(self, find):
        self.find = find

    def init(self, opts):
        pass

    def check(self, client, password):
        if client.username != "token" or password is None:
            return AUTH_IGNORE
        return Deferred.fromCoroutine(self.ask(password.decode("utf-8", "replace")))

    async def ask(self, token):
        owner = await self.find(token)
        return AuthError("no such token") if owner is None else AuthOk(username=owner)

    def description(self):
        return "tokens of devices"


@implementer(IPlugin)
class Plugin:
    def load(self, handle, config):
        handle.register_mod("auth", "tokens", Tokens(self.find), seq=0)

    async def find(self, token):
        return {"s3cret": "pump-1"}.get(token)

    def unload(self):
        pass


class TestConformance(AuthenticatorConformance):
    """What every authenticator is held to, hostile input included."""

    accepted = (("token", b"s3cret"),)
    refused = (("token", b"guessed"), ("ann", b"s3cret"), (None, None))

    def make(self):
        return Tokens(Plugin().find)


def test_a_token_lets_its_owner_in():
    node = MemoryBroker()
    node.load(Plugin)
    pump = node.connect("pump", username="token", password=b"s3cret")
    assert pump.connack.reason_code == 0
    assert pump.session.username == "pump-1"


def test_others_are_refused():
    node = MemoryBroker()
    node.load(Plugin)
    wrong = node.connect("a", username="token", password=b"guessed")
    # Where no module is left to be asked, nobody comes in.
    nameless = node.connect("b")
    assert (wrong.connack.reason_code, nameless.connack.reason_code) == (0x86, 0x87)


def test_a_client_waits_for_the_back_end():
    node = MemoryBroker()
    plugin, asked = Plugin(), Deferred()
    plugin.find = lambda token: asked
    node.load(plugin)
    pump = node.connect("pump", username="token", password=b"s3cret")
    assert pump.connack is None
    asked.callback("pump-1")
    node.settle()
    assert pump.connack.reason_code == 0


def test_a_back_end_that_never_answers_refuses():
    node = MemoryBroker()
    plugin = Plugin()
    plugin.find = FaultInjector().never().wrap(plugin.find)
    node.load(plugin)
    pump = node.connect("pump", username="token", password=b"s3cret")
    node.advance(6)  # auth.backend.deadline is 5 seconds
    assert pump.connack.reason_code == 0x88
    assert [where for where, _ in node.faults] == ["auth tokens of plugin test"]
