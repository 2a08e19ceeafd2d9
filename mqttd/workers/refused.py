"""What of a configuration does not go together with several workers yet."""

from __future__ import annotations

from mqttd.config.schema import Config

__all__ = ["refused"]


def refused(config: Config) -> str:
    """What of a configuration does not go together with workers; empty where all does."""
    said = "is not possible with node.workers above 1 yet"
    if config.admin.page.enabled:
        return f"admin.page.enabled = true {said}"
    if config.admin.tcp.token_file or config.admin.tcp.pull_token_file:
        return f"admin.tcp.token_file {said}"
    if config.session.upgrade_qos:
        return f"session.upgrade_qos = true {said}"
    return ""
