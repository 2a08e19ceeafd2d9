"""The will of a client that is away, which goes along with its session from node to node.

It is due when its delay is over since the client was last there, wherever the session is by then;
who goes on with the session before that has cancelled it, and who starts afresh has it published.
MQTT 5.0, 3.1.3.2.2.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from typing import Protocol

from mqttd.broker.broker import Broker
from mqttd.codec.reasons import MqttError
from mqttd.session.ground.message import Message
from mqttd.session.session import Session
from mqttd.storage.entries import dump_will, load_will
from mqttd.types import SessionState

__all__ = ["end_for_another", "take_along", "will_of"]

_KEY = "will"
_SINCE = "will_since"


class _Moves(Protocol):
    """See `mqttd.cluster.sessions.moves.Moves`."""

    broker: Broker

    def leaves(self, session: Session) -> Sequence[bytes]:
        """What is in its queue goes along."""

    def willed(self, client_id: str, will: Message, delay_seconds: int) -> None:
        """So does its will."""


def will_of(session: Session | None) -> tuple[Message, int] | None:
    """The will that is to come, and its delay in seconds, of a client that is away or taken over.

    That of a client that is there, and has no delay, is published where it was.
    """
    if session is None or session.will is None:
        return None
    if session.channel is not None and not session.will_delay:
        return None
    return session.will, session.will_delay


def end_for_another(
    moves: _Moves, hand_over: Callable[..., SessionState | None], client_id: str, revision: int
) -> SessionState | None:
    """End a session here, for who has it now: what it was, with a will that is to come."""
    broker = moves.broker
    session = broker.sessions.get(client_id)
    if session is not None:
        broker.registry.resume_waiting(session)  # what is overdue does not go along
    will = will_of(session)
    state = hand_over(client_id, revision, moves.leaves)
    if state is None or session is None or will is None:
        return state
    if broker.wills.held is not None:
        broker.wills.held.pop(session, None)  # it is published where it goes
    moves.willed(client_id, *will)
    return _with_will(state, *will, session.away_since + broker.since())


def _with_will(state: SessionState, will: Message, delay: int, since: int) -> SessionState:
    """A state with the will of its client, due `delay` seconds after that was there."""
    record = json.loads(state.record)
    record[_KEY] = [delay, will.expires_at, b64encode(dump_will(will)).decode()]
    record[_SINCE] = since
    return SessionState(json.dumps(record).encode(), state.queue, state.epoch)


def take_along(broker: Broker, session: Session, state: SessionState) -> None:
    """Give a session that is here, its client away, the will in its state.

    A record says in whole seconds since when that is; a will is not published before its time.
    """
    record = json.loads(state.record)
    found = record.get(_KEY)
    if found is None:
        return
    delay, expiry, packet = found
    try:
        will = load_will(b64decode(packet), session.client_id, session.username, int(expiry))
    except (MqttError, ValueError, IndexError):
        return
    session.set_will(will, int(delay))
    if since := record.get(_SINCE):
        session.away_since = min(int(since) - broker.since(), broker.now)
