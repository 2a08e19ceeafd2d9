"""Client identifiers: with a secret, without one, and that no user name comes along for free."""

from __future__ import annotations

from pathlib import Path

import pytest
from argon2 import PasswordHasher

from mqttd.access.auth.clientid import Clientid, add_client
from mqttd.secrets.lines import PasswordFileError
from mqttd.types import AUTH_IGNORE, AUTH_OK, AuthError, ClientInfo

SECRET = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("secret")


@pytest.fixture
def module(tmp_path: Path) -> Clientid:
    path = tmp_path / "clients.conf"
    path.write_text(f"# who\nopen\nurn:dev:17\nkept:{SECRET}\n")
    path.chmod(0o600)
    made = Clientid()
    made.init({"file": str(path)})
    return made


def check(
    module: Clientid, client_id: str, username: str | None = None, password: bytes | None = None
) -> object:
    return module.check(ClientInfo(client_id, username, "10.0.0.1", 1, "tcp", 4), password)


def test_a_client_in_the_file_comes_in_others_are_left_to_the_next(module: Clientid) -> None:
    assert check(module, "open") is AUTH_OK
    assert check(module, "urn:dev:17") is AUTH_OK
    assert check(module, "else") is AUTH_IGNORE


def test_a_secret_has_to_be_shown(module: Clientid) -> None:
    assert check(module, "kept", None, b"secret") is AUTH_OK
    assert check(module, "kept", "kept", b"secret") is AUTH_OK  # MQTT 3.1.1
    for password in (b"wrong", None):
        assert isinstance(check(module, "kept", None, password), AuthError)
        assert isinstance(check(module, "kept", "kept", password), AuthError)


def test_a_user_name_is_not_taken_on_trust(module: Clientid) -> None:
    assert check(module, "open", "admin") is AUTH_IGNORE
    assert check(module, "open", "open") is AUTH_IGNORE
    assert check(module, "kept", "admin", b"secret") is AUTH_IGNORE


def test_clients_that_are_gone_or_have_a_new_secret_are_told_of(tmp_path: Path) -> None:
    gone: list[tuple[str, frozenset[str]]] = []
    path = tmp_path / "clients.conf"
    add_client(path, "a")
    add_client(path, "b", "secret")
    module = Clientid(on_gone=lambda name, names: gone.append((name, names)))
    module.init({"file": str(path)})
    path.write_text("b\n")
    path.chmod(0o600)
    module.reload()
    assert gone == [("clientid", frozenset()), ("clientid", frozenset({"a", "b"}))]


def test_the_file_must_be_there_and_be_right(tmp_path: Path) -> None:
    path = tmp_path / "clients.conf"
    with pytest.raises(FileNotFoundError):
        Clientid().init({"file": str(path)})
    path.write_text("a:$argon2id$broken\n")
    path.chmod(0o600)
    with pytest.raises(PasswordFileError, match=r"clients\.conf:1: .* expected an argon2id hash"):
        Clientid().init({"file": str(path)})


def test_adding_clients(tmp_path: Path) -> None:
    path = tmp_path / "clients.conf"
    assert add_client(path, "a")
    assert not add_client(path, "a", "secret")
    assert path.read_text().startswith("a:$argon2id$")
    with pytest.raises(ValueError, match=r"cannot hold ':\$'"):
        add_client(path, "a:$x")
