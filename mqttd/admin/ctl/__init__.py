"""`mqttd-ctl`, a module for each group of its commands."""
