"""One access-control module in its chain: where it stands, what it was asked, what it said.

The rules file and the roles are known by their kind, so that their tables are asked at once; other
modules answer a `Verdict`, or a `Decision` that names their rule.

Promise: an answer that is neither is an error of the module, never a right.
"""

from __future__ import annotations

from typing import Any

from mqttd.access.acl_module import AclFile
from mqttd.access.roles.roles import Roles
from mqttd.broker.ground.verdicts import kind_of
from mqttd.types import Action, ClientInfo, Decision, Verdict

__all__ = ["Entry"]


class Entry:
    """A registered module and its counters; `file` is the module if it is the rules file."""

    __slots__ = (
        "deny",
        "error",
        "explains",
        "file",
        "hit",
        "ignore",
        "module",
        "name",
        "number",
        "ok",
        "roles",
        "seq",
    )

    def __init__(self, name: str, module: Any, seq: int, number: int, explains: bool) -> None:
        self.name = name
        self.module = module
        self.seq = seq
        self.number = number
        self.explains = explains
        self.file: AclFile | None = module if isinstance(module, AclFile) else None
        self.roles: Roles | None = module if isinstance(module, Roles) else None
        self.hit: int = 0
        self.ok: int = 0
        self.deny: int = 0
        self.ignore: int = 0
        self.error: int = 0

    def idle(self) -> bool:
        """It has nothing to say about anybody: as if it were not there."""
        return self.roles is not None and not self.roles.members

    def ask(self, client: ClientInfo, action: Action, topic: str) -> Decision:
        """What the module says, and why; whatever it raises, TypeError for what is no decision."""
        if self.file is not None:
            return self.file.rules.decide(client, action, topic)
        module = self.module
        if self.explains:
            decision = module.decide(client, action, topic)
            if not isinstance(decision, Decision):
                raise TypeError(f"not a Decision: {kind_of(decision)}")
            if not isinstance(decision.verdict, Verdict) or not isinstance(decision.rule, str):
                raise TypeError("not a Decision: its verdict or its rule is none")
            return decision
        verdict = module.check_acl(client, action, topic)
        if not isinstance(verdict, Verdict):
            raise TypeError(f"not a Verdict: {kind_of(verdict)}")
        return Decision(verdict, f"module {self.name}", self.name)
