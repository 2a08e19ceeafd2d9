"""Files of secrets: read again when they change, never half, and other programs' hashes."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock

from mqttd.access.auth.secret_file import SecretFile
from mqttd.access.auth.username import Username
from mqttd.secrets import lines, passwords
from mqttd.secrets.files import replace_file
from mqttd.secrets.lines import PasswordFileError
from mqttd.secrets.passwords import Cost, dummy_hash, hash_password, is_hash, verify
from mqttd.secrets.users import delete_user, import_users, read_users
from mqttd.types import AUTH_OK, AuthError, ClientInfo

SALT = base64.b64encode(b"0123456789ab").decode()


def sha512(password: str) -> str:
    """As mosquitto_passwd wrote it before 1.6."""
    made = hashlib.sha512(password.encode() + base64.b64decode(SALT)).digest()
    return f"$6${SALT}${base64.b64encode(made).decode()}"


def pbkdf2(password: str, iterations: int = 101) -> str:
    """As mosquitto_passwd writes it since."""
    salt = base64.b64decode(SALT)
    made = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, iterations, 64)
    return f"$7${iterations}${SALT}${base64.b64encode(made).decode()}"


def expects(proof: str) -> str | None:
    return None if is_hash(proof) else "a hash"


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)


class Watched:
    def __init__(self, path: Path, **more: Any) -> None:
        self.clock = Clock()
        self.gone: list[frozenset[str]] = []
        self.faults: list[str] = []
        self.file = SecretFile(
            path,
            expects,
            False,
            on_change=self.gone.append,
            on_fault=lambda error: self.faults.append(str(error)),
            **more,
        )
        self.file.reload()
        self.gone.clear()
        self.file.watch(self.clock)


# -- watching


def test_a_changed_file_is_read_within_seconds(tmp_path: Path) -> None:
    path = tmp_path / "users.conf"
    watched = Watched(path)  # is not there yet
    write(path, f"alice:{sha512('a')}\nbob:{sha512('b')}\n")
    watched.clock.advance(2.0)
    assert set(watched.file.names) == {"alice", "bob"}
    write(path, f"alice:{sha512('new one')}\neve:{sha512('e')}\n")
    watched.clock.advance(2.0)
    assert watched.gone == [frozenset(), frozenset({"alice", "bob"})]
    watched.clock.advance(20.0)
    assert len(watched.gone) == 2
    watched.file.close()
    assert watched.clock.getDelayedCalls() == []


def test_CVE_2018_12551_a_changed_file_with_a_mistake_changes_nothing_and_is_told_once(
    tmp_path: Path,
) -> None:
    path = tmp_path / "users.conf"
    write(path, f"alice:{sha512('a')}\n")
    watched = Watched(path)
    write(path, "alice\nnobody:\n")
    for _ in range(5):
        watched.clock.advance(2.0)
    assert set(watched.file.names) == {"alice"}
    assert len(watched.faults) == 1
    assert watched.faults[0].startswith(f"{path}:1: ")
    write(path, f"alice:{sha512('a')}\nbob:{sha512('b')}\n")
    watched.clock.advance(2.0)
    assert watched.faults[1:] == ["None"]


def test_CVE_2017_7652_without_file_descriptors_the_users_stay_and_nobody_else_comes_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "users.conf"
    write(path, f"alice:{sha512('a')}\n")
    names = Username()
    names.init({"file": str(path)})

    def full(*args: object, **more: object) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "read_text", full)
    with pytest.raises(OSError, match="Too many open files"):
        names.reload()

    def check(user: str, password: bytes) -> object:
        return names.check(ClientInfo("c", user, "10.0.0.1", 1, "tcp", 4), password)

    assert check("alice", b"a") is AUTH_OK
    assert isinstance(check("alice", b"b"), AuthError)
    assert isinstance(check("eve", b""), AuthError)


def test_a_file_that_vanishes_holds_nobody_unless_it_has_to_be_there(tmp_path: Path) -> None:
    path = tmp_path / "users.conf"
    write(path, f"alice:{sha512('a')}\n")
    watched = Watched(path)
    path.unlink()
    watched.clock.advance(2.0)
    assert watched.gone == [frozenset({"alice"})]
    assert watched.file.names == {}


# -- hashes of mosquitto_passwd


@pytest.mark.parametrize("make", [sha512, pbkdf2])
def test_hashes_of_mosquitto_passwd_are_verified(make: Any) -> None:
    hashed = make("secret")
    assert is_hash(hashed)
    assert verify(hashed, b"secret")
    assert not verify(hashed, b"Secret")
    assert not verify(hashed, b"")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret",
        "$6$",
        f"$6${SALT}$",
        f"$6${SALT}$!!!!",
        f"$7$0${SALT}$AAAA",
        f"$7$-1${SALT}$AAAA",
        f"$7$999999999${SALT}$AAAA",
        f"$5${SALT}$AAAA",
        f"$6${SALT}$AAA",
    ],
)
def test_CVE_2018_12551_what_is_no_hash_is_refused(text: str) -> None:
    assert not is_hash(text)


def test_rumqttd_hashes_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import hmac

    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def spy(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return real(a, b)

    monkeypatch.setattr("mqttd.secrets.passwords.hmac.compare_digest", spy)
    for hashed in (sha512("secret"), pbkdf2("secret")):
        verify(hashed, b"wrong")
    assert [(len(a), len(b)) for a, b in compared] == [(64, 64), (64, 64)]


def test_rumqttd_an_unknown_user_costs_a_hash_like_those_there_are() -> None:
    hashes = {f"user{i}": pbkdf2("x", 101 + i) for i in range(3)}
    for name in ("nobody", "somebody"):
        dummy = dummy_hash(hashes, name)
        assert is_hash(dummy)
        assert dummy.split("$")[1:3] == dummy_hash(hashes, name).split("$")[1:3]
        assert dummy.split("$")[2] in ("101", "102", "103")
    assert dummy_hash({"a": sha512("x")}, "nobody").startswith("$6$")
    assert is_hash(dummy_hash({"a": sha512("x")}, "nobody"))
    assert dummy_hash({}, "nobody").startswith("$argon2id$v=19$m=7168,t=5,p=1$")


# -- import


def test_users_of_mosquitto_passwd_are_imported_as_they_are(tmp_path: Path) -> None:
    path, source = tmp_path / "users.conf", tmp_path / "mosquitto"
    write(source, f"alice:{pbkdf2('a')}\nbob:{sha512('b')}\n")
    assert import_users(path, source) == (["alice", "bob"], [])
    assert path.stat().st_mode & 0o777 == 0o600
    write(source, f"alice:{pbkdf2('new')}\neve:{pbkdf2('e')}\n")
    assert import_users(path, source) == (["eve"], ["alice"])
    assert verify(read_users(path)["alice"], b"a")
    assert import_users(path, source, overwrite=True) == (["alice", "eve"], [])
    assert verify(read_users(path)["alice"], b"new")
    assert delete_user(path, "bob")


def test_a_plain_text_password_file_is_not_imported(tmp_path: Path) -> None:
    path, source = tmp_path / "users.conf", tmp_path / "mosquitto"
    write(source, "alice:secret\n")
    with pytest.raises(PasswordFileError, match=r"mosquitto:1: user 'alice': expected") as caught:
        import_users(path, source)
    assert "secret" not in str(caught.value).replace("secret_file", "")
    assert not path.exists()


def test_the_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "users.conf"
    write(path, "old\n")

    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        lines.write(path, ["new"])
    assert path.read_text() == "old\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["users.conf"]


@pytest.mark.slow
@pytest.mark.parametrize("cost", [Cost(), Cost(64, 1), Cost(64, 2, 4)])
def test_libsodium_says_what_argon2_says(cost: Cost, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast way and the slow one, for right and wrong passwords and damaged hashes."""
    pytest.importorskip("nacl")
    hashed = hash_password("right", cost)
    shown = [
        hashed,
        hashed[:-1],
        # One hash in a thousand ends so by itself.
        hashed[:-2] + ("BA" if hashed.endswith("AA") else "AA"),
        hashed.replace("m=", "m=1"),
        dummy_hash({}, "x"),
    ]
    tried = [(one, password) for one in shown for password in (b"right", b"wrong", b"", b"\0" * 99)]
    fast = [passwords.verify(one, password) for one, password in tried]
    monkeypatch.setattr(passwords, "_sodium", None)
    assert fast == [passwords.verify(one, password) for one, password in tried]
    assert fast.count(True) == 1 and fast[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may give files away")
def test_a_file_that_root_makes_belongs_to_who_owns_its_directory(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    for _ in range(2):
        replace_file(tmp_path / "users.conf", "")
        made = (tmp_path / "users.conf").stat()
        assert (made.st_uid, made.st_gid, made.st_mode & 0o777) == (65534, 65534, 0o600)
