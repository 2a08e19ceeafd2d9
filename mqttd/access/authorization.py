"""What a client may do, asked along the chain of access-control modules.

::

    superuser? ──► the client's own rules ──► acl ──► other modules ──► acl.nomatch
                   the first that says ALLOW or DENY decides, IGNORE asks the next

A candidate for the rules (`mqttd.access.acl.shadow`) may run beside them.

What of the answers may be remembered, for one client or for many, is told by `Remembered`.

Promise: modules are asked in the order of their sequence numbers, then of registration.  One that
raises or answers nonsense denies, and is counted.  Every decision names its rule.  `decide` and
`explain` are one walk: explaining only notes down what was said.  All methods are called in the
reactor thread and answer at once, so that the broker can cache the answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from mqttd.access.acl.explain import Explanation, Step, steps
from mqttd.access.acl.rules import AclRules
from mqttd.access.acl.shadow import OnDifference, Shadow, read
from mqttd.access.acl.terms import Rule
from mqttd.access.acl_entry import Entry
from mqttd.access.acl_module import Held, explains
from mqttd.access.auth.back_end import words_of
from mqttd.access.remembered import Remembered
from mqttd.secrets.files import replace_file
from mqttd.types import Action, ClientInfo, Decision, Verdict

if TYPE_CHECKING:
    from mqttd.config.schema import Acl

__all__ = ["AclReloadError", "Authorization", "OnDeny", "PromoteError"]

OnDeny: TypeAlias = Callable[[ClientInfo, Action, str, str], None]

_ALLOW: Final = Verdict.ALLOW
_DENY: Final = Verdict.DENY
_IGNORE: Final = Verdict.IGNORE

_SUPERUSER: Final = Decision(_ALLOW, "superuser")

#: Those of a chain without modules.
_NO_RULES: Final = AclRules(())


class AclReloadError(Exception):
    """One or more modules could not read their rules again, and keep the ones they had."""


class PromoteError(Exception):
    """The candidate cannot take the place of the rules; the text says why."""


class Authorization(Remembered):
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
        super().__init__(
            Decision(
                _ALLOW if config.nomatch == "allow" else _DENY,
                f'no rule matched: acl.nomatch = "{config.nomatch}"',
            )
        )
        self.on_deny = on_deny
        self.on_error = on_error
        #: some client's own rules look at QoS or retain
        self.client_rules_depend: bool = False
        #: told of what the candidate would have decided otherwise, sampled
        self.on_difference: OnDifference | None = None
        self.config = config
        if config.shadow.file:
            self.shadow = Shadow(config.shadow.file, time.monotonic, self._differs)
        self._number = 0

    # -- modules

    def names(self) -> list[str]:
        """The names of the modules, in the order they are asked."""
        return [entry.name for entry in self._modules]

    def register(self, name: str, module: object, seq: int | None = None) -> None:
        """Put a module, whose ``init`` has been called, into the chain; `seq` None is last.

        One whose place is held takes it, unless `seq` names another.
        Raises ValueError for a name in use, `zope.interface.Invalid` for a module without the
        methods of `IAccessControl`.
        """
        told = explains(module)
        for entry in self._modules:
            if entry.name == name:
                if not isinstance(entry.module, Held):
                    raise ValueError(f"acl module {name!r} is registered already")
                self._modules.remove(entry)
                if seq is None:
                    seq = entry.seq
                break
        if seq is None:
            seq = max((entry.seq for entry in self._modules), default=0) + 1
        self._number += 1
        self._modules.append(Entry(name, module, seq, self._number, told))
        self._modules.sort(key=_place)

    def unregister(self, name: str) -> bool:
        """Take a module out of the chain; False if it is not there."""
        for entry in self._modules:
            if entry.name == name:
                self._modules.remove(entry)
                _close(entry.module)
                return True
        return False

    def hold(self, name: str, seq: int | None = None) -> int:
        """Take a module out, and have its place deny until another comes or `release`.

        Without such a module, the place is made at `seq`.  Returns where it is.
        """
        for entry in self._modules:
            if entry.name == name:
                seq = entry.seq
                self.unregister(name)
                break
        self.register(name, Held(), seq)
        for entry in self._modules:
            if entry.name == name:
                return entry.seq
        raise KeyError(name)

    def release(self, name: str) -> None:
        """Nobody comes for a place that is held."""
        for entry in self._modules:
            if entry.name == name and isinstance(entry.module, Held):
                self._modules.remove(entry)
                return

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
        decision = self._walk(client, action, topic, None, None)
        shadow = self.shadow
        if shadow is not None:
            other = self._walk(client, action, topic, shadow.rules, None)
            shadow.compare(client, action, topic, decision, other)
        return decision

    def look(
        self, client: ClientInfo, action: Action, topic: str, rules: AclRules | None = None
    ) -> Decision:
        """As `decide`, counting nothing; with `rules` in the place of the rules file."""
        return self._walk(client, action, topic, self.rules() if rules is None else rules, None)

    def explain(self, client: ClientInfo, action: Action, topic: str) -> Explanation:
        """The decision, and everything that was asked before it with why it did not match."""
        trail: list[Step] = []
        decision = self._walk(client, action, topic, self.rules(), trail)
        if not (trail and trail[-1].matched):
            trail.append(Step("", decision.rule, True))
        return Explanation(client, action, topic, decision, tuple(trail))

    def rules(self) -> AclRules:
        """The rules of the rules file as they are in force (none if its module was taken out)."""
        for entry in self._modules:
            if entry.file is not None:
                return entry.file.rules
        return _NO_RULES

    def role_rules(self, client: ClientInfo) -> tuple[Rule, ...]:
        """The rules of a client's roles, where they are asked before the rules file."""
        for entry in self._modules:
            if entry.file is not None:
                break
            if entry.roles is not None:
                found = entry.roles.rules_of(client.username)
                if found is not None:
                    return found.rules
        return ()

    def _walk(
        self,
        client: ClientInfo,
        action: Action,
        topic: str,
        rules: AclRules | None,
        trail: list[Step] | None,
    ) -> Decision:
        """Ask along the chain.

        With `rules`, these stand in for those of the rules file and nothing is counted; `trail`
        gets what was asked.
        """
        if client.superuser:
            return _SUPERUSER
        if client.acl is not None:
            own = cast(Any, client.acl).decide(client, action, topic)
            if trail is not None and isinstance(client.acl, AclRules):
                trail += steps(client.acl, client, action, topic, "client")
            if own.verdict is not _IGNORE:
                return cast(Decision, own)
        for entry in self._modules:
            if entry.idle():
                continue
            counted = 1 if rules is None else 0
            entry.hit += counted
            try:
                stands = rules if entry.file is not None else None
                if entry.roles is not None:
                    stands = entry.roles.rules_of(client.username)
                    if stands is None:
                        entry.ignore += counted
                        continue
                if rules is not None and stands is not None:
                    decision = stands.look(client, action, topic)
                    if trail is not None:
                        trail += steps(stands, client, action, topic, entry.name)
                else:
                    decision = entry.ask(client, action, topic)
                    if trail is not None:
                        passed = decision.verdict is _IGNORE
                        why = "has nothing to say" if passed else ""
                        trail.append(Step(entry.name, decision.rule, not passed, why))
            except Exception as error:
                self._count_error(entry, error)
                return Decision(_DENY, f"module {entry.name} failed: {words_of(error)}", entry.name)
            if decision.verdict is _ALLOW:
                entry.ok += counted
                return decision
            if decision.verdict is _DENY:
                entry.deny += counted
                return decision
            entry.ignore += counted
        return self.nomatch

    @property
    def depends_on_qos_retain(self) -> bool:
        """True if any rule looks at QoS or retain, so that a cache must be keyed by them too.

        A module that does not say (attribute ``depends_on_qos_retain``) may.
        """
        if self.shadow is not None and self.shadow.rules.depends_on_qos_retain:
            return True
        return self.client_rules_depend or any(
            getattr(entry.module, "depends_on_qos_retain", True)
            for entry in self._modules
            if not entry.idle()
        )

    # -- control

    def prepare(self) -> None:
        """Do the slow part of the next `reload_acl` (reading, compiling), in any thread."""
        for entry in list(self._modules):
            if entry.file is not None:
                entry.file.prepare()
        if self.shadow is not None:
            self.shadow.prepare()

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
                errors.append(f"{entry.name}: {_why(error)}")
        if self.shadow is not None:
            try:
                self.shadow.reload()
            except (OSError, ValueError) as error:
                errors.append(f"shadow: {_why(error)}")
        if errors:
            raise AclReloadError("; ".join(errors))

    def promote(self) -> str:
        """Make the candidate the rules: write it over the rules file and read that.

        The rules there were are kept beside it, as ``FILE.bak``; their path is returned.  Raises
        `PromoteError`, and then nothing has changed.
        """
        backup = self.write_candidate()
        self.reload_acl()
        return backup

    def write_candidate(self) -> str:
        """The slow part of `promote`, in any thread: the files; then comes `reload_acl`."""
        shadow = self.shadow
        if shadow is None:
            raise PromoteError("there is no candidate: acl.shadow.file is not set")
        path = self.config.file
        try:
            if read(shadow.path) != shadow.text:
                raise PromoteError(
                    f"{shadow.path} has changed since it was read; reload, and look at its"
                    " differences again"
                )
            backup = f"{path}.bak"
            replace_file(backup, read(path), path)
            replace_file(path, shadow.text, path)
        except (OSError, ValueError) as error:
            raise PromoteError(f"the old rules stay in force: {error}") from None
        self.prepare()
        return backup

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
            if not entry.idle()
        ]

    def close(self, shared: Container[str] = ()) -> None:
        """Let go of what the modules hold; everything is denied afterwards.

        Those named in `shared` serve others too, and go on.
        """
        for entry in self._modules:
            if entry.name not in shared:
                _close(entry.module)
        self._modules = []
        self.nomatch = Decision(_DENY, "access control is closed")

    def _differs(self, fields: dict[str, object]) -> None:
        if self.on_difference is not None:
            self.on_difference(fields)

    def _count_error(self, entry: Entry, error: Exception) -> None:
        entry.error += 1
        if self.on_error is not None:
            self.on_error(entry.name, error)
        charge = getattr(entry.module, "charge", None)
        if charge is not None:
            charge(entry.name, error)


def _why(error: Exception) -> str:
    """An error in words, those of a file with its name."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _place(entry: Entry) -> tuple[int, int]:
    return entry.seq, entry.number


def _close(module: Any) -> None:
    close: Callable[[], None] | None = getattr(module, "close", None)
    if close is not None:
        close()
