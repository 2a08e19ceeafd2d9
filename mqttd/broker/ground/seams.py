"""What the broker asks of those it is handed: access control, hooks, owners, stores.

    access control   authenticate, begin, authorize        `mqttd.access`
    hooks            run_hooks, ask_hooks, listening       chains of callbacks
    ownership        claim, release, watch                 a client id across processes
    session store    save, append, load, remove, recover   a session across restarts
    mover            fresh_id, stays                       clients of other workers

The broker knows these by what they do, and imports none of them. An `Answer` is a Deferred as far
as the broker looks at it: it fires once, in the reactor's thread, and does not fail.

Not compiled, so that whoever does the same fits, whatever it is derived from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from mqttd.broker.ground.alarms import Alarms
from mqttd.types import (
    Action,
    AuthContinue,
    AuthResult,
    Claim,
    ClientInfo,
    HookResult,
    SessionState,
)

if TYPE_CHECKING:
    from mqttd.codec.packets import Connect
    from mqttd.session.channel.channel import Channel
    from mqttd.session.ground.refusal import Refusal

__all__ = [
    "Access",
    "Answer",
    "Exchange",
    "HookChains",
    "Log",
    "ManagedAccess",
    "ManagedHooks",
    "Mover",
    "Ownership",
    "SessionStore",
    "Trail",
    "Waiting",
]

#: Gets one structured event: its name and its fields.
Log: TypeAlias = Callable[[str, dict[str, object]], None]


class Answer(Protocol):
    """Something that comes later."""

    def addCallback(self, callback: Callable[[Any], Any], /) -> object:
        """Have `callback` called with it."""


class Mover(Protocol):
    """Sends connections to the worker that their client belongs to (`mqttd.workers.moving`)."""

    def fresh_id(self) -> str:
        """A client id that belongs here."""

    def stays(self, channel: Channel, connect: Connect, /) -> bool:
        """Whether a client belongs here; else it has been seen to."""


class Exchange(Protocol):
    """One enhanced authentication under way."""

    def step(self, data: bytes, /) -> AuthContinue | AuthResult | Answer:
        """What the client sent; go on, or the end."""


class Access(Protocol):
    """Who may do what."""

    @property
    def depends_on_qos_retain(self) -> bool:
        """Some rule looks at the QoS or the RETAIN flag."""

    def authenticate(
        self, client: ClientInfo, password: bytes | None, gone: Callable[[], bool], /
    ) -> AuthResult | Answer:
        """Is this client who it says? Where it has to wait, and is `gone` then, nobody is asked."""

    def begin(self, client: ClientInfo, method: str, /) -> Exchange | None:
        """Start an enhanced authentication; None if the method is not offered."""

    def authorize(self, client: ClientInfo, action: Action, topic: str, /) -> bool:
        """May this client do that?"""

    def class_of(self, client: ClientInfo, /) -> int:
        """The class of clients that no rule tells apart from this one; -1: ask for it alone."""

    def constant(self, number: int, /) -> bool:
        """Clients of this class may publish anything anywhere, but below `$`."""

    def judge(self, number: int, qos: int, retain: bool, topic: str, /) -> int:
        """1: all clients of this class may publish this; 0: ask for each."""

    def realms(self, client: ClientInfo, /) -> list[str]:
        """Beginnings of topics, each with its last `/`, below which it may publish anything."""

    def listening(self, client: ClientInfo, /) -> list[str]:
        """The same of filters that it may subscribe to; "": all that do not begin with `$`."""

    def refusal(self, client: ClientInfo, action: Action, topic: str, /) -> Refusal | None:
        """What refuses this until something changes; None: ask each time."""


class ManagedAccess(Access, Protocol):
    """What an operator's tools ask of access control beyond that."""

    def describe(self) -> list[dict[str, object]]:
        """The modules, in the order they are asked."""

    def counters(self) -> dict[str, float]:
        """How often it said what."""

    def reload_auth(self) -> None:
        """Read users and keys again."""

    def prepare_acl(self) -> None:
        """Read rules again, in a thread, for `reload_acl`."""

    def reload_acl(self) -> None:
        """Put the rules that were read in force."""

    def questions_of(self, listener: str, /) -> Any:
        """What can be asked about the rules of a listener."""


