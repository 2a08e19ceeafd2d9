"""What of a configuration does not go together with several workers yet.

docs/design/workers.md has the same keys in its table; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mqttd.config.schema import Config

__all__ = ["KEYS", "refused"]

#: By what is refused: whether a configuration has it.
KEYS: Final[dict[str, Callable[[Config], bool]]] = {
    "session.upgrade_qos = true": lambda config: config.session.upgrade_qos,
}


def refused(config: Config) -> str:
    """What of a configuration does not go together with workers; empty where all does."""
    for key, has in KEYS.items():
        if has(config):
            return f"{key} is not possible with node.workers above 1 yet"
    return ""
