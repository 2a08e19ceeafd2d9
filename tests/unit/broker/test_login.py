"""Enhanced authentication over AUTH, expiry, revocation: what a client sees, and its session."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from zope.interface import implementer

from mqttd.access.chain import AccessControl
from mqttd.codec.packets import Auth, Connack, Connect, Disconnect, Pingreq, Publish
from mqttd.codec.properties import AUTHENTICATION_DATA, AUTHENTICATION_METHOD
from mqttd.codec.serializer import serialize
from mqttd.config.schema import Acl, Config, ScramAuth
from mqttd.config.schema import Auth as AuthConfig
from mqttd.interfaces import IAuthenticator, IAuthExchange, IEnhancedAuthenticator
from mqttd.secrets.scram import add_scram_user
from mqttd.types import AUTH_IGNORE, AuthContinue, AuthError, AuthOk, ClientInfo
from tests.support.memory import MemoryBroker, MemoryClient

SCRAM = "SCRAM-SHA-256"


@implementer(IAuthenticator)
class Says:
    """Answers every client with a password as the test says."""

    def __init__(self) -> None:
        self.answer: Any = AuthOk()

    def init(self, opts: Mapping[str, object]) -> None: ...

    def check(self, client: ClientInfo, password: bytes | None) -> Any:
        return self.answer

    def description(self) -> str:
        return "says"


@implementer(IEnhancedAuthenticator, IAuthExchange)
class Steps:
    """A method whose answers the test gives."""

    method = "STEPS"

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.data: list[bytes] = []

    def init(self, opts: Mapping[str, object]) -> None: ...

    def begin(self, client: ClientInfo) -> Any:
        return self

    def step(self, data: bytes) -> Any:
        self.data.append(data)
        return self.answers.pop(0)

    def description(self) -> str:
        return "steps"


class Bench:
    """A broker with these modules; `clock` is the access layer's."""

    def __init__(self, folder: Path) -> None:
        (folder / "acl.conf").write_text("{allow, all}.\n")
        add_scram_user(folder / "scram.conf", "alice", "secret")
        self.scram_file = folder / "scram.conf"
        self.clock = Clock()
        self.access = AccessControl(
            Config(
                auth=AuthConfig(chain=("scram",), scram=ScramAuth(file=str(self.scram_file))),
                acl=Acl(file=str(folder / "acl.conf")),
            ),
            self.clock,
        )
        self.says, self.steps = Says(), Steps()
        self.access.register_mod("auth", "says", self.says)
        self.access.register_mod("auth", "steps", self.steps)
        self.node = MemoryBroker(access=self.access)  # type: ignore[arg-type]
        self.access.on_revoked = self.node.broker.revoke_users

    def epoch(self, later: float) -> float:
        """Seconds since 1970, so much later than the broker's now."""
        return self.node.broker.clock() / 1e6 + later

    def connect(
        self, method: str = "STEPS", data: bytes | None = None, **more: Any
    ) -> MemoryClient:
        client = self.node.client(5)
        properties: dict[int, Any] = {AUTHENTICATION_METHOD: method}
        if data is not None:
            properties[AUTHENTICATION_DATA] = data
        client.send(Connect("c", version=5, properties=properties, **more))
        return client


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def auth(code: int, data: bytes | None = None, method: str = "STEPS") -> Auth:
    properties: dict[int, Any] = {AUTHENTICATION_METHOD: method}
    if data is not None:
        properties[AUTHENTICATION_DATA] = data
    return Auth(code, properties)


def one(client: MemoryClient) -> Any:
    (packet,) = client.take()
    return packet


def scram_first(user: str = "alice") -> bytes:
    return f"n,,n={user},r=fyko+d2lbbFgONRv9qkx".encode()


def scram_final(first: bytes, server_first: bytes, password: str = "secret") -> bytes:
    fields = dict(part.split("=", 1) for part in server_first.decode().split(","))
    salted = hashlib.pbkdf2_hmac(
        "sha256", password.encode(), b64decode(fields["s"]), int(fields["i"])
    )
    key = hmac.digest(salted, b"Client Key", "sha256")
    start = f"c=biws,r={fields['r']}"
    signed = b",".join((first[3:], server_first, start.encode()))
    signature = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    return f"{start},p={b64encode(proof).decode()}".encode()


def scram_in(bench: Bench, password: str = "secret", **more: Any) -> tuple[MemoryClient, Any]:
    client = bench.connect(SCRAM, scram_first(), **more)
    challenge = one(client)
    assert (type(challenge), challenge.reason_code) == (Auth, 0x18)
    assert challenge.properties[AUTHENTICATION_METHOD] == SCRAM
    data = scram_final(scram_first(), challenge.properties[AUTHENTICATION_DATA], password)
    client.send(auth(0x18, data, SCRAM))
    return client, one(client)


