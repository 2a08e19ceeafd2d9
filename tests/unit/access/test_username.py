"""User names and passwords: who is let in, what is refused, and the file they come from."""

from __future__ import annotations

import base64
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher
from twisted.internet.defer import Deferred

from mqttd.access.auth.username import Username
from mqttd.secrets import passwords as module
from mqttd.secrets.lines import PasswordFileError, PasswordFileWarning, read_lines
from mqttd.secrets.passwords import hash_password
from mqttd.secrets.users import add_user, delete_user, read_users
from mqttd.types import AUTH_IGNORE, AUTH_OK, AuthError, AuthVerdict, ClientInfo

CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
SECRET = CHEAP.hash("secret")


#: As mosquitto_passwd of version 1 writes it.
SHA512_OF_NOTHING = "$6$c2FsdA==$" + base64.b64encode(hashlib.sha512(b"salt").digest()).decode()


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users.conf"
    path.write_text(f"# who may come in\n\nalice:{SECRET}\nod:d:{SECRET}\n", "utf-8")
    path.chmod(0o600)
    return path


def client(username: str | None) -> ClientInfo:
    return ClientInfo("c", username, "10.0.0.1", 1, "tcp:default", 4)


def checker(path: Path, **arguments: Any) -> Username:
    checker = Username(**arguments)
    checker.init({"file": str(path)})
    return checker


