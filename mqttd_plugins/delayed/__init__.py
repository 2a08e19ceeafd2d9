"""The declaration of the plugin `delayed`; its code is imported when it is loaded."""

from mqttd.plugins.declare import MqttdPlugin

__all__ = ["delayed"]

delayed = MqttdPlugin(
    name="delayed",
    version="1.0.0",
    description="Holds messages to $delayed/SECONDS/topic back for that long.",
    factory="mqttd_plugins.delayed.plugin:Delayed",
    config_schema="mqttd_plugins.delayed.plugin:Settings",
)
