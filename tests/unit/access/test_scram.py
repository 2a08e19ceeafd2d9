"""SCRAM-SHA-256: the vectors of RFC 7677, and every way a client may get it wrong."""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.access.auth.scram import Scram
from mqttd.secrets.lines import PasswordFileError
from mqttd.secrets.scram import (
    Keys,
    add_scram_user,
    delete_scram_user,
    make_keys,
    parse_keys,
    read_scram_users,
    saslprep,
)
from mqttd.types import AuthContinue, AuthError, AuthOk, ClientInfo

# RFC 7677, section 3.
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_FIRST = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = f"r=rOprNGfwEbeRWgbNEkqO{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    f"c=biws,r=rOprNGfwEbeRWgbNEkqO{SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "scram.conf"
    path.write_text(f"user:{make_keys('pencil', 4096, SALT)}\n")
    path.chmod(0o600)
    return path


def scram(file: Path) -> Scram:
    module = Scram(nonce=lambda: SERVER_NONCE)
    module.init({"file": str(file)})
    return module


def client(username: str | None = None) -> ClientInfo:
    return ClientInfo("c", username, "10.0.0.1", 1, "tcp:default", 5)


def test_the_vectors_of_rfc_7677(file: Path) -> None:
    exchange = scram(file).begin(client())
    assert exchange.step(CLIENT_FIRST.encode()) == AuthContinue(SERVER_FIRST.encode())
    assert exchange.step(CLIENT_FINAL.encode()) == AuthOk(
        username="user", data=SERVER_FINAL.encode()
    )


def final(first: str, server_first: str, password: str, header: str = "n,,") -> str:
    """What an honest client answers."""
    fields = dict(part.split("=", 1) for part in server_first.split(","))
    salted = hashlib.pbkdf2_hmac(
        "sha256", password.encode(), base64.b64decode(fields["s"]), int(fields["i"])
    )
    key = hmac.digest(salted, b"Client Key", "sha256")
    start = f"c={base64.b64encode(header.encode()).decode()},r={fields['r']}"
    signed = f"{first},{server_first},{start}".encode()
    signature = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    return f"{start},p={base64.b64encode(proof).decode()}"


def log_in(module: Scram, user: str, password: str) -> AuthOk | AuthError | AuthContinue:
    exchange = module.begin(client())
    bare = f"n={user},r=0123456789abcdef"
    answer = exchange.step(f"n,,{bare}".encode())
    assert isinstance(answer, AuthContinue)
    return exchange.step(final(bare, answer.data.decode(), password).encode())


def test_wrong_password_and_unknown_user_are_refused_alike_at_the_same_step(file: Path) -> None:
    module = scram(file)
    assert isinstance(log_in(module, "user", "pencil"), AuthOk)
    wrong, unknown = log_in(module, "user", "Pencil"), log_in(module, "nobody", "pencil")
    assert wrong == unknown
    assert isinstance(wrong, AuthError)


def test_an_unknown_user_has_the_same_salt_each_time_and_the_usual_cost(file: Path) -> None:
    module = scram(file)
    first = [
        module.begin(client()).step(f"n,,n={user},r=0123456789".encode())
        for user in ("nobody", "nobody", "somebody")
    ]
    assert first[0] == first[1] != first[2]
    assert isinstance(first[0], AuthContinue)
    assert first[0].data.endswith(b",i=4096")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"\xff\xfe",
        b"n,,n=user",
        b"n,,n=user,r=short",
        b"n,,n=user,r=with space in it",
        b"n,,n=us=er,r=0123456789",
        b"n,,n=,r=0123456789",
        b"n,,m=ext,n=user,r=0123456789",
        b"p=tls-unique,,n=user,r=0123456789",
        b"x,,n=user,r=0123456789",
        b"n,,n=us\x07er\xc2\x80,r=0123456789",
        b"n,,n=user,r=" + b"x" * 5000,
    ],
)
def test_a_first_message_that_is_none_is_refused(file: Path, message: bytes) -> None:
    answer = scram(file).begin(client()).step(message)
    assert isinstance(answer, AuthError)
    assert answer.reason_code == 0x82


@pytest.mark.parametrize(
    "change",
    [
        ("c=biws", "c=eSws"),  # "y,,": not what was said first
        ("r=rOpr", "r=rOps"),
        ("p=dHzb", "p=dHz!"),
        ("p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", "p=AAAA"),
        (",p=", ",q="),
        ("c=biws,", ""),
    ],
)
def test_a_final_message_that_does_not_fit_is_refused(file: Path, change: tuple[str, str]) -> None:
    exchange = scram(file).begin(client())
    exchange.step(CLIENT_FIRST.encode())
    assert isinstance(exchange.step(CLIENT_FINAL.replace(*change).encode()), AuthError)


