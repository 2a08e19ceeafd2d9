"""What a loaded plugin holds of the broker, and can be taken from it at once.

    plugin --- PluginHandle --+-- hooks, modules        (the broker's)
                              +-- timers, threads       (its own)
                              +-- subscriptions, routes, commands, metrics, topics, alarms
                              +-- its store           (what is in it stays)
                              `-- services, listeners
    revoke(): all of it goes; a method called afterwards raises

Each line is a group of methods, a module beside this one, which keeps what it gave and takes it
back.

Promise: after `revoke` nothing calls into the plugin any more and nothing of the broker refers to
it, whatever the plugin still holds. All that the broker calls runs on the plugin's `Budget`:
measured, broken off when it overstays, counted when it fails, and left out in quarantine.
"""

from __future__ import annotations

from zope.interface import implementer

from mqttd.interfaces import IPluginHandle
from mqttd.plugins.calls.budget import Budget
from mqttd.plugins.handle.access import Access
from mqttd.plugins.handle.base import Host
from mqttd.plugins.handle.clients import Clients
from mqttd.plugins.handle.hooking import Hooking
from mqttd.plugins.handle.messages import MOST_NESTED, Messages
from mqttd.plugins.handle.operators import Operators
from mqttd.plugins.handle.promises import Promises
from mqttd.plugins.handle.services import Services
from mqttd.plugins.handle.storing import Storing
from mqttd.plugins.handle.timers import Timers

__all__ = ["MOST_NESTED", "Host", "PluginHandle"]


@implementer(IPluginHandle)
class PluginHandle(
    Hooking, Access, Promises, Timers, Messages, Clients, Operators, Services, Storing
):
    """The handle of one load of one plugin; see `IPluginHandle`.

    The last base is made first and taken back last: hooks go before all else.
    """

    def __init__(
        self, host: Host, name: str, data_dir: str, config_dir: str, budget: Budget
    ) -> None:
        super().__init__(host, name, data_dir, config_dir, budget)
