"""prometheus: the text that Prometheus reads, from figures read when it asks."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from twisted.web.test.requesthelper import DummyRequest

from mqttd.plugins.calls.budget import Budget
from mqttd.testing import LoadedPlugin, MemoryBroker, PluginConformance
from mqttd_plugins.prometheus import prometheus

LABELS = ("reason", "qos", "plugin")


class TestConformance(PluginConformance):
    plugin = prometheus
    cycles = 5


def scrape(loaded: LoadedPlugin, accept: str = "text/plain") -> tuple[str, str]:
    request = DummyRequest([b"metrics"])
    request.requestHeaders.setRawHeaders("accept", [accept])
    text = loaded.handle.routes["metrics"].render(request)
    kind = request.responseHeaders.getRawHeaders("content-type")
    assert kind is not None
    return text.decode(), kind[0]


def samples(text: str) -> dict[tuple[str, str], float]:
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            label = next((sample.labels[key] for key in LABELS if key in sample.labels), "")
            found[sample.name, label] = sample.value
    return found


def test_figures_are_those_of_now() -> None:
    node = MemoryBroker()
    loaded = node.load(prometheus, {"process": False})
    alice = node.connect("alice")
    alice.subscribe("t", qos=1)
    for qos in (0, 1, 1, 2):
        alice.publish("t", b"x", qos)
    text, kind = scrape(loaded)
    assert kind.startswith("text/plain")
    found = samples(text)
    assert found["mqttd_messages_received_total", "0"] == 1
    assert found["mqttd_messages_received_total", "1"] == 2
    assert found["mqttd_messages_received_total", "2"] == 1
    assert found["mqttd_clients_connected", ""] == 1
    assert found["mqttd_subscriptions", ""] == 1
    assert found["mqttd_messages_dropped_total", "queue_full"] == 0
    assert 'node="memory"' in text
    alice.disconnect()
    assert samples(scrape(loaded)[0])["mqttd_clients_connected", ""] == 0


def test_every_figure_of_the_broker_is_there_once() -> None:
    node = MemoryBroker()
    loaded = node.load(prometheus, {"process": False})
    counters, gauges = loaded.handle.figures()
    found = samples(scrape(loaded)[0])
    figures = {name for name, _ in found if not name.startswith("mqttd_plugin_")}
    labelled = {"mqttd_messages_dropped_total", "mqttd_messages_received_total"}
    # The two sums are left to Prometheus.
    several = sum(name.startswith(("dropped_", "messages_received_")) for name in counters)
    assert len(figures - labelled) == len(counters) - several - 2 + len(gauges)
    assert len([name for name, _ in found if name in labelled]) == several


def test_what_plugins_cost_is_shown_and_what_they_measure() -> None:
    node = MemoryBroker()
    loaded = node.load(prometheus, {"process": False})
    host: Any = loaded.handle._host
    host.metrics = lambda: [
        ("plugin_acme_seen_total", "Messages seen.", 3.0),
        ("plugin_acme_waiting", "", 2.0),
    ]

    def fail(message: object) -> None:
        raise RuntimeError("no luck")

    node.hooks.hook("message.publish", fail, owner=Budget("acme", error_limit=2))
    for _ in range(3):
        node.publish("t")
    found = samples(scrape(loaded)[0])
    assert found["mqttd_plugin_acme_seen_total", ""] == 3
    assert found["mqttd_plugin_acme_waiting", ""] == 2
    assert found["mqttd_plugin_errors_total", "acme"] == 2
    assert found["mqttd_plugin_skipped_total", "acme"] == 1
    assert found["mqttd_plugin_quarantined", "acme"] == 1
    assert found["mqttd_plugin_quarantined", "prometheus"] == 0
    assert found["mqttd_plugins_quarantined", ""] == found["mqttd_alarms", ""] == 1


def test_the_process_is_shown_and_the_prefix_is_mine() -> None:
    loaded = MemoryBroker().load(prometheus, {"prefix": "edge"})
    text, kind = scrape(loaded, "application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert "process_cpu_seconds_total" in text and "python_gc" in text
    assert "edge_sessions" in text and "mqttd_sessions" not in text


@pytest.mark.parametrize("bind", ["9883", "localhost:9883", "127.0.0.1:99999", "[::1]"])
def test_a_bad_address_is_named(bind: str) -> None:
    with pytest.raises(ValueError, match="expected an address"):
        MemoryBroker().load(prometheus, {"bind": bind})
