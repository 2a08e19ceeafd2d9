"""The declaration of the plugin `auth_mongo`; its code is imported when it is loaded."""

from mqttd.plugins.declare import MqttdPlugin

__all__ = ["auth_mongo"]

auth_mongo = MqttdPlugin(
    name="auth_mongo",
    version="1.0.0",
    description="Authenticates clients against a MongoDB data base.",
    factory="mqttd_plugins.auth_mongo.plugin:AuthMongo",
    config_schema="mqttd_plugins.auth_mongo.plugin:Settings",
)
