"""Failed log-ins: answered late, then refused for a while; nobody is locked out by others."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from zope.interface import implementer

from mqttd.access.auth.failures import Failures
from mqttd.access.chain import AccessControl
from mqttd.config.schema import Acl, Auth, AuthFailures, Config
from mqttd.interfaces import IAuthenticator
from mqttd.types import AUTH_OK, AuthError, AuthResult, ClientInfo

HERE, ELSEWHERE = "10.0.0.66", "10.0.0.7"


def client(
    user: str | None = "alice", host: str = HERE, client_id: str = "c", port: int = 1
) -> ClientInfo:
    return ClientInfo(client_id, user, host, port, "tcp:default", 5)


def note(them: Failures, who: ClientInfo, now: float, times: int = 1) -> list[tuple[float, float]]:
    return [them.note(who, who.username, now) for _ in range(times)]


def test_answers_are_put_off_longer_and_longer_then_it_is_barred() -> None:
    them = Failures(AuthFailures(user_limit=10, delay_after=3, delay=0.25, ban=10.0))
    told = note(them, client(), 0.0, 10)
    assert [delay for delay, _ in told] == [0, 0, 0, 0.25, 0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert [ban for _, ban in told] == [0] * 9 + [10.0]
    assert them.bars(client(), 1.0) == 9.0
    assert them.bars(client(), 10.0) == 0


def test_each_ban_takes_twice_as_long_up_to_the_longest() -> None:
    them = Failures(AuthFailures(user_limit=4, ban=10.0, max_ban=35.0))
    now, bans = 0.0, []
    for _ in range(4 + 3 * 1):
        for _, ban in note(them, client(), now):
            if ban:
                bans.append(ban)
                now += ban
    assert bans == [10.0, 20.0, 35.0, 35.0]


def test_a_window_without_failures_forgets_them() -> None:
    them = Failures(AuthFailures(user_limit=4, window=60.0))
    note(them, client(), 0.0, 3)
    assert note(them, client(), 61.0) == [(0.0, 0.0)]


def test_a_stranger_locks_nobody_out_from_elsewhere() -> None:
    them = Failures(AuthFailures())
    note(them, client(), 0.0, 1000)
    assert them.bars(client(), 0.0) > 0
    assert them.bars(client(host=ELSEWHERE), 0.0) == 0


def test_nor_a_device_those_that_share_its_name_and_address() -> None:
    them = Failures(AuthFailures(user_limit=10))
    note(them, client(client_id="bad"), 0.0, 10)
    assert them.bars(client(client_id="bad"), 0.0) > 0
    assert them.bars(client(client_id="good"), 0.0) == 0
    assert them.bars(client(None, client_id="good"), 0.0) == 0


def test_who_varies_the_client_id_is_barred_with_its_user_name_but_not_those_who_got_in() -> None:
    them = Failures(AuthFailures(user_limit=10))
    them.let_in(client(client_id="mine"), "alice")
    for n in range(50):
        note(them, client(client_id=str(n)), 0.0)
    assert them.bars(client(client_id="new"), 0.0) > 0
    assert them.bars(client(client_id="mine"), 0.0) == 0
    assert them.bars(client("bob", client_id="new"), 0.0) == 0


def test_an_address_is_barred_but_for_those_who_got_in_from_there() -> None:
    them = Failures(AuthFailures(address_limit=100))
    them.let_in(client("known"), "known")
    for n in range(100):
        note(them, client(f"user{n}"), 0.0)
    assert them.bars(client("fresh"), 0.0) > 0
    assert them.bars(client("known"), 0.0) == 0
    assert them.bars(client("fresh", ELSEWHERE), 0.0) == 0


def test_a_network_of_ipv6_is_one_address() -> None:
    them = Failures(AuthFailures(address_limit=10))
    for n in range(10):
        note(them, client(f"user{n}", f"2001:db8::{n:x}"), 0.0)
    assert them.bars(client("fresh", "2001:db8::ffff"), 0.0) > 0
    assert them.bars(client("fresh", "2001:db8:0:1::1"), 0.0) == 0


def test_whoever_gets_in_begins_anew() -> None:
    them = Failures(AuthFailures(user_limit=10))
    for _ in range(5):
        note(them, client(), 0.0, 8)
        them.let_in(client(), "alice")
    assert them.bars(client(), 0.0) == 0


def test_zero_bars_nobody_and_what_is_kept_is_bounded() -> None:
    them = Failures(AuthFailures(user_limit=0, address_limit=0, delay=0), 100)
    for n in range(1000):
        assert note(them, client(f"u{n}", f"10.1.{n // 256}.{n % 256}"), 0.0) == [(0.0, 0.0)]
        them.let_in(client(f"u{n}"), f"u{n}")
    assert (len(them.counts), len(them._known)) == (100, 100)


# -- before the chain


@implementer(IAuthenticator)
class Says:
    def __init__(self) -> None:
        self.answer: Any = AuthError("no")
        self.asked = 0

    def init(self, opts: Mapping[str, object]) -> None: ...

    def check(self, client: ClientInfo, password: bytes | None) -> Any:
        self.asked += 1
        return self.answer

    def description(self) -> str:
        return "says"


def test_a_client_is_answered_late_then_refused_unasked_and_the_log_hears_of_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "acl.conf").write_text("{allow, all}.\n")
    clock, says = Clock(), Says()
    events: list[tuple[str, dict[str, object]]] = []
    counted: list[str] = []
    control = AccessControl(
        Config(auth=Auth(chain=()), acl=Acl(file=str(tmp_path / "acl.conf"))),
        clock,
        on_event=lambda event, fields: events.append((event, fields)),
        on_count=counted.append,
    )
    control.register_mod("auth", "says", says)

    def ask() -> AuthResult | Deferred[AuthResult]:
        return control.authenticate(client(), b"guess")

    assert [type(ask()) for _ in range(3)] == [AuthResult] * 3
    for _ in range(7):
        waiting = ask()
        assert isinstance(waiting, Deferred) and not waiting.called
        clock.advance(4.0)
        assert waiting.called
    assert events == [("log-ins barred", {"address": HERE, "username": "alice", "seconds": 10.0})]
    clock.advance(0)
    refused = ask()
    assert isinstance(refused, AuthResult)
    assert refused.reason_code == (0x8A if clock.seconds() < 34 else 0x86)
    assert counted.count("auth_failures") == 10
    assert counted.count("auth_failures_bans") == 1
    says.answer = AUTH_OK
    clock.advance(600)
    assert ask().ok  # type: ignore[union-attr]
    assert clock.getDelayedCalls() == []


def test_a_back_end_that_fails_is_nobodys_failed_log_in(tmp_path: Path) -> None:
    (tmp_path / "acl.conf").write_text("{allow, all}.\n")
    counted: list[str] = []
    control = AccessControl(
        Config(auth=Auth(chain=()), acl=Acl(file=str(tmp_path / "acl.conf"))),
        Clock(),
        on_count=counted.append,
    )
    says = Says()
    says.answer = "nonsense"
    control.register_mod("auth", "says", says)
    for _ in range(20):
        assert control.authenticate(client(), b"x").reason_code == 0x88  # type: ignore[union-attr]
    assert counted == []


@pytest.mark.parametrize("got_in", [True, False])
def test_names_of_any_length_are_told_apart_and_not_kept(got_in: bool) -> None:
    them = Failures(AuthFailures(user_limit=4, ban=10.0, address_limit=0))
    long = "x" * 65_000
    one, other = client(f"{long}1", client_id=f"{long}2"), client(f"{long}3", client_id=f"{long}2")
    tracemalloc.start()
    try:
        for number in range(20):
            who = client(f"{number}{long}", client_id=f"{long}{number}")
            if got_in:
                them.let_in(who, who.username)
            else:
                note(them, who, 0.0)
        assert tracemalloc.get_traced_memory()[0] < 65_000 * 4
    finally:
        tracemalloc.stop()
    note(them, one, 0.0, 4)
    assert them.bars(one, 1.0) == 9.0
    assert them.bars(other, 1.0) == 0
