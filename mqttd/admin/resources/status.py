"""Who and where the broker is, whether it is alive and ready, and all its figures.

GET  /health/live     200 while the event loop answers
GET  /health/ready    200 when clients are let in, 503 before, and while all new ones are refused
GET  /metrics         every counter and gauge, in the text format of Prometheus
"""

from __future__ import annotations

import json
import os
import platform
from typing import Any

from msgspec import Struct

from mqttd import __version__, compiled
from mqttd.admin.doors.health import exposition
from mqttd.admin.http.parts import Json, Parts
from mqttd.admin.http.route import Ask, get
from mqttd.readmodel.figures import Reading

__all__ = ["Status"]


class StatusView(Struct):
    """Who and where a broker is."""

    name: str
    version: str
    compiled: bool
    python: str
    pid: int
    #: Seconds.
    uptime: int
    listeners: list[Json]
    who_may_connect: str
    stats: dict[str, int]


class NodeView(Struct, kw_only=True):
    """One node of the cluster; None is what there is no link to be told by."""

    name: str
    #: This one.
    here: bool
    version: str
    #: `running`, `not ready`, or `no link` to it.
    state: str
    uptime: int | None
    connections: int | None
    sessions: int | None


class Nodes(Struct):
    """The nodes that there are: this one, and those that it sees."""

    nodes: list[NodeView]


class Live(Struct):
    """Whether the event loop answers."""

    live: bool


class Ready(Struct):
    """Whether clients are let in."""

    ready: bool
    #: Why not.
    reason: str = ""
    #: What is to be known all the same.
    note: str = ""


class Status:
    """The broker as a whole."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    @get("/status", answer=StatusView)
    def status(self, ask: Ask) -> StatusView:
        """Who and where this broker is, and its gauges."""
        broker = self.parts.broker
        stats = broker.stats()
        return StatusView(
            broker.name,
            __version__,
            compiled(),
            platform.python_version(),
            os.getpid(),
            stats["uptime_seconds"],
            self.parts.listeners(),
            self.parts.who(),
            stats,
        )

    @get("/nodes", answer=Nodes)
    def nodes(self, ask: Ask) -> Nodes:
        """This node, and those of its cluster that it sees."""
        broker = self.parts.broker
        stats = broker.stats()
        this = NodeView(
            name=broker.name, here=True, version=__version__, state=_state(self._ready()),
            uptime=stats["uptime_seconds"], connections=stats["connections"],
            sessions=stats["sessions"],
        )  # fmt: skip
        cluster = self.parts.cluster
        others = [
            NodeView(
                name=one["node"], here=False, version=one["version"],
                state=_state(one["ready"]) if one["linked"] else "no link", uptime=one["uptime"],
                connections=one["connections"], sessions=one["sessions"],
            )
            for one in (cluster.describe()["nodes"] if cluster is not None else ())
            if not one["here"]
        ]  # fmt: skip
        return Nodes([this, *others])

    @get("/health/live", answer=Live, root=True, role="")
    def live(self, ask: Ask) -> bytes:
        """We are: who is stuck answers nothing."""
        return b'{"live": true}\n'

    @get("/health/ready", answer=Ready, root=True, role="", errors=(503,))
    def ready(self, ask: Ask) -> Any:
        """Whether clients are let in; 503 while they are not."""
        reason = self._not_ready()
        said: Json = {"ready": not reason}
        if reason:
            ask.request.setResponseCode(503)
            said["reason"] = reason
        elif apart := self._apart():
            said["note"] = f"{apart}, and serves (cluster.minority)"
        return json.dumps(said).encode() + b"\n"

    @get("/metrics", root=True, media="text/plain; version=0.0.4; charset=utf-8", answer=str)
    def text(self, ask: Ask) -> bytes:
        """All figures, in the text format of Prometheus."""
        found = self.parts.model.figures.read()
        return exposition(found.counters, found.gauges).encode()

    @get("/metrics", answer=Reading)
    def metrics(self, ask: Ask) -> Reading:
        """Counters since the start, and gauges."""
        return self.parts.model.figures.read()

    def _ready(self) -> bool:
        return not self._not_ready()

    def _not_ready(self) -> str:
        """Why nobody is let in; empty: who comes is."""
        if self.parts.drain is not None and self.parts.drain.running:
            return "draining"
        apart = self._apart()
        if not self.parts.is_ready():
            return f"starting, {apart}" if apart else "starting"
        if self.parts.apart is not None and (why := self.parts.apart.hinders()):
            return str(why)
        return "overloaded" if self.parts.broker.overloaded else ""

    def _apart(self) -> str:
        """How it is a node with which the others do not count; empty: it is none."""
        return "" if self.parts.apart is None else str(self.parts.apart.said)


def _state(ready: bool) -> str:
    return "running" if ready else "not ready"
