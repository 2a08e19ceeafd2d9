"""CONNECT, from its first check to its acceptance: a table of stages.

    CONNECT --> Attempt --> stage --> stage --> ... --> accepted
                              |         | waits: an answer comes in a later turn, and it goes on
                              |         '--> the client has gone meanwhile: nothing happens
                              '--> refused: CONNACK with the reason, one line in the log

`STAGES` is their order, which docs/design/broker.md shows and tests hold against `_stage`. A stage
is a method of `Connecting`; it says whether the attempt goes on now. Where it asks somebody who may
take his time (hooks, access control), the attempt itself is what the answer is given to.

MQTT 5.0: 3.1.4 (CONNECT actions), 3.2 (CONNACK), 4.12 (enhanced authentication).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from mqttd.broker.connack import Connacks
from mqttd.broker.ground.seams import Mover
from mqttd.broker.ground.verdicts import fault_of, properties_fault, refusal
from mqttd.broker.publish.publishing import Publishing
from mqttd.broker.publish.wills import Wills, connect_fault
from mqttd.broker.sessions.admission import NO_ROOM, is_kept
from mqttd.broker.sessions.claims import Claims, Owned, Refusal
from mqttd.broker.sessions.gone import has_gone
from mqttd.broker.sessions.login import Login
from mqttd.broker.sessions.revision import Revision
from mqttd.codec import reasons
from mqttd.codec.packets import Auth, Connect
from mqttd.codec.reasons import MqttError
from mqttd.session.channel.channel import OPEN, WAITING, Channel
from mqttd.session.channel.listener import Listener
from mqttd.session.ground.mount import Mount, mountpoint
from mqttd.session.routes.receiver import NO_LIMIT
from mqttd.types import AUTH_IGNORE, AuthError, AuthIgnore, AuthOk, AuthResult, ClientInfo

__all__ = ["STAGES", "Attempt", "Connecting"]

#: Method of `Connecting`, what it asks, the reason code of its refusal, whether it may wait.
STAGES: Final[tuple[tuple[str, str, str, bool], ...]] = (
    ("load", "is there time and memory?", "0x89 Server busy, 0x97 Quota exceeded", False),
    ("version", "does the listener take this version?", "0x84 Unsupported version", False),
    ("names", "client id, user name and will as they must be?", "0x85, 0x90, 0x9A, 0x9B", False),
    ("address", "may this address connect here?", "0x87 Not authorized", False),
    ("ban", "is nobody of that name banned?", "0x8A Banned", False),
    ("connect_hooks", "what does client.connect say?", "as the hook says", True),
    ("authenticate_hooks", "what does client.authenticate say?", "as the hook says", True),
    ("access", "is it who it says? the chain, or AUTH", "as the module says", True),
    ("proved", "not banned or expired by what it proved?", "0x8A, 0x87", False),
    ("mounted", "its names below the listener's mountpoint", "0x87, as the name's fault", False),
    ("will", "may it publish its will?", "0x87 Not authorized", False),
    ("fits", "does CONNACK fit what the client takes?", "0x95 Packet too large", False),
    ("owner", "is the client id its own? whose state?", "0x85, 0x87 to 0x8A, 0x97", True),
    ("accepted", "session, CONNACK, what waited for it", "", False),
)


class Attempt:
    """One CONNECT on its way through the stages, and the callback of what it waits for."""

    #: Who the client is, once its names are known.
    client: ClientInfo

    def __init__(self, connecting: Connecting, channel: Channel, connect: Connect) -> None:
        self.connecting = connecting
        self.channel = channel
        self.connect = connect
        #: What is special about where it came.
        self.listener: Listener = connecting.broker.listeners.get(
            channel.listener, connecting.plain
        )
        #: The stage that comes next.
        self.at: int = 0
        #: What hooks or access control have said.
        self.result: AuthResult | None = None
        #: The client id is ours, and the state that came with it.
        self.owned: Owned | None = None
        #: What takes the answer that is waited for.
        self.take: Callable[[Attempt, Any], bool] | None = None
        self.waited: bool = False  # since then there may be bans that were not there

    def __call__(self, answer: Any) -> None:
        """What was waited for came in a later turn."""
        channel = self.channel
        self.connecting.undecided.pop(channel, None)
        if channel.state != WAITING:
            return
        try:
            self.go_on(answer)
        except Exception as error:  # a fault of ours: the client must not wait for nothing
            self.connecting.broker.crashed(channel, error)
        if channel.state == OPEN:
            channel.resume_input()
        self.connecting.broker.perform()

    def go_on(self, answer: Any) -> None:
        """What was waited for is there."""
        take = self.take
        assert take is not None
        self.take = None
        self.waited = True
        if take(self, answer):
            self.connecting.advance(self)


class Connecting:
    """Takes the CONNECTs of one broker through the stages.

    What differs from listener to listener is in the record of the attempt's listener.
    """

    def __init__(
        self, broker: Publishing, claims: Claims, wills: Wills, revision: Revision
    ) -> None:
        self.broker = broker
        self.registry = claims.registry
        self.wills = wills
        self.revision = revision
        self.claims = claims
        self.connacks = Connacks(broker)
        #: The event loop is late: new clients are refused.
        self.overloaded: bool = False
        self.mover: Mover | None = None  # where there are several workers
        self.undecided: dict[Channel, Attempt] = {}  # let in but for their client ids
        #: Stands for a listener about which nothing is special.
        self.plain = Listener("")

    def open(self, channel: Channel, connect: Connect) -> None:
        """A CONNECT came."""
        self.registry.channels += 1
        if channel.state == WAITING:  # and not ended, because this CONNECT is too much to hold
            self.advance(Attempt(self, channel, connect))

    def advance(self, attempt: Attempt) -> None:
        """Go through the stages that are left, as far as they let it."""
        while attempt.at < len(STAGES):
            attempt.at += 1
            if not self._stage(attempt.at - 1, attempt):
                return

    def _stage(self, at: int, attempt: Attempt) -> bool:
        """One stage of `STAGES`, by its place there.

        A chain, because a call of a bound method costs a Python call: 0.5 us in a connection's 3.5.
        """
        if at == 0:
            return self.load(attempt)
        if at == 1:
            return self.version(attempt)
        if at == 2:
            return self.names(attempt)
        if at == 3:
            return self.address(attempt)
        if at == 4:
            return self.ban(attempt)
        if at == 5:
            return self.connect_hooks(attempt)
        if at == 6:
            return self.authenticate_hooks(attempt)
        if at == 7:
            return self.access(attempt)
        if at == 8:
            return self.proved(attempt)
        if at == 9:
            return self.mounted(attempt)
        if at == 10:
            return self.will(attempt)
        if at == 11:
            return self.fits(attempt)
        if at == 12:
            return self.owner(attempt)
        return self.accepted(attempt)

    def auth(self, channel: Channel, packet: Auth) -> None:
        """Serve an AUTH packet: a step of an authentication, or a new one (4.12.1)."""
        login = channel.auth
        if not isinstance(login, Login) or not login.method:
            raise reasons.ProtocolViolation("AUTH without an authentication method")
        login.auth(packet)

    def refuse(self, attempt: Attempt, code: int, detail: str) -> bool:
        """Answer with this reason code and close; False, as a stage says it."""
        channel, connect = attempt.channel, attempt.connect
        self.broker.connect_refused(channel, connect, code, detail)
        if channel.state == WAITING:
            properties = self.connacks.refusing(channel, connect, code)
            channel.refuse(code, detail, properties)
        return False

    # -- stages: what the client says ----------------------------------------------------------

    def load(self, attempt: Attempt) -> bool:
        """The event loop has time for further clients, and memory has room for new sessions."""
        broker = self.broker
        elsewhere = self.connacks.elsewhere
        if elsewhere is not None:
            return self.refuse(attempt, elsewhere[0], "this node is being drained")
        if broker.account.full and broker.is_new(attempt.connect.client_id):
            broker.account.refused = True
            return self.refuse(attempt, reasons.QUOTA_EXCEEDED, "the memory budget is used up")
        if not self.overloaded:
            return True
        broker.metrics.refused_overload += 1
        return self.refuse(attempt, reasons.SERVER_BUSY, "the event loop is overloaded")

    def version(self, attempt: Attempt) -> bool:
        """The listener takes this version of MQTT."""
        versions = attempt.listener.versions
        if versions is None or attempt.connect.version in versions:
            return True
        code = reasons.UNSUPPORTED_PROTOCOL_VERSION
        return self.refuse(attempt, code, "this listener does not take this MQTT version")

    def names(self, attempt: Attempt) -> bool:
        """Client id and user name, as CONNECT or a certificate says; the will's topic."""
        channel = attempt.channel
        connect = attempt.connect
        shown: Any = channel.edge.identity(channel)
        if shown is not None:
            if shown.username is not None:
                connect.username = shown.username
            if shown.client_id is not None:
                connect.client_id = shown.client_id
        fault = connect_fault(connect, self.broker.settings)
        if fault is not None:
            return self.refuse(attempt, fault.reason_code, fault.detail)
        mover = self.mover
        if not connect.client_id:
            made = f"mqttd-{self.broker.next_message_id():x}"
            connect.client_id = made if mover is None else mover.fresh_id()
            channel.assigned = True
        if mover is not None and not mover.stays(channel, connect):
            return False
        host, port = channel.edge.peer(channel)
        client = ClientInfo(
            connect.client_id, connect.username, host, port, channel.listener, connect.version,
            connect.clean_start, connect.keep_alive,
        )  # fmt: skip
        if shown is not None:
            client.cert_common_name = shown.common_name
            client.cert_subject = shown.subject
            client.cert_sans = shown.sans
            client.attributes = shown.attributes
        attempt.client = client
        return True

    def address(self, attempt: Attempt) -> bool:
        """The address rules of a listener behind a proxy."""
        gate = attempt.listener.gate
        if gate is None or gate(attempt.client.peerhost):
            return True
        self.broker.metrics.refused_address += 1
        return self.refuse(attempt, reasons.NOT_AUTHORIZED, "this address may not connect here")

    def ban(self, attempt: Attempt) -> bool:
        """Neither client id nor user name nor address is banned."""
        client = attempt.client
        ban = self.broker.bans.match(client.client_id, client.username, client.peerhost)
        if ban is None:
            return True
        detail = f"banned: {ban.kind} {ban.value}"
        if ban.reason:
            detail = f"{detail}: {ban.reason}"
        self.broker.metrics.refused_banned += 1
        return self.refuse(attempt, reasons.BANNED, detail)

    # -- stages: what others say of it ---------------------------------------------------------

    def connect_hooks(self, attempt: Attempt) -> bool:
        """Hook client.connect: other properties, or a refusal."""
        broker = self.broker
        if "client.connect" not in broker.points:
            return True
        properties = attempt.connect.properties
        asked = broker.hooks.ask_hooks("client.connect", (attempt.client,), properties)
        return self._wait(attempt, self._connect_hooks_said, asked)

    def _connect_hooks_said(self, attempt: Attempt, said: Any) -> bool:
        answer = said[1]
        if isinstance(answer, AuthError):
            return self._refused_by_hook(attempt, answer)
        if answer is None or (isinstance(answer, dict) and not properties_fault(answer)):
            attempt.connect.properties = answer
            return True
        return self._no_verdict(attempt, "client.connect", answer)

    def authenticate_hooks(self, attempt: Attempt) -> bool:
        """Hook client.authenticate: yes, no, or ask the chain."""
        broker = self.broker
        if "client.authenticate" not in broker.points:
            return True
        args = (attempt.client, attempt.connect.password)
        asked = broker.hooks.ask_hooks("client.authenticate", args, AUTH_IGNORE)
        return self._wait(attempt, self._authenticate_hooks_said, asked)

    def _authenticate_hooks_said(self, attempt: Attempt, said: Any) -> bool:
        answer = said[1]
        if isinstance(answer, AuthError):
            return self._refused_by_hook(attempt, answer)
        if isinstance(answer, AuthOk) and not fault_of(answer, (AuthOk,)):
            if attempt.connect.method() is None:  # else the client expects its method's answer
                client = attempt.client
                client.superuser = answer.superuser
                client.attributes = answer.attributes
                attempt.result = AuthResult(True, 0, "", answer.superuser, answer.attributes)
        elif not isinstance(answer, AuthIgnore):
            return self._no_verdict(attempt, "client.authenticate", answer)
        return True

    def _refused_by_hook(self, attempt: Attempt, answer: AuthError) -> bool:
        answer = refusal(answer)
        return self.refuse(attempt, answer.reason_code, answer.reason)

    def _no_verdict(self, attempt: Attempt, point: str, answer: object) -> bool:
        """Hooks have said what means nothing: counted for them, and no reason to let it in."""
        self.broker.hooks.unusable(point, answer)
        detail = f"the answer of hook {point} is none"
        return self.refuse(attempt, reasons.SERVER_UNAVAILABLE, detail)

    def access(self, attempt: Attempt) -> bool:
        """Access control, unless hooks have said yes."""
        connect = attempt.connect
        password = connect.password
        connect.password = None
        if attempt.result is not None:
            return True
        method = connect.method()
        if method is not None:
            return self._begin(attempt, method)
        gone = partial(has_gone, attempt.channel)
        asked = self.broker.access.authenticate(attempt.client, password, gone)
        return self._wait(attempt, self._access_said, asked)

    def _access_said(self, attempt: Attempt, result: Any) -> bool:
        attempt.result = result
        return True

    def _begin(self, attempt: Attempt, method: str) -> bool:
        """Start the enhanced authentication that CONNECT asks for (4.12)."""
        client = attempt.client
        exchange = self.broker.access.begin(client, method)
        if exchange is None:
            return self.refuse(
                attempt,
                reasons.BAD_AUTHENTICATION_METHOD,
                f"authentication method {method[:64]!r} is not offered",
            )
        channel = attempt.channel
        login = Login(self.broker, self.revision, channel, method)
        channel.auth = login
        attempt.take = self._access_said
        login.begin(attempt.connect.properties, client, exchange, attempt.go_on)
        return False

    def _wait(self, attempt: Attempt, take: Callable[[Attempt, Any], bool], asked: Any) -> bool:
        """Give `take` what was asked for, at once or when it comes."""
        if isinstance(asked, (tuple, AuthResult)):
            return take(attempt, asked)
        attempt.take = take
        asked.addCallback(attempt)
        return False

    # -- stages: what follows from it ----------------------------------------------------------

    def proved(self, attempt: Attempt) -> bool:
        """It is who it says; and what it proved is not banned, and not over."""
        result = attempt.result
        assert result is not None
        if not result.ok:
            return self.refuse(attempt, result.reason_code, result.reason)
        other = attempt.client.username != attempt.connect.username
        if (other or attempt.waited) and not self.ban(attempt):
            return False  # by the user name that the module has proved, or since it came
        expires_at = result.expires_at
        if expires_at is not None and expires_at * 1_000_000 <= self.broker.clock():
            return self.refuse(attempt, reasons.NOT_AUTHORIZED, "what was shown has expired")
        return True

    def mounted(self, attempt: Attempt) -> bool:
        """Put the client's names below the mountpoint of its listener, if that has one."""
        template = attempt.listener.mountpoint
        if not template:
            return True
        client = attempt.client
        try:
            prefix = mountpoint(template, client.client_id, client.username)
            mount = Mount(prefix)
            will = attempt.connect.will
            if will is not None:
                will.topic = mount.enter(will.topic)
                mount.enter_properties(will.properties)
        except ValueError as error:
            return self.refuse(attempt, reasons.NOT_AUTHORIZED, str(error))
        except MqttError as error:
            return self.refuse(attempt, error.reason_code, error.detail)
        client.mountpoint = prefix
        attempt.channel.mount = mount
        return True

    def will(self, attempt: Attempt) -> bool:
        """The client may publish its will."""
        will = attempt.connect.will
        if will is None or self.wills.allowed(attempt.client, will):
            return True
        return self.refuse(
            attempt, reasons.NOT_AUTHORIZED, "no right to the will topic " + will.topic
        )

    def fits(self, attempt: Attempt) -> bool:
        """What CONNACK has to say fits the client's Maximum Packet Size (MQTT-3.1.2-24)."""
        largest = attempt.channel.takes()
        if largest >= NO_LIMIT or self.connacks.fits(
            attempt.channel, attempt.connect, attempt.listener.limits, largest
        ):
            return True
        detail = f"CONNACK is larger than the {largest} bytes that the client takes"
        return self.refuse(attempt, reasons.PACKET_TOO_LARGE, detail)

    def owner(self, attempt: Attempt) -> bool:
        """The client id is claimed, and the state of its session is here if there is one."""
        client = attempt.client
        registry = self.registry
        refusal = registry.quota.refusal(client, client.client_id in registry.sessions)
        if refusal is not None:
            return self.refuse(attempt, refusal[0], refusal[1])
        if not is_kept(registry, client, attempt.connect):
            return self.refuse(attempt, reasons.QUOTA_EXCEEDED, NO_ROOM)
        outcome = self.claims.claim(attempt.channel, client, attempt.connect, attempt)
        if outcome is None:
            attempt.take = self._owner_said
            self.undecided[attempt.channel] = attempt
            return False
        return self._owner_said(attempt, outcome)

    def _owner_said(self, attempt: Attempt, outcome: Any) -> bool:
        if isinstance(outcome, Refusal):
            return self.refuse(attempt, outcome.code, outcome.detail)
        attempt.owned = outcome
        if attempt.waited and not self.ban(attempt):  # since it came there may be others
            self.claims.give_back(attempt.client, outcome)
            return False
        return True

    def accepted(self, attempt: Attempt) -> bool:
        """The session goes on or begins, CONNACK goes out, and what waited for the client."""
        broker = self.broker
        channel = attempt.channel
        connect = attempt.connect
        client = attempt.client
        result = attempt.result
        assert result is not None
        login = channel.auth
        if isinstance(login, Login):
            login.module = result.module
        elif result.expires_at is not None:
            login = Login(broker, self.revision, channel, "")
            login.module = result.module
            channel.auth = login
        else:
            channel.auth = result.module
        registry = self.registry
        journal = broker.journal
        changes = journal.changes
        session = registry.find(client, connect)
        owned = attempt.owned
        assert owned is not None
        if session is None and owned.state is not None and owned.record is not None:
            registry.enter(client.client_id, owned.epoch, owned.state, owned.record)
            session = registry.find(client, connect)  # it goes on, or ends as one here does
        present = session is not None
        if session is None:
            session = registry.create(client)
        else:
            broker.metrics.sessions_resumed += 1
        registry.own(client.client_id, owned.epoch)
        before = session.client
        registry.set_expiry(session, connect, client)
        self.wills.keep(session, connect.will, client)
        broker.remember(session, client)
        if present:
            known = before if isinstance(before, ClientInfo) else None
            self.revision.resumed(session, known, client)
        limits = attempt.listener.limits
        if limits is not None:
            limits.apply(channel)
        properties = self.connacks.accepting(channel, connect, client, limits)
        if journal.changes != changes:
            journal.cork(channel)  # CONNACK says that there is a session, or that one is over
        channel.accept(session, present, properties)
        if broker.tells("connected"):
            broker.connected(channel, client, present)
        broker.tell("session.resumed" if present else "session.created", session)
        if "client.connected" in broker.points:
            broker.hooks.run_hooks("client.connected", (client,))
        if isinstance(login, Login) and result.expires_at is not None:
            login.expire(result.expires_at)
        return True
