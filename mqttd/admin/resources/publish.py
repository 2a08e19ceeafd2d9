"""Publish messages as the broker itself: no access rule is asked, hooks run.

An ``Idempotency-Key`` makes a repeated request harmless: it gets the answer of the first one, and
nothing is published again. Answers are remembered for `REMEMBERED` seconds, `MOST` of all callers.
"""

from __future__ import annotations

import base64
import hashlib
from collections import OrderedDict
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from mqttd.admin.http.parts import Parts
from mqttd.admin.http.requests import ApiError
from mqttd.admin.http.route import Ask, post
from mqttd.broker.publish.local import publish
from mqttd.codec import properties as prop
from mqttd.codec import reasons
from mqttd.codec.reasons import MqttError
from mqttd.codec.topic import validate_topic_name

__all__ = ["Publish"]

REMEMBERED: Final = 600
MOST: Final = 10_000

_KEY: Final = ("Idempotency-Key",)

Text = Annotated[str, Meta(max_length=65535)]


class MessageProperties(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Properties of MQTT 5.0 (3.3.2.3)."""

    payload_format_indicator: Annotated[int, Meta(ge=0, le=1)] | None = None
    message_expiry_interval: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)] | None = None
    content_type: Text | None = None
    response_topic: Text | None = None
    correlation_data_base64: str | None = None
    user_properties: Annotated[list[tuple[Text, Text]], Meta(max_length=100)] | None = None


class MessageBody(Struct, forbid_unknown_fields=True):
    """A message to publish."""

    topic: str
    payload: str | None = None
    payload_base64: str | None = None
    qos: Annotated[int, Meta(ge=0, le=2)] = 0
    retain: bool = False
    properties: MessageProperties | None = None


class Batch(Struct, forbid_unknown_fields=True):
    """Messages to publish, in this order."""

    messages: Annotated[list[MessageBody], Meta(min_length=1, max_length=1000)]


class Receivers(Struct):
    """How many subscribers a message went to."""

    receivers: int


class Outcome(Struct, omit_defaults=True):
    """What became of one message of a batch."""

    receivers: int | None = None
    code: str | None = None
    detail: str | None = None


class Outcomes(Struct):
    """What became of each message of a batch, in its order."""

    results: list[Outcome]


class Publish:
    """Messages of the broker itself."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        #: Caller and key -> when, a digest of what was asked, the answer.
        self._answers: OrderedDict[tuple[str, str], tuple[int, bytes, Any]] = OrderedDict()

    @post("/publish", body=MessageBody, answer=Receivers, errors=(409, 422, 507), headers=_KEY)
    def one(self, ask: Ask) -> Any:
        """Publish a message as the broker itself: no access rule is asked, hooks run."""
        return self._once(ask, lambda: Receivers(self._publish(ask.body)))

    @post("/publish/batch", body=Batch, answer=Outcomes, errors=(422,), headers=_KEY)
    def batch(self, ask: Ask) -> Any:
        """Publish up to 1000 messages; one that is refused does not stop those behind it."""

        def work() -> Outcomes:
            results: list[Outcome] = []
            for message in ask.body.messages:
                try:
                    results.append(Outcome(receivers=self._publish(message)))
                except ApiError as error:
                    results.append(Outcome(code=error.code, detail=error.message))
            return Outcomes(results)

        return self._once(ask, work)

    def _once(self, ask: Ask, work: Any) -> Any:
        """The answer of the first request with its key, else that of `work`."""
        key = ask.header("idempotency-key")
        ask.changed(None, _told(ask.body))
        if key is None:
            return work()
        if not 1 <= len(key) <= 255:
            raise ApiError(400, "bad_request", "Idempotency-Key: expected 1 to 255 characters")
        now = self.parts.broker.now // 1000
        while self._answers and next(iter(self._answers.values()))[0] < now - REMEMBERED:
            self._answers.popitem(False)
        digest = hashlib.sha256(msgspec.json.encode(ask.body)).digest()
        known = self._answers.get((ask.caller.name, key))
        if known is not None:
            if known[1] != digest:
                text = "this Idempotency-Key was used for another message"
                raise ApiError(422, "key_used", text)
            ask.unchanged = True
            return known[2]
        answer = work()
        self._answers[(ask.caller.name, key)] = (now, digest, answer)
        if len(self._answers) > MOST:
            self._answers.popitem(False)
        return answer

    def _publish(self, message: MessageBody) -> int:
        """How many receivers there were; raises ApiError."""
        broker = self.parts.broker
        settings = broker.settings
        payload = _payload_of(message)
        properties = _properties_of(message.properties)
        try:
            validate_topic_name(message.topic, settings.max_topic_levels)
            if properties is not None and prop.RESPONSE_TOPIC in properties:
                validate_topic_name(str(properties[prop.RESPONSE_TOPIC]), settings.max_topic_levels)
        except MqttError as error:
            raise ApiError(400, "bad_topic", error.detail) from None
        most = settings.max_packet_size
        size = len(payload) + len(message.topic.encode()) + _size_of(message.properties)
        if size > most:
            text = (
                f"topic, payload and properties are larger than mqtt.max_packet_size, {most} bytes"
            )
            raise ApiError(413, "too_large", text)
        if properties is None:
            receivers = broker.publish_text(message.topic, payload, message.qos, message.retain)
        else:
            receivers = publish(
                broker, message.topic, payload, message.qos, message.retain, properties
            )
            broker.perform()
        if receivers < 0 and -receivers != reasons.QUOTA_EXCEEDED:
            why = reasons.name_of(-receivers)
            raise ApiError(409, "refused", f"a message.publish hook refused it: {why}")
        if receivers < 0:
            raise ApiError(507, "quota_exceeded", "the retained store is full")
        return receivers


def _payload_of(message: MessageBody) -> bytes:
    if message.payload_base64 is None:
        return (message.payload or "").encode()
    if message.payload is not None:
        raise ApiError(400, "bad_request", "expected payload or payload_base64, not both")
    return _decoded("payload_base64", message.payload_base64)


def _decoded(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ApiError(400, "bad_request", f"{name}: expected base64 text") from None


def _properties_of(given: MessageProperties | None) -> Any:
    if given is None:
        return None
    found: dict[int, Any] = {}
    for identifier, value in (
        (prop.PAYLOAD_FORMAT_INDICATOR, given.payload_format_indicator),
        (prop.MESSAGE_EXPIRY_INTERVAL, given.message_expiry_interval),
        (prop.CONTENT_TYPE, given.content_type),
        (prop.RESPONSE_TOPIC, given.response_topic),
    ):
        if value is not None:
            found[identifier] = value
    if given.correlation_data_base64 is not None:
        data = _decoded("correlation_data_base64", given.correlation_data_base64)
        if len(data) > 65535:
            raise ApiError(400, "bad_request", "correlation_data_base64: at most 65535 bytes")
        found[prop.CORRELATION_DATA] = data
    if given.user_properties:
        found[prop.USER_PROPERTY] = [tuple(pair) for pair in given.user_properties]
    return found or None


def _size_of(given: MessageProperties | None) -> int:
    return len(msgspec.json.encode(given)) if given is not None else 0


def _told(body: Any) -> Any:
    """What the audit keeps of what was published: where, not what."""
    messages = body.messages if isinstance(body, Batch) else [body]
    return [{"topic": one.topic, "qos": one.qos, "retain": one.retain} for one in messages[:20]]
