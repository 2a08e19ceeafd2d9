"""What of the chain's answers may be remembered: for a class of clients, below a beginning, a no.

::

    class of clients, topic      judge      all of them may publish this
    class of clients             constant   all of them may publish anything
    client                       realms     it may publish whatever begins so: "dev/%c/"
    client                       listening  it may subscribe to whatever begins so
    client, action, topic        refusal    the rule that says no, for when it is met again

All of it holds until rules or modules change, and where nobody is asked before the rules file.
Such a decision is counted once, whoever it serves; a refusal each time it is met.

Promise: the answers are those of `Authorization.decide` for each client that they are for.
"""

from __future__ import annotations

from typing import Final

from mqttd.access.acl.classes import ASK, NO_RULE
from mqttd.access.acl.rules import AclRules
from mqttd.access.acl.shadow import Shadow
from mqttd.access.acl_entry import Entry
from mqttd.session.ground.refusal import Refusal
from mqttd.types import Action, ClientInfo, Decision, Verdict

__all__ = ["Remembered"]

_ALLOW: Final = Verdict.ALLOW

#: Those of a chain without modules.
_NO_RULES: Final = AclRules(())


class Remembered:
    """The modules of the chain, and what of their answers may be remembered."""

    def __init__(self, nomatch: Decision) -> None:
        #: actions denied since the start
        self.denied: int = 0
        #: the candidate beside the rules, None without one
        self.shadow: Shadow | None = None
        #: what is decided where nobody has anything to say
        self.nomatch = nomatch
        self._modules: list[Entry] = []

    # -- for a class of clients

    def class_of(self, client: ClientInfo) -> int:
        """The number of the class of `client`, -1 if it is to be asked for by itself.

        Numbers hold until the next change of rules or modules.  For one that may publish anything
        this is the decision, and counted.
        """
        rules = self._rules_for(client)
        if rules is None:
            return -1
        number = rules.class_of(client)
        found = rules.classes.everything(number)
        if self._allows(found):
            self._count(rules, found)
        return number

    def constant(self, number: int) -> bool:
        """True if all clients of this class may publish, in any way, but below ``$``."""
        rules = self._asked_first()
        return rules is not None and self._allows(rules.classes.everything(number))

    def judge(self, number: int, qos: int, retain: bool, topic: str) -> int:
        """1 if all clients of this class may publish to a topic name so, 0: ask for each."""
        rules = self._asked_first()
        if rules is None:
            return 0
        found = rules.classes.judge(number, qos, retain, topic)
        if not self._allows(found):
            return 0
        self._count(rules, found)
        return 1

    # -- for all topics that begin so

    def realms(self, client: ClientInfo) -> list[str]:
        """Beginnings of topics, with their last ``/``: below each `client` may publish anyhow."""
        return self._begin(client, True)

    def listening(self, client: ClientInfo) -> list[str]:
        """The same of what it may subscribe to; "": all that does not begin with ``$``."""
        if self._allows(NO_RULE):
            rules = self._rules_for(client)
            if rules is not None and rules.leaves_free(client):
                self._count(rules, NO_RULE)
                return [""]
        return self._begin(client, False)

    def _begin(self, client: ClientInfo, publish: bool) -> list[str]:
        found: list[str] = []
        rules = self._rules_for(client)
        if rules is not None:
            for beginning, number in rules.realms(client, publish):
                self._count(rules, number)
                found.append(beginning)
        return found

    # -- a refusal

    def refusal(self, client: ClientInfo, action: Action, topic: str) -> Refusal | None:
        """What refuses this, for when it is asked again; None if it must be decided each time.

        A plugin's module is asked each time: what it counts and tells is its own business.
        """
        if self.shadow is not None or client.superuser or client.acl is not None:
            return None
        passed: list[Entry] = []
        for entry in self._modules:
            if entry.idle():
                continue
            if entry.file is None:
                if entry.roles is None or entry.roles.rules_of(client.username) is not None:
                    return None
            else:
                rules = entry.file.rules
                number = rules.first(client, action, topic)
                if number >= 0:
                    denies = not rules.rules[number].allow
                    return _Refused(self, passed, entry, rules, number) if denies else None
            passed.append(entry)
        if self.nomatch.verdict is _ALLOW:
            return None
        return _Refused(self, passed, None, _NO_RULES, -1)

    # -- who is asked

    def _rules_for(self, client: ClientInfo) -> AclRules | None:
        """The rules, where nothing else is asked about this client before them."""
        rules = self._asked_first()
        if rules is None or client.superuser or client.acl is not None:
            return None
        for entry in self._modules:
            if entry.file is not None:
                break
            if entry.roles is not None and entry.roles.rules_of(client.username) is not None:
                return None
        return rules

    def _asked_first(self) -> AclRules | None:
        """The rules, where nothing else is asked before them, or beside them.

        Roles may stand before them: who has some is in no class.
        """
        if self.shadow is not None:
            return None
        entry = self._first()
        if entry is None:
            return _NO_RULES if self._alone() else None
        return None if entry.file is None else entry.file.rules

    def _first(self) -> Entry | None:
        """The first module that is not of roles."""
        for entry in self._modules:
            if entry.roles is None:
                return entry
        return None

    def _alone(self) -> bool:
        """At most one module has something to say."""
        count = 0
        for entry in self._modules:
            if not entry.idle():
                count += 1
        return count < 2

    def _allows(self, found: int) -> bool:
        """Whether what the rules say for a class allows it to all of its clients."""
        if found == NO_RULE:
            return self._alone() and self.nomatch.verdict is _ALLOW
        return found != ASK

    def _count(self, rules: AclRules, found: int) -> None:
        if found != NO_RULE:
            rules.hits[found] += 1
        entry = self._first()
        if entry is not None:
            entry.hit += 1
            if found == NO_RULE:
                entry.ignore += 1
            else:
                entry.ok += 1


class _Refused(Refusal):
    """A refusal by a rule of the file, or where nobody had anything to say."""

    __slots__ = ("_asked", "_entry", "_number", "_passed", "_rules")

    def __init__(
        self,
        asked: Remembered,
        passed: list[Entry],
        entry: Entry | None,
        rules: AclRules,
        number: int,
    ) -> None:
        self._asked = asked
        self._passed = passed
        self._entry = entry
        self._rules = rules
        self._number = number

    def again(self) -> None:
        """See `Refusal.again`: as `Authorization.authorize` counts it."""
        self._asked.denied += 1
        for entry in self._passed:
            entry.hit += 1
            entry.ignore += 1
        denying = self._entry
        if denying is not None:
            denying.hit += 1
            denying.deny += 1
            self._rules.hits[self._number] += 1
