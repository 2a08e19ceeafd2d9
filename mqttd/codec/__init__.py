"""Bytes to MQTT packets and back, without I/O: the same codec serves broker, bridges and tools.

    bytes ──> parser ──> packets ──> serializer ──> bytes
                 │          │            │
                 └── topic, properties, reasons: the tables both sides read

Imports the standard library only; knows no socket, no clock and no log.
"""
