"""What an operator may ask about the access rules; the answers are JSON.

::

    mqttd-ctl acl ..., HTTP ──► mqttd.admin.acl ──► AclQuestions ──► explain, reverse, lint, diff

The border between the HTTP interface and the rules: plain values in, plain values out.  Long work
is an iterator that does a little in each step and leaves its answer in the dictionary it was given;
what grows with the rules by more than their number is done by `mqttd.access.process`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

from mqttd.access.acl.reverse import Reach, in_steps, reached_by, reaches, touching
from mqttd.access.acl.rules import AclRules
from mqttd.access.authorization import Authorization
from mqttd.access.diff import Asked, Held, begun, compare
from mqttd.access.process import RulesProcess
from mqttd.types import Action, ClientInfo, Verdict

__all__ = ["AclQuestions"]

Json: TypeAlias = dict[str, Any]

#: Clients that an answer lists; all are counted.
MAX_CLIENTS: Final = 10_000


class AclQuestions:
    """Answers questions about the rules of `authorization`."""

    def __init__(self, authorization: Authorization) -> None:
        self.authorization = authorization
        self._processes: set[RulesProcess] = set()

    def process(self) -> RulesProcess:
        """One to look at rules with; `end` it."""
        process = RulesProcess()
        self._processes.add(process)
        return process

    def end(self, process: RulesProcess) -> None:
        """It is not needed any more; waits for its end, so not in the reactor."""
        self._processes.discard(process)
        process.close()

    def close(self) -> None:
        """Nobody is to wait for an answer any more."""
        for process in list(self._processes):
            process.kill()

    def rules(self) -> list[Json]:
        """The rules in force, with how often each decided."""
        rules = self.authorization.rules()
        return [
            {"file": rule.source, "line": rule.line, "rule": rule.text, "hits": hits}
            for rule, hits in zip(rules.rules, rules.hits, strict=True)
        ]

    def explain(self, client: ClientInfo, action: Action, topic: str) -> Json:
        """The decision, the rule, and why each earlier rule did not match."""
        told = self.authorization.explain(client, action, topic)
        return {
            "allowed": told.decision.verdict is Verdict.ALLOW,
            "rule": told.decision.rule,
            "client_id": client.client_id,
            "username": client.username,
            "peerhost": client.peerhost,
            "superuser": client.superuser,
            "action": action.kind,
            "qos": action.qos,
            "retain": action.retain,
            "topic": topic,
            "steps": [
                {
                    "module": step.module,
                    "rule": step.rule,
                    "matched": step.matched,
                    "reason": step.reason,
                }
                for step in told.steps
            ],
        }

    def who(
        self, topic_filter: str, kind: str, clients: Iterable[ClientInfo], found: Json
    ) -> Iterator[None]:
        """Who may publish to, or read, topics that `topic_filter` matches."""
        touched = yield from in_steps(touching(self.authorization.rules(), kind, topic_filter))
        found["rules"] = []
        for each in (yield from in_steps(reaches(touched, topic_filter))):
            found["rules"].append(_said(each))
            yield None
        found["nomatch"] = self.authorization.config.nomatch
        found["clients"] = []
        found["count"] = 0
        yield None
        for client in clients:
            entry: Json | None = None
            own = client.acl.rules if isinstance(client.acl, AclRules) else ()
            own = (*own, *self.authorization.role_rules(client))
            mine = [rule for rule in own if kind in rule.kinds] + touched
            if client.superuser:
                entry = {"rule": "superuser", "parts": [topic_filter], "but": []}
            elif reach := (yield from in_steps(reached_by(mine, client, topic_filter))):
                entry = _said(reach)
            elif self.authorization.look(client, _action(kind), topic_filter).verdict is _ALLOW:
                entry = {"rule": "no rule", "parts": [topic_filter], "but": []}
            if entry is not None:
                found["count"] += 1
                if len(found["clients"]) < MAX_CLIENTS:
                    found["clients"].append(
                        {
                            "client_id": client.client_id,
                            "username": client.username,
                            "peerhost": client.peerhost,
                            **entry,
                        }
                    )
            yield None

    def lint(
        self, process: RulesProcess, text: str | None = None, name: str = "acl.conf"
    ) -> list[Json]:
        """What is suspicious in the rules in force, or in `text`; waits, so not in the reactor.

        Raises `AclSyntaxError`, `RulesError`.
        """
        if text is None:
            rules = self.authorization.rules()
            text, name = rules.text, rules.source
        nomatch = self.authorization.config.nomatch
        findings: list[Json] = process.ask("lint", text=text, name=name, nomatch=nomatch)[
            "findings"
        ]
        return findings

    def read(self, process: RulesProcess, text: str, name: str, found: Json) -> None:
        """Begin a diff with these rules; waits as `lint` does, and raises the same."""
        rules = self.authorization.rules()
        begun(process.ask("compare", old=(rules.text, rules.source), new=(text, name)), found)

    def asked(self, process: RulesProcess, clients: list[Held]) -> list[list[Asked]]:
        """What is to be compared for each of these clients; waits as `lint` does."""
        told = [(_known(client), *held) for client, *held in clients]
        asked: list[list[Asked]] = process.ask("clients", clients=told)["clients"]
        return asked

    def diff(self, clients: list[Held], asked: list[list[Asked]], found: Json) -> Iterator[None]:
        """What the rules would change for these clients."""
        for (client, _, _), each in zip(clients, asked, strict=True):
            yield from compare(self.authorization, client, each, found)

    def shadow(self) -> Json | None:
        """Where the candidate differs, most frequent first; None without a candidate."""
        shadow = self.authorization.shadow
        if shadow is None:
            return None
        pairs = sorted(shadow.pairs.values(), key=lambda pair: -pair.count)
        return {
            "file": shadow.path,
            "rules": len(shadow.rules.rules),
            "compared": shadow.compared,
            "would_allow": shadow.would_allow,
            "would_deny": shadow.would_deny,
            "differences": [
                {
                    "count": pair.count,
                    "would": pair.would,
                    "rule": pair.live,
                    "shadow_rule": pair.shadow,
                    "client_id": pair.client_id,
                    "username": pair.username,
                    "peerhost": pair.peerhost,
                    "action": pair.kind,
                    "qos": pair.qos,
                    "retain": pair.retain,
                    "topic": pair.topic,
                }
                for pair in pairs
            ],
        }

    def write_candidate(self) -> str:
        """The files' part of making the candidate the rules, in any thread; then reload.

        Returns where the old rules are.  Raises `PromoteError`.
        """
        return self.authorization.write_candidate()


_ALLOW: Final = Verdict.ALLOW


def _said(reach: Reach) -> Json:
    return {
        "rule": str(reach.rule),
        "parts": list(reach.parts),
        "but": [str(rule) for rule in reach.but],
    }


def _known(client: ClientInfo) -> Json:
    """What rules look at of a client."""
    attributes = client.attributes or {}
    return {
        "client_id": client.client_id,
        "username": client.username,
        "peerhost": client.peerhost,
        "peerport": client.peerport,
        "listener": client.listener,
        "protocol_version": client.protocol_version,
        "cert_common_name": client.cert_common_name,
        "attributes": {key: value for key, value in attributes.items() if isinstance(value, str)},
    }


def _action(kind: str) -> Action:
    return Action("publish" if kind == "publish" else "subscribe")
