"""Anonymous clients: only those that gave no user name, and only from where it is allowed."""

from __future__ import annotations

import pytest

from mqttd.access.anonymous import Anonymous
from mqttd.net.addresses import is_loopback
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


def test_before_init_nobody_comes_in() -> None:
    assert Anonymous().check(client("127.0.0.1"), None) is AUTH_IGNORE


def test_another_choice_is_refused_with_the_three_there_are() -> None:
    with pytest.raises(ValueError, match="auth.anonymous: 'yes': .* never, loopback, always"):
        anonymous("yes")


def test_the_description_says_who_comes_in() -> None:
    assert "on this machine" in anonymous("loopback").description()
    assert "nobody" in anonymous("never").description()
