"""The operator's door: the HTTP interface on a Unix socket, and `mqttd-ctl`, which speaks to it."""
