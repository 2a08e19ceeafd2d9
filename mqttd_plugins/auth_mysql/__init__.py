"""The declaration of the plugin `auth_mysql`; its code is imported when it is loaded."""

from mqttd.plugins.declare import MqttdPlugin

__all__ = ["auth_mysql"]

auth_mysql = MqttdPlugin(
    name="auth_mysql",
    version="1.0.0",
    description="Authenticates clients against a MySQL or MariaDB data base.",
    factory="mqttd_plugins.auth_mysql.plugin:AuthMysql",
    config_schema="mqttd_plugins.auth_mysql.plugin:Settings",
)
