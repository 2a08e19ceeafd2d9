"""The handle's part in access control: modules of the chains, and asking what a client may do."""

from __future__ import annotations

from typing import Any

from zope.interface import directlyProvides, providedBy
from zope.interface.verify import verifyObject

from mqttd.interfaces import IAccessControl, IAuthenticator, IEnhancedAuthenticator
from mqttd.plugins.handle.base import HandleBase
from mqttd.types import Action, ClientInfo

__all__ = ["Access", "PluginFailed"]


class PluginFailed(RuntimeError):
    """A call of a plugin has failed, and is on its account already."""


class _GuardedModule:
    """A module of the access chains whose methods are called on the plugin's budget.

    One that fails raises, and the chain fails closed. What it raises for one client, or answers
    that is no verdict, is counted and does not bring the plugin into quarantine.
    """

    def __init__(self, handle: HandleBase, what: str, module: Any) -> None:
        self._handle = handle
        #: Whose it is, for the log.
        self.plugin = handle.name
        self._what = what
        self._module = module
        directlyProvides(self, providedBy(module))

    def charge(self, name: str, error: BaseException) -> None:
        """Count a failure that came up after the call: a late one, an answer that is no verdict."""
        if not isinstance(error, PluginFailed):
            text = f"{self._what}: {type(error).__name__}: {error}"[:500]
            self._handle.budget.noted("raised", text)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if not callable(value):
            return value

        def guarded(*args: Any) -> Any:
            budget = self._handle.budget
            before = sum(budget.faults.values()) + budget.skipped
            result = self._handle._guard(f"{self._what}.{name}", value, args)
            if result is None and sum(budget.faults.values()) + budget.skipped != before:
                how = f"is {budget.state}" if budget.shut else "failed"
                raise PluginFailed(f"plugin {budget.name} {how}: {budget.last_error}")
            return result

        return guarded


class Access(HandleBase):
    """Modules that authenticate and authorize clients."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._mods: list[tuple[str, str]] = []
        self._keeps_places = False
        self._at_end(self._unregister_all)

    def register_mod(self, kind: str, name: str, module: Any, seq: int | None = None) -> None:
        """See `IPluginHandle.register_mod`."""
        self._check()
        if kind not in ("auth", "acl"):
            raise ValueError(f'kind = {kind!r}: expected "auth" or "acl"')
        if kind == "acl":
            verifyObject(IAccessControl, module)
        elif IAuthenticator.providedBy(module) or not IEnhancedAuthenticator.providedBy(module):
            verifyObject(IAuthenticator, module)
        guarded = _GuardedModule(self, f"{kind} {name}", module)
        self._host.broker.access.register_mod(kind, name, guarded, seq)
        self._mods.append((kind, name))
        self._changed()

    def unregister_mod(self, kind: str, name: str) -> None:
        """See `IPluginHandle.unregister_mod`."""
        if self.revoked:
            return
        if (kind, name) not in self._mods:
            raise ValueError(f"plugin {self.name} has no {kind} module {name!r}")
        self._mods.remove((kind, name))
        self._host.broker.access.unregister_mod(kind, name)
        self._changed()

    def authorize(self, client: ClientInfo, action: Action, topic: str) -> bool:
        """See `IPluginHandle.authorize`."""
        self._check()
        return bool(self._host.broker.authorize(client, action, topic))

    def beyond(self, action: Action, topic: str, size: int) -> str:
        """See `IPluginHandle.beyond`."""
        self._check()
        settings = self._host.broker.settings
        if topic.count("/") >= settings.max_topic_levels:
            return f"at most {settings.max_topic_levels} levels are taken (mqtt.max_topic_levels)"
        if len(topic.encode()) > settings.max_topic_length:
            return f"at most {settings.max_topic_length} bytes are taken (mqtt.max_topic_length)"
        if action.qos > settings.max_qos:
            return f"QoS {action.qos} is not offered (mqtt.max_qos)"
        if action.retain and not settings.retain_available:
            return "retained messages are not offered (mqtt.retain_available)"
        most = settings.retained_max_payload
        if action.retain and most and size > most:
            return f"{size} bytes to be retained, at most {most} are (retained.max_payload)"
        return ""

    def describe(self) -> dict[str, Any]:
        """See `HandleBase.describe`."""
        return {"modules": [f"{kind} {name}" for kind, name in self._mods], **super().describe()}

    def keep_places(self) -> list[tuple[str, str]]:
        """Have `revoke` hold the places of the modules, for who comes back; returns which."""
        self._keeps_places = True
        return list(self._mods)

    def _unregister_all(self) -> None:
        access = self._host.broker.access
        for kind, name in self._mods:
            if self._keeps_places:
                self._quietly(access.hold_mod, kind, name)
            else:
                self._quietly(access.unregister_mod, kind, name)
        if self._mods and not self._keeps_places:
            self._changed()
        self._mods.clear()

    def _changed(self) -> None:
        """Rights are asked for again; an access control that tells of its changes has done so."""
        broker = self._host.broker
        if broker.access.on_change is None:
            broker.access_changed()
