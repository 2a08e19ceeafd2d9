"""Who may connect: ``[auth]`` and the tables of its modules."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from mqttd.config.schema import keys
from mqttd.config.schema.keys import DAY, GIB, HOUR, KIB, MIB

__all__ = [
    "Auth",
    "AuthBackend",
    "AuthFailures",
    "CertificateAuth",
    "ClientidAuth",
    "JwtAuth",
    "PasswordAuth",
    "ScramAuth",
    "UsernameAuth",
]


class UsernameAuth(Struct, frozen=True, kw_only=True):
    """Clients that show a user name and a password."""

    file: Annotated[
        str,
        keys.path(
            "File of `user:hash` lines, argon2id or as mosquitto_passwd writes them, read again"
            " when it changes; while this key is not set the file may be missing, which means no"
            " users.",
            reload=True,
        ),
    ] = "users.conf"
    unknown: Annotated[
        Literal["deny", "ignore"],
        keys.plain(
            "What becomes of a user that is not in the file: `deny` refuses, `ignore` asks the next"
            " module of the chain, after the time a refusal takes.",
        ),
    ] = "deny"


class PasswordAuth(Struct, frozen=True, kw_only=True):
    """What it costs to verify the passwords of `username` and `clientid`, and who waits for it.

    Of the least memory and passes that OWASP recommends as equally good, those with the least
    memory stay in a processor's cache; they take a core of 2.5 GHz 15 ms, with libsodium 8.
    """

    memory: Annotated[
        int,
        keys.size(
            "Memory of argon2id in the hashes that `mqttd-ctl users` makes; what a hash costs"
            " stands in it, so those there are keep their cost until they get a new password.",
            "broker",
            8 * KIB,
            4 * GIB,
        ),
    ] = 7 * MIB
    passes: Annotated[
        int,
        keys.count("Passes of argon2id over that memory.", "broker", 1, 1000),
    ] = 5
    lanes: Annotated[
        int,
        keys.count("Lanes of argon2id, each of which may take a core.", "broker", 1, 64),
    ] = 1
    threads: Annotated[
        int,
        keys.count(
            "Passwords verified at the same time, by threads that stand back behind the event"
            " loop.",
            "broker",
            1,
            64,
        ),
    ] = 2
    waiting: Annotated[
        int,
        keys.count(
            "Clients that wait for it; further ones are refused as busy (0x89).",
            "broker",
            0,
            1_000_000,
        ),
    ] = 5000
    waiting_per_address: Annotated[
        int,
        keys.count(
            "Of these, how many of one address, as `auth.backend.waiting_per_address`.",
            "broker",
            0,
            1_000_000,
        ),
    ] = 2000
    remember: Annotated[
        float,
        keys.duration(
            "Time for which a password that was verified is not verified again, under a keyed hash"
            " in memory; one that has changed is; 0 remembers none.",
            "broker",
            0,
            DAY,
        ),
    ] = 3600.0


class ClientidAuth(Struct, frozen=True, kw_only=True):
    """Clients known by their client identifier (module `clientid`)."""

    file: Annotated[
        str,
        keys.path(
            "File of client identifiers, one a line, each with `:hash` behind it if the client has"
            " to show a secret as its password; read again when it changes.",
            reload=True,
        ),
    ] = "clients.conf"


class CertificateAuth(Struct, frozen=True, kw_only=True):
    """Clients that hold a certificate which the listener has verified (module `certificate`)."""

    username: Annotated[
        Literal["cn", "dn", "dns", "uri", "email"],
        keys.plain(
            "What of the certificate becomes the user name, in place of what the client says: the"
            " subject's common name, the whole subject, or the first alternative name of a kind.",
        ),
    ] = "cn"
    same_client_id: Annotated[
        bool,
        keys.plain("Whether the client identifier must be that user name."),
    ] = False


class JwtAuth(Struct, frozen=True, kw_only=True):
    """Clients that show a JSON Web Token (module `jwt`); exactly one kind of key is needed."""

    token: Annotated[
        Literal["password", "username"],
        keys.plain("The field of CONNECT that holds the token."),
    ] = "password"
    secret_file: Annotated[
        str,
        keys.path(
            "File with the secret of HS256, HS384 and HS512, at least 32 bytes; a line end behind"
            " it does not count.",
            reload=True,
            pattern=r"^[^\0]*$",
        ),
    ] = ""
    public_key_file: Annotated[
        str,
        keys.path(
            "File with a PEM public key or certificate, for RS, PS, ES or EdDSA signatures.",
            reload=True,
            pattern=r"^[^\0]*$",
        ),
    ] = ""
    jwks_url: Annotated[
        str,
        keys.plain(
            "Address of a JSON Web Key Set with public keys, `https://...` (or `http://` on"
            " this machine).",
            pattern=r"^(https?://[^\s]+)?\Z",
            expects="an https:// or http:// address",
        ),
    ] = ""
    jwks_refresh: Annotated[
        float,
        keys.duration("Time between two readings of the key set.", "broker", 1, DAY),
    ] = 300.0
    algorithms: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        keys.plain(
            "Signature algorithms taken, each of which must fit the key; empty takes all that do.",
        ),
    ] = ()
    issuer: Annotated[str, keys.plain("The `iss` a token must have; empty takes any.")] = ""
    audience: Annotated[
        str, keys.plain("The `aud` a token must have; empty takes only tokens without `aud`.")
    ] = ""
    leeway: Annotated[
        float,
        keys.duration(
            "How far `exp` and `nbf` may be off, for clocks that disagree.", "broker", 0, 300
        ),
    ] = 0.0
    require_exp: Annotated[bool, keys.plain("Whether a token must have `exp`.")] = True
    username_claim: Annotated[
        str,
        keys.plain(
            "The claim that becomes the user name, in place of what the client says; empty keeps"
            " the client's own.",
        ),
    ] = "sub"
    client_id_claim: Annotated[
        str,
        keys.plain("The claim that the client identifier must be equal to; empty checks none."),
    ] = ""
    acl_claim: Annotated[
        str,
        keys.plain(
            'The claim with rules of this client, `{"pub": [...], "sub": [...], "all": [...]}`,'
            " looked at before all others; empty takes none.",
        ),
    ] = "acl"
    superuser_claim: Annotated[
        str,
        keys.plain("The claim that makes a superuser where it is true; empty makes none."),
    ] = ""


class ScramAuth(Struct, frozen=True, kw_only=True):
    """MQTT 5.0 clients that authenticate with SCRAM-SHA-256 (module `scram`)."""

    file: Annotated[
        str,
        keys.path(
            "File of `user:SCRAM-SHA-256$...` lines, written by `mqttd-ctl users add --scram`; read"
            " again when it changes.",
            reload=True,
        ),
    ] = "scram.conf"


class AuthFailures(Struct, frozen=True, kw_only=True):
    """What becomes of those who fail to log in again and again, by address (IPv6: by /64).

    A user name is counted for each address by itself: nobody locks a user out from elsewhere.
    """

    user_limit: Annotated[
        int,
        keys.count(
            "Failed log-ins of one client (user name and client id) from one address within"
            " `window` for which it is refused from there (0x8A) without being asked about; five"
            " times as many bar one user name there, whatever the client ids; 0 refuses nobody.",
            "broker",
            0,
            1_000_000,
        ),
    ] = 10
    address_limit: Annotated[
        int,
        keys.count(
            "Failed log-ins of one address within `window` for which it is refused, but for"
            " clients that got in from there before; 0 refuses none.",
            "broker",
            0,
            10_000_000,
        ),
    ] = 1000
    window: Annotated[
        float,
        keys.duration("Time within which they count.", "broker", 1, DAY),
    ] = 600.0
    ban: Annotated[
        float,
        keys.duration(
            "Time of the first such ban; each further one takes twice as long.",
            "broker",
            1,
            DAY,
        ),
    ] = 10.0
    max_ban: Annotated[
        float,
        keys.duration("The longest such ban.", "broker", 1, 30 * DAY),
    ] = 3600.0
    delay_after: Annotated[
        int,
        keys.count(
            "Failed log-ins of one client from one address that are answered at once.",
            "broker",
            0,
            1_000_000,
        ),
    ] = 3
    delay: Annotated[
        float,
        keys.duration(
            "Time by which the answer to the next failed one is put off, twice as long for each"
            " after it up to 4 s; 0 puts none off.",
            "broker",
            0,
            4,
        ),
    ] = 0.25


class AuthBackend(Struct, frozen=True, kw_only=True):
    """What an authentication module that has to wait for a back end may cost."""

    deadline: Annotated[
        float,
        keys.duration(
            "Time a client waits for one module, after which it failed.", "connection", 0.1, 60
        ),
    ] = 5.0
    concurrency: Annotated[
        int,
        keys.count("Clients one module is asked about at the same time.", "broker", 1, 10_000),
    ] = 64
    waiting: Annotated[
        int,
        keys.count(
            "Clients that wait for their turn at one module; further ones are refused as busy"
            " (0x89).",
            "broker",
            0,
            1_000_000,
        ),
    ] = 1000
    waiting_per_address: Annotated[
        int,
        keys.count(
            "Of these, how many of one address (IPv6: of one /64); networks (/16 and /24, IPv6: /32"
            " and /48) are served in turn and in these addresses, and when all places are taken the"
            " longest line of the largest network loses its last to somebody of a shorter one.",
            "broker",
            0,
            1_000_000,
        ),
    ] = 1000
    on_error: Annotated[
        Literal["deny", "ignore"],
        keys.plain(
            "What a module that failed means: `deny` refuses the client (0x88), `ignore` asks the"
            " next module.",
        ),
    ] = "deny"
    ignore_errors_of: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        keys.plain("Modules for which `on_error` is `ignore`, whatever it says for the others."),
    ] = ()
    cache_ok: Annotated[
        float,
        keys.duration(
            "Time a yes of a back end is kept, under a keyed hash of all the client showed; 0 keeps"
            " none.",
            "broker",
            0,
            HOUR,
        ),
    ] = 10.0
    cache_denied: Annotated[
        float,
        keys.duration("Time a no of a back end is kept.", "broker", 0, HOUR),
    ] = 5.0
    breaker_failures: Annotated[
        int,
        keys.count(
            "Failures one after the other that open a module's circuit breaker, which then fails"
            " at once; 0 never opens it.",
            "broker",
            0,
            1_000_000,
        ),
    ] = 5
    breaker_retry: Annotated[
        float,
        keys.duration(
            "Time until a module whose breaker is open is tried with one client; doubles with each"
            " try that fails.",
            "broker",
            0.01,
            HOUR,
        ),
    ] = 1.0
    breaker_max_retry: Annotated[
        float,
        keys.duration("The longest time between two tries.", "broker", 0.01, DAY),
    ] = 60.0


class Auth(Struct, frozen=True, kw_only=True):
    """Who may connect."""

    chain: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        keys.plain(
            "Authentication modules asked in this order until one says yes or no; when none does,"
            " the client is refused; built in are username, clientid, certificate, jwt, scram and"
            " anonymous, others come from plugins and refuse everybody while they are missing.",
        ),
    ] = ("username", "anonymous")
    anonymous: Annotated[
        Literal["never", "loopback", "always", "any"],
        keys.plain(
            "Whether the module `anonymous` admits clients without a user name: never, from this"
            " machine, or from anywhere; `any` takes from anywhere whatever user name is not in a"
            " file too, without a password check.",
        ),
    ] = "loopback"
    username: UsernameAuth = UsernameAuth()
    password: PasswordAuth = PasswordAuth()
    clientid: ClientidAuth = ClientidAuth()
    certificate: CertificateAuth = CertificateAuth()
    jwt: JwtAuth = JwtAuth()
    scram: ScramAuth = ScramAuth()
    failures: AuthFailures = AuthFailures()
    backend: AuthBackend = AuthBackend()
