"""What a session tells of its changes: the seam between the state and whoever keeps it.

    Session --opened, subscribed, queued, ...--> Journal     (a store, a replica; nobody by default)

The session is the only writer of its state, and each change of the five kinds of state is told here
once, after it was made. Stores, replication and handover read this and not the fields. A journal is
told bytes: an entry of the inflight window or the queue is the PUBLISH as it goes out.

Only sessions that outlive their connection tell (`State.durable`), so a journal that does
nothing costs one comparison where something would be told.

Promise: calls come in the order of the changes and never from another thread. What a journal raises
is a fault of the broker. MQTT 5.0, 4.1 (session state).
"""

from __future__ import annotations

__all__ = ["Journal"]


class Journal:
    """Keeps nothing. Subclasses override what they want to know."""

    __slots__ = ()

    def opened(self, client_id: str, username: str | None, expiry_seconds: int) -> None:
        """A session began, or went on with another expiry interval."""

    def ended(self, client_id: str) -> None:
        """A session and all of its state is gone."""

    def subscribed(self, client_id: str, topic_filter: str, options: int, identifier: int) -> None:
        """A subscription was added or replaced; options as `mqttd.session.route` packs them."""

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        """A subscription was removed."""

    def queued(self, client_id: str, entry: object, v5: bool) -> None:
        """An entry waits: the client is away, or its window is full."""

    def unqueued(self, client_id: str, entry: object) -> None:
        """The oldest waiting entry left the queue (to be sent, or dropped)."""

    def sent(self, client_id: str, packet_id: int, entry: object, v5: bool) -> None:
        """An entry is in flight under this packet id."""

    def released(self, client_id: str, packet_id: int) -> None:
        """QoS 2: PUBREC came, PUBREL goes out."""

    def done(self, client_id: str, packet_id: int) -> None:
        """What was in flight under this packet id is acknowledged, or given up."""

    def received(self, client_id: str, packet_id: int) -> None:
        """QoS 2: a PUBLISH with this id came and awaits PUBREL."""

    def completed(self, client_id: str, packet_id: int) -> None:
        """QoS 2: PUBREL came for this id."""

    def will(self, client_id: str, will: object | None) -> None:
        """The will is this message (`mqttd.session.message.Message`), or none any more."""
