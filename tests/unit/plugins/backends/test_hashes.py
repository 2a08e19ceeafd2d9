"""Password hashes of other systems: known vectors fit, and nothing that was not asked for does."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import bcrypt
import pytest
from argon2 import PasswordHasher
from hypothesis import given
from hypothesis import strategies as st

from mqttd.plugins.backends import hashes
from mqttd.plugins.backends.hashes import HashError, PasswordHash, Passwords

SHA = hashlib.sha256(b"saltsecret").hexdigest()
ARGON2 = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("secret")
BCRYPT = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
PBKDF2 = hashlib.pbkdf2_hmac("sha256", b"secret", b"salt", 1000)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def passwords(algorithm: str = "auto", **more: Any) -> Passwords:
    return Passwords(PasswordHash(algorithm=algorithm, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hashed", "password"),
    [
        (ARGON2, b"secret"),
        (BCRYPT, b"secret"),
        ("$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW", b"U*U"),
        # made by passlib, and known to it
        (
            "$pbkdf2-sha256$1212$4vjV83LKPjQzk31VI4E0Vw$"
            "hsYF68OiOUPdDZ1Fg.fJPeq1h/gXXY7acBp9/6c.tmQ",
            b"password",
        ),
        (
            "$pbkdf2-sha512$1212$RHY0Fr3IDMSVO/RSZyb5ow$eNLfBK.eVozomMr.1gYa17k9B7KIK25NOEshvhrSX"
            ".esqY3s.FvWZViXz4KoLlQI.BzY/YTNJOiKc5gBYFYGww",
            b"password",
        ),
        (f"pbkdf2_sha256$1000$salt${b64(PBKDF2)}", b"secret"),
        (
            f"$7$101${b64(b'salt')}${b64(hashlib.pbkdf2_hmac('sha512', b'x', b'salt', 101))}",
            b"x",
        ),
        (f"$6${b64(b'salt')}${b64(hashlib.sha512(b'xsalt').digest())}", b"x"),
    ],
    ids=["argon2", "bcrypt", "2a", "pbkdf2-256", "pbkdf2-512", "django", "7", "6"],
)
def test_a_hash_that_says_what_it_is_is_understood(hashed: str, password: bytes) -> None:
    assert passwords().check(hashed, "", password)
    assert not passwords().check(hashed, "", password + b"x")
    assert not passwords().check(hashed, "", b"")


@pytest.mark.parametrize("hashed", [SHA, "secret", "", "$1$ab$cd", "$2b$31$x", "$argon2i$v=19$x"])
def test_what_does_not_say_what_it_is_lets_nobody_in_unless_it_is_asked_for(hashed: str) -> None:
    with pytest.raises(HashError) as caught:
        passwords().check(hashed, "salt", b"secret")
    assert SHA not in str(caught.value)
    if not hashed.startswith("$argon"):
        assert "password_hash.algorithm" in str(caught.value)


@pytest.mark.parametrize("name", ["sha256", "sha512"])
@pytest.mark.parametrize("position", ["prefix", "suffix", "disable"])
def test_a_salt_stands_where_the_configuration_says(name: str, position: str) -> None:
    salted = {"prefix": b"saltsecret", "suffix": b"secretsalt", "disable": b"secret"}
    digest = hashlib.new(name, salted[position]).digest()
    for text in (digest.hex(), digest.hex().upper(), b64(digest)):
        for place in salted:
            fits = passwords(name, salt_position=place).check(text, "salt", b"secret")
            assert fits is (place == position)


def test_a_missing_salt_is_no_salt_of_nothing() -> None:
    plain = hashlib.sha256(b"secret").hexdigest()
    for algorithm in ("sha256", "pbkdf2"):
        with pytest.raises(HashError, match="no salt"):
            passwords(algorithm).check(plain, "", b"secret")


def test_pbkdf2_with_its_salt_in_a_column_of_its_own() -> None:
    checking = passwords("pbkdf2", iterations=1000)
    assert checking.check(PBKDF2.hex(), "salt", b"secret")
    assert checking.check(b64(PBKDF2), "salt", b"secret")
    assert not checking.check(PBKDF2.hex(), "salty", b"secret")
    short = passwords("pbkdf2", iterations=1000, dk_length=16)
    assert short.check(PBKDF2[:16].hex(), "salt", b"secret")


def test_plain_passwords_are_compared_when_they_are_asked_for() -> None:
    assert passwords("plain").check("sécret", "", "sécret".encode())
    assert not passwords("plain").check("secret", "", b"Secret")


def test_one_algorithm_asked_for_is_no_other() -> None:
    for algorithm, hashed in (("argon2id", BCRYPT), ("bcrypt", ARGON2), ("pbkdf2", ARGON2)):
        with pytest.raises(HashError):
            passwords(algorithm).check(hashed, "", b"secret")


def test_bcrypt_is_not_cut_off_after_72_bytes() -> None:
    long = b"x" * 72
    hashed = bcrypt.hashpw(long, bcrypt.gensalt(4)).decode()
    assert passwords().check(hashed, "", long)
    assert not passwords().check(hashed, "", long + b"y")


def test_an_unknown_user_costs_the_hash_of_a_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(hashes, "_argon2", lambda hashed, password: bool(asked.append(hashed)))
    checking = passwords()
    assert not checking.check(None, "", b"x")
    assert not checking.check(ARGON2, "", b"x")
    assert not checking.check(None, "", b"x")
    assert asked[1:] == [ARGON2, ARGON2] and asked[0].startswith("$argon2id$v=19$m=65536,t=3,p=4$")


@pytest.mark.parametrize("algorithm", ["auto", "bcrypt", "pbkdf2", "sha512", "plain"])
@pytest.mark.slow
def test_nobody_is_an_unknown_user(algorithm: str) -> None:
    checking = passwords(algorithm, iterations=10)
    guesses = [b""] if algorithm in ("auto", "bcrypt") else [b"", b"\0", b"00" * 32, b"00" * 64]
    assert not any(checking.check(None, "", password) for password in guesses)


@given(st.text(max_size=200), st.binary(max_size=20))
def test_no_text_of_a_data_base_does_anything_but_not_fit(hashed: str, password: bytes) -> None:
    for algorithm in ("auto", "sha256", "pbkdf2"):
        try:
            assert not passwords(algorithm, iterations=1).check(hashed, "s", password)
        except HashError:
            pass
