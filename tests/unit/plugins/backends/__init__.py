"""Unit tests of mqttd.plugins.backends."""
