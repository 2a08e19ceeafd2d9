"""Clients that show a JSON Web Token, signed by somebody the operator trusts.

::

    CONNECT password = eyJhbGciOiJFUzI1NiIsImtpZCI6ImEifQ.eyJzdWIiOiJhbGljZSIs...
                          | alg, kid: say which key, never how to use it
             key (file, or key set by URL) --> its own algorithms --> signature, exp, nbf, iss, aud
                                                                         |
                        sub -> user name     acl -> rules      exp -> end of the connection

The promise: an algorithm is used only with a key of its kind (a public key is never a secret, and
``none`` is no algorithm); a token that cannot be trusted refuses, what is no token is IGNORE; no
part of a token is ever logged.

RFC 7519 (JWT), 7517 (key sets), 8725 (best practices).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast

import jwt
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from twisted.internet.defer import Deferred
from zope.interface import implementer

from mqttd.access.auth.jwks import KeySet, algorithms_of
from mqttd.interfaces import IAuthenticator
from mqttd.types import AUTH_IGNORE, AuthError, AuthOk, AuthVerdict, ClientInfo

__all__ = ["Jwt", "acl_text"]

_HMAC: Final = ("HS256", "HS384", "HS512")
_MIN_SECRET: Final = 32
_MAX_TOKEN: Final = 16 * 1024
_MAX_RULES: Final = 1000
_NOT_AUTHORIZED: Final = 0x87
#: Where a word of a class's name begins.
_CAPITAL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
#: Claims that are times, and a second after which there is none: 2 to the 53rd, as JSON counts.
_TIMES: Final = ("exp", "nbf", "iat")
_LATEST: Final = 1 << 53


@implementer(IAuthenticator)
class Jwt:
    """Checks tokens; the options are the keys of ``[auth.jwt]``.

    Exactly one of ``secret_file``, ``public_key_file`` and ``jwks_url`` is given. `reactor` reads
    the key set; `get` (URL -> Deferred of bytes) may replace how.
    """

    def __init__(
        self,
        reactor: Any = None,
        on_event: Callable[[str, dict[str, object]], None] | None = None,
        get: Callable[[str], Deferred[bytes]] | None = None,
    ) -> None:
        self._reactor = reactor
        self._on_event = on_event
        self._get = get
        self._opts: dict[str, Any] = {}
        self._key: Any = None
        self._algorithms: tuple[str, ...] = ()
        self._keys: KeySet | None = None

    def init(self, opts: Mapping[str, object]) -> None:
        """Take the options and read the key; ValueError or OSError if one is wrong."""
        self._opts = dict(opts)
        given = [
            name for name in ("secret_file", "public_key_file", "jwks_url") if self._opts.get(name)
        ]
        if len(given) != 1:
            raise ValueError(
                "auth.jwt: expected exactly one of secret_file, public_key_file and jwks_url,"
                f" got {', '.join(given) or 'none'}"
            )
        if given[0] == "jwks_url":
            self._keys = KeySet(
                str(self._opts["jwks_url"]),
                float(self._opts.get("jwks_refresh", 300.0)),
                tuple(self._opts.get("algorithms", ())),
                self._reactor,
                self._on_event,
                self._get,
            )
            return
        self.reload()

    def reload(self) -> None:
        """Read the key again; on any error the one there was stays."""
        if self._keys is not None:
            self._keys.fetch()
            return
        secret, public = self._opts.get("secret_file"), self._opts.get("public_key_file")
        if secret:
            key: Any = _read_secret(str(secret))
            fitting: tuple[str, ...] = _HMAC
            name = str(secret)
        else:
            key = _read_public_key(str(public))
            fitting, name = algorithms_of(key), str(public)
        wanted = tuple(self._opts.get("algorithms", ())) or fitting
        for algorithm in wanted:
            if algorithm not in fitting:
                raise ValueError(
                    f"auth.jwt.algorithms: {algorithm!r} does not fit the key in {name};"
                    f" expected some of {', '.join(fitting)}"
                )
        self._key, self._algorithms = key, wanted

    def watch(self) -> None:
        """Read the key set from now on."""
        if self._keys is not None:
            self._keys.start()

    def check(
        self, client: ClientInfo, password: bytes | None
    ) -> AuthVerdict | Deferred[AuthVerdict]:
        """IGNORE for what is no token, else OK or ERROR; later if the key set is to be read."""
        if self._opts.get("token", "password") == "username":
            token = (client.username or "").encode("utf-8", "replace")
        else:
            token = password or b""
        header = _header(token)
        if header is None:
            return AUTH_IGNORE
        if len(token) > _MAX_TOKEN:
            return _refused("token longer than 16 KiB")
        if "crit" in header:
            return _refused("token with critical headers that are not understood")
        if self._keys is None:
            return self._judge(client, token, header, self._key, self._algorithms)
        found = self._keys.find(header.get("kid"), header.get("alg"))
        if isinstance(found, Deferred):
            return found.addCallback(self._with_key, client, token, header)
        return self._with_key(found, client, token, header)

    def description(self) -> str:
        """Where the key is from and which algorithms are taken."""
        if self._keys is not None:
            return f"jwt: {self._keys.description()}"
        source = self._opts.get("secret_file") or self._opts.get("public_key_file")
        return f"jwt: {', '.join(self._algorithms)} with the key in {source}"

    def close(self) -> None:
        """Stop reading the key set."""
        if self._keys is not None:
            self._keys.stop()

    # -- verdicts

    def _with_key(
        self,
        found: tuple[Any, tuple[str, ...]] | None,
        client: ClientInfo,
        token: bytes,
        header: Mapping[str, Any],
    ) -> AuthVerdict:
        if found is None:
            return _refused("no key of the key set fits the token")
        return self._judge(client, token, header, *found)

    def _judge(
        self,
        client: ClientInfo,
        token: bytes,
        header: Mapping[str, Any],
        key: Any,
        algorithms: tuple[str, ...],
    ) -> AuthVerdict:
        if header.get("alg") not in algorithms:
            return _refused("token signed with an algorithm that is not taken for this key")
        opts = self._opts
        leeway = float(opts.get("leeway", 0.0))
        audience = opts.get("audience") or None
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=list(algorithms),
                audience=audience,
                issuer=opts.get("issuer") or None,
                leeway=leeway,
                options={"require": ["exp"] if opts.get("require_exp", True) else []},
            )
        except (jwt.PyJWTError, TypeError, ValueError, OverflowError) as error:
            # The class says what is wrong, the text may quote the token.
            name = type(error).__name__.removesuffix("Error")
            return _refused(f"token refused: {_CAPITAL.sub(' ', name).lower()}")
        for name in _TIMES:
            if not _is_time(claims.get(name, 0)):
                return _refused(f"the claim {name!r} is no number of seconds")
        return self._accept(client, claims, leeway)

    def _accept(self, client: ClientInfo, claims: Mapping[str, Any], leeway: float) -> AuthVerdict:
        opts = self._opts
        username: str | None = None
        claim = opts.get("username_claim", "sub")
        if claim:
            username = claims.get(claim)
            if not isinstance(username, str) or not username or not username.isprintable():
                return _refused(f"token without a usable claim {claim!r} for the user name")
        elif opts.get("token", "password") == "username":
            return _refused("auth.jwt.username_claim is empty, and the user name is the token")
        claim = opts.get("client_id_claim", "")
        if claim and claims.get(claim) != client.client_id:
            return _refused(f"the claim {claim!r} is not the client identifier")
        acl: str | None = None
        claim = opts.get("acl_claim", "acl")
        if claim and claims.get(claim) is not None:
            try:
                acl = acl_text(claims[claim])
            except ValueError as error:
                return _refused(f"the claim {claim!r} is no list of rules: {error}")
        claim = opts.get("superuser_claim", "")
        exp = claims.get("exp")
        return AuthOk(
            superuser=bool(claim) and claims.get(claim) is True,
            acl=acl,
            expires_at=None if exp is None else float(exp) + leeway,
            username=username,
        )


def _is_time(value: object) -> bool:
    """Whether a claim is a NumericDate (RFC 7519, section 2): a JSON number, and one there is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < _LATEST


