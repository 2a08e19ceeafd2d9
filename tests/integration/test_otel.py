"""Messages that are followed reach a collector of OpenTelemetry, as a real one reads them."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support import packets as mq
from tests.support.broker import start_broker
from tests.support.client import RawClient
from tests.support.needs import missing
from tests.support.waiting import until

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


def test_spans_are_children_of_the_traceparent_a_message_carries(tmp_path: Path) -> None:
    try:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )
    except ImportError:
        missing("opentelemetry", "pip install mqttd[otel]")
    spans: list[Any] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            request = ExportTraceServiceRequest.FromString(body)
            spans.extend(
                span
                for resource in request.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            )
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    collector = HTTPServer(("127.0.0.1", 0), Collector)
    serving = threading.Thread(target=collector.serve_forever)
    serving.start()
    broker = start_broker(
        tmp_path,
        trace={
            "topics": ["traced/#"],
            "otlp": f"http://127.0.0.1:{collector.server_port}/v1/traces",
        },
        environment={"OTEL_BSP_SCHEDULE_DELAY": "100"},
    )
    try:
        subscriber = RawClient(broker.port, mq.V5).connect("subscriber")
        subscriber.subscribe("#", qos=1)
        publisher = RawClient(broker.port, mq.V5).connect("publisher")
        carried = [(0x26, ("traceparent", f"00-{TRACE}-{PARENT}-01"))]
        publisher.publish("traced/1", b"four", 1, props=carried)
        publisher.publish("other", b"four", 1, props=carried)
        got = subscriber.message(topic="traced/1")
        assert (0x26, ("traceparent", f"00-{TRACE}-{PARENT}-01")) in got.props
        subscriber.message(topic="other")
        until(lambda: len(spans) >= 2, "two spans")
        by_name = {span.name: span for span in spans}
        assert set(by_name) == {"publish traced/1", "deliver traced/1"}
        published, delivered = by_name["publish traced/1"], by_name["deliver traced/1"]
        assert published.trace_id.hex() == TRACE and published.parent_span_id.hex() == PARENT
        assert delivered.trace_id.hex() == TRACE
        assert delivered.parent_span_id == published.span_id
        told = {one.key: one.value for one in delivered.attributes}
        assert told["messaging.client.id"].string_value == "subscriber"
        broker.stop()
    finally:
        broker.stop()
        collector.shutdown()
        serving.join()
        collector.server_close()


def test_without_the_extra_a_start_says_what_to_install(tmp_path: Path) -> None:
    try:
        import opentelemetry.sdk  # noqa: F401
    except ImportError:
        with pytest.raises(RuntimeError, match=r"pip install mqttd\[otel\]"):
            start_broker(tmp_path, trace={"otlp": "http://127.0.0.1:1/v1/traces"})
