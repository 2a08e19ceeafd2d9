"""A message that had come half of its way when the broker died: the other half.

    hooks --> noted (who keeps messages)      --log had it, store had not--> sessions
          '-> sessions, their store           --store had it, log had not--> noted

Promise: neither who keeps messages nor a session is told of it twice; hooks are.
"""

from __future__ import annotations

from mqttd.broker.publish.publishing import Publishing
from mqttd.session.ground.message import Message
from mqttd.session.routes.route import NOTED

__all__ = ["go_on"]


def go_on(broker: Publishing, message: Message, noted: bool, routed: bool) -> int:
    """Do what `local.republish` does but for what was done: `noted`, or `routed`.

    Returns the number of receivers, or minus a reason code.
    """
    notes = bool(broker.noting and broker.router.of(message.topic).gear & NOTED)
    if routed and (noted or not notes):
        return 0
    if "message.publish" in broker.points:
        changed = broker.ask_publish(message)
        if changed is None:
            return broker.refusal
        message = changed
    if routed:
        broker.note_message(message)
        return 0
    origin = ("", "")
    if message.retain and message.client_id:
        origin = broker.origin(message.client_id, message.username)
    quiet = not broker.dirty
    receivers = broker.pubsub.publish(message, origin, broker.epoch)
    if quiet and broker.dirty:
        broker.perform_later()
    return receivers
