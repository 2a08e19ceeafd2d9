"""The declaration of the plugin `prometheus`; its code is imported when it is loaded."""

from mqttd.plugins.declare import MqttdPlugin

__all__ = ["prometheus"]

prometheus = MqttdPlugin(
    name="prometheus",
    version="1.0.0",
    description="Serves the broker's metrics to Prometheus.",
    factory="mqttd_plugins.prometheus.plugin:Prometheus",
    config_schema="mqttd_plugins.prometheus.plugin:Settings",
)
