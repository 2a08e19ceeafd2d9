"""Configuration: the schema, the loader of ``etc/mqttd.conf`` and the reference generator."""

from __future__ import annotations

__all__: list[str] = []
