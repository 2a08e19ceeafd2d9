"""The declaration of the plugin `presence`; its code is imported when it is loaded."""

from mqttd.plugins.declare import MqttdPlugin

__all__ = ["presence"]

presence = MqttdPlugin(
    name="presence",
    version="1.0.0",
    description="Publishes a notice when a client connects or disconnects.",
    factory="mqttd_plugins.presence.plugin:Presence",
    config_schema="mqttd_plugins.presence.plugin:Settings",
)