class HookChains(Protocol):
    """The chains of callbacks by hook point.

    The broker is told by its `hooks_changed(point, listening)` after each change of a chain, and of
    what `topic_filters` answers.
    """

    #: Told of plugins in quarantine, once there is a broker.
    alarms: Alarms | None

    def listening(self, point: str, /) -> bool:
        """Somebody is hooked there."""

    def topic_filters(self, point: str, /) -> list[str] | None:
        """The filters of the topics that the callbacks of a point are for, perhaps none.

        None if one of them wants every topic.
        """

    def run_hooks(
        self, point: str, args: Sequence[Any], acc: Any = None, /
    ) -> tuple[HookResult, Any]:
        """Run a chain; its end and the accumulator."""

    def ask_publish(self, message: Any, /) -> Any:
        """Run the chain of message.publish; its accumulator."""

    def ask_hooks(
        self, point: str, args: Sequence[Any], acc: Any = None, /
    ) -> tuple[HookResult, Any] | Answer:
        """The same for a point whose callbacks may wait."""

    def tell_hooks(
        self, point: str, args: Sequence[Any], acc: Any, told: list[tuple[str, str]], /
    ) -> tuple[HookResult, Any]:
        """As `run_hooks`, and who has said what."""

    def stopped_by(self) -> str:
        """Whose callback has ended a chain last."""

    def unusable(self, point: str, answer: object, /) -> None:
        """A chain ended with an accumulator that cannot be used: it counts as unchanged."""

    def quarantined(self) -> int:
        """How many plugins are in quarantine."""


class ManagedHooks(HookChains, Protocol):
    """What an operator's tools ask of the chains beyond that."""

    #: Hook point -> how often a callback failed there.
    errors: dict[str, int]

    def lookup(self, point: str, /) -> Sequence[Any]:
        """The callbacks of a point in the order they run."""

    def budgets(self) -> Sequence[Any]:
        """The accounts of their owners."""


class Trail(Protocol):
    """Keeps what becomes of messages: of some from hand to hand, of others that they were lost."""

    def follows(self, topic: str, client_id: str, /) -> bool:
        """A message of this client to this topic is to be followed."""

    def published(self, message: Any, /) -> None:
        """A message that is followed has come."""

    def asked(self, message: Any, told: Sequence[tuple[str, str]], /) -> None:
        """Hooks were asked about it: their owners, and what each has said."""

    def routed(self, message: Any, receivers: int, /) -> None:
        """It was handed to so many receivers."""

    def is_followed(self, message_id: int, /) -> bool:
        """A message is followed: another process that it goes to is to go on with it."""

    def crossed(self, message: Any, /) -> None:
        """A message has come that another process follows."""

    def step(self, message: Any, what: str, client_id: str, detail: str, /) -> None:
        """It was queued for, sent to, acknowledged by a receiver; told of those followed only."""

    def room(self, reason: str, /) -> bool:
        """One more that is lost for this reason is wanted; if not, it is counted."""

    def left(self, reason: str, /) -> int:
        """How many more that are lost for this reason are wanted now."""

    def lost(self, message: Any, reason: str, client_id: str, detail: str, /) -> None:
        """A message was lost, for one receiver or (no client id) for all; there was `room`."""

    def holds(self, message: Any, where: str, /) -> None:
        """A message that is stopped by a hook next is not lost, but there."""

    def many(self, reason: str, client_id: str, count: int, detail: str, /) -> None:
        """So many messages for a receiver were lost at once."""

    def because(self, rule: str, /) -> None:
        """The rule, or whoever it was, by which the next one is denied."""

    def sample(self, client_id: str, /) -> None:
        """The next message of this client is followed."""


class Waiting(Protocol):
    """A Deferred that may fail, as far as the broker looks at it."""

    def addCallbacks(
        self, callback: Callable[[Any], Any], errback: Callable[[Any], Any], /
    ) -> object:
        """Have one of the two called, with what came or with a Failure."""


class Ownership(Protocol):
    """Who owns a client identifier; see `mqttd.interfaces.IRegistry`."""

    def claim(self, client_id: str, principal: str | None, lasts: bool, /) -> Claim | Waiting:
        """Make this process its owner."""

    def release(self, client_id: str, epoch: int, /) -> Waiting | None:
        """Its session has ended."""

    def watch(self, taken: Callable[[str, int], SessionState | None], /) -> None:
        """Have `taken` called when another takes it over."""


class SessionStore(Protocol):
    """Sessions across restarts; see `mqttd.interfaces.ISessionStore`."""

    @property
    def keeps(self) -> bool:
        """What is saved outlasts the process."""

    def save(self, client_id: str, epoch: int, record: bytes, /) -> Waiting | None:
        """Store a session, in place of what there was of it."""

    def append(self, client_id: str, epoch: int, packets: Sequence[bytes], /) -> Waiting | None:
        """Put packets behind those that wait for it."""

    def load(self, client_id: str, /) -> SessionState | Waiting | None:
        """A session with its packets."""

    def remove(self, client_id: str, epoch: int, /) -> Waiting | None:
        """Forget a session."""

    def recover(self) -> Iterable[tuple[str, SessionState]] | Waiting:
        """All sessions."""
