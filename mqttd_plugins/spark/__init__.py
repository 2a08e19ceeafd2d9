"""The drop-in of the plugin `spark`: it exports the broker's events to a log that Spark reads."""

from mqttd.plugins.declare import MqttdPlugin

spark = MqttdPlugin(
    name="spark",
    version="0.1.0",
    description="writes what happens to an event log that Spark reads exactly once",
    factory="mqttd_plugins.spark.plugin:SparkPlugin",
    config_schema="mqttd_plugins.spark.config:SparkConfig",
)
