"""The declaration of the plugin `auto_subscribe`; its code is imported when it is loaded."""

from mqttd.plugins.declare import MqttdPlugin

__all__ = ["auto_subscribe"]

auto_subscribe = MqttdPlugin(
    name="auto_subscribe",
    version="1.0.0",
    description="Subscribes clients to topics of their own when they connect.",
    factory="mqttd_plugins.auto_subscribe.plugin:AutoSubscribe",
    config_schema="mqttd_plugins.auto_subscribe.plugin:Settings",
)
