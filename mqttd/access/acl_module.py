"""A module of the access-control chain as the chain sees it; the one that holds the rules file.

What has to do with zope interfaces is here: `mqttd.access.acl.rules` and
`mqttd.access.authorization` are compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from zope.interface import implementer, verify

from mqttd.access.acl.rules import AclRules
from mqttd.interfaces import IAccessControl, IAccessExplainer
from mqttd.types import Action, ClientInfo, Decision, Verdict

__all__ = ["AclFile", "Held", "explains"]


def explains(module: object) -> bool:
    """Whether a module can name the rule behind its verdict.

    Raises `zope.interface.Invalid` for one without the methods of `IAccessControl`.
    """
    verify.verifyObject(IAccessControl, module)
    return bool(IAccessExplainer.providedBy(module))


@implementer(IAccessExplainer)
class AclFile:
    """The rules of a file as an access-control module; option ``file``: its path."""

    def __init__(self) -> None:
        self.path = ""
        self.rules = AclRules(())
        self._ready: AclRules | Exception | None = None

    def init(self, opts: Mapping[str, object]) -> None:
        """Read the file; raises OSError or `AclSyntaxError`, which name it."""
        self.path = str(opts["file"])
        self.reload_acl()

    def prepare(self) -> None:
        """Do the slow part of the next `reload_acl`, in any thread."""
        try:
            self._ready = AclRules.from_file(self.path)
        except Exception as error:
            self._ready = error

    def reload_acl(self) -> None:
        """Read the file again; on any error the rules there were stay."""
        if self._ready is None:
            self.prepare()
        ready, self._ready = self._ready, None
        if isinstance(ready, Exception):
            raise ready
        assert ready is not None
        self.rules = ready

    def check_acl(self, client: ClientInfo, action: Action, topic: str) -> Verdict:
        """The verdict of the first rule that matches, IGNORE where none does."""
        return self.rules.decide(client, action, topic).verdict

    def decide(self, client: ClientInfo, action: Action, topic: str) -> Decision:
        """As `check_acl`, with the rule."""
        return self.rules.decide(client, action, topic)

    @property
    def depends_on_qos_retain(self) -> bool:
        """True if any rule looks at QoS or retain."""
        return self.rules.depends_on_qos_retain

    def description(self) -> str:
        """The file and how many rules it holds."""
        count = len(self.rules.rules)
        return f"acl: {count} rule{'' if count == 1 else 's'} in {self.path}"


@implementer(IAccessExplainer)
class Held:
    """Stands at the place of a plugin's module while the plugin is loaded again: it denies."""

    def init(self, opts: Mapping[str, object]) -> None:
        """There are no options."""

    def check_acl(self, client: ClientInfo, action: Action, topic: str) -> Verdict:
        """See `IAccessControl.check_acl`."""
        return Verdict.DENY

    def decide(self, client: ClientInfo, action: Action, topic: str) -> Decision:
        """See `IAccessExplainer.decide`."""
        return Decision(Verdict.DENY, "its plugin is being loaded again")

    def reload_acl(self) -> None:
        """There are no rules."""

    #: All is denied.
    depends_on_qos_retain: Final = False

    def description(self) -> str:
        """That it waits."""
        return "missing, its plugin is being loaded again"
