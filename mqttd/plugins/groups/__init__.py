"""The parts of a plugin's handle, a group a file; `mqttd.plugins.handle` is all of them."""
