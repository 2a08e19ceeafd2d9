"""The declaration of the plugin `trace`; its code is imported when it is loaded."""

from mqttd.plugins.declare import MqttdPlugin

__all__ = ["trace"]

trace = MqttdPlugin(
    name="trace",
    version="1.0.0",
    description="Writes what one client, topic or address does to a file of its own.",
    factory="mqttd_plugins.trace.plugin:Trace",
    config_schema="mqttd_plugins.trace.plugin:Settings",
)
