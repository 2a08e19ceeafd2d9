"""Small values that cross the border between the broker and its plugins.

Stdlib only, so that a plugin can import them without pulling in the broker.

Two families of answers exist, and they are named apart on purpose::

    authentication    AuthOk(...) | AUTH_IGNORE | AuthError(reason)
    access control    Verdict.ALLOW | Verdict.DENY | Verdict.IGNORE
    hooks             OK | OK(acc) | STOP | STOP(acc)

`OK` belongs to hooks alone and means "go on to the next callback".  Were it also the word
for "this client is who it says", a callback at ``client.authenticate`` that wants to say
nothing would let everybody in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, TypeAlias

__all__ = [
    "ACTION_PUBLISH",
    "ACTION_SUBSCRIBE",
    "AUTH_IGNORE",
    "AUTH_OK",
    "OK",
    "STOP",
    "Action",
    "AuthContinue",
    "AuthError",
    "AuthIgnore",
    "AuthOk",
    "AuthResult",
    "AuthVerdict",
    "Claim",
    "ClientInfo",
    "Decision",
    "Held",
    "HookError",
    "HookResult",
    "PeerIdentity",
    "PluginError",
    "QueueFull",
    "SessionState",
    "StaleEpoch",
    "StoreFull",
    "Verdict",
]

ACTION_PUBLISH: Final = "publish"
ACTION_SUBSCRIBE: Final = "subscribe"


@dataclass(slots=True, eq=False, weakref_slot=True)
class ClientInfo:
    """Who a client is: what it said in CONNECT and what its connection shows.

    One object per connection, compared by identity.  ``superuser``, ``attributes`` and
    ``acl`` are filled in by `AccessControl.authenticate` when the client is accepted.

    ``peerhost`` is an IP address in text form, or ``"unix"`` (or a path) for a Unix socket.
    ``keep_alive`` is in seconds.  ``protocol_version`` is 3, 4 or 5.

    The certificate that the client proved to hold, verified by the listener: its subject's
    common name, the whole subject (``"CN=a,O=b"``, RFC 4514) and the subject alternative names
    (``"DNS:a.example"``, ``"URI:..."``, ``"email:..."``, ``"IP:..."``).  ``cert_subject`` is None
    without a certificate.

    ``mountpoint`` stands before all its topic names and filters (empty: none); hooks, rules and
    stores see the full names.
    """

    client_id: str
    username: str | None
    peerhost: str
    peerport: int
    listener: str
    protocol_version: int
    clean_start: bool = True
    keep_alive: int = 0
    superuser: bool = False
    cert_common_name: str | None = None
    attributes: Mapping[str, object] | None = None
    acl: object | None = None
    cert_subject: str | None = None
    cert_sans: tuple[str, ...] = ()
    mountpoint: str = ""


@dataclass(slots=True)
class PeerIdentity:
    """What a connection shows of its peer beyond the socket's address.

    ``host`` and ``port`` are the client's as a trusted proxy names them (empty: ask the socket).
    The certificate's fields are as in `ClientInfo`.  ``username`` and ``client_id`` are what the
    listener makes of the certificate (``cert_as_username``, ``cert_as_client_id``), and take the
    place of what CONNECT says.  ``attributes`` become the client's: on a Unix socket ``peer_pid``,
    ``peer_uid`` and ``peer_gid``.
    """

    host: str = ""
    port: int = 0
    common_name: str | None = None
    subject: str | None = None
    sans: tuple[str, ...] = ()
    username: str | None = None
    client_id: str | None = None
    attributes: Mapping[str, object] | None = None


class Verdict(Enum):
    """What one access-control module says about one action."""

    ALLOW = "allow"
    DENY = "deny"
    IGNORE = "ignore"


@dataclass(slots=True, frozen=True)
class Action:
    """What a client wants to do: ``kind`` with this QoS (and, publishing, this retain flag)."""

    kind: Literal["publish", "subscribe"]
    qos: int = 0
    retain: bool = False


@dataclass(slots=True, frozen=True)
class Decision:
    """An access decision and where it came from.

    ``rule`` reads ``etc/acl.conf:12 {deny, all, ...}`` for a rule of a file, and is a plain
    sentence otherwise ("no rule matched", "superuser").  ``module`` names the module.
    """

    verdict: Verdict
    rule: str
    module: str = ""


@dataclass(slots=True, frozen=True)
class AuthOk:
    """The client is who it says; the authentication chain ends here.

    ``superuser`` passes every access check.  ``acl`` holds rules for this client alone, in
    the grammar of acl.conf, looked at before all other rules.  ``expires_at`` is a time in
    seconds since the epoch; the connection ends then.  ``attributes`` are kept in
    `ClientInfo.attributes`.  ``username`` is who the client has proved to be, in place of what it
    said.  ``data`` is the last Authentication Data of an enhanced authentication.
    """

    superuser: bool = False
    acl: str | None = None
    expires_at: float | None = None
    attributes: Mapping[str, object] | None = None
    username: str | None = None
    data: bytes | None = None


@dataclass(slots=True, frozen=True)
class AuthIgnore:
    """The module knows nothing of this client: ask the next one."""


@dataclass(slots=True, frozen=True)
class AuthError:
    """The client is refused; the authentication chain ends here.

    ``reason`` goes to the log, never to the client, who gets ``reason_code`` (an MQTT 5
    CONNACK code; 0x86 is Bad User Name or Password).
    """

    reason: str
    reason_code: int = 0x86


@dataclass(slots=True, frozen=True)
class AuthContinue:
    """An enhanced authentication goes on: ``data`` goes to the client in an AUTH packet."""

    data: bytes


AuthVerdict: TypeAlias = AuthOk | AuthIgnore | AuthError

AUTH_OK: Final = AuthOk()
AUTH_IGNORE: Final = AuthIgnore()


@dataclass(slots=True, frozen=True)
class AuthResult:
    """What the whole authentication chain decided.

    ``reason_code`` is 0 when ``ok``, else the code for CONNACK.  ``module`` is the name of
    the module that decided.  ``data`` is the Authentication Data for the client, if any.
    """

    ok: bool
    reason_code: int = 0
    reason: str = ""
    superuser: bool = False
    attributes: Mapping[str, object] | None = None
    expires_at: float | None = None
    module: str = ""
    data: bytes | None = None


@dataclass(slots=True, frozen=True)
class SessionState:
    """A session as it is stored and handed over: one record, and the packets that wait for it.

    Both are the broker's to read; ``epoch`` is the ownership that wrote them. ``made`` is the
    broker's own: what it has made of the packets already.
    """

    record: bytes
    queue: Sequence[bytes] = ()
    epoch: int = 0
    made: object | None = None


class Held(Enum):
    """Where the state of a session was when its client identifier was claimed."""

    HERE = "here"
    WORKER = "worker"
    NODE = "node"
    NOWHERE = "nowhere"


@dataclass(slots=True, frozen=True)
class Claim:
    """This process owns a client identifier now.

    ``epoch`` is at least 1 and grows whenever the owner changes: what bears an older one is
    refused.  ``held`` says where the state was; ``peer`` names the worker or node (``node/worker``)
    that had it, and ``state`` is what it handed over, None if there was nothing.
    """

    epoch: int
    held: Held
    peer: str = ""
    state: SessionState | None = None


class StaleEpoch(Exception):
    """Somebody else owns this by now: nothing was changed."""


class PluginError(Exception):
    """A plugin cannot do what was asked; the text is the line that an operator sees."""


class HookError(ValueError):
    """An unknown hook point, a callback hooked twice or never, or a filter that is none."""


class QueueFull(Exception):
    """Too much waits already: this was not taken, try again later."""


class StoreFull(Exception):
    """There is no room to keep this; the text says whose limit it is. Nothing was changed."""


class _Unchanged:
    """The type of the mark "the accumulator stays as it is"."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<unchanged>"


_UNCHANGED: Final = _Unchanged()


class HookResult:
    """What a hook callback answers: go on or stop, with or without a new accumulator.

    Use the two instances `OK` and `STOP`; calling one attaches a new accumulator::

        return OK              # next callback, same accumulator      (so does None)
        return OK(message)     # next callback, new accumulator
        return STOP            # no further callback
        return STOP(message)   # no further callback, new accumulator
    """

    __slots__ = ("_acc", "stop")

    def __init__(self, stop: bool, acc: object = _UNCHANGED) -> None:
        self.stop = stop
        self._acc = acc

    def __call__(self, acc: object) -> HookResult:
        return HookResult(self.stop, acc)

    def accumulate(self, acc: object) -> object:
        """The new accumulator, or `acc` where the callback gave none."""
        return acc if self._acc is _UNCHANGED else self._acc

    def __repr__(self) -> str:
        name = "STOP" if self.stop else "OK"
        return name if self._acc is _UNCHANGED else f"{name}({self._acc!r})"


OK: Final = HookResult(False)
STOP: Final = HookResult(True)
