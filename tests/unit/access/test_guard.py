"""A module that hangs, fails or floods: what its clients get, and what it may cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from zope.interface import implementer

from mqttd.access.auth import answer_cache
from mqttd.access.auth.answer_cache import AnswerCache
from mqttd.access.auth.guard import stays
from mqttd.access.chain import AccessControl
from mqttd.config.schema import Acl, Auth, AuthBackend, AuthFailures, Config, Plugins
from mqttd.interfaces import IAuthenticator
from mqttd.types import AUTH_IGNORE, AUTH_OK, AuthError, AuthOk, AuthResult, ClientInfo

WRONG = AuthError("wrong password")


@implementer(IAuthenticator)
class Backend:
    """Answers each question when the test says so."""

    def __init__(self, limits: Mapping[str, object] | None = None) -> None:
        if limits is not None:
            self.limits = limits
        self.open: list[Deferred[Any]] = []
        self.asked = 0

    def init(self, opts: Mapping[str, object]) -> None: ...

    def check(self, client: ClientInfo, password: bytes | None) -> Deferred[Any]:
        self.asked += 1
        waiting: Deferred[Any] = Deferred()
        self.open.append(waiting)
        return waiting

    def description(self) -> str:
        return "backend"


@implementer(IAuthenticator)
class Says:
    """Answers at once."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def init(self, opts: Mapping[str, object]) -> None: ...

    def check(self, client: ClientInfo, password: bytes | None) -> Any:
        return self.answer

    def description(self) -> str:
        return "says"


class Bench:
    """A chain of one back end, its clock, and what was reported."""

    def __init__(self, folder: Path, *modules: Any, **limits: Any) -> None:
        (folder / "acl.conf").write_text("{allow, all}.\n")
        self.clock = Clock()
        self.events: list[tuple[str, dict[str, object]]] = []
        #: The modules that failed, and what became of the client.
        self.errors: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.control = AccessControl(
            Config(
                auth=Auth(
                    chain=(),
                    backend=AuthBackend(**limits),
                    failures=AuthFailures(user_limit=0, delay=0),
                ),
                acl=Acl(file=str(folder / "acl.conf")),
            ),
            self.clock,
            on_event=lambda event, fields: self.events.append((event, fields)),
            on_error=self.failed,
        )
        for i, module in enumerate(modules):
            self.control.register_mod("auth", f"m{i}", module)

    def failed(self, kind: str, name: str, error: BaseException, then: str) -> None:
        self.errors.append((name, then))
        self.texts.append(str(error))

    def ask(
        self,
        password: bytes | None = b"pw",
        client_id: str = "c",
        host: str = "10.0.0.1",
        gone: Callable[[], bool] = stays,
        **more: Any,
    ) -> list[AuthResult]:
        client = ClientInfo(client_id, "alice", host, 1, "tcp:default", 5, **more)
        results: list[AuthResult] = []
        answer = self.control.authenticate(client, password, gone)
        if isinstance(answer, Deferred):
            answer.addCallback(results.append)
        else:
            results.append(answer)
        return results

    def figures(self, name: str = "m0") -> dict[str, Any]:
        (found,) = [entry for entry in self.control.describe() if entry["name"] == name]
        return found


def codes(*results: list[AuthResult]) -> list[int | None]:
    return [result[0].reason_code if result else None for result in results]


# -- concurrency


def test_so_many_are_asked_at_once_some_wait_and_the_next_is_busy(tmp_path: Path) -> None:
    backend = Backend()
    bench = Bench(tmp_path, backend, concurrency=2, waiting=1)
    results = [bench.ask(client_id=str(i)) for i in range(4)]
    assert backend.asked == 2
    assert codes(*results) == [None, None, None, 0x89]
    backend.open[0].callback(AUTH_OK)
    assert backend.asked == 3
    backend.open[2].callback(AUTH_OK)
    backend.open[1].callback(AUTH_OK)
    assert codes(*results) == [0, 0, 0, 0x89]
    figures = bench.figures()
    assert (figures["running"], figures["waiting"], figures["busy"]) == (0, 0, 1)


