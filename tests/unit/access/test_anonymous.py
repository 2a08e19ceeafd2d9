"""Anonymous clients: only those that gave no user name, and only from where it is allowed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mqttd.access.auth.anonymous import Anonymous
from mqttd.access.auth.who import warning, who_may_connect
from mqttd.access.chain import AccessControl
from mqttd.config.schema import Acl, Auth, Config, UsernameAuth
from mqttd.net.addresses import is_loopback
from mqttd.secrets.passwords import hash_password
from mqttd.types import AUTH_IGNORE, AUTH_OK, ClientInfo

LOCAL = ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "unix", "unix:/run/x", "/run/x"]
REMOTE = [
    "10.0.0.1",
    "::ffff:10.0.0.1",
    "fe80::1%eth0",
    "",
    "localhost",
    "127.0.0.1.evil.org",
    "unixoid",
    "::ffff:128.0.0.1",
    "0.0.0.0",
    "::",
]


def client(peerhost: str, username: str | None = None) -> ClientInfo:
    return ClientInfo("c", username, peerhost, 1, "tcp:default", 4)


def anonymous(allow: str) -> Anonymous:
    module = Anonymous()
    module.init({"allow": allow})
    return module


@pytest.mark.parametrize("peerhost", LOCAL)
def test_loopback_admits_this_machine(peerhost: str) -> None:
    assert is_loopback(peerhost)
    assert anonymous("loopback").check(client(peerhost), None) is AUTH_OK


@pytest.mark.parametrize("peerhost", REMOTE)
def test_loopback_admits_no_other_machine_and_nothing_unreadable(peerhost: str) -> None:
    assert not is_loopback(peerhost)
    assert anonymous("loopback").check(client(peerhost), None) is AUTH_IGNORE


def test_always_admits_from_anywhere_and_never_from_nowhere() -> None:
    for peerhost in LOCAL + REMOTE:
        assert anonymous("always").check(client(peerhost), None) is AUTH_OK
        assert anonymous("never").check(client(peerhost), None) is AUTH_IGNORE


@pytest.mark.parametrize("allow", ["never", "loopback", "always"])
@pytest.mark.parametrize("username", ["alice", ""])
def test_a_client_that_gave_a_user_name_is_left_to_others(allow: str, username: str) -> None:
    assert anonymous(allow).check(client("127.0.0.1", username), b"x") is AUTH_IGNORE


@pytest.mark.parametrize("username", [None, "alice", ""])
def test_any_believes_every_user_name(username: str | None) -> None:
    for peerhost in LOCAL + REMOTE:
        assert anonymous("any").check(client(peerhost, username), b"x") is AUTH_OK


def test_any_leaves_known_users_to_their_passwords(tmp_path: Path) -> None:
    users = tmp_path / "users.conf"
    users.write_text(f"alice:{hash_password('wonder')}\n")
    users.chmod(0o600)
    auth = Auth(anonymous="any", username=UsernameAuth(file=str(users)))
    access = AccessControl(
        Config(auth=auth, given=frozenset({"auth.username.file"}), acl=Acl(file=os.devnull))
    )
    told = [
        access.authenticate(client("10.0.0.1", username), password)
        for username, password in (
            ("alice", b"wonder"),
            ("alice", b"x"),
            ("alice", None),
            ("bob", None),
            ("bob", b"anything"),
            (None, None),
        )
    ]
    assert [result.ok for result in told] == [True, False, False, True, True, True]
    assert "not in the file" in who_may_connect(auth) and "not checked" in warning(auth)
    assert not warning(Auth(anonymous="any", chain=("username",))) and not warning(Auth())


def test_before_init_nobody_comes_in() -> None:
    assert Anonymous().check(client("127.0.0.1"), None) is AUTH_IGNORE


def test_another_choice_is_refused_with_the_three_there_are() -> None:
    with pytest.raises(ValueError, match="auth.anonymous: 'yes': .* never, loopback, always"):
        anonymous("yes")


def test_the_description_says_who_comes_in() -> None:
    assert "on this machine" in anonymous("loopback").description()
    assert "nobody" in anonymous("never").description()
