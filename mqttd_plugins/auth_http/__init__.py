"""The declaration of the plugin `auth_http`; its code is imported when it is loaded."""

from mqttd.plugins.declare import MqttdPlugin

__all__ = ["auth_http"]

auth_http = MqttdPlugin(
    name="auth_http",
    version="1.0.0",
    description="Asks an HTTP service who may connect, and what they may do.",
    factory="mqttd_plugins.auth_http.plugin:AuthHttp",
    config_schema="mqttd_plugins.auth_http.plugin:Settings",
)
