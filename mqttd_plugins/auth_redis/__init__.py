"""The declaration of the plugin `auth_redis`; its code is imported when it is loaded."""

from mqttd.plugins.declare import MqttdPlugin

__all__ = ["auth_redis"]

auth_redis = MqttdPlugin(
    name="auth_redis",
    version="1.0.0",
    description="Authenticates clients against a Redis server.",
    factory="mqttd_plugins.auth_redis.plugin:AuthRedis",
    config_schema="mqttd_plugins.auth_redis.plugin:Settings",
)