# -- at CONNECT


def test_scram_lets_in_and_the_broker_proves_itself(bench: Bench) -> None:
    client, connack = scram_in(bench)
    assert (type(connack), connack.reason_code) == (Connack, 0)
    assert connack.properties[AUTHENTICATION_METHOD] == SCRAM
    assert connack.properties[AUTHENTICATION_DATA].startswith(b"v=")
    assert client.session.username == "alice"
    client.send(Pingreq())
    assert one(client).type == 13


def test_scram_with_a_wrong_password_is_refused(bench: Bench) -> None:
    client, connack = scram_in(bench, "Secret")
    assert (type(connack), connack.reason_code) == (Connack, 0x87)
    assert client.closed


def test_a_method_nobody_serves_is_refused(bench: Bench) -> None:
    connack = one(bench.connect("GS2-KRB5"))
    assert connack.reason_code == 0x8C


def test_one_step_may_be_enough(bench: Bench) -> None:
    bench.steps.answers = [AuthOk(username="u", data=b"welcome")]
    client = bench.connect()
    connack = one(client)
    assert connack.properties[AUTHENTICATION_DATA] == b"welcome"
    assert bench.steps.data == [b""]


def test_what_the_client_sends_ahead_is_served_in_order(bench: Bench) -> None:
    bench.steps.answers = [AuthContinue(b"1"), AuthContinue(b"2"), AuthOk(username="u")]
    client = bench.node.client(5)
    packets = [
        Connect("c", version=5, properties={AUTHENTICATION_METHOD: "STEPS"}),
        auth(0x18, b"a"),
        auth(0x18, b"b"),
        Pingreq(),
    ]
    data = b"".join(serialize(packet, 5) for packet in packets)
    for i in range(len(data)):
        client.feed(data[i : i + 1])
    assert [packet.type for packet in client.take()] == [15, 15, 2, 13]
    assert bench.steps.data == [b"", b"a", b"b"]
    # And all in one chunk.
    bench.steps.answers = [AuthContinue(b"1"), AuthContinue(b"2"), AuthOk(username="u")]
    client = bench.node.client(5)
    client.feed(data)
    assert [packet.type for packet in client.take()] == [15, 15, 2, 13]


def test_a_step_may_wait_and_what_comes_meanwhile_waits_too(bench: Bench) -> None:
    first: Deferred[Any] = Deferred()
    last: Deferred[Any] = Deferred()
    bench.steps.answers = [first, last]
    client = bench.connect()
    client.send(auth(0x18, b"early"))
    assert client.take() == []
    assert not client.wire.reading
    first.callback(AuthContinue(b"?"))
    assert not client.wire.reading
    assert one(client).type == 15
    assert bench.steps.data == [b"", b"early"]
    client.send(Pingreq())
    last.callback(AuthOk(username="u"))
    assert [packet.type for packet in client.take()] == [2, 13]
    assert client.wire.reading


def test_a_client_that_leaves_while_it_is_asked_leaves_nothing_behind(bench: Bench) -> None:
    waiting: Deferred[Any] = Deferred()
    bench.steps.answers = [waiting]
    client = bench.connect()
    client.drop()
    waiting.callback(AuthOk(username="u"))
    assert bench.node.session("c") is None
    assert bench.node.broker.channels == 0


def test_a_step_that_hangs_refuses_after_the_deadline(bench: Bench) -> None:
    bench.steps.answers = [Deferred()]
    client = bench.connect()
    bench.clock.advance(5.0)
    assert one(client).reason_code == 0x88
    assert client.closed


def test_an_exchange_that_the_client_does_not_end_is_ended(bench: Bench) -> None:
    bench.steps.answers = [AuthContinue(b"?")]
    client = bench.connect()
    bench.node.advance(11_000)
    assert client.closed
    assert bench.node.broker.metrics.connect_timeouts == 1


@pytest.mark.parametrize(
    "packet",
    [
        auth(0x18, b"x", "OTHER"),
        auth(0x19, b"x"),
        Publish("t", b""),
        Pingreq(),
        Connect("d", version=5),
    ],
)
def test_mqtt_3_1_2_30_nothing_but_its_AUTH_may_come_before_CONNACK(
    bench: Bench, packet: Any
) -> None:
    bench.steps.answers = [AuthContinue(b"?")]
    client = bench.connect()
    one(client)
    client.send(packet)
    connack = one(client)
    assert (type(connack), connack.reason_code) == (Connack, 0x82)
    assert client.closed
    assert bench.node.session("c") is None