def test_a_thousand_in_the_queue_of_a_module_that_answers_at_once_do_not_pile_up(
    tmp_path: Path,
) -> None:
    backend = Backend()
    bench = Bench(tmp_path, backend, concurrency=1, waiting=1000)
    results = [bench.ask(client_id=str(i)) for i in range(1000)]
    first = backend.open[0]
    backend.check = lambda client, password: succeed(AUTH_OK)  # type: ignore[method-assign]
    first.callback(AUTH_OK)
    assert codes(*results) == [0] * 1000


def test_those_in_the_queue_of_a_module_that_hangs_get_an_answer_too(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Backend(), concurrency=1, deadline=2.0, breaker_failures=0)
    results = [bench.ask(client_id=str(i)) for i in range(5)]
    bench.clock.advance(2.0)
    assert codes(*results) == [0x88] * 5
    assert bench.figures()["late"] == 5
    assert bench.clock.getDelayedCalls() == []


def test_while_one_client_waits_others_do_not(tmp_path: Path) -> None:
    @implementer(IAuthenticator)
    class OnlySlowForBob(Backend):
        def check(self, client: ClientInfo, password: bytes | None) -> Any:
            return super().check(client, password) if client.client_id == "bob" else AUTH_OK

    bench = Bench(tmp_path, OnlySlowForBob())
    assert codes(bench.ask(client_id="bob"), bench.ask(client_id="eve")) == [None, 0]


# -- breaker


def test_the_breaker_opens_says_so_and_closes_after_a_trial(tmp_path: Path) -> None:
    backend = Backend()
    bench = Bench(tmp_path, backend, deadline=1.0, breaker_failures=3, breaker_retry=10.0)
    waiting = [bench.ask(client_id=str(i)) for i in range(3)]
    bench.clock.advance(1.0)
    assert codes(*waiting) == [0x88] * 3
    ((event, fields),) = bench.events
    assert event == "auth breaker opened"
    assert (fields["module"], fields["failures"]) == ("m0", 3)
    assert fields["error"] == "no answer within 1 s"
    assert bench.texts == ["no answer within 1 s"] * 3
    assert bench.figures()["breaker"] == "open"
    # At once, and nobody asks the back end.
    refused = bench.ask()
    assert codes(refused) == [0x88]
    assert "circuit breaker is open" in refused[0].reason
    assert backend.asked == 3
    assert bench.figures()["rejected"] == 1
    # One is let through after a while, the others are not.
    bench.clock.advance(11.5)
    trial, other = bench.ask(), bench.ask(client_id="other")
    assert backend.asked == 4
    assert codes(trial, other) == [None, 0x88]
    backend.open[-1].callback(AUTH_OK)
    assert codes(trial, bench.ask(b"other pw")) == [0, None]
    assert bench.events[-1] == ("auth breaker closed", {"module": "m0"})


def test_those_who_wait_when_the_breaker_opens_are_refused_at_once(tmp_path: Path) -> None:
    backend = Backend()
    bench = Bench(tmp_path, backend, concurrency=1, breaker_failures=1)
    results = [bench.ask(client_id=str(i)) for i in range(4)]
    backend.open[0].errback(ConnectionError("gone"))
    assert codes(*results) == [0x88] * 4
    assert backend.asked == 1


def test_a_wrong_password_is_no_failure(tmp_path: Path) -> None:
    backend = Backend()
    bench = Bench(tmp_path, backend, breaker_failures=2)
    for i in range(5):
        bench.ask(client_id=str(i))
        backend.open[-1].callback(WRONG)
    assert bench.figures()["breaker"] == "closed"


