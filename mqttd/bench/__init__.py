"""`mqttd-bench`: many clients from a few processes, which check what they receive."""
