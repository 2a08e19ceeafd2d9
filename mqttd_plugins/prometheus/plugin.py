"""Serves the broker's metrics, and those of its plugins, in the text format of Prometheus.

    counters, gauges --+
    plugins' metrics --+--> Collector --> registry (prometheus-client) --> GET /metrics
    plugins' budgets --+                     |
                                             +-- process, Python and garbage collector

Two doors: ``/api/v1/plugins/prometheus/metrics`` on the administration socket, always; and an
address of its own when `bind` names one (`mqttd_plugins.prometheus.door`), which has no password
and so is on loopback by default.

Promise: figures are read when Prometheus asks, at its own address at most once a second, and cost
nothing in between.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final

from msgspec import Meta, Struct
from prometheus_client import CollectorRegistry, gc_collector, platform_collector, process_collector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.endpoints import TCP4ServerEndpoint, TCP6ServerEndpoint
from twisted.web.resource import Resource
from twisted.web.server import Request
from zope.interface import implementer

from mqttd.interfaces import IPlugin, IPluginHandle
from mqttd_plugins.prometheus.door import DoorSite, Kept

__all__ = ["Collector", "Prometheus", "Settings"]

_ADDRESS: Final = re.compile(r"(\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<four>[0-9.]+)):(?P<port>\d{1,5})")

#: Counters whose name has a label in it: prefix -> (metric, help, label).
_LABELLED: Final = {
    "dropped_": ("messages_dropped", "Messages that were not delivered, by reason.", "reason"),
    "messages_received_": ("messages_received", "Messages received, by QoS.", "qos"),
}
#: Sums of labelled counters.
_SUMS: Final = frozenset({"dropped", "messages_received"})

#: What each plugin's account tells: metric -> (help, figure of the account).
_ACCOUNT: Final = {
    "plugin_calls": ("Calls of a plugin.", "calls"),
    "plugin_seconds": ("Seconds of the reactor's time that a plugin took.", "time"),
    "plugin_errors": ("Calls of a plugin that went wrong.", "errors"),
    "plugin_skipped": ("Calls that were not made because of a quarantine.", "skipped"),
    "plugin_quarantines": ("How often a plugin was quarantined.", "quarantines"),
}


class Settings(Struct, frozen=True, kw_only=True):
    """What ``etc/plugins/prometheus.conf`` may say."""

    #: Address of its own, "127.0.0.1:9883"; empty for none.
    bind: str = ""
    #: What all names begin with.
    prefix: Annotated[str, Meta(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]{0,63}\Z")] = "mqttd"
    #: Show the Python process too: memory, CPU, open files, garbage collector.
    process: bool = True


class Collector:
    """The broker as prometheus-client sees it."""

    def __init__(self, handle: IPluginHandle, prefix: str) -> None:
        self.handle = handle
        self.prefix = prefix

    def collect(self) -> Iterator[Metric]:
        """Every counter and gauge, now."""
        counters, gauges = self.handle.figures()
        node = [self.handle.node]
        labelled: dict[str, CounterMetricFamily] = {}
        for name, value in counters.items():
            if name in _SUMS:
                continue
            for start, (metric, text, label) in _LABELLED.items():
                if name.startswith(start):
                    family = labelled.get(metric)
                    if family is None:
                        family = labelled[metric] = CounterMetricFamily(
                            f"{self.prefix}_{metric}", text, labels=["node", label]
                        )
                    family.add_metric([*node, name.removeprefix(start).removeprefix("qos")], value)
                    break
            else:
                counter = CounterMetricFamily(
                    f"{self.prefix}_{name}", f"{_words(name)} since the start.", labels=["node"]
                )
                counter.add_metric(node, value)
                yield counter
        yield from labelled.values()
        for name, value in gauges.items():
            gauge = GaugeMetricFamily(
                f"{self.prefix}_{name}", f"{_words(name)} now.", labels=["node"]
            )
            gauge.add_metric(node, value)
            yield gauge
        yield from self._plugins()

    def _plugins(self) -> Iterator[Metric]:
        """What plugins measure themselves, and what they cost."""
        for name, text, value in self.handle.plugin_metrics():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(f"{self.prefix}_{name}", text or _words(name), labels=["node"])
            family.add_metric([self.handle.node], value)
            yield family
        accounts = self.handle.budgets()
        labels = ["node", "plugin"]
        for name, (text, figure) in _ACCOUNT.items():
            counter = CounterMetricFamily(f"{self.prefix}_{name}", text, labels=labels)
            for account in accounts:
                counter.add_metric([self.handle.node, account["name"]], account[figure])
            yield counter
        state = GaugeMetricFamily(
            f"{self.prefix}_plugin_quarantined", "1 while a plugin is not called.", labels=labels
        )
        for account in accounts:
            state.add_metric([self.handle.node, account["name"]], account["state"] != "active")
        yield state


def _words(name: str) -> str:
    return name.replace("_", " ").capitalize()


class _Metrics(Resource):
    """GET /metrics"""

    isLeaf = True

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.registry = registry

    def render_GET(self, request: Request) -> bytes:
        """The text, in the version that is asked for."""
        return self.text(self.choose(request)[0])

    def choose(self, request: Request) -> tuple[Any, str]:
        """What makes the text that is asked for, and of which kind it is."""
        encode, kind = choose_encoder(request.getHeader("accept") or "")
        request.setHeader("content-type", kind)
        request.setHeader("cache-control", "no-store")
        return encode, kind

    def text(self, encode: Any) -> bytes:
        """The figures of now."""
        return bytes(encode(self.registry))


@implementer(IPlugin)
class Prometheus:
    """The running part."""

    def load(self, handle: IPluginHandle, config: Settings) -> Deferred[None] | None:
        """Register the collector, open the doors; raises ValueError for a bad `bind`."""
        self.registry = CollectorRegistry()
        self.registry.register(Collector(handle, config.prefix))
        if config.process:
            process_collector.ProcessCollector(registry=self.registry)
            platform_collector.PlatformCollector(registry=self.registry)
            gc_collector.GCCollector(registry=self.registry)
        self.port: Any = None
        resource = _Metrics(self.registry)
        handle.add_route("metrics", resource)
        if not config.bind:
            return None
        return self._listen(handle, config.bind, resource)

    def unload(self) -> Deferred[None] | None:
        """Close the own address."""
        port, self.port = getattr(self, "port", None), None
        if port is None:
            return None
        stopped: Deferred[None] = maybeDeferred(port.stopListening)
        return stopped

    def _listen(self, handle: IPluginHandle, bind: str, resource: _Metrics) -> Deferred[None]:
        found = _ADDRESS.fullmatch(bind)
        if found is None or int(found["port"]) > 65535:
            raise ValueError(f"bind = {bind!r}: expected an address, 127.0.0.1:9883 or [::1]:9883")
        port = int(found["port"])
        endpoint: Any = (
            TCP6ServerEndpoint(handle.clock, port, interface=found["six"])
            if found["six"]
            else TCP4ServerEndpoint(handle.clock, port, interface=found["four"])
        )
        site = DoorSite(Kept(resource, handle.clock), handle.clock)

        def listening(port: Any) -> None:
            self.port = port
            address = port.getHost()
            host = f"[{address.host}]" if ":" in address.host else address.host
            handle.log.info("metrics at http://{host}:{port}/metrics", host=host, port=address.port)

        opened: Deferred[None] = endpoint.listen(site).addCallback(listening)
        return opened