@pytest.mark.parametrize("garbage", [None, True, "ok", {"result": "allow"}, b"\xff"])
def test_garbage_is_a_failure_and_is_not_shown(tmp_path: Path, garbage: object) -> None:
    backend = Backend()
    bench = Bench(tmp_path, backend, breaker_failures=1)
    result = bench.ask()
    backend.open[0].callback(garbage)
    assert codes(result) == [0x88]
    assert result[0].reason == "module m0 failed: it raised TypeError"
    assert bench.events == []  # it is this client's failure, and nobody else's


@implementer(IAuthenticator)
class Picky(Says):
    """Cannot cope with one user; at once, or later."""

    def __init__(self, late: bool, trouble: Any) -> None:
        super().__init__(AUTH_OK)
        self.late, self.trouble = late, trouble

    def check(self, client: ClientInfo, password: bytes | None) -> Any:
        if client.client_id != "odd":
            return AUTH_OK
        if not isinstance(self.trouble, BaseException):
            return succeed(self.trouble) if self.late else self.trouble
        if self.late:
            return fail(self.trouble)
        raise self.trouble


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "trouble",
    [
        KeyError("odd"), ValueError("odd"), RuntimeError("odd"), FileNotFoundError(2, "odd"),
        AuthOk(acl=["x"]), AuthOk(acl="{no rule"), AuthOk(username=7), AuthError(0x86), "yes",
    ],
    ids=repr,
)  # fmt: skip
def test_what_one_client_brings_a_module_to_is_its_failure_alone(
    tmp_path: Path, trouble: Any, late: bool
) -> None:
    bench = Bench(tmp_path, Picky(late, trouble), breaker_failures=2)
    refused = 0x86 if isinstance(trouble, AuthError) else 0x88
    for _ in range(10):
        assert codes(bench.ask(client_id="odd")) == [refused]
    assert codes(bench.ask(client_id="honest")) == [0]
    assert (bench.figures()["error"], bench.figures()["breaker"]) == (10, "closed")


def test_a_refusal_that_is_put_badly_is_not_ignored(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Picky(False, AuthError(0x86)), Says(AUTH_OK), on_error="ignore")  # type: ignore[arg-type]
    assert codes(bench.ask(client_id="odd"), bench.ask()) == [0x86, 0]


def test_one_address_opens_the_breaker_for_itself_and_several_for_all(tmp_path: Path) -> None:
    backend = Backend()
    bench = Bench(tmp_path, backend, breaker_failures=2)

    def failing(host: str) -> None:
        bench.ask(host=host)
        backend.open[-1].errback(ConnectionError())

    for _ in range(2):
        failing("10.0.0.66")
    assert codes(bench.ask(host="10.0.0.66"), bench.ask()) == [0x88, None]
    failing("10.0.0.67")
    assert codes(bench.ask(host="10.0.0.68")) == [0x88]


def test_addresses_are_asked_about_in_turn(tmp_path: Path) -> None:
    backend = Backend()
    bench = Bench(tmp_path, backend, concurrency=1, waiting=3)
    flood = [bench.ask(client_id=str(i), host="10.0.0.66") for i in range(10)]
    honest = bench.ask(client_id="honest", host="10.0.0.7")
    assert codes(*flood) == [None] * 3 + [0x89] * 7  # the last of the flood has lost its place
    for _ in range(2):
        backend.open[-1].callback(AUTH_OK)
    assert codes(honest, flood[0], flood[1], flood[2]) == [None, 0, 0, None]
    backend.open[-1].callback(AUTH_OK)
    assert codes(honest) == [0]


# -- on_error


def test_on_error_ignore_asks_the_next_module(tmp_path: Path) -> None:
    backend, last = Backend(), Backend()
    bench = Bench(tmp_path, backend, last, ignore_errors_of=("m0",), breaker_failures=1)
    result = bench.ask()
    backend.open[0].errback(ConnectionError())
    last.open[0].callback(AUTH_OK)
    assert (codes(result), result[0].module) == ([0], "m1")
    result = bench.ask(b"2")  # the breaker is open now
    last.open[1].errback(ConnectionError())
    assert codes(result) == [0x88]  # m1 denies


