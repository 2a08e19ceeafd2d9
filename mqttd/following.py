"""What is kept of messages for `mqttd-ctl why`, as the configuration wants it.

messages on their way --> Trail --> why.jsonl     drops and denials, traced and sampled ones
                            `--> Spans --> OTLP over HTTP, where `trace.otlp` names a collector
"""

from __future__ import annotations

import os

from mqttd.access.by_listener import AccessByListener
from mqttd.broker.broker import Broker
from mqttd.config.schema import Config
from mqttd.monitor.otel import NoOtel, Spans
from mqttd.monitor.trail import Trail
from mqttd.options import StartError
from mqttd.session.ground.message import Message
from mqttd.types import Action

__all__ = ["trail_of"]


def trail_of(
    config: Config, broker: Broker, access: AccessByListener
) -> tuple[Trail | None, Spans | None]:
    """What becomes of messages is kept here, and told there; raises StartError."""
    if not config.trace.ring:
        return None, None
    path = os.path.join(config.node.data_dir, "why.jsonl")
    spans: Spans | None = None
    try:
        trail = Trail(broker, config.trace, path, lambda message: _rule(broker, access, message))
        if config.trace.otlp:
            spans = Spans(config.trace.otlp, config.node.name)
            trail.listeners.append(spans.take)
    except OSError as error:
        raise StartError(f"{path}: {error.strerror}") from None
    except NoOtel as error:
        raise StartError(str(error)) from None
    return trail, spans


def _rule(broker: Broker, access: AccessByListener, message: Message) -> str:
    """The rule by which a message may be published."""
    session = broker.sessions.get(message.client_id)
    if session is None:
        return ""
    client = broker.client_of(session)
    told = access.questions_of(client.listener).explain(
        client, Action("publish", message.qos, message.retain), message.topic
    )
    return str(told["rule"])
