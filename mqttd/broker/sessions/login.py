"""How a connection's client got in, for as long as that matters: method, expiry, revocation.

    CONNECT (method, data) --> step --> AUTH 0x18 --> client --> AUTH 0x18 --> step ... --> accepted
    AUTH 0x19 ----------------^          (again, on an open connection: step ... AUTH 0x00)

    expires_at --> DISCONNECT 0x87        user gone, new password --> DISCONNECT 0x87

A connection that got in by a plain yes keeps the name of its module and costs nothing here;
a `Login` is made for an enhanced authentication and for one that expires. It is a timer of the
wheel by itself.

MQTT 5.0: 4.12 (enhanced authentication), 4.12.1 (re-authentication), 3.15 (AUTH).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

from mqttd.broker.ground.seams import Exchange
from mqttd.broker.publish.publishing import Publishing
from mqttd.broker.sessions.revision import Revision
from mqttd.codec import properties as prop
from mqttd.codec import reasons
from mqttd.codec.packets import Auth
from mqttd.codec.properties import Properties
from mqttd.codec.reasons import ProtocolViolation
from mqttd.codec.serializer import serialize_within
from mqttd.session.channel.channel import OPEN, WAITING, Channel
from mqttd.session.ground.wheel import Timer
from mqttd.types import AuthContinue, AuthResult, ClientInfo

__all__ = ["Login", "module_of"]

_DISCONNECT: Final = 14


class Login(Timer):
    """The authentication of one connection, under way or running out at `expires_at`.

    `method` is the Authentication Method of CONNECT, "" for a password.
    """

    def __init__(
        self, broker: Publishing, revision: Revision, channel: Channel, method: str
    ) -> None:
        super().__init__()
        self.broker = broker
        self.revision = revision
        self.channel = channel
        self.method = method
        #: The module that said yes.
        self.module: str = ""
        #: Seconds since 1970, 0 for never.
        self.expires_at: float = 0.0
        #: The last Authentication Data for the client.
        self.data: bytes | None = None
        #: Told the result of the authentication that CONNECT asked for.
        self.decided: Callable[[AuthResult], None] | None = None
        self.client: ClientInfo | None = None
        #: The authentication under way.
        self.exchange: Exchange | None = None
        #: The back end has been asked and has not answered.
        self.pending: bool = False

    # -- enhanced authentication ---------------------------------------------------------------

    def begin(
        self,
        properties: Properties | None,
        client: ClientInfo,
        exchange: Exchange,
        decided: Callable[[AuthResult], None],
    ) -> None:
        """The client named a method in CONNECT: take the first step, with its `properties`.

        `decided` is called with the result at the end.
        """
        self.client = client
        self.exchange = exchange
        self.decided = decided
        self._step(exchange, _data(properties))

    def auth(self, packet: Auth) -> None:
        """An AUTH packet came; raises ProtocolViolation where there may be none."""
        channel = self.channel
        properties = packet.properties
        method = properties.get(prop.AUTHENTICATION_METHOD) if properties is not None else None
        if method != self.method:
            raise ProtocolViolation("AUTH with another authentication method than CONNECT")
        code = packet.reason_code
        if self.pending:
            raise ProtocolViolation("AUTH before the last one was answered")
        if code == reasons.RE_AUTHENTICATE and channel.state == OPEN:
            if self.exchange is not None:
                raise ProtocolViolation("re-authentication while one is under way")
            session = channel.session
            assert session is not None
            shown: Any = channel.edge.identity(channel)
            self.client = dataclasses.replace(
                self.broker.client_of(session),
                superuser=False,
                attributes=None if shown is None else shown.attributes,
                acl=None,
            )
            exchange = self.broker.access.begin(self.client, self.method)
            if exchange is None:  # its module is gone
                self._failed(reasons.BAD_AUTHENTICATION_METHOD, "no module serves this method")
                return
            self.exchange = exchange
        else:
            exchange = self.exchange
            if code != reasons.CONTINUE_AUTHENTICATION or exchange is None:
                raise ProtocolViolation(f"AUTH with reason code 0x{code:02x} out of place")
        self._step(exchange, _data(properties))

    def _step(self, exchange: Exchange, data: bytes) -> None:
        answer = exchange.step(data)
        if isinstance(answer, (AuthResult, AuthContinue)):
            self._answered(answer)
            return
        self.pending = True
        answer.addCallback(_Stepped(self))

    def stepped(self, answer: object) -> None:
        """The module answered in a later turn."""
        channel = self.channel
        if not self.pending or channel.state not in (WAITING, OPEN):
            return
        waited = channel.state == WAITING
        self.pending = False
        self._answered(answer)
        if waited:
            channel.resume_input()
        self.broker.perform()

    def _answered(self, answer: object) -> None:
        channel = self.channel
        if isinstance(answer, AuthContinue):
            self._send(reasons.CONTINUE_AUTHENTICATION, answer.data)
            if channel.state == WAITING:
                channel.challenged = True
            return
        assert isinstance(answer, AuthResult)
        self.exchange = None
        if channel.state == WAITING:
            decided = self.decided
            self.decided = None
            self.client = None
            assert decided is not None
            self.data = answer.data
            decided(answer)
            self.data = None
        elif answer.ok:
            self._again(answer)
        else:
            self._failed(answer.reason_code, answer.reason)

    def _again(self, result: AuthResult) -> None:
        """Authenticated again: new rights, a new expiry, the same client."""
        client = self.client
        self.client = None
        channel = self.channel
        session = channel.session
        assert client is not None and session is not None
        if client.username != session.username:
            self._failed(reasons.NOT_AUTHORIZED, "authenticated again as another user")
            return
        broker = self.broker
        broker.metrics.reauthentications += 1
        broker.remember(session, client)
        channel.forget_rights()
        channel.forget_known()
        self.revision.revise(session, client)
        self.module = result.module
        self.expire(result.expires_at)
        self._send(reasons.SUCCESS, result.data)

    def _failed(self, code: int, detail: str) -> None:
        self.exchange = None
        self.client = None
        if code not in reasons.CODES_OF[_DISCONNECT]:
            code = reasons.NOT_AUTHORIZED  # such as 0x86, which only CONNACK has
        self.broker.end_channel(self.channel, code, detail)

    def _send(self, code: int, data: bytes | None) -> None:
        properties: Properties = {prop.AUTHENTICATION_METHOD: self.method}
        if data is not None:
            properties[prop.AUTHENTICATION_DATA] = data
        channel = self.channel
        wire = serialize_within(Auth(code, properties), channel.takes())
        if wire:
            channel.send(wire)
            return
        code, detail = reasons.PACKET_TOO_LARGE, "AUTH is larger than the client takes"
        connect = channel.connect
        if channel.state == WAITING and connect is not None:
            self.broker.connect_refused(channel, connect, code, detail)
            channel.refuse(code, detail)
        else:
            self._failed(code, detail)

    # -- expiry --------------------------------------------------------------------------------

    def expire(self, at: float | None) -> None:
        """The connection ends at this second since 1970 (None: it does not)."""
        broker = self.broker
        if at is None:
            self.expires_at = 0.0
            broker.wheel.cancel(self)
            return
        self.expires_at = at
        left = int(at * 1000) - broker.clock() // 1000
        broker.wheel.schedule(self, broker.now + max(left, 0))

    def due(self, now: int) -> None:
        """The time is up, unless the wall clock was set back meanwhile."""
        if not self.expires_at or self.channel.state != OPEN:
            return
        if int(self.expires_at * 1000) > self.broker.clock() // 1000:
            self.expire(self.expires_at)
            return
        self.broker.metrics.auth_expired += 1
        self.broker.end_channel(
            self.channel, reasons.NOT_AUTHORIZED, "the authentication has expired"
        )

    def close(self) -> None:
        """The connection is gone."""
        self.broker.wheel.cancel(self)
        self.exchange = None
        self.client = None
        self.decided = None
        self.pending = False


def module_of(auth: object) -> str:
    """The authentication module behind `Channel.auth`, "" if there is none."""
    if isinstance(auth, Login):
        return auth.module
    return auth if isinstance(auth, str) else ""


def _data(properties: Properties | None) -> bytes:
    data = properties.get(prop.AUTHENTICATION_DATA) if properties is not None else None
    return data if isinstance(data, bytes) else b""


class _Stepped:
    """Callback of a step that had to wait."""

    def __init__(self, login: Login) -> None:
        self.login = login

    def __call__(self, answer: object) -> None:
        login = self.login
        try:
            login.stepped(answer)
        except Exception as error:  # a fault of ours: the client must not wait for nothing
            login.broker.crashed(login.channel, error)
            login.broker.perform()