def test_what_becomes_of_the_client_is_told_with_the_failure(tmp_path: Path) -> None:
    first, second = Backend(), Backend()
    second.plugin = "acme"  # type: ignore[attr-defined]
    bench = Bench(tmp_path, first, second, ignore_errors_of=("m0",))
    bench.ask()
    first.open[0].errback(KeyError())
    second.open[0].errback(KeyError())
    assert bench.errors == [
        ("m0", "the next module is asked"),
        ("m1 of plugin acme", "the client is refused"),
    ]
    assert [bench.figures(name)["error"] for name in ("m0", "m1")] == [1, 1]


def test_a_module_may_narrow_its_limits(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Backend({"deadline": 0.5, "on_error": "ignore"}), deadline=5.0)
    result = bench.ask()
    bench.clock.advance(0.5)
    assert codes(result) == [0x86]  # ignored, and nobody else knows the client


@pytest.mark.parametrize(
    "limits,text",
    [
        ({"dead_line": 1}, "unknown key 'dead_line'; there are: deadline, "),
        ({"deadline": "soon"}, "Expected `float`, got `str`"),
        ({"concurrency": 0}, "Expected `int` >= 1"),
        (7, "expected a mapping"),
    ],
)
def test_wrong_limits_are_refused_by_name(tmp_path: Path, limits: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        Bench(tmp_path, Backend(limits))
    assert "m0" in str(caught.value)


# -- cache


def answered(bench: Bench, backend: Backend, verdict: object, **more: Any) -> None:
    bench.ask(**more)
    backend.open[-1].callback(verdict)


def test_a_client_that_comes_back_soon_is_not_asked_about_again(tmp_path: Path) -> None:
    backend = Backend()
    bench = Bench(tmp_path, backend, cache_ok=10.0, cache_denied=5.0)
    answered(bench, backend, AuthOk(superuser=True, acl="{allow, all}."))
    again = bench.ask()
    assert codes(again) == [0]
    assert again[0].superuser
    answered(bench, backend, WRONG, password=b"guess")
    assert codes(bench.ask(b"guess")) == [0x86]
    assert (backend.asked, bench.figures()["cached"]) == (2, 2)
    bench.clock.advance(5.0)
    assert codes(bench.ask(b"guess"), bench.ask()) == [None, 0]
    bench.clock.advance(5.0)
    assert codes(bench.ask()) == [None]


@pytest.mark.parametrize(
    "more",
    [
        {"password": b"pw2"},
        {"password": None},
        {"password": b""},
        {"client_id": "c2"},
        {"cert_common_name": "c"},
        {"cert_subject": "CN=c"},
        {"cert_sans": ("DNS:c",)},
    ],
)
def test_another_client_or_password_is_asked_about(tmp_path: Path, more: dict[str, Any]) -> None:
    backend = Backend()
    bench = Bench(tmp_path, backend)
    answered(bench, backend, AUTH_OK)
    assert codes(bench.ask(**more)) == [None]


def test_failures_are_never_kept_and_a_kept_yes_runs_out_with_its_token(tmp_path: Path) -> None:
    backend = Backend()
    bench = Bench(tmp_path, backend)
    bench.ask()
    backend.open[-1].errback(ConnectionError())
    assert codes(bench.ask()) == [None]
    backend.open[-1].callback(AuthOk(expires_at=1.0))  # long ago
    assert codes(bench.ask()) == [None]


def test_a_reload_forgets_all_answers(tmp_path: Path) -> None:
    backend = Backend()
    bench = Bench(tmp_path, backend)
    answered(bench, backend, AUTH_OK)
    bench.control.reload_auth()
    assert codes(bench.ask()) == [None]


def test_the_cache_holds_neither_passwords_nor_their_plain_hashes_and_is_bounded() -> None:
    import hashlib

    cache: AnswerCache[int] = AnswerCache(2)
    client = ClientInfo("c", "alice", "::1", 1, "tcp:default", 5)
    keys = [cache.key(client, text) for text in (b"a", b"b", b"c")]
    for key in keys:
        cache.put(key, 1, 10.0)
    assert [cache.get(key, 0.0) for key in keys] == [None, 1, 1]
    kept = repr(cache._answers).encode() + b"".join(cache._answers)
    assert hashlib.sha256(b"c").digest() not in kept
    assert b"alice" not in kept
    old, answer_cache._KEY = answer_cache._KEY, bytes(32)
    try:
        assert cache.key(client, b"c") != keys[2]  # another process, another key
    finally:
        answer_cache._KEY = old


def test_parts_of_a_key_cannot_run_into_one_another() -> None:
    def key(client_id: str, username: str | None) -> bytes:
        return AnswerCache.key(ClientInfo(client_id, username, "", 1, "", 5), None)

    assert len({key("ab", "c"), key("a", "bc"), key("abc", ""), key("abc", None)}) == 4


# -- places of plugins


def reserved(tmp_path: Path) -> tuple[AccessControl, ClientInfo]:
    (tmp_path / "acl.conf").write_text("{allow, all}.\n")
    config = Config(
        auth=Auth(chain=("ldap", "anonymous"), anonymous="always"),
        acl=Acl(file=str(tmp_path / "acl.conf")),
        plugins=Plugins(load=("auth_ldap",)),
    )
    return AccessControl(config, Clock()), ClientInfo("c", None, "10.0.0.1", 1, "tcp", 5)


def test_the_place_of_a_plugin_that_is_missing_refuses_everybody(tmp_path: Path) -> None:
    control, client = reserved(tmp_path)
    assert not control.authenticate(client, None).ok  # type: ignore[union-attr]
    assert "missing" in str(control.describe()[0]["description"])


def test_a_plugin_takes_its_place_in_the_chain_and_leaves_it_shut(tmp_path: Path) -> None:
    @implementer(IAuthenticator)
    class Ldap(Backend):
        def check(self, client: ClientInfo, password: bytes | None) -> Any:
            return AUTH_IGNORE

    control, client = reserved(tmp_path)
    control.register_mod("auth", "ldap", Ldap())
    assert [entry["name"] for entry in control.describe()][:2] == ["ldap", "anonymous"]
    assert control.authenticate(client, None).ok  # type: ignore[union-attr]
    control.unregister_mod("auth", "ldap")
    assert not control.authenticate(client, None).ok  # type: ignore[union-attr]


# -- figures


def test_latency_is_shown_as_a_histogram(tmp_path: Path) -> None:
    backend = Backend()
    bench = Bench(tmp_path, backend)
    for seconds in (0.02, 0.3, 3.0):
        bench.ask(str(seconds).encode())
        bench.clock.advance(seconds)
        backend.open[-1].callback(AUTH_OK)
    latency = bench.figures()["latency"]
    assert (latency["count"], latency["max"]) == (3, pytest.approx(3.0))
    assert latency["sum"] == pytest.approx(3.32)
    assert {b["le"]: b["count"] for b in latency["buckets"] if b["count"]} == {
        0.05: 1,
        0.5: 1,
        5.0: 1,
    }


def test_clients_a_module_is_not_there_for_get_past_its_open_breaker(tmp_path: Path) -> None:
    class ForBob(Backend):
        def concerns(self, client: ClientInfo, password: bytes | None) -> bool:
            return client.client_id == "bob"

    backend = ForBob()
    bench = Bench(tmp_path, backend, Says(AUTH_OK), breaker_failures=1)
    bench.ask(client_id="bob")
    backend.open[0].errback(ConnectionError())
    assert codes(bench.ask(client_id="bob"), bench.ask(client_id="eve")) == [0x88, 0]
    assert bench.figures()["hit"] == 2


def test_who_is_unknown_everywhere_and_who_has_a_wrong_password_see_the_same(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, Says(AUTH_IGNORE))
    assert codes(bench.ask()) == [WRONG.reason_code]
