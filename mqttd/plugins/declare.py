"""The declaration of a plugin: one object at the top of its module, which costs nothing to import.

    mqttd_plugins/acme.py      acme = MqttdPlugin(name="acme", ..., factory="acme_mqtt:Acme")
                                             |
    mqttd-ctl plugins load acme  ------------+--> import acme_mqtt, Acme() --> an `IPlugin`

Promise: nothing of the broker is imported here but `mqttd.interfaces`.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from twisted.plugin import IPlugin as ITwistedPlugin
from zope.interface import implementer

from mqttd.interfaces import API_VERSION, IMqttdPlugin

__all__ = ["MqttdPlugin"]

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_DOTTED: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@implementer(ITwistedPlugin, IMqttdPlugin)
class MqttdPlugin:
    """Says what a plugin is called and where its code is; see `mqttd.interfaces.IMqttdPlugin`.

    ``factory`` and ``config_schema`` are dotted names, ``package.module:name``, of what makes
    the `mqttd.interfaces.IPlugin` and of its msgspec Struct. Raises ValueError for names that
    cannot be one; the broker then lists the module as failed.
    """

    def __init__(
        self,
        name: str,
        version: str,
        description: str,
        factory: str,
        config_schema: str | None = None,
        api_version: int = API_VERSION,
        isolation: Literal["none", "process"] = "none",
        policy: Literal["ignore", "deny"] = "ignore",
        workers: Literal["every", "one"] = "every",
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(f"name = {name!r}: expected up to 64 of a-z, 0-9 and _, first a-z")
        for what, dotted in (("factory", factory), ("config_schema", config_schema)):
            if dotted is not None and not _DOTTED.fullmatch(dotted):
                raise ValueError(f"{what} = {dotted!r}: expected 'package.module:name'")
        if isolation not in ("none", "process"):
            raise ValueError(f"isolation = {isolation!r}: expected 'none' or 'process'")
        if policy not in ("ignore", "deny"):
            raise ValueError(f"policy = {policy!r}: expected 'ignore' or 'deny'")
        if workers not in ("every", "one"):
            raise ValueError(f"workers = {workers!r}: expected 'every' or 'one'")
        self.name = name
        self.version = version
        self.description = description
        self.factory = factory
        self.config_schema = config_schema
        self.api_version = api_version
        self.isolation = isolation
        self.policy = policy
        self.workers = workers

    def __repr__(self) -> str:
        return f"<MqttdPlugin {self.name} {self.version}>"
