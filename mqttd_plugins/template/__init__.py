"""The declaration of plugin template: what it is called, and where its code is.

Nothing else belongs here: this file is read whenever plugins are listed, the code when it is
loaded.
"""

from mqttd.plugins.declare import MqttdPlugin

__all__ = ["template"]

template = MqttdPlugin(
    name="template",
    version="0.1.0",
    description="Follows each message from its publisher to its subscribers' acknowledgement.",
    factory="mqttd_plugins.template.plugin:Template",
    config_schema="mqttd_plugins.template.plugin:Settings",
)
