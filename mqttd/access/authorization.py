"""What a client may do, asked along the chain of access-control modules.

::

    superuser? ──► the client's own rules ──► acl ──► other modules ──► acl.nomatch
                   the first that says ALLOW or DENY decides, IGNORE asks the next

Promise: modules are asked in the order of their sequence numbers, then of registration.  One that
raises or answers nonsense denies, and is counted.  Every decision names its rule.  `decide` and
`explain` are one walk: explaining only notes down what was said.  All methods are called in the
reactor thread and answer at once, so that the broker can cache the answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from zope.interface import verify

from mqttd.interfaces import IAccessControl, IAccessExplainer
from mqttd.types import Action, ClientInfo, Decision, Verdict

if TYPE_CHECKING:
    from mqttd.config.schema import Acl

__all__ = ["AclReloadError", "Authorization", "OnDeny"]

OnDeny: TypeAlias = Callable[[ClientInfo, Action, str, str], None]

_ALLOW: Final = Verdict.ALLOW
_DENY: Final = Verdict.DENY
_IGNORE: Final = Verdict.IGNORE

_SUPERUSER: Final = Decision(_ALLOW, "superuser")


class AclReloadError(Exception):
    """One or more modules could not read their rules again, and keep the ones they had."""


@dataclass(slots=True)
class _Module:
    """A registered module and its counters."""

    name: str
    module: Any
    seq: int
    number: int
    explains: bool
    hit: int = 0
    ok: int = 0
    deny: int = 0
    ignore: int = 0
    error: int = 0


class Authorization:
    """The access-control chain.

    ``on_deny(client, action, topic, rule)`` is told of each denied action,
    ``on_error(name, exception)`` of each module that failed.
    """

    def __init__(
        self,
        config: Acl,
        on_deny: OnDeny | None = None,
        on_error: Callable[[str, Exception], None] | None = None,
    ) -> None:
        self.on_deny = on_deny
        self.on_error = on_error
        #: actions denied since the start
        self.denied: int = 0
        #: some client's own rules look at QoS or retain
        self.client_rules_depend: bool = False
        self._modules: list[_Module] = []
        self._number = 0
        self._nomatch = Decision(
            _ALLOW if config.nomatch == "allow" else _DENY,
            f'no rule matched: acl.nomatch = "{config.nomatch}"',
        )

    # -- modules

    def names(self) -> list[str]:
        """The names of the modules, in the order they are asked."""
        return [entry.name for entry in self._modules]

    def register(self, name: str, module: object, seq: int | None = None) -> None:
        """Put a module, whose ``init`` has been called, into the chain; `seq` None is last.

        Raises ValueError for a name in use, `zope.interface.Invalid` for a module without the
        methods of `IAccessControl`.
        """
        if name in self.names():
            raise ValueError(f"acl module {name!r} is registered already")
        verify.verifyObject(IAccessControl, module)
        if seq is None:
            seq = max((entry.seq for entry in self._modules), default=0) + 1
        self._number += 1
        explains = IAccessExplainer.providedBy(module)
        self._modules.append(_Module(name, module, seq, self._number, explains))
        self._modules.sort(key=lambda entry: (entry.seq, entry.number))

    def unregister(self, name: str) -> bool:
        """Take a module out of the chain; False if it is not there."""
        for entry in self._modules:
            if entry.name == name:
                self._modules.remove(entry)
                _close(entry.module)
                return True
        return False

    # -- decisions

    def authorize(self, client: ClientInfo, action: Action, topic: str) -> bool:
        """True if `client` may do `action` on `topic`.

        `topic` is a topic name to publish to, or a topic filter to subscribe to (for a shared
        subscription, its real filter).
        """
        decision = self.decide(client, action, topic)
        if decision.verdict is _ALLOW:
            return True
        self.denied += 1
        if self.on_deny is not None:
            self.on_deny(client, action, topic, decision.rule)
        return False

    def decide(self, client: ClientInfo, action: Action, topic: str) -> Decision:
        """The decision of `authorize` and the rule behind it; never IGNORE, never raises."""
        if client.superuser:
            return _SUPERUSER
        if client.acl is not None:
            own = cast(Any, client.acl).decide(client, action, topic)
            if own.verdict is not _IGNORE:
                return cast(Decision, own)
        for entry in self._modules:
            entry.hit += 1
            try:
                decision = _ask(entry, client, action, topic)
            except Exception as error:
                self._count_error(entry, error)
                return Decision(
                    _DENY, f"module {entry.name} failed: {type(error).__name__}", entry.name
                )
            if decision.verdict is _ALLOW:
                entry.ok += 1
                return decision
            if decision.verdict is _DENY:
                entry.deny += 1
                return decision
            entry.ignore += 1
        return self._nomatch

    @property
    def depends_on_qos_retain(self) -> bool:
        """True if any rule looks at QoS or retain, so that a cache must be keyed by them too.

        A module that does not say (attribute ``depends_on_qos_retain``) may.
        """
        return self.client_rules_depend or any(
            getattr(entry.module, "depends_on_qos_retain", True) for entry in self._modules
        )

    # -- control

    def reload_acl(self) -> None:
        """Make every module read its rules again.

        A module whose rules are wrong keeps the old ones; `AclReloadError` then names all
        faults.
        """
        errors: list[str] = []
        for entry in self._modules:
            try:
                entry.module.reload_acl()
            except Exception as error:
                self._count_error(entry, error)
                errors.append(f"{entry.name}: {error}")
        if errors:
            raise AclReloadError("; ".join(errors))

    def describe(self) -> list[dict[str, object]]:
        """Each module in the order it is asked: kind, name, seq, description and counters."""
        return [
            {
                "kind": "acl",
                "name": entry.name,
                "seq": entry.seq,
                "description": str(entry.module.description()),
                "hit": entry.hit,
                "ok": entry.ok,
                "deny": entry.deny,
                "ignore": entry.ignore,
                "error": entry.error,
            }
            for entry in self._modules
        ]

    def close(self) -> None:
        """Let go of what the modules hold; everything is denied afterwards."""
        for entry in self._modules:
            _close(entry.module)
        self._modules = []
        self._nomatch = Decision(_DENY, "access control is closed")

    def _count_error(self, entry: _Module, error: Exception) -> None:
        entry.error += 1
        if self.on_error is not None:
            self.on_error(entry.name, error)


def _ask(entry: _Module, client: ClientInfo, action: Action, topic: str) -> Decision:
    module = entry.module
    if entry.explains:
        decision = module.decide(client, action, topic)
        if not isinstance(decision, Decision):
            raise TypeError(f"not a Decision: {decision!r}")
        return decision
    verdict = module.check_acl(client, action, topic)
    if not isinstance(verdict, Verdict):
        raise TypeError(f"not a Verdict: {verdict!r}")
    return Decision(verdict, f"module {entry.name}", entry.name)


def _close(module: Any) -> None:
    close: Callable[[], None] | None = getattr(module, "close", None)
    if close is not None:
        close()