def test_a_proof_is_good_for_its_own_nonce_only(file: Path) -> None:
    module = Scram()
    module.init({"file": str(file)})
    exchange = module.begin(client())
    exchange.step(CLIENT_FIRST.encode())
    assert isinstance(exchange.step(CLIENT_FINAL.encode()), AuthError)  # replayed


def test_nobody_acts_for_another_and_the_user_name_of_connect_must_fit(file: Path) -> None:
    module = scram(file)
    answer = module.begin(client()).step(b"n,a=admin,n=user,r=0123456789")
    assert isinstance(answer, AuthError)
    assert isinstance(module.begin(client("admin")).step(CLIENT_FIRST.encode()), AuthError)
    for name in ("user", None):
        assert isinstance(module.begin(client(name)).step(CLIENT_FIRST.encode()), AuthContinue)
    # One's own name may be said.
    answer = module.begin(client()).step(b"n,a=user,n=user,r=0123456789")
    assert isinstance(answer, AuthContinue)


def test_names_with_comma_and_equals_sign(tmp_path: Path) -> None:
    path = tmp_path / "scram.conf"
    assert add_scram_user(path, "a,b=c", "pencil")
    module = Scram()
    module.init({"file": str(path)})
    answer = log_in(module, "a=2Cb=3Dc", "pencil")
    assert isinstance(answer, AuthOk)
    assert answer.username == "a,b=c"


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_no_message_crashes_it(first: bytes, second: bytes) -> None:
    module = Scram()
    exchange = module.begin(client())
    assert isinstance(exchange.step(first), AuthContinue | AuthError)
    assert isinstance(exchange.step(second), AuthContinue | AuthError)


def test_the_proof_is_compared_in_constant_time(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[bytes] = []
    real = hmac.compare_digest

    def spy(a: bytes, b: bytes) -> bool:
        compared.append(b)
        return real(a, b)

    monkeypatch.setattr("mqttd.access.auth.scram.hmac.compare_digest", spy)
    log_in(scram(file), "user", "wrong")
    assert make_keys("pencil", 4096, SALT).stored_key in compared


# -- the file


def test_keys_are_written_as_they_are_read() -> None:
    keys = make_keys("pencil", 4096, SALT)
    assert parse_keys(str(keys)) == keys
    assert str(keys).startswith("SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$")


def test_users_are_added_changed_and_deleted(tmp_path: Path) -> None:
    path = tmp_path / "scram.conf"
    assert add_scram_user(path, "alice", "one")
    old = read_scram_users(path)["alice"]
    assert not add_scram_user(path, "alice", "two")
    assert read_scram_users(path)["alice"] != old
    assert "two" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert delete_scram_user(path, "alice")
    assert not delete_scram_user(path, "alice")


@pytest.mark.parametrize(
    "line",
    [
        "user",
        "user:secret",
        "user:SCRAM-SHA-256$0:c2FsdA==$AAAA:AAAA",
        "user:SCRAM-SHA-256$4096:c2FsdA==$AAAA:AAAA",
        "user:SCRAM-SHA-256$4096:!$AAAA:AAAA",
    ],
)
def test_CVE_2018_12551_a_wrong_line_keeps_the_broker_from_starting(
    tmp_path: Path, line: str
) -> None:
    path = tmp_path / "scram.conf"
    path.write_text(line + "\n")
    path.chmod(0o600)
    with pytest.raises(PasswordFileError, match=r"scram\.conf:1: "):
        scram(path)


def test_a_file_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="scram.conf"):
        scram(tmp_path / "scram.conf")


def test_saslprep_as_in_rfc_4013() -> None:
    assert saslprep("I\u00adX") == "IX"
    assert saslprep("\u00aa") == "a"
    assert saslprep("\u2168") == "IX"
    for forbidden in ("\x07", "\u0627\u0031", "\ud7ff\ue000"):
        with pytest.raises(ValueError, match="SASLprep|directions"):
            saslprep(forbidden)


def test_the_keys_hold_no_password() -> None:
    keys = make_keys("pencil")
    assert isinstance(keys, Keys)
    assert keys.iterations >= 4096
    assert make_keys("pencil").salt != keys.salt