def acl_text(claim: object) -> str:
    """Rules in a token as text in the grammar of acl.conf.

    ``{"pub": [topic, ...], "sub": [...], "all": [...]}`` allows those topics, and
    ``[{"permission", "action", "topic", "qos", "retain"}, ...]`` is EMQX's list.  ValueError says
    what was expected, without showing the claim.
    """
    rules: list[str] = []
    if isinstance(claim, Mapping):
        for key, access in (("pub", "publish"), ("sub", "subscribe"), ("all", "all")):
            topics = claim.get(key, [])
            if not isinstance(topics, list):
                topics = [topics]
            if topics:
                rules.append(f"{{allow, all, {access}, [{', '.join(map(_quoted, topics))}]}}.")
        unknown = set(claim) - {"pub", "sub", "all"}
        if unknown:
            raise ValueError("expected no keys but pub, sub and all")
        return "\n".join(rules)
    if not isinstance(claim, list) or len(claim) > _MAX_RULES:
        raise ValueError(f"expected an object or a list of at most {_MAX_RULES} rules")
    return "\n".join(_rule(rule) for rule in claim)


def _rule(rule: object) -> str:
    known = {"permission", "action", "topic", "qos", "retain"}
    if not isinstance(rule, Mapping) or not set(rule) <= known:
        raise ValueError(f"expected rules with no keys but {', '.join(sorted(known))}")
    permission, action = rule.get("permission"), rule.get("action", "all")
    if permission not in ("allow", "deny"):
        raise ValueError("permission: expected allow or deny")
    if action not in ("publish", "subscribe", "all"):
        raise ValueError("action: expected publish, subscribe or all")
    options = []
    if "qos" in rule:
        levels = rule["qos"] if isinstance(rule["qos"], list) else [rule["qos"]]
        if not levels or any(level not in (0, 1, 2) for level in levels):
            raise ValueError("qos: expected 0, 1, 2 or a list of them")
        options.append(f"{{qos, [{', '.join(str(int(level)) for level in levels)}]}}")
    if rule.get("retain") is not None:
        if action == "subscribe" or rule["retain"] not in (True, False):
            raise ValueError("retain: expected true or false, and not for subscribe")
        options.append(f"{{retain, {str(rule['retain']).lower()}}}")
    access = f"{{{action}, [{', '.join(options)}]}}" if options else action
    return f"{{{permission}, all, {access}, [{_quoted(rule.get('topic'))}]}}."


