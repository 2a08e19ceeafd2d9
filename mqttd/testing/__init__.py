"""What plugin authors test with: a broker in memory, a recorder, faults, conformance classes.

    MemoryBroker, MemoryClient    the real broker on `twisted.internet.task.Clock`, no sockets
    HookRecorder                  what ran at which hook point, with what
    FaultInjector                 callbacks and back ends that raise, are slow, or never answer
    ...Conformance                inherit one for each interface that you provide

Nothing here sleeps or opens a socket; the same test gives the same result every time.
"""

from __future__ import annotations

from mqttd.testing.conformance import (
    AccessControlConformance,
    AuthenticatorConformance,
    PluginConformance,
    RegistryConformance,
    RetainedStoreConformance,
    SessionStoreConformance,
    client_info,
)
from mqttd.testing.faults import FaultInjector
from mqttd.testing.memory import MemoryBroker, MemoryClient, NotConnected
from mqttd.testing.plugin import LoadedPlugin, result_of
from mqttd.testing.plugin_store import PluginStoreConformance
from mqttd.testing.recorder import HookCall, HookRecorder

__all__ = [
    "AccessControlConformance",
    "AuthenticatorConformance",
    "FaultInjector",
    "HookCall",
    "HookRecorder",
    "LoadedPlugin",
    "MemoryBroker",
    "MemoryClient",
    "NotConnected",
    "PluginConformance",
    "PluginStoreConformance",
    "RegistryConformance",
    "RetainedStoreConformance",
    "SessionStoreConformance",
    "client_info",
    "result_of",
]
