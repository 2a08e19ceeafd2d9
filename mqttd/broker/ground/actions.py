"""The actions that clients ask for, each made once: there are nine, and they never change."""

from __future__ import annotations

from typing import Final

from mqttd.types import ACTION_PUBLISH, ACTION_SUBSCRIBE, Action

__all__ = ["PUBLISHING", "RETAINING", "SUBSCRIBING"]

_QOS: Final = range(3)

#: By QoS: to publish, to publish with RETAIN set, to subscribe.
PUBLISHING: Final = tuple(Action(ACTION_PUBLISH, qos) for qos in _QOS)
RETAINING: Final = tuple(Action(ACTION_PUBLISH, qos, True) for qos in _QOS)
SUBSCRIBING: Final = tuple(Action(ACTION_SUBSCRIBE, qos) for qos in _QOS)
