"""The two chains: who is asked, who decides, and that every fault refuses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from zope.interface import Invalid, implementer

from mqttd.access.acl.conf import AclSyntaxError
from mqttd.access.chain import AccessControl, AclReloadError, UnknownModule
from mqttd.config.load import from_tables
from mqttd.config.schema import Acl, Auth, Config, UsernameAuth
from mqttd.interfaces import IAccessControl, IAuthenticator
from mqttd.secrets.lines import PasswordFileError
from mqttd.types import (
    AUTH_IGNORE,
    AUTH_OK,
    Action,
    AuthError,
    AuthOk,
    AuthResult,
    ClientInfo,
    Verdict,
)

PUBLISH, SUBSCRIBE = Action("publish"), Action("subscribe")


@implementer(IAuthenticator)
class Says:
    """Answers what it was told to, and notes that it was asked."""

    def __init__(self, answer: Any = AUTH_IGNORE) -> None:
        self.answer = answer
        self.asked: list[bytes | None] = []

    def init(self, opts: Mapping[str, object]) -> None: ...

    def check(self, client: ClientInfo, password: bytes | None) -> Any:
        self.asked.append(password)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def description(self) -> str:
        return "says"


@implementer(IAccessControl)
class Rules:
    def __init__(self, answer: Any = Verdict.IGNORE) -> None:
        self.answer = answer
        self.fault: Exception | None = None
        self.reloads = 0

    def init(self, opts: Mapping[str, object]) -> None: ...

    def check_acl(self, client: ClientInfo, action: Action, topic: str) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def reload_acl(self) -> None:
        self.reloads += 1
        if self.fault is not None:
            raise self.fault

    def description(self) -> str:
        return "rules"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "acl.conf").write_text('{allow, all, publish, ["open"]}.\n')
    return tmp_path


def config(folder: Path, chain: tuple[str, ...] = (), nomatch: Any = "deny") -> Config:
    return Config(
        auth=Auth(chain=chain, username=UsernameAuth(file=str(folder / "users.conf"))),
        acl=Acl(file=str(folder / "acl.conf"), nomatch=nomatch),
    )


def client(username: str | None = None, peerhost: str = "127.0.0.1") -> ClientInfo:
    return ClientInfo("c1", username, peerhost, 1, "tcp:default", 4)


def access(folder: Path, *modules: object, **arguments: Any) -> AccessControl:
    control = AccessControl(config(folder), **arguments)
    for number, module in enumerate(modules):
        control.register_mod("auth", f"m{number}", module)
    return control


def counters(control: AccessControl, name: str) -> dict[str, object]:
    (entry,) = [entry for entry in control.describe() if entry["name"] == name]
    return {key: entry[key] for key in ("hit", "ok", "deny", "ignore", "error")}


# -- authentication


def test_a_client_without_an_address_is_refused(folder: Path) -> None:
    """It was reset before its CONNECT was read: nobody can say whether it is banned."""
    control = AccessControl(config(folder, ("anonymous",)))
    assert control.authenticate(client(), None).ok  # type: ignore[union-attr]
    refused = control.authenticate(client(peerhost=""), None)
    assert isinstance(refused, AuthResult)
    assert (refused.ok, refused.reason) == (False, "the connection was reset")


def test_a_chain_that_comes_to_its_end_refuses(folder: Path) -> None:
    for control in (access(folder), access(folder, Says(), Says())):
        result = control.authenticate(client(), None)
        assert isinstance(result, AuthResult)
        assert not result.ok
        assert result.reason_code == 0x87


def test_the_first_yes_or_no_decides(folder: Path) -> None:
    last = Says(AUTH_OK)
    yes = access(folder, Says(), Says(AuthOk(True, attributes={"a": 1}, expires_at=9.0)), last)
    who = client()
    assert yes.authenticate(who, b"pw") == AuthResult(True, 0, "", True, {"a": 1}, 9.0, "m1")
    assert (who.superuser, who.attributes) == (True, {"a": 1})
    no = access(folder, Says(), Says(AuthError("nope", 0x8A)), last)
    assert no.authenticate(client(), b"pw") == AuthResult(False, 0x8A, "nope", module="m1")
    assert last.asked == []


def test_a_refusal_with_a_code_that_means_success_still_refuses(folder: Path) -> None:
    result = access(folder, Says(AuthError("x", 0))).authenticate(client(), None)
    assert isinstance(result, AuthResult)
    assert (result.ok, result.reason_code) == (False, 0x87)


def test_modules_are_asked_by_sequence_number_then_as_registered(folder: Path) -> None:
    control = access(folder)
    for name, seq in (("c", 20), ("a", 10), ("d", 20), ("e", None), ("b", 10), ("z", 0)):
        control.register_mod("auth", name, Says(), seq)
    assert [entry["name"] for entry in control.describe()] == ["z", "a", "b", "c", "d", "e", "acl"]


@pytest.mark.parametrize("answer", [RuntimeError("broken"), None, True, "ok", Verdict.ALLOW])
def test_a_module_that_fails_or_answers_nonsense_refuses_and_is_counted(
    folder: Path, answer: object
) -> None:
    errors: list[tuple[str, str, Exception]] = []
    last = Says(AUTH_OK)
    control = access(folder, Says(answer), last, on_error=lambda *e: errors.append(e))
    result = control.authenticate(client(), None)
    assert isinstance(result, AuthResult)
    assert (result.ok, result.reason_code, result.module) == (False, 0x88, "m0")
    assert last.asked == []
    assert counters(control, "m0") == {"hit": 1, "ok": 0, "deny": 0, "ignore": 0, "error": 1}
    assert errors[0][:2] == ("auth", "m0")


def test_a_verdict_may_come_later(folder: Path) -> None:
    waiting: Deferred[object] = Deferred()
    control = access(
        folder, Says(waiting), Says(succeed(AUTH_IGNORE)), Says(AUTH_OK), reactor=Clock()
    )
    results = results_of(control.authenticate(client(), b"pw"))
    assert results == []
    waiting.callback(AUTH_IGNORE)
    assert [result.module for result in results] == ["m2"]
    assert results[0].ok


def test_a_verdict_that_does_not_come_within_the_deadline_refuses(folder: Path) -> None:
    clock = Clock()
    last = Says(AUTH_OK)
    control = access(folder, Says(Deferred()), last, reactor=clock, deadline=2.0)
    results = results_of(control.authenticate(client(), None))
    clock.advance(1.9)
    assert results == []
    clock.advance(0.2)
    assert [(r.ok, r.reason_code) for r in results] == [(False, 0x88)]
    assert "no answer within 2 s" in results[0].reason
    assert last.asked == []
    assert counters(control, "m0")["error"] == 1
    assert clock.getDelayedCalls() == []


def test_a_verdict_in_time_leaves_no_timer_behind(folder: Path) -> None:
    clock = Clock()
    waiting: Deferred[object] = Deferred()
    control = access(folder, Says(waiting), reactor=clock)
    results = results_of(control.authenticate(client(), None))
    waiting.callback(AUTH_OK)
    assert results[0].ok
    assert clock.getDelayedCalls() == []


@pytest.mark.parametrize("answer", [None, True, RuntimeError("late")])
def test_a_verdict_that_comes_later_as_nonsense_or_failure_refuses(
    folder: Path, answer: object
) -> None:
    waiting = fail(answer) if isinstance(answer, Exception) else succeed(answer)
    control = access(folder, Says(waiting), reactor=Clock())
    results = results_of(control.authenticate(client(), None))
    assert [(r.ok, r.reason_code) for r in results] == [(False, 0x88)]


def test_without_a_clock_a_verdict_that_would_come_later_refuses(folder: Path) -> None:
    result = access(folder, Says(Deferred())).authenticate(client(), None)
    assert isinstance(result, AuthResult)
    assert (result.ok, result.reason_code) == (False, 0x88)


def test_the_configured_chain_is_built(folder: Path) -> None:
    control = AccessControl(config(folder, ("username", "anonymous")))
    names = [(entry["kind"], entry["name"], entry["seq"]) for entry in control.describe()]
    assert names == [("auth", "username", 1), ("auth", "anonymous", 2), ("acl", "acl", 1)]
    assert control.authenticate(client(), None).ok  # type: ignore[union-attr]
    assert not control.authenticate(client("bob"), b"x").ok  # type: ignore[union-attr]
    assert not control.authenticate(client(None, "10.0.0.1"), None).ok  # type: ignore[union-attr]


def test_a_module_nobody_knows_stops_the_start(folder: Path) -> None:
    with pytest.raises(UnknownModule, match="'ldap'; expected one of: username, "):
        AccessControl(config(folder, ("ldap",)))


def test_wrong_or_missing_files_stop_the_start_and_are_named(folder: Path) -> None:
    (folder / "users.conf").write_text("nonsense\n")
    (folder / "users.conf").chmod(0o600)
    with pytest.raises(PasswordFileError, match=r"users\.conf:1: "):
        AccessControl(config(folder, ("username",)))
    (folder / "acl.conf").write_text("{allow, all}")
    with pytest.raises(AclSyntaxError, match=r"acl\.conf:1:13: "):
        AccessControl(config(folder))
    (folder / "acl.conf").unlink()
    with pytest.raises(OSError, match=r"acl\.conf"):
        AccessControl(config(folder))


# -- registering


def test_a_module_that_does_not_fulfil_its_interface_is_refused(folder: Path) -> None:
    @implementer(IAuthenticator)
    class Half:
        def init(self, opts: Mapping[str, object]) -> None: ...

        def description(self) -> str:
            return ""

    control = access(folder)
    with pytest.raises(Invalid, match="check"):
        control.register_mod("auth", "half", Half())
    with pytest.raises(Invalid):
        control.register_mod("acl", "wrong", Says())
    assert [entry["name"] for entry in control.describe()] == ["acl"]


def test_a_name_is_used_once_and_a_module_can_go(folder: Path) -> None:
    control = access(folder, Says(AUTH_OK))
    with pytest.raises(ValueError, match="'m0' is registered already"):
        control.register_mod("auth", "m0", Says())
    control.unregister_mod("auth", "m0")
    assert not control.authenticate(client(), None).ok  # type: ignore[union-attr]
    with pytest.raises(UnknownModule):
        control.unregister_mod("auth", "m0")
    with pytest.raises(ValueError, match='expected "auth" or "acl"'):
        control.register_mod("hook", "m0", Says())  # type: ignore[arg-type]


def test_every_change_moves_the_epoch(folder: Path) -> None:
    control = access(folder)
    epochs = [control.epoch]
    control.register_mod("acl", "rules", Rules())
    epochs.append(control.epoch)
    control.reload_acl()
    epochs.append(control.epoch)
    control.unregister_mod("acl", "rules")
    epochs.append(control.epoch)
    assert epochs == sorted(set(epochs))


# -- access control


def test_rules_decide_and_nomatch_decides_the_rest(folder: Path) -> None:
    denied: list[tuple[str, str, str]] = []
    control = access(folder, on_deny=lambda c, a, t, rule: denied.append((a.kind, t, rule)))
    assert control.authorize(client(), PUBLISH, "open")
    assert not control.authorize(client(), PUBLISH, "shut")
    assert denied == [("publish", "shut", 'no rule matched: acl.nomatch = "deny"')]
    assert control.denied == 1
    assert AccessControl(config(folder, nomatch="allow")).authorize(client(), PUBLISH, "shut")


def test_a_denial_names_the_rule(folder: Path) -> None:
    (folder / "acl.conf").write_text("%%\n{deny, all}.\n")
    rules: list[str] = []
    control = access(folder, on_deny=lambda c, a, t, rule: rules.append(rule))
    assert not control.authorize(client(), SUBSCRIBE, "a")
    assert rules == [f"{folder}/acl.conf:2 {{deny, all}}"]
    assert control.decide(client(), SUBSCRIBE, "a").rule == rules[0]


def test_superusers_pass(folder: Path) -> None:
    control = access(folder)
    who = client()
    who.superuser = True
    assert control.authorize(who, SUBSCRIBE, "$SYS/#")
    assert control.decide(who, SUBSCRIBE, "$SYS/#").rule == "superuser"


@pytest.mark.parametrize("answer", [RuntimeError("broken"), None, True, "allow", succeed(True)])
def test_an_access_module_that_fails_or_answers_nonsense_denies(
    folder: Path, answer: object
) -> None:
    control = AccessControl(config(folder, nomatch="allow"))
    control.register_mod("acl", "broken", Rules(answer), 0)
    assert not control.authorize(client(), PUBLISH, "open")
    assert counters(control, "broken") == {"hit": 1, "ok": 0, "deny": 0, "ignore": 0, "error": 1}
    assert "module broken failed" in control.decide(client(), PUBLISH, "open").rule


def test_an_access_module_may_decide_before_the_file(folder: Path) -> None:
    control = access(folder)
    module = Rules(Verdict.ALLOW)
    control.register_mod("acl", "first", module, 0)
    assert control.authorize(client(), PUBLISH, "shut")
    module.answer = Verdict.DENY
    assert not control.authorize(client(), PUBLISH, "open")
    module.answer = Verdict.IGNORE
    assert control.authorize(client(), PUBLISH, "open")
    assert counters(control, "first") == {"hit": 3, "ok": 1, "deny": 1, "ignore": 1, "error": 0}


def test_a_module_that_does_not_say_is_taken_to_look_at_qos_and_retain(folder: Path) -> None:
    control = access(folder)
    assert not control.depends_on_qos_retain
    control.register_mod("acl", "rules", Rules())
    assert control.depends_on_qos_retain


def test_rules_of_the_clients_own_come_first(folder: Path) -> None:
    text = '{allow, all, publish, ["mine/%c"]}. {deny, all, {publish, [{qos, 2}]}}.'
    control = access(folder, Says(AuthOk(acl=text)))
    who = client()
    epoch = control.epoch
    assert control.authenticate(who, None).ok  # type: ignore[union-attr]
    assert control.authorize(who, PUBLISH, "mine/c1")
    assert control.authorize(who, PUBLISH, "open")
    assert not control.authorize(who, Action("publish", 2), "open")
    assert not control.authorize(client(), PUBLISH, "mine/c1")
    assert control.depends_on_qos_retain
    assert control.epoch > epoch


def test_wrong_rules_for_one_client_refuse_it(folder: Path) -> None:
    result = access(folder, Says(AuthOk(acl="{allow all}."))).authenticate(client(), None)
    assert isinstance(result, AuthResult)
    assert (result.ok, result.reason_code) == (False, 0x88)


def test_a_reload_reads_the_file_again(folder: Path) -> None:
    control = access(folder)
    (folder / "acl.conf").write_text("{deny, all}.\n")
    assert control.authorize(client(), PUBLISH, "open")
    control.reload_acl()
    assert not control.authorize(client(), PUBLISH, "open")


def test_CVE_2017_7652_a_reload_that_fails_keeps_what_there_was_and_says_why(folder: Path) -> None:
    control = access(folder)
    broken, fine = Rules(), Rules()
    broken.fault = RuntimeError("no database")
    control.register_mod("acl", "broken", broken, 0)
    control.register_mod("acl", "fine", fine)
    (folder / "acl.conf").write_text("{allow all}.\n")
    with pytest.raises(AclReloadError) as caught:
        control.reload_acl()
    assert "broken: no database; acl: " in str(caught.value)
    assert "acl.conf:1:8: found all" in str(caught.value)
    assert control.authorize(client(), PUBLISH, "open")
    assert fine.reloads == 1


def test_a_closed_access_control_refuses_everything(folder: Path) -> None:
    control = AccessControl(config(folder, ("anonymous",), nomatch="allow"))
    control.close()
    assert not control.authenticate(client(), None).ok  # type: ignore[union-attr]
    assert not control.authorize(client(), PUBLISH, "open")


def results_of(answer: Any) -> list[AuthResult]:
    results: list[AuthResult] = []
    assert isinstance(answer, Deferred)
    answer.addCallback(results.append)
    return results


def test_a_module_that_no_user_reaches_is_warned_of(folder: Path) -> None:
    events: list[tuple[str, dict[str, object]]] = []
    given = from_tables({}, str(folder))
    control = AccessControl(given, on_event=lambda event, fields: events.append((event, fields)))
    control.register_mod("auth", "late", Says(AUTH_OK))
    ((event, fields),) = events
    assert event == "auth module is never asked about users"
    assert fields["module"] == "late" and "username decides" in str(fields["reason"])
    control.register_mod("auth", "early", Says(AUTH_OK), seq=0)
    assert len(events) == 1
    given = from_tables({"auth": {"username": {"unknown": "ignore"}}}, str(folder))
    control = AccessControl(given, on_event=lambda event, fields: events.append((event, fields)))
    control.register_mod("auth", "late", Says(AUTH_OK))
    assert len(events) == 1
