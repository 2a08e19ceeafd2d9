"""What modules, mqttd-ctl and back ends share of secrets: formats of passwords, files of proofs."""
