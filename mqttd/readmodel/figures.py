"""Counters and gauges of a broker with those of the parts around it, in one place.

    broker.metrics, access, plugins, log  -->  counters    since the start
    broker.stats, account, plugins        -->  gauges      what is there now

Promise: reading them costs the number of figures, not of clients.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

from msgspec import Struct

from mqttd.broker.broker import Broker
from mqttd.broker.ground.seams import ManagedAccess

__all__ = ["Figures", "Reading"]


class Reading(Struct):
    """Every figure at one moment."""

    counters: dict[str, float]
    gauges: dict[str, float]


class Figures:
    """The figures of one broker; `more` gives those of plugins and log."""

    def __init__(self, broker: Broker, more: Callable[[], dict[str, float]] = dict) -> None:
        self.broker = broker
        self.more = more

    def read(self) -> Reading:
        """All of them now."""
        counters: dict[str, float] = {**self.broker.metrics.snapshot()}
        counters.update(cast(ManagedAccess, self.broker.access).counters())
        counters["cpu_seconds"] = time.process_time()
        gauges: dict[str, float] = {**self.broker.stats()}
        for kind, held in self.broker.account.by_kind().items():
            gauges[f"memory_held_{kind}_bytes"] = held
        for name, value in self.more().items():
            (counters if name.endswith("_total") else gauges)[name] = value
        return Reading(counters, gauges)
