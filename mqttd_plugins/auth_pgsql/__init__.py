"""The declaration of the plugin `auth_pgsql`; its code is imported when it is loaded."""

from mqttd.plugins.declare import MqttdPlugin

__all__ = ["auth_pgsql"]

auth_pgsql = MqttdPlugin(
    name="auth_pgsql",
    version="1.0.0",
    description="Authenticates clients against a PostgreSQL data base.",
    factory="mqttd_plugins.auth_pgsql.plugin:AuthPgsql",
    config_schema="mqttd_plugins.auth_pgsql.plugin:Settings",
)
