"""What every configuration of mqttd here has in common."""

from __future__ import annotations

from typing import Final

__all__ = ["ALLOW_ALL", "conf"]

ALLOW_ALL: Final = "{allow, all}.\n"

_COMMON: Final = """\
[node]
data_dir = "data"

[listener.tcp.default]
bind = "127.0.0.1:{port}"
transport = "engine"

[acl]
file = "acl.conf"
"""


def conf(*tables: str, port: int = 0) -> str:
    """A configuration with a listener on `port` of loopback, acl.conf beside it, and `tables`."""
    return "\n".join([_COMMON.format(port=port), *tables])
