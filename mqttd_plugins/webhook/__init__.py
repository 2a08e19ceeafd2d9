"""The declaration of the plugin `webhook`; its code is imported when it is loaded."""

from mqttd.plugins.declare import MqttdPlugin

__all__ = ["webhook"]

webhook = MqttdPlugin(
    name="webhook",
    version="1.0.0",
    description="Sends events to an HTTP server, in batches.",
    factory="mqttd_plugins.webhook.plugin:Webhook",
    config_schema="mqttd_plugins.webhook.plugin:Settings",
)
