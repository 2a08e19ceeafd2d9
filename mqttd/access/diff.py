"""What new rules would change for the clients that are here.

::

    each client ──► its subscriptions, the topics it publishes to    what it has: lost?
               └──► the topics of the rules that differ              what it could: gained, lost?

Both sets of rules are asked through the whole chain, as enforced.  A topic of a rule with wildcards
is tried, to publish, with a made-up word in their place; to subscribe it is tried as it stands.

`Difference` has the new rules, and says what to ask and what they decide, in a process of its own
(`mqttd.access.child`); `compare` has the chain, in which that decision stands in for the file's.

Promise: one step of the generator asks the chain twice, so that the broker goes on with other work;
at most `MAX_PROBES` topics of rules are tried per client, `MAX_CHANGES` changes are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias, cast

from mqttd.access.acl.asked import fill
from mqttd.access.acl.rules import AclRules
from mqttd.access.acl.terms import (
    Rule,
)
from mqttd.access.acl.who import is_about, parse_address
from mqttd.access.authorization import Authorization
from mqttd.types import ACTION_PUBLISH, ACTION_SUBSCRIBE, Action, ClientInfo, Verdict

__all__ = ["MAX_CHANGES", "MAX_PROBES", "Asked", "Difference", "Held", "begun", "compare"]

#: Topics of changed rules that are tried for each client.
MAX_PROBES: Final = 200
#: Changes that are listed; all are counted.
MAX_CHANGES: Final = 10_000

#: A client, its subscriptions (real filter, QoS) and the topics it publishes to.
Held: TypeAlias = tuple[ClientInfo, list[tuple[str, int]], list[str]]
#: An action (kind, QoS, retain) and its topic, how the client holds that already, and what the new
#: rules decide: the name of the verdict, and the rule.
Asked: TypeAlias = tuple[str, int, bool, str, str, str, str]

#: The word that stands for `+` and `#` when publishing is tried.
_SOME: Final = "(any)"
#: By the verdict of the new rules: rules that decide so, whatever they are asked.
_STANDS: Final = {
    Verdict.ALLOW.name: AclRules.from_text("{allow, all}.", "\0"),
    Verdict.DENY.name: AclRules.from_text("{deny, all}.", "\0"),
    Verdict.IGNORE.name: AclRules(()),
}

Json: TypeAlias = dict[str, Any]


class Difference:
    """The rules that differ between two lists, and what the new ones decide."""

    def __init__(self, old: AclRules, new: AclRules) -> None:
        self.rules = new
        #: Those in one list alone, and those that moved past others.
        self.changed, self.removed = _changed(old.rules, new.rules)
        self.added = len(self.changed) - self.removed

    def asked(
        self, client: ClientInfo, subscriptions: Iterable[tuple[str, int]], topics: Iterable[str]
    ) -> list[Asked]:
        """What is to be asked for a client, each with the decision of the new rules."""
        asked: dict[tuple[Action, str], str] = {}
        for topic_filter, qos in subscriptions:
            asked[Action(ACTION_SUBSCRIBE, qos), topic_filter] = "subscribed"
        for topic in topics:
            asked.setdefault((Action(ACTION_PUBLISH), topic), "publishes")
        known = {(action.kind, topic) for action, topic in asked}
        for action, topic in _probes(self.changed, client):
            if (action.kind, topic) not in known:
                asked[action, topic] = ""
        found: list[Asked] = []
        for (action, topic), held in asked.items():
            will = self.rules.look(client, action, topic)
            found.append(
                (action.kind, action.qos, action.retain, topic, held, will.verdict.name, will.rule)
            )
        return found


def begun(told: Json, found: Json) -> None:
    """`found` is to get the result; the rules that differ are counted already."""
    found.update(
        rules_removed=told["removed"],
        rules_added=told["added"],
        clients=0,
        clients_changed=0,
        subscriptions_lost=0,
        gains=0,
        losses=0,
        changes=[],
    )


def compare(
    authorization: Authorization, client: ClientInfo, asked: list[Asked], found: Json
) -> Iterator[None]:
    """Compare what is decided for a client with what would be; `found` gets the result as JSON."""
    found["clients"] += 1
    before = found["gains"] + found["losses"]
    for kind, qos, retain, topic, held, verdict, rule in asked:
        action = Action(cast(Any, kind), qos, retain)
        was = authorization.look(client, action, topic)
        will = authorization.look(client, action, topic, _STANDS[verdict])
        if was.verdict is not will.verdict:
            gain = will.verdict is Verdict.ALLOW
            found["gains" if gain else "losses"] += 1
            if held == "subscribed" and not gain:
                found["subscriptions_lost"] += 1
            if len(found["changes"]) < MAX_CHANGES:
                found["changes"].append(
                    {
                        "client_id": client.client_id,
                        "username": client.username,
                        "change": "gains" if gain else "loses",
                        "action": kind,
                        "qos": qos,
                        "retain": retain,
                        "topic": topic,
                        "held": held,
                        "rule": rule if will.rule.startswith("\0") else will.rule,
                        "old_rule": was.rule,
                    }
                )
        yield None
    if found["gains"] + found["losses"] > before:
        found["clients_changed"] += 1


def _changed(old: tuple[Rule, ...], new: tuple[Rule, ...]) -> tuple[list[Rule], int]:
    """The rules that are in one list alone, and those that moved; how many of them are old ones."""
    count = Counter(rule.text for rule in old)
    count.subtract(rule.text for rule in new)
    gone = [rule for rule in old if count[rule.text]]
    come = [rule for rule in new if count[rule.text]]
    kept_old = [rule for rule in old if not count[rule.text]]
    kept_new = [rule for rule in new if not count[rule.text]]
    moved = [b for a, b in zip(kept_old, kept_new, strict=True) if a.text != b.text]
    return gone + come + moved, len(gone)


def _probes(changed: list[Rule], client: ClientInfo) -> list[tuple[Action, str]]:
    """What to try for a client because of the rules that differ."""
    address = parse_address(client.peerhost)
    probes: dict[tuple[Action, str], None] = {}
    for rule in changed:
        if not is_about(client, address, rule.who):
            continue
        if rule.topics is None:
            texts = ["#", "$SYS/#"]
        else:
            texts = [t.text if t.eq else fill(t.text, client) or "" for t in rule.topics]
        qos = min(rule.qos) if rule.qos else 0
        for text in filter(None, texts):
            if ACTION_SUBSCRIBE in rule.kinds:
                probes[Action(ACTION_SUBSCRIBE, qos), text] = None
            if ACTION_PUBLISH in rule.kinds:
                name = text.replace("+", _SOME).replace("#", _SOME)
                probes[Action(ACTION_PUBLISH, qos, bool(rule.retain)), name] = None
            if len(probes) >= MAX_PROBES:
                return list(probes)
    return list(probes)
