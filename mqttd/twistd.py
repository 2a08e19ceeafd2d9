"""What `twistd mqttd` loads: the broker, on its own reactor where no other was asked for.

In this order: libraries that `mqttd.service` imports install Twisted's.
"""

from __future__ import annotations

from mqttd.transports.reactor import prefer

prefer()

from mqttd.service import Options, makeService  # noqa: E402

__all__ = ["Options", "makeService"]
