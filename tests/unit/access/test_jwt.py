"""JSON Web Tokens: which are believed, what they give, and every known way to forge one."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import jwt as pyjwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mqttd.access.auth.jwks import KeySet, KeySetError
from mqttd.access.auth.jwt import Jwt, acl_text
from mqttd.config.schema import JwtAuth
from mqttd.types import AUTH_IGNORE, AuthError, AuthOk, ClientInfo

SECRET = b"a secret of at least thirty-two bytes"
RSA = rsa.generate_private_key(65537, 2048)
P256 = ec.generate_private_key(ec.SECP256R1())
P384 = ec.generate_private_key(ec.SECP384R1())
ED = ed25519.Ed25519PrivateKey.generate()
NOW = time.time()


def public(key: Any) -> bytes:
    pem: bytes = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return pem


def module(tmp_path: Path, key: bytes = SECRET, **options: Any) -> Jwt:
    import msgspec

    path = tmp_path / "key"
    path.write_bytes(key)
    kind = "public_key_file" if key.startswith(b"-----") else "secret_file"
    made = Jwt()
    made.init({**msgspec.structs.asdict(JwtAuth()), kind: str(path), **options})
    return made


def token(key: Any = SECRET, alg: str = "HS256", headers: Any = None, **claims: Any) -> bytes:
    claims = {"sub": "alice", "exp": NOW + 3600, **claims}
    claims = {name: value for name, value in claims.items() if value is not None}
    return pyjwt.encode(claims, key, alg, headers).encode()


def client(username: str | None = None) -> ClientInfo:
    return ClientInfo("c1", username, "10.0.0.1", 1, "tcp:default", 5)


def check(made: Jwt, text: bytes | None, username: str | None = None) -> Any:
    return made.check(client(username), text)


# -- what is believed


def test_a_token_gives_user_name_and_expiry(tmp_path: Path) -> None:
    assert check(module(tmp_path), token()) == AuthOk(username="alice", expires_at=NOW + 3600)


@pytest.mark.parametrize(
    "key,algorithm",
    [(RSA, "RS256"), (RSA, "PS512"), (P256, "ES256"), (P384, "ES384"), (ED, "EdDSA")],
)
def test_signatures_by_public_keys(tmp_path: Path, key: Any, algorithm: str) -> None:
    made = module(tmp_path, public(key))
    assert isinstance(check(made, token(key, algorithm)), AuthOk)
    data = bytearray(token(key, algorithm))
    data[-10] ^= 1
    assert isinstance(check(made, bytes(data)), AuthError)


def test_what_is_no_token_is_left_to_others(tmp_path: Path) -> None:
    made = module(tmp_path)
    for text in (None, b"", b"secret", b"a.b.c", b"eyJ.e.e", b"eyJhbGciOiJIUzI1NiJ9", b"\xff.."):
        assert check(made, text) is AUTH_IGNORE


def test_the_token_may_be_the_user_name(tmp_path: Path) -> None:
    made = module(tmp_path, token="username")
    assert check(made, None, token().decode()) == AuthOk(username="alice", expires_at=NOW + 3600)
    assert check(made, token(), "alice") is AUTH_IGNORE


# -- what is not


def unsigned(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> bytes:
    def part(value: bytes) -> bytes:
        return base64.urlsafe_b64encode(value).rstrip(b"=")

    return b".".join(
        (part(json.dumps(header).encode()), part(json.dumps(claims).encode()), part(signature))
    )


@pytest.mark.parametrize("algorithm", ["none", "None", "nOnE", "", None, 7])
def test_a_token_without_a_signature_is_refused(tmp_path: Path, algorithm: object) -> None:
    forged = unsigned({"alg": algorithm}, {"sub": "admin", "exp": NOW + 3600})
    for key in (SECRET, public(RSA)):
        assert isinstance(check(module(tmp_path, key), forged), AuthError)


@pytest.mark.parametrize("key", [RSA, P256, ED])
def test_algorithm_confusion_a_public_key_is_no_secret(tmp_path: Path, key: Any) -> None:
    import hashlib
    import hmac

    signed = unsigned({"alg": "HS256"}, {"sub": "admin", "exp": NOW + 3600}).rsplit(b".", 1)[0]
    for secret in (public(key), public(key).rstrip(b"\n")):
        mac = base64.urlsafe_b64encode(hmac.digest(secret, signed, hashlib.sha256)).rstrip(b"=")
        answer = check(module(tmp_path, public(key)), signed + b"." + mac)
        assert isinstance(answer, AuthError)
        assert "algorithm" in answer.reason


def test_a_key_of_another_kind_or_curve_is_refused(tmp_path: Path) -> None:
    made = module(tmp_path, public(P256))
    for forged in (token(P384, "ES384"), token(RSA, "RS256"), token()):
        assert isinstance(check(made, forged), AuthError)


def test_keys_in_the_header_of_the_token_are_not_used(tmp_path: Path) -> None:
    own = {
        "jwk": json.loads(pyjwt.algorithms.ECAlgorithm.to_jwk(P256.public_key())),
        "jku": "http://127.0.0.1:1/keys",
    }
    forged = token(P256, "ES256", headers=own)
    other = ec.generate_private_key(ec.SECP256R1())
    assert isinstance(check(module(tmp_path, public(other)), forged), AuthError)


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": NOW - 1},
        {"exp": None},
        {"exp": "soon"},
        {"exp": str(NOW + 3600)},  # a NumericDate is a number
        {"exp": [NOW + 3600]},
        {"exp": True},
        {"exp": 1e300},
        {"exp": float("inf")},
        {"nbf": str(NOW - 1)},
        {"iat": {}},
        {"nbf": NOW + 3600},
        {"iss": "somebody else"},
        {"iss": None},
        {"aud": "another service"},
        {"aud": None},
        {"sub": None},
        {"sub": ""},
        {"sub": "a\0b"},
        {"client": "c2"},
    ],
)
def test_a_claim_that_does_not_fit_refuses(tmp_path: Path, claims: dict[str, Any]) -> None:
    made = module(tmp_path, issuer="us", audience="mqtt", client_id_claim="client")
    good = {"iss": "us", "aud": "mqtt", "client": "c1"}
    assert isinstance(check(made, token(**good)), AuthOk)
    answer = check(made, token(**{**good, **claims}))
    assert isinstance(answer, AuthError)
    assert "alice" not in answer.reason


def test_a_token_for_another_service_is_refused_where_no_audience_is_set(tmp_path: Path) -> None:
    assert isinstance(check(module(tmp_path), token(aud="x")), AuthError)


def test_leeway_is_for_clocks_that_disagree(tmp_path: Path) -> None:
    now = time.time()  # the module may have been imported long ago
    answer = check(module(tmp_path, leeway=300.0), token(exp=now - 10))
    assert answer.expires_at == now + 290
    assert check(module(tmp_path, require_exp=False), token(exp=None)).expires_at is None


def test_critical_headers_and_huge_tokens_are_refused(tmp_path: Path) -> None:
    made = module(tmp_path)
    assert "critical" in check(made, token(headers={"crit": ["b64"], "b64": False})).reason
    assert "16 KiB" in check(made, token(x="x" * 20000)).reason


# -- rights


def test_rules_in_the_token(tmp_path: Path) -> None:
    made = module(tmp_path)
    assert check(made, token(acl={"pub": ["a/%u"], "sub": "b/#"})).acl == (
        '{allow, all, publish, ["a/%u"]}.\n{allow, all, subscribe, ["b/#"]}.'
    )
    rule = {
        "permission": "deny",
        "action": "publish",
        "topic": "eq a/#",
        "qos": [1],
        "retain": True,
    }
    assert check(made, token(acl=[rule])).acl == (
        '{deny, all, {publish, [{qos, [1]}, {retain, true}]}, [{eq, "a/#"}]}.'
    )


def test_a_topic_in_a_token_cannot_become_a_rule() -> None:
    assert acl_text({"pub": ['a"]}. {allow, all}. %']}) == (
        '{allow, all, publish, ["a\\"]}. {allow, all}. %"]}.'
    )
    from mqttd.access.acl.conf import parse_acl

    for topic in ('"', "\\", '\\"', 'x"]}.{allow,all}.'):
        (rule,) = parse_acl(acl_text({"pub": [topic]}))
        assert rule.topics is not None
        assert rule.topics[0].text == topic


@pytest.mark.parametrize(
    "claim",
    ["all", 7, {"publish": []}, {"pub": [7]}, {"pub": ["a\nb"]}, [{"permission": "yes"}], [7],
     [{"permission": "allow", "action": "x", "topic": "a"}], [{"permission": "allow"}],
     [{"permission": "allow", "topic": "a", "qos": 3}],
     [{"permission": "allow", "action": "subscribe", "topic": "a", "retain": True}],
     [{"permission": "allow", "topic": "a", "who": "all"}]],
)  # fmt: skip
def test_rules_that_are_none_refuse(tmp_path: Path, claim: object) -> None:
    assert isinstance(check(module(tmp_path), token(acl=claim)), AuthError)


def test_a_token_makes_a_superuser_only_where_that_is_set(tmp_path: Path) -> None:
    assert not check(module(tmp_path), token(is_superuser=True)).superuser
    made = module(tmp_path, superuser_claim="is_superuser")
    assert check(made, token(is_superuser=True)).superuser
    assert not check(made, token(is_superuser="true")).superuser


# -- mistakes of the operator


@pytest.mark.parametrize(
    "key,options,text",
    [
        (b"short", {}, "a secret of 5 bytes; expected at least 32"),
        (SECRET, {"algorithms": ("RS256",)}, "'RS256' does not fit"),
        (public(RSA), {"algorithms": ("RS256", "HS256")}, "'HS256' does not fit"),
        (public(P256), {"algorithms": ("none",)}, "'none' does not fit"),
        (b"-----BEGIN PUBLIC KEY-----\nx\n", {}, "expected a public key or a certificate"),
        (SECRET, {"jwks_url": "https://a.example/"}, "expected exactly one of"),
    ],
)
def test_a_wrong_key_or_algorithm_stops_the_start(
    tmp_path: Path, key: bytes, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        module(tmp_path, key, **options)


def test_a_short_rsa_key_stops_the_start(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 1024)
    with pytest.raises(ValueError, match="an RSA key of 1024 bits"):
        module(tmp_path, public(key))


# -- key sets


def jwk(key: Any, kid: str, **more: Any) -> dict[str, Any]:
    kinds = {rsa.RSAPrivateKey: "RSAAlgorithm", ec.EllipticCurvePrivateKey: "ECAlgorithm"}
    (name,) = [name for kind, name in kinds.items() if isinstance(key, kind)]
    made = json.loads(getattr(pyjwt.algorithms, name).to_jwk(key.public_key()))
    return {**made, "kid": kid, **more}


class Server:
    """Gives the key set when the test says so."""

    def __init__(self, *keys: dict[str, Any]) -> None:
        self.keys = list(keys)
        self.asked: list[Deferred[bytes]] = []

    def get(self, url: str) -> Deferred[bytes]:
        self.asked.append(Deferred())
        return self.asked[-1]

    def answer(self) -> None:
        self.asked[-1].callback(json.dumps({"keys": self.keys}).encode())


def with_keys(server: Server, clock: Clock, **options: Any) -> Jwt:
    made = Jwt(clock, get=server.get)
    made.init({"jwks_url": "https://id.example/keys", **options})
    made.watch()
    return made


def wait(answer: Any) -> list[Any]:
    got: list[Any] = []
    assert isinstance(answer, Deferred)
    answer.addCallbacks(got.append, lambda failure: got.append(failure.value))
    return got


def test_the_first_clients_wait_for_the_key_set(tmp_path: Path) -> None:
    server, clock = Server(jwk(RSA, "a"), jwk(P256, "b")), Clock()
    made = with_keys(server, clock)
    got = [
        wait(check(made, token(RSA, "RS256", {"kid": "a"}))),
        wait(check(made, token(P256, "ES256"))),  # the only key that fits
        wait(check(made, token(P256, "ES256", {"kid": "c"}))),
        wait(check(made, token(P256, "ES256", {"kid": "a"}))),
    ]
    server.answer()
    assert [type(answer) for (answer,) in got] == [AuthOk, AuthOk, AuthError, AuthError]
    assert isinstance(check(made, token(RSA, "RS256", {"kid": "a"})), AuthOk)
    assert len(server.asked) == 1


def test_a_new_key_id_is_looked_up_but_not_for_every_token(tmp_path: Path) -> None:
    server, clock = Server(jwk(P256, "a")), Clock()
    made = with_keys(server, clock)
    server.answer()
    new = token(P256, "ES256", {"kid": "b"})
    assert isinstance(check(made, new), AuthError)  # was read just now
    clock.advance(5.0)
    server.keys = [jwk(P256, "b")]
    got = [wait(check(made, new)), wait(check(made, token(P256, "ES256", {"kid": "zz"})))]
    server.answer()
    assert [type(answer) for (answer,) in got] == [AuthOk, AuthError]
    assert isinstance(check(made, token(P256, "ES256", {"kid": "yy"})), AuthError)
    assert len(server.asked) == 2


def test_the_set_is_read_again_and_old_keys_stay_while_that_fails(tmp_path: Path) -> None:
    server, clock = Server(jwk(P256, "a")), Clock()
    made = with_keys(server, clock, jwks_refresh=60.0)
    server.answer()
    good = token(P256, "ES256", {"kid": "a"})
    for fault in (ConnectionError(), b"<html>", b'{"keys": []}', b'{"keys": [{"kty": "oct"}]}'):
        clock.advance(60.0)
        if isinstance(fault, bytes):
            server.asked[-1].callback(fault)
        else:
            server.asked[-1].errback(fault)
        assert isinstance(check(made, good), AuthOk)
    clock.advance(60.0)  # hangs
    clock.advance(5.0)
    assert isinstance(check(made, good), AuthOk)
    server.keys = [jwk(RSA, "r")]
    clock.advance(55.0)
    server.answer()
    clock.advance(1.0)
    assert isinstance(check(made, good), AuthError)
    made.close()
    assert clock.getDelayedCalls() == []


def test_without_any_key_the_module_has_failed(tmp_path: Path) -> None:
    server, clock = Server(), Clock()
    made = with_keys(server, clock)
    got = wait(check(made, token(P256, "ES256")))
    server.asked[-1].errback(ConnectionError())
    assert isinstance(got[0], KeySetError)
    with pytest.raises(KeySetError):
        check(made, token(P256, "ES256"))
    assert len(server.asked) == 1


def test_a_key_of_the_set_serves_its_own_algorithm_alone(tmp_path: Path) -> None:
    oct_key = {"kty": "oct", "kid": "s", "k": base64.urlsafe_b64encode(SECRET).decode()}
    server = Server(jwk(RSA, "a", alg="RS256"), jwk(P256, "e", use="enc"), oct_key)
    clock = Clock()
    made = with_keys(server, clock)
    server.answer()
    assert isinstance(check(made, token(RSA, "RS256", {"kid": "a"})), AuthOk)
    for forged in (
        token(RSA, "RS512", {"kid": "a"}),
        token(P256, "ES256", {"kid": "e"}),
        token(SECRET, "HS256", {"kid": "s"}),
        token(SECRET, "HS256", {"kid": "a"}),
        token(SECRET, "HS256"),
    ):
        assert isinstance(check(made, forged), AuthError)


def test_keys_over_plain_http_are_for_this_machine_only() -> None:
    with pytest.raises(ValueError, match="expected https://"):
        KeySet("http://id.example/keys", 60.0, (), Clock())
    KeySet("http://127.0.0.1:8000/keys", 60.0, (), Clock())
    with pytest.raises(ValueError, match="'HS256': expected some of RS256"):
        KeySet("https://id.example/keys", 60.0, ("HS256",), Clock())