class Pool:
    """A thread pool whose work is done when the test says so, in the test's thread."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def callInThreadWithCallback(
        self, result: Callable[[bool, Any], None], function: Callable[..., Any], *args: Any
    ) -> None:
        self.jobs.append(lambda: result(True, function(*args)))


class Reactor:
    def callFromThread(self, function: Callable[..., Any], *args: Any) -> None:
        function(*args)


# -- verdicts


def test_the_right_password_lets_in(users: Path) -> None:
    assert checker(users).check(client("alice"), b"secret") is AUTH_OK
    assert checker(users).check(client("od:d"), b"secret") is AUTH_OK


@pytest.mark.parametrize("password", [b"Secret", b"", b"secret\0", b"\xff\xfe", None])
def test_any_other_password_does_not(users: Path, password: bytes | None) -> None:
    assert isinstance(checker(users).check(client("alice"), password), AuthError)


def test_unknown_user_and_wrong_password_look_the_same(users: Path) -> None:
    unknown = checker(users).check(client("mallory"), b"secret")
    assert isinstance(unknown, AuthError)
    assert unknown == checker(users).check(client("alice"), b"wrong")
    assert unknown.reason_code == 0x86


@pytest.mark.parametrize("library", ["argon2", "libsodium"])
def test_an_unknown_user_costs_a_verification_as_dear_as_a_known_one(
    users: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    verified: list[str] = []

    def spy(hashed: bytes, *_: Any) -> bool:
        verified.append("$".join(hashed.decode().split("$")[:4]))
        return False

    if library == "libsodium":
        pytest.importorskip("nacl")
        monkeypatch.setattr(module._sodium, "verify", spy)
    else:
        monkeypatch.setattr(module, "_sodium", None)
        monkeypatch.setattr(module, "verify_secret", spy)
    names = checker(users)
    verified.clear()  # the start looks for empty passwords
    names.check(client("alice"), b"x")
    names.check(client("mallory"), b"x")
    names.check(client("alice"), None)
    assert len(verified) == 3
    assert len(set(verified)) == 1


def test_an_unknown_user_may_be_left_to_the_next_module(users: Path) -> None:
    names = Username()
    names.init({"file": str(users), "unknown": "ignore"})
    assert names.check(client("mallory"), b"secret") is AUTH_IGNORE
    assert isinstance(names.check(client("alice"), b"wrong"), AuthError)
    assert names.check(client("alice"), b"secret") is AUTH_OK


def test_a_client_without_a_user_name_is_left_to_others(users: Path) -> None:
    assert checker(users).check(client(None), b"secret") is AUTH_IGNORE


def test_a_file_that_is_not_there_holds_no_users(tmp_path: Path) -> None:
    names = checker(tmp_path / "users.conf")
    assert isinstance(names.check(client("alice"), b""), AuthError)
    assert names.description().startswith("username: 0 users")


def test_a_file_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="users.conf"):
        Username().init({"file": str(tmp_path / "users.conf"), "required": True})


# -- threads


def test_hashing_waits_in_the_pool_not_in_the_reactor(users: Path) -> None:
    pool = Pool()
    names = checker(users, reactor=Reactor(), pool=pool)
    answers: list[AuthVerdict] = []
    waiting = names.check(client("alice"), b"secret")
    assert isinstance(waiting, Deferred)
    waiting.addCallback(answers.append)
    assert answers == []
    pool.jobs.pop()()
    assert answers == [AUTH_OK]


@pytest.mark.parametrize(
    "line", ["", f"alice:{SHA512_OF_NOTHING}\n", f"alice:{SECRET}\nb:{SECRET}\n"]
)
def test_who_is_gone_while_the_password_is_verified_is_not_let_in(users: Path, line: str) -> None:
    """Whoever was connected has been ended by then, and nobody looks again."""
    pool = Pool()
    names = checker(users, reactor=Reactor(), pool=pool)
    answers: list[AuthVerdict] = []
    waiting = names.check(client("alice"), b"secret")
    assert isinstance(waiting, Deferred)
    waiting.addCallback(answers.append)
    users.write_text(line, "utf-8")
    names.reload()
    pool.jobs.pop()()
    (answer,) = answers
    if SECRET in line:
        assert answer is AUTH_OK
    else:
        assert isinstance(answer, AuthError)
        assert answer.reason_code == 0x89


def test_too_many_at_a_time_are_refused_as_busy_until_threads_are_done(users: Path) -> None:
    pool = Pool()
    names = Username(reactor=Reactor(), pool=pool)
    names.init({"file": str(users), "threads": 3, "waiting": 7})
    for _ in range(3 + 7):
        waiting = names.check(client("alice"), b"secret")
        assert isinstance(waiting, Deferred)
        waiting.addErrback(lambda failure: None)
        waiting.cancel()  # a client that gave up still keeps its thread busy
    refused = names.check(client("alice"), b"secret")
    assert isinstance(refused, AuthError)
    assert refused.reason_code == 0x89
    pool.jobs.pop()()
    assert isinstance(names.check(client("alice"), b"secret"), Deferred)


# -- the file


@pytest.mark.parametrize(
    "line,fault",
    [
        ("bob", "expected USER:HASH"),
        (f":{SECRET}", "expected USER:HASH"),
        ("bob:secret", "user 'bob': expected an argon2id hash"),
        ("bob:", "user 'bob': expected an argon2id hash"),
        (f"bob:{SECRET.replace('argon2id', 'argon2i')}", "expected an argon2id hash"),
        (f"bob:{SECRET.replace('m=8', 'm=x')}", "expected an argon2id hash"),
        (f"alice:{SECRET}", "user 'alice' is in line 3 already"),
    ],
    ids=["no-colon", "no-name", "no-hash", "nothing", "argon2i", "no-number", "twice"],
)
def test_CVE_2018_12551_a_wrong_line_keeps_the_broker_from_starting(
    users: Path, line: str, fault: str
) -> None:
    with users.open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(PasswordFileError) as caught:
        checker(users)
    assert str(caught.value).startswith(f"{users}:5: ")
    assert fault in str(caught.value)
    assert "secret" not in str(caught.value)


def test_all_wrong_lines_of_a_file_are_told(tmp_path: Path) -> None:
    path = tmp_path / "users.conf"
    path.write_text("ann:secret\n# fine\nbob\n" + "x:y\n" * 30)
    path.chmod(0o600)
    with pytest.raises(PasswordFileError) as caught:
        read_lines(path, lambda proof: "a hash")
    assert [text.removeprefix(str(path)) for text in caught.value.mistakes[:2]] == [
        ":1: user 'ann': expected a hash",
        ":3: expected USER:HASH",
    ]
    assert len(caught.value.mistakes) == 21 and caught.value.mistakes[-1].endswith(
        "12 more mistakes"
    )
    assert "secret" not in str(caught.value)


def test_a_file_that_is_not_text_is_refused(users: Path) -> None:
    users.write_bytes(b"\xff\xfe\n")
    with pytest.raises(PasswordFileError, match="expected UTF-8 text"):
        checker(users)


def test_CVE_2017_9868_a_file_everybody_may_read_gets_a_warning(users: Path) -> None:
    users.chmod(0o644)
    with pytest.warns(PasswordFileWarning, match="mode 0644 .* expected 0600"):
        read_users(users)


def test_CVE_2017_7652_a_reload_that_fails_keeps_the_users_there_were(users: Path) -> None:
    names = checker(users)
    users.write_text("nonsense\n")
    with pytest.raises(PasswordFileError):
        names.reload()
    assert names.check(client("alice"), b"secret") is AUTH_OK


def test_a_reload_takes_new_users_and_drops_old_ones(users: Path) -> None:
    names = checker(users)
    users.write_text(f"bob:{SECRET}\n")
    names.reload()
    assert names.check(client("bob"), b"secret") is AUTH_OK
    assert isinstance(names.check(client("alice"), b"secret"), AuthError)


# -- keeping the file


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PasswordHasher", lambda **cost: CHEAP)


def test_hash_password_makes_what_the_file_needs(cheap: None, tmp_path: Path) -> None:
    path = tmp_path / "users.conf"
    path.write_text(f"bob:{hash_password('pässword')}\n", "utf-8")
    path.chmod(0o600)
    assert checker(path).check(client("bob"), "pässword".encode()) is AUTH_OK


def test_add_user_makes_the_file_readable_by_its_owner_alone(cheap: None, tmp_path: Path) -> None:
    path = tmp_path / "users.conf"
    assert add_user(path, "bob", "pw") is True
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["users.conf"]
    assert checker(path).check(client("bob"), b"pw") is AUTH_OK


def test_add_and_delete_leave_all_other_lines_as_they_are(cheap: None, users: Path) -> None:
    before = users.read_text("utf-8")
    assert add_user(users, "bob", "pw") is True
    assert users.read_text("utf-8").startswith(before)
    assert add_user(users, "bob", "other") is False
    assert checker(users).check(client("bob"), b"other") is AUTH_OK
    assert delete_user(users, "bob") is True
    assert delete_user(users, "bob") is False
    assert users.read_text("utf-8") == before


@pytest.mark.parametrize("name", ["", "#bob", " bob", "bob ", "a\nb", "a\rb"])
def test_a_name_the_file_cannot_hold_is_refused(cheap: None, users: Path, name: str) -> None:
    before = users.read_bytes()
    with pytest.raises(ValueError, match="user name"):
        add_user(users, name, "pw")
    assert users.read_bytes() == before


def test_a_wrong_file_is_not_written_over(cheap: None, users: Path) -> None:
    users.write_text("nonsense\n")
    with pytest.raises(PasswordFileError):
        add_user(users, "bob", "pw")
    assert users.read_text() == "nonsense\n"


# -- remembered


def remembering(users: Path, pool: Pool) -> tuple[Username, Callable[[str, bytes], Any]]:
    names = Username(reactor=Reactor(), pool=pool)
    names.init({"file": str(users), "remember": 60.0})

    def recalled(user: str, password: bytes) -> Any:
        return names.recall(client(user), password)

    return names, recalled


def test_issue_12_a_password_that_was_verified_is_not_verified_again(users: Path) -> None:
    pool = Pool()
    names, recalled = remembering(users, pool)
    assert recalled("alice", b"secret") is None
    names.check(client("alice"), b"secret")
    pool.jobs.pop()()
    assert recalled("alice", b"secret") is AUTH_OK
    assert recalled("alice", b"Secret") is None
    assert recalled("od:d", b"secret") is None
    assert names.recall(client("alice"), None) is None
    assert names.recall(client(None), b"secret") is None


def test_issue_12_a_wrong_password_is_not_remembered(users: Path) -> None:
    pool = Pool()
    names, recalled = remembering(users, pool)
    for user in ("alice", "mallory"):
        names.check(client(user), b"wrong")
        pool.jobs.pop()()
        assert recalled(user, b"wrong") is None


def test_issue_12_a_new_password_or_no_user_ends_what_is_remembered(users: Path) -> None:
    pool = Pool()
    names, recalled = remembering(users, pool)
    for user in ("alice", "od:d"):
        names.check(client(user), b"secret")
        pool.jobs.pop()()
    users.write_text(f"alice:{CHEAP.hash('secret')}\n", "utf-8")  # another salt
    names.reload()
    assert (recalled("alice", b"secret"), recalled("od:d", b"secret")) == (None, None)


def test_issue_12_what_is_remembered_ends_with_its_time(
    users: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Username()
    names.init({"file": str(users), "remember": 60.0})
    now = [1000.0]
    names._hasher._now = lambda: now[0]
    assert names.check(client("alice"), b"secret") is AUTH_OK
    now[0] += 59
    assert names.recall(client("alice"), b"secret") is AUTH_OK
    now[0] += 2
    assert names.recall(client("alice"), b"secret") is None


@pytest.mark.parametrize(
    "hashed",
    [
        hash_password(""),
        SHA512_OF_NOTHING,
    ],
    ids=["argon2id", "sha512"],
)
def test_a_stored_hash_of_the_empty_password_is_warned_of(tmp_path: Path, hashed: str) -> None:
    path = tmp_path / "users.conf"
    path.write_text(f"nobody:{hashed}\nalice:{hash_password('wonder')}\n")
    path.chmod(0o600)
    told: list[tuple[str, dict[str, object]]] = []
    made = Username(on_event=lambda event, fields: told.append((event, fields)))
    made.init({"file": str(path), "required": True})
    assert told == [("empty password", {"username": "nobody", "file": str(path)})]
    assert made.check(client("nobody"), b"") is AUTH_OK
    assert len(told) == 1, "once"
    made.close()


def test_where_the_start_has_no_time_for_it_the_log_in_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqttd.access.auth.username.with_empty_password", lambda hashes: [])
    path = tmp_path / "users.conf"
    path.write_text(f"nobody:{hash_password('')}\nalice:{hash_password('wonder')}\n")
    path.chmod(0o600)
    told: list[object] = []
    made = Username(on_event=lambda event, fields: told.append(fields["username"]))
    made.init({"file": str(path), "required": True})
    for name, password in (("alice", b""), ("alice", b"wonder"), ("nobody", b"x"), ("bob", b"")):
        made.check(client(name), password)
    assert not told
    made.check(client("nobody"), b"")
    assert told == ["nobody"]
    made.close()
