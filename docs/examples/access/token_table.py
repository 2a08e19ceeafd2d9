"""An authenticator of one's own: devices show a token, a table says whose it is."""

from twisted.internet.defer import Deferred
from zope.interface import implementer

from mqttd.interfaces import IAuthenticator, IPlugin
from mqttd.plugins.declare import MqttdPlugin
from mqttd.types import AUTH_IGNORE, AuthError, AuthOk

token_table = MqttdPlugin(
    name="token_table",
    version="1.0",
    description="Lets devices in by a token.",
    factory="mqttd_plugins.token_table:Plugin",
)


@implementer(IAuthenticator)
class TokenTable:
    """Clients whose user name is "token", with the token as their password."""

    #: Of [auth.backend], for this module alone.
    limits = {"deadline": 2.0, "cache_ok": 60.0}

    def __init__(self, find):
        self.find = find

    def init(self, opts):
        pass

    def concerns(self, client, password):
        return client.username == "token"

    def check(self, client, password):
        if client.username != "token" or password is None:
            return AUTH_IGNORE
        return Deferred.fromCoroutine(self.ask(password.decode("utf-8", "replace")))

    async def ask(self, token):
        owner = await self.find(token)
        if owner is None:
            return AuthError("no such token")
        # Asked before acl.conf, which is asked for the rest unless these deny it.
        return AuthOk(
            username=owner,
            acl='{allow, all, all, ["devices/%u/#"]}. {deny, all}.',
        )

    def description(self):
        return "token_table: tokens of devices"


@implementer(IPlugin)
class Plugin:
    """Puts it before the chain's other modules."""

    tokens = {"s3cret-of-pump-1": "pump-1"}

    def load(self, handle, config):
        handle.register_mod("auth", "token_table", TokenTable(self.find), seq=0)

    async def find(self, token):
        # Here a data base would be asked; what is awaited may be a Deferred of Twisted's.
        return self.tokens.get(token)

    def unload(self):
        pass
