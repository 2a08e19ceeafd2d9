"""Every interface a plugin may provide, and nothing else: the plugin author's contract.

Rules that hold for all of them, unless a method says otherwise:

Threads
    Every method is called in the reactor thread and must not block.  Work that waits returns a
    Deferred, which fires in the reactor thread too; the broker gives up on it after a deadline
    (5 seconds for access control).
Errors
    A method may raise or let its Deferred fail: the broker logs and counts it, fails closed
    (refuses the client, denies the action, keeps the message where it is) and goes on.
Units
    Times are seconds (``float``) since the epoch, durations are seconds, sizes are bytes, topic
    names and filters are ``str``, payloads are ``bytes``.
Versions
    `API_VERSION` grows when an interface changes so that old plugins would break;
    `IMqttdPlugin.api_version` says which one a plugin was written for.  Providers are verified
    with ``zope.interface.verify`` when they are registered.
"""

from __future__ import annotations

from typing import Final

from mqttd.interfaces.access import (
    IAccessControl,
    IAccessExplainer,
    IAuthenticator,
    IAuthExchange,
    IEnhancedAuthenticator,
)
from mqttd.interfaces.handle import IPluginHandle
from mqttd.interfaces.hooks import IHooks, IRepeating, ISubscription
from mqttd.interfaces.plugin import IHookPlugin, IMqttdPlugin, IPlugin
from mqttd.interfaces.stores import IPluginStore, IRegistry, IRetainedStore, ISessionStore

__all__ = [
    "API_VERSION",
    "IAccessControl",
    "IAccessExplainer",
    "IAuthExchange",
    "IAuthenticator",
    "IEnhancedAuthenticator",
    "IHookPlugin",
    "IHooks",
    "IMqttdPlugin",
    "IPlugin",
    "IPluginHandle",
    "IPluginStore",
    "IRegistry",
    "IRepeating",
    "IRetainedStore",
    "ISessionStore",
    "ISubscription",
]

#: Version of the interfaces in this package.
API_VERSION: Final = 1
