"""The declaration of the plugin `rewrite`; its code is imported when it is loaded."""

from mqttd.plugins.declare import MqttdPlugin

__all__ = ["rewrite"]

rewrite = MqttdPlugin(
    name="rewrite",
    version="1.0.0",
    description="Rewrites the topics of messages and subscriptions by rules.",
    factory="mqttd_plugins.rewrite.plugin:Rewrite",
    config_schema="mqttd_plugins.rewrite.plugin:Settings",
)
