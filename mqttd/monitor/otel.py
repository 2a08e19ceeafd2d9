"""Messages that are followed, as OpenTelemetry spans: sent over OTLP/HTTP by a thread of the SDK.

    published --> span `publish TOPIC`  ... routed, lost, or nothing for a while --> ended
       sent ----> span `deliver TOPIC`, its child  ... acked, refused, lost ------> ended

A message's span is a child of the `traceparent` that it carries in its user properties. What is
sent names the topic, client ids, QoS and sizes; payloads are not sent. It needs the extra `otel`.

Promise: nothing waits for the collector; the SDK's queue drops the spans that it does not take.
Source: OpenTelemetry, semantic conventions for messaging; W3C Trace Context.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

from mqttd.readmodel.why import Step
from mqttd.session.ground.message import Message

__all__ = ["NoOtel", "Spans"]

#: Messages whose spans are open at once, the oldest are ended.
_OPEN: Final = 10_000
#: Seconds after which a span is ended, whatever is still awaited.
_LONGEST: Final = 60.0
_SYSTEM: Final = "mqtt"


class NoOtel(Exception):
    """The extra `otel` is not installed."""


class _Open:
    """The spans of one message."""

    __slots__ = ("at", "deliveries", "span")

    def __init__(self, span: Any, at: float) -> None:
        self.span = span
        self.at = at
        self.deliveries: dict[str, Any] = {}


class Spans:
    """Sends spans to `endpoint`, such as http://127.0.0.1:4318/v1/traces; raises NoOtel."""

    def __init__(self, endpoint: str, node: str) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import (
                TraceContextTextMapPropagator,
            )
        except ImportError as error:
            text = f'trace.otlp needs the extra "otel": pip install mqttd[otel] ({error})'
            raise NoOtel(text) from None
        self._trace = trace
        self._context = TraceContextTextMapPropagator()
        resource = Resource.create({"service.name": "mqttd", "service.instance.id": node})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        self._tracer = self._provider.get_tracer("mqttd")
        self._open: OrderedDict[str, _Open] = OrderedDict()

    def take(self, step: Step, message: Message) -> None:
        """A step of a message that is followed (`Trail.listeners`)."""
        if step.what == "published":
            self._begin(step)
            return
        opened = self._open.get(step.id)
        if opened is None:
            return
        if step.what == "sent":
            self._deliver(opened, step, message)
        elif step.receiver:
            self._end_delivery(opened, step)
        elif step.what == "asked":
            for who, said in step.hooks:
                opened.span.add_event("hook", {"hook": who, "said": said}, timestamp=_nanos(step))
        elif step.what == "lost":
            opened.span.set_status(self._trace.StatusCode.ERROR, step.reason)
            opened.span.set_attribute("mqttd.lost", step.reason)
        elif step.what == "routed":
            opened.span.set_attribute("mqttd.receivers", step.count)

    def tick(self, now: float) -> None:
        """A few times a second, in s since 1970: what is over, or awaited for too long, ends."""
        for message_id, opened in list(self._open.items()):
            if now - opened.at < 1.0:
                break
            if not opened.deliveries or now - opened.at >= _LONGEST:
                self._close(self._open.pop(message_id))

    def stop(self) -> None:
        """End all, and send what waits; takes as long as the exporter's own bound."""
        for opened in self._open.values():
            self._close(opened)
        self._open.clear()
        self._provider.shutdown()

    def _begin(self, step: Step) -> None:
        parent = None
        if step.traceparent:
            parent = self._context.extract({"traceparent": step.traceparent})
        span = self._tracer.start_span(
            f"publish {step.topic}",
            context=parent,
            kind=self._trace.SpanKind.CONSUMER,
            start_time=_nanos(step),
            attributes={
                "messaging.system": _SYSTEM,
                "messaging.operation.type": "receive",
                "messaging.destination.name": step.topic,
                "messaging.message.id": step.id,
                "messaging.message.body.size": step.bytes,
                "messaging.client.id": step.client_id,
                "mqtt.qos": step.qos,
                "mqttd.rule": step.rule,
            },
        )
        if len(self._open) >= _OPEN:
            self._close(self._open.popitem(False)[1])
        self._open[step.id] = _Open(span, step.at)

    def _deliver(self, opened: _Open, step: Step, message: Message) -> None:
        child = self._tracer.start_span(
            f"deliver {message.topic[:1024]}",
            context=self._trace.set_span_in_context(opened.span),
            kind=self._trace.SpanKind.PRODUCER,
            start_time=_nanos(step),
            attributes={
                "messaging.system": _SYSTEM,
                "messaging.operation.type": "send",
                "messaging.destination.name": message.topic[:1024],
                "messaging.message.id": step.id,
                "messaging.client.id": step.receiver,
            },
        )
        if message.qos and step.detail != "QoS 0":
            opened.deliveries[step.receiver] = child
        else:
            child.end(end_time=_nanos(step))

    def _end_delivery(self, opened: _Open, step: Step) -> None:
        child = opened.deliveries.pop(step.receiver, None)
        if child is None:
            if step.what == "lost":
                opened.span.add_event(
                    "lost", {"receiver": step.receiver, "reason": step.reason},
                    timestamp=_nanos(step),
                )  # fmt: skip
            return
        if step.what in ("lost", "refused"):
            child.set_status(self._trace.StatusCode.ERROR, step.reason or step.detail)
        child.end(end_time=_nanos(step))

    def _close(self, opened: _Open) -> None:
        for child in opened.deliveries.values():
            child.end()
        opened.span.end()


def _nanos(step: Step) -> int:
    """When it was, as spans have it."""
    return round(step.at * 1_000_000) * 1000
