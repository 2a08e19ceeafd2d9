"""Who may do what, as the configuration wants it: for all listeners, and for each that has its own.

[auth], [acl] --> AccessControl ------------.
[listener.*.*.auth] --> AccessControl ------+--> AccessByListener, which the broker asks
roles.json, the store --> Roles ------------'
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from mqttd.access.auth.module import BUILT_IN
from mqttd.access.by_listener import AccessByListener, config_of, configs_by_listener
from mqttd.access.chain import AccessControl, OnError
from mqttd.access.roles.roles import Roles
from mqttd.broker.ground.roles import RoleError
from mqttd.config.schema import Config, Listener
from mqttd.hints import like
from mqttd.options import StartError, why
from mqttd.reports import Reports
from mqttd.transports.sockets import ListenError

__all__ = ["Gate"]


class Gate:
    """Access control and roles of one process, `failed` told of modules that raise.

    Raises StartError, or what the access layer raises for its files; each names the file.
    """

    def __init__(self, config: Config, reactor: Any, reports: Reports, failed: OnError) -> None:
        self.config = config
        self.reactor = reactor
        self.reports = reports
        self.failed = failed
        try:
            self.roles = Roles(os.path.join(config.node.data_dir, "roles.json"))
        except RoleError as error:
            raise StartError(str(error)) from None
        self.roles.on_change = reports.roles_changed
        apart = configs_by_listener(config).items()
        self.access = AccessByListener(
            self.access_control(config), {name: self.access_control(own) for name, own in apart}
        )

    def access_control(self, config: Config) -> AccessControl:
        """Chain and rules of a configuration; raises what the access layer does."""
        return AccessControl(
            config,
            self.reactor,
            on_deny=self.reports.denied,
            on_error=self.failed,
            on_event=self.reports.access_event,
            on_revoked=self.reports.revoked,
            on_count=self.reports.counted,
            roles=self.roles,
        )

    def of_listener(self, listener: str, settings: Listener) -> Callable[[], None]:
        """Read the chain and rules of its own that a listener has; the result puts them in force.

        Raises ListenError for files that cannot be used.
        """
        config = config_of(self.config, settings)
        try:
            own = None if config is None else self.access_control(config)
        except (OSError, ValueError) as error:
            raise ListenError(why(error)) from None
        return lambda: self.access.put(listener, own)

    def unclaimed(self) -> list[str]:
        """What is to be told of names in chains that no plugin has made a module of."""
        found = []
        chains = {"auth.chain": self.access.common}
        for listener, own in self.access.own.items():
            if own.config.auth.chain != self.access.common.config.auth.chain:
                chains[f"listener.{listener.replace(':', '.')}.auth_chain"] = own
        for key, access in chains.items():
            for name in access.authentication.unclaimed():
                known = [*BUILT_IN, *sorted(self.plugins_modules())]
                found.append(
                    f"{access.config.at(key)} names {name!r}, which is no module, built in or of a"
                    " loaded plugin: who comes to it is refused; there are:"
                    f" {', '.join(known)}{like(name, known)}"
                )
        return found

    def plugins_modules(self) -> set[str]:
        """The authentication modules that are plugins'."""
        return self.access.plugins_modules()
