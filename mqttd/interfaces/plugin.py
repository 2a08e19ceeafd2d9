"""A plugin, and how it is found.

Part of `mqttd.interfaces`, whose rules hold here too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zope.interface import Attribute, Interface

from mqttd.interfaces.handle import IPluginHandle

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred


__all__ = ["IPlugin", "IMqttdPlugin", "IHookPlugin"]


class IPlugin(Interface):
    """The running part of a plugin: what a plugin's factory makes, once for each load."""

    def load(handle: IPluginHandle, config: Any) -> Deferred[None] | None:
        """Register what is wanted; called when the plugin is loaded.

        :param handle: `IPluginHandle`; what is registered through it ends with `unload`.
        :param config: an instance of the plugin's msgspec Struct, or a dict without one, read
            from ``etc/plugins/NAME.conf``.
        :return: None, or a Deferred that fires when the plugin is ready, within 10 seconds.
        :raises Exception: it cannot run; the text says why.  All that was registered is taken
            back, and `unload` is called.
        """

    def unload() -> Deferred[None] | None:
        """Let go of what does not end with the handle; called once after each `load`.

        Also after one that failed.  The handle still works while it runs.

        :return: None, or a Deferred that fires when it is done, within 10 seconds.
        """


#: What `IPlugin` was called first.
IHookPlugin = IPlugin


class IMqttdPlugin(Interface):
    """The declaration of a plugin: a module-level object in ``mqttd_plugins``.

    Importing the declaration must cost nothing: heavy imports belong to the module that
    `factory` names.
    """

    name = Attribute("str: name in the configuration and in mqttd-ctl, [a-z][a-z0-9_]*")
    version = Attribute("str: version of the plugin")
    api_version = Attribute("int: the `API_VERSION` it was written for")
    description = Attribute("str: one line for operators")
    config_schema = Attribute(
        "str | None: ``package.module:Struct``, the msgspec Struct that its configuration file, "
        "``etc/plugins/NAME.conf`` (TOML), must fit"
    )
    factory = Attribute(
        "str: ``package.module:callable``, called without arguments on each load; what it returns "
        "provides `IPlugin`"
    )
    isolation = Attribute(
        'str: ``"none"``, it runs in the broker; ``"process"``, in a process of its own'
    )
    policy = Attribute(
        'str: what its callbacks answer in quarantine: ``"ignore"`` passes them over, ``"deny"`` '
        "refuses at client.authenticate, client.authorize and message.publish"
    )
    workers = Attribute(
        'str: where it runs in a broker of several workers: in ``"every"`` one of them, or in '
        '``"one"``, the first, whose clients alone its callbacks hear of; its subscriptions get '
        "every message"
    )