def _quoted(topic: object) -> str:
    if not isinstance(topic, str) or not topic.isprintable():
        raise ValueError("expected topics as printable text")
    if topic.startswith("eq "):
        return f"{{eq, {_quoted(topic[3:])}}}"
    escaped = topic.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _refused(reason: str) -> AuthError:
    return AuthError(reason, _NOT_AUTHORIZED)


def _header(token: bytes) -> Mapping[str, Any] | None:
    """The header of what looks like a signed token, else None."""
    if token.count(b".") != 2 or not token.startswith(b"ey"):
        return None
    try:
        part = token[: token.index(b".")]
        header = json.loads(jwt.utils.base64url_decode(part))
    except (ValueError, RecursionError):
        return None
    return cast("Mapping[str, Any]", header) if isinstance(header, dict) else None


def _read_secret(path: str) -> bytes:
    secret = Path(path).read_bytes().rstrip(b"\r\n")
    if len(secret) < _MIN_SECRET:
        raise ValueError(
            f"{path}: a secret of {len(secret)} bytes; expected at least {_MIN_SECRET}, such as"
            " from `openssl rand -base64 48`"
        )
    if b"-----BEGIN" in secret:
        raise ValueError(f"{path}: a PEM key is no secret; expected it as public_key_file")
    return secret


def _read_public_key(path: str) -> object:
    data = Path(path).read_bytes()
    try:
        if b"BEGIN CERTIFICATE" in data:
            return x509.load_pem_x509_certificate(data).public_key()
        return load_pem_public_key(data)
    except ValueError:
        raise ValueError(f"{path}: expected a public key or a certificate in PEM") from None
