"""The will of a client that is away, which goes along with its session from node to node.

It is due when its delay is over since the client was last there, wherever the session is by then;
who goes on with the session before that has cancelled it, and who starts afresh has it published.
MQTT 5.0, 3.1.3.2.2.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode

from mqttd.codec.reasons import MqttError
from mqttd.session.ground.message import Message
from mqttd.session.session import Session
from mqttd.storage.entries import dump_will, load_will
from mqttd.types import SessionState

__all__ = ["will_in", "will_of", "with_will"]

_KEY = "will"


def will_of(session: Session | None) -> tuple[Message, int] | None:
    """The will that is to come, and its delay in seconds, of a client that is away or taken over.

    That of a client that is there, and has no delay, is published where it was.
    """
    if session is None or session.will is None:
        return None
    if session.channel is not None and not session.will_delay:
        return None
    return session.will, session.will_delay


def with_will(state: SessionState, will: Message, delay: int) -> SessionState:
    """A state with the will of its client, due `delay` seconds after that was there."""
    record = json.loads(state.record)
    record[_KEY] = [delay, will.expires_at, b64encode(dump_will(will)).decode()]
    return SessionState(json.dumps(record).encode(), state.queue, state.epoch)


def will_in(
    state: SessionState, client_id: str, username: str | None
) -> tuple[Message, int] | None:
    """The will in a state, and its delay in seconds; None where there is none."""
    found = json.loads(state.record).get(_KEY)
    if found is None:
        return None
    delay, expiry, packet = found
    try:
        return load_will(b64decode(packet), client_id, username, int(expiry)), int(delay)
    except (MqttError, ValueError, IndexError):
        return None