def test_a_client_may_give_up(bench: Bench) -> None:
    bench.steps.answers = [AuthContinue(b"?")]
    client = bench.connect()
    one(client)
    client.send(Disconnect())
    assert client.closed
    assert client.take() == []


def test_an_AUTH_that_never_ends_is_cut(bench: Bench) -> None:
    bench.steps.answers = [AuthContinue(b"?")]
    client = bench.connect()
    one(client)
    most = bench.node.settings.max_connect_size
    client.feed(b"\xf0\xff\xff\x7f" + bytes(most // 2))
    assert client.closed
    assert one(client).reason_code == 0x95


def test_mqtt_4_12_0_6_a_client_without_a_method_may_not_send_AUTH(bench: Bench) -> None:
    client = bench.node.connect("c", 5)
    client.send(auth(0x19))
    assert one(client).reason_code == 0x82
    assert client.closed


def test_CVE_2026_6564_a_session_belongs_to_the_user_who_proved_it(bench: Bench) -> None:
    bench.steps.answers = [AuthOk(username="bob")]
    bob = bench.connect(clean_start=False)
    assert one(bob).reason_code == 0
    client, connack = scram_in(bench, clean_start=False)
    assert connack.reason_code == 0x87
    assert not bob.closed
    # Who only says to be bob is not bob either.
    bench.says.answer = AuthOk(username="eve")
    eve = bench.node.client(5)
    eve.send(Connect("c", version=5, username="bob", password=b"x"))
    assert one(eve).reason_code == 0x87
    assert not bob.closed


# -- again


def test_a_client_authenticates_again_while_messages_flow(bench: Bench) -> None:
    client, _ = scram_in(bench)
    client.send(auth(0x19, scram_first(), SCRAM))
    challenge = one(client)
    client.send(Pingreq())
    assert one(client).type == 13
    data = scram_final(scram_first(), challenge.properties[AUTHENTICATION_DATA])
    client.send(auth(0x18, data, SCRAM))
    done = one(client)
    assert (done.type, done.reason_code) == (15, 0)
    assert done.properties[AUTHENTICATION_DATA].startswith(b"v=")
    assert bench.node.broker.metrics.reauthentications == 1


def test_failing_that_ends_the_connection(bench: Bench) -> None:
    client, _ = scram_in(bench)
    client.send(auth(0x19, scram_first(), SCRAM))
    challenge = one(client)
    data = scram_final(scram_first(), challenge.properties[AUTHENTICATION_DATA], "wrong")
    client.send(auth(0x18, data, SCRAM))
    assert (one(client).reason_code, client.closed) == (0x87, True)


def test_it_cannot_become_another_user(bench: Bench) -> None:
    bench.steps.answers = [AuthOk(username="u"), AuthOk(username="admin", superuser=True)]
    client = bench.connect()
    one(client)
    client.send(auth(0x19))
    assert (one(client).reason_code, client.closed) == (0x87, True)


def test_new_rights_and_expiry_take_the_place_of_the_old(bench: Bench) -> None:
    bench.steps.answers = [
        AuthOk(username="u", superuser=True, expires_at=bench.epoch(5)),
        AuthOk(username="u", acl="{deny, all}.", expires_at=bench.epoch(60)),
    ]
    client = bench.connect()
    one(client)
    client.send(Publish("t", b"", qos=1, packet_id=1))
    assert one(client).reason_code in (0, 0x10)
    client.send(auth(0x19))
    assert one(client).reason_code == 0
    client.send(Publish("t", b"", qos=1, packet_id=2))
    assert one(client).reason_code == 0x87
    bench.node.advance(10_000)
    assert not client.closed
    bench.node.advance(51_000)
    assert client.closed


@pytest.mark.parametrize(
    "packets",
    [
        [auth(0x18)],
        [auth(0x00)],
        [auth(0x19, None, "OTHER")],
        [auth(0x19), auth(0x19)],
    ],
)
def test_AUTH_out_of_place_ends_the_connection(bench: Bench, packets: list[Auth]) -> None:
    bench.steps.answers = [AuthOk(username="u"), AuthContinue(b"?"), AuthContinue(b"?")]
    client = bench.connect()
    one(client)
    client.send(*packets)
    assert client.take()[-1].reason_code == 0x82  # type: ignore[union-attr]
    assert client.closed


def test_AUTH_while_the_last_is_being_decided_ends_the_connection(bench: Bench) -> None:
    waiting: Deferred[Any] = Deferred()
    bench.steps.answers = [AuthOk(username="u"), waiting]
    client = bench.connect()
    one(client)
    client.send(auth(0x19), auth(0x18))
    assert one(client).reason_code == 0x82
    waiting.callback(AuthOk(username="u"))
    assert client.closed


# -- expiry


@pytest.mark.parametrize("version", [4, 5])
def test_a_connection_ends_when_its_authentication_expires(bench: Bench, version: int) -> None:
    bench.says.answer = AuthOk(expires_at=bench.epoch(10))
    client = bench.node.connect("c", version)
    bench.node.advance(9_900)
    assert not client.closed
    bench.node.advance(1_000)
    assert client.closed
    assert [packet.reason_code for packet in client.take()] == ([0x87] if version == 5 else [])  # type: ignore[union-attr]
    assert bench.node.broker.metrics.auth_expired == 1
    (event,) = [fields for name, fields in bench.node.events if name == "disconnected"]
    assert event["client_id"] == "c"
    assert "expired" in str(event["detail"])


def test_what_has_expired_already_is_refused(bench: Bench) -> None:
    bench.says.answer = AuthOk(expires_at=bench.epoch(-1))
    client = bench.node.client(5)
    client.send(Connect("c", version=5))
    assert one(client).reason_code == 0x87


def test_a_client_that_left_in_time_leaves_no_timer(bench: Bench) -> None:
    bench.says.answer = AuthOk(expires_at=bench.epoch(10))
    for _ in range(100):
        bench.node.connect("c", 5).drop()
    bench.node.advance(20_000)
    assert bench.node.broker.metrics.auth_expired == 0
    assert bench.node.broker.wheel.count == 0


# -- revocation and kicks


def test_users_that_are_gone_or_have_new_passwords_are_disconnected(bench: Bench) -> None:
    client, _ = scram_in(bench)
    other = bench.node.connect("other", 5, username="alice")  # let in by another module
    add_scram_user(bench.scram_file, "bob", "x")
    bench.access.reload_auth()
    assert not client.closed
    add_scram_user(bench.scram_file, "alice", "new")
    bench.clock.advance(2.0)  # the file is watched
    assert (one(client).reason_code, client.closed) == (0x87, True)
    assert not other.closed
    assert bench.node.broker.metrics.auth_revoked == 1


def test_a_kick_carries_its_reason(bench: Bench) -> None:
    client = bench.node.connect("c", 5)
    assert bench.node.broker.kick("c", 0x87, "banned")
    assert one(client).reason_code == 0x87
    assert not bench.node.broker.kick("c")
    assert bench.node.broker.metrics.clients_kicked == 1
    events = [fields for name, fields in bench.node.events if name == "disconnected"]
    assert events[0]["detail"] == "banned"


def test_a_refusal_of_the_chain_is_told_as_CONNACK(bench: Bench) -> None:
    bench.says.answer = AuthError("no", 0x8A)
    client = bench.node.client(5)
    client.send(Connect("c", version=5))
    assert one(client).reason_code == 0x8A
    bench.says.answer = AUTH_IGNORE


# -- what changes while it is under way


def begun(bench: Bench) -> tuple[MemoryClient, Auth]:
    """A client that has been challenged, and its answer."""
    client = bench.connect(SCRAM, scram_first())
    challenge = one(client)
    answer = scram_final(scram_first(), challenge.properties[AUTHENTICATION_DATA])
    return client, auth(0x18, answer, SCRAM)


def new_password(bench: Bench) -> None:
    add_scram_user(bench.scram_file, "alice", "another")
    bench.access.reload_auth()


def no_user(bench: Bench) -> None:
    bench.scram_file.write_text("")
    bench.access.reload_auth()


def another_chain(bench: Bench) -> None:
    bench.access.close()


def a_ban(bench: Bench) -> None:
    bench.node.broker.bans.add("client_id", "c")
    bench.node.broker.enforce_bans()


@pytest.mark.parametrize(
    "change, code",
    [(new_password, 0x87), (no_user, 0x87), (another_chain, 0x89), (a_ban, 0x8A)],
)
def test_what_changes_during_an_exchange_counts_at_its_end(
    bench: Bench, change: Callable[[Bench], None], code: int
) -> None:
    """Whoever held one open got in afterwards, and stayed."""
    client, answer = begun(bench)
    change(bench)
    client.send(answer)
    assert one(client).reason_code == code
    assert client.closed
    assert not bench.node.broker.sessions


@pytest.mark.parametrize("change, code", [(another_chain, 0x89), (a_ban, 0x8A)])
def test_and_while_a_module_is_asked_about_a_password(
    bench: Bench, change: Callable[[Bench], None], code: int
) -> None:
    waiting: Deferred[Any] = Deferred()
    bench.says.answer = waiting
    client = bench.node.client(5)
    client.send(Connect("c", version=5, username="bob", password=b"x"))
    assert not client.take()
    change(bench)
    waiting.callback(AuthOk())
    bench.node.run_soon()
    assert one(client).reason_code == code
    assert not bench.node.broker.sessions
