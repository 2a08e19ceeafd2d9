"""Counters of the flow plane: plain integers that the hot path adds to.

Everything that happens to a packet or a message is counted here once; `$SYS`, the control API and
the metrics page read these same fields, so one name serves code, documents and operators.

Promise: counting costs one integer addition and no call.
"""

from __future__ import annotations

from typing import Final

__all__ = ["COUNTERS", "DROP_REASONS", "Metrics"]

#: Why a message that matched a subscription was not delivered: counter suffix -> meaning.
DROP_REASONS: Final[dict[str, str]] = {
    "queue_full": "the session's mqueue was full",
    "store_share": "its user has as much in the store as one may while others have need of it",
    "expired": "the message expiry interval ran out",
    "too_large": "larger than the client's Maximum Packet Size",
    "slow_consumer": "the connection's output was above its high watermark (QoS 0)",
    "offline_qos0": "QoS 0 for a client that is away, and store_qos0 is off",
    "denied": "the publisher has no right to the topic, its name is beyond the limits, or it is"
    " outside the receiver's mountpoint",
    "revoked": "a right that it needed was taken back",
    "hook": "a message.publish hook stopped it",
    "session_ended": "the session ended before it could be sent",
    "memory": "QoS 0 that would have waited, while `memory.budget` is used up",
    "not_kept": "the store has no room for it, or cannot be written",
    "retained_full": "the retained store was full or the payload too large for it",
}


class Metrics:
    """The broker's counters since start; each attribute only grows."""

    __slots__ = (
        "bytes_received",
        "bytes_sent",
        "packets_received",
        "messages_received_qos0",
        "messages_received_qos1",
        "messages_received_qos2",
        "messages_sent",
        "messages_acked",
        "messages_retransmitted",
        "messages_no_subscriber",
        "messages_queued",
        "dropped_queue_full",
        "dropped_store_share",
        "dropped_expired",
        "dropped_too_large",
        "dropped_slow_consumer",
        "dropped_offline_qos0",
        "dropped_denied",
        "dropped_revoked",
        "dropped_hook",
        "dropped_session_ended",
        "dropped_retained_full",
        "dropped_memory",
        "dropped_not_kept",
        "dropped_unreadable",
        "dropped_worker_away",
        "messages_crossed",
        "connections_accepted",
        "connections_refused",
        "connections_closed",
        "connects_refused",
        "malformed_packets",
        "keepalive_timeouts",
        "connect_timeouts",
        "accepts_paused_full",
        "accepts_paused_rate",
        "accepts_paused_files",
        "refused_address",
        "refused_crowded",
        "refused_in_line",
        "strangers_ended",
        "refused_overload",
        "refused_banned",
        "claims_failed",
        "claims_timed_out",
        "first_byte_timeouts",
        "send_timeouts",
        "rate_limited",
        "rate_limited_out",
        "memory_caches_dropped",
        "refused_not_kept",
        "memory_refused",
        "memory_waited",
        "memory_shed",
        "memory_hung_up",
        "memory_unauthenticated_closed",
        "clients_flapping",
        "clients_kicked",
        "auth_failures",
        "auth_failures_delayed",
        "auth_failures_refused",
        "auth_failures_bans",
        "auth_expired",
        "auth_revoked",
        "reauthentications",
        "sessions_created",
        "sessions_resumed",
        "sessions_takenover",
        "sessions_expired",
        "sessions_discarded",
        "wills_published",
        "subscribes",
        "unsubscribes",
        "subscribes_denied",
        "subscriptions_revoked",
        "publishes_denied",
        "rights_decided",
        "routes_built",
        "gather_rests",
        "crashes",
    )

    def __init__(self) -> None:
        self.bytes_received: int = 0
        self.bytes_sent: int = 0
        self.packets_received: int = 0
        self.messages_received_qos0: int = 0
        self.messages_received_qos1: int = 0
        self.messages_received_qos2: int = 0
        self.messages_sent: int = 0
        self.messages_acked: int = 0
        self.messages_retransmitted: int = 0
        self.messages_no_subscriber: int = 0
        self.messages_queued: int = 0
        self.dropped_queue_full: int = 0
        self.dropped_store_share: int = 0
        self.dropped_expired: int = 0
        self.dropped_too_large: int = 0
        self.dropped_slow_consumer: int = 0
        self.dropped_offline_qos0: int = 0
        self.dropped_denied: int = 0
        self.dropped_revoked: int = 0
        self.dropped_hook: int = 0
        self.dropped_session_ended: int = 0
        self.dropped_retained_full: int = 0
        self.dropped_memory: int = 0
        self.dropped_not_kept: int = 0
        self.dropped_unreadable: int = 0
        self.dropped_worker_away: int = 0
        self.messages_crossed: int = 0
        self.connections_accepted: int = 0
        self.connections_refused: int = 0
        self.connections_closed: int = 0
        self.connects_refused: int = 0
        self.malformed_packets: int = 0
        self.keepalive_timeouts: int = 0
        self.connect_timeouts: int = 0
        self.accepts_paused_full: int = 0
        self.accepts_paused_rate: int = 0
        self.accepts_paused_files: int = 0
        self.refused_address: int = 0
        self.refused_crowded: int = 0
        self.refused_in_line: int = 0
        self.strangers_ended: int = 0
        self.refused_overload: int = 0
        self.refused_banned: int = 0
        self.claims_failed: int = 0
        self.claims_timed_out: int = 0
        self.first_byte_timeouts: int = 0
        self.send_timeouts: int = 0
        self.rate_limited: int = 0
        self.rate_limited_out: int = 0
        self.memory_caches_dropped: int = 0
        self.refused_not_kept: int = 0
        self.memory_refused: int = 0
        self.memory_waited: int = 0
        self.memory_shed: int = 0
        self.memory_hung_up: int = 0
        self.memory_unauthenticated_closed: int = 0
        self.clients_flapping: int = 0
        self.clients_kicked: int = 0
        self.auth_failures: int = 0
        self.auth_failures_delayed: int = 0
        self.auth_failures_refused: int = 0
        self.auth_failures_bans: int = 0
        self.auth_expired: int = 0
        self.auth_revoked: int = 0
        self.reauthentications: int = 0
        self.sessions_created: int = 0
        self.sessions_resumed: int = 0
        self.sessions_takenover: int = 0
        self.sessions_expired: int = 0
        self.sessions_discarded: int = 0
        self.wills_published: int = 0
        self.subscribes: int = 0
        self.unsubscribes: int = 0
        self.subscribes_denied: int = 0
        self.subscriptions_revoked: int = 0
        self.publishes_denied: int = 0
        self.rights_decided: int = 0
        self.routes_built: int = 0
        self.gather_rests: int = 0
        self.crashes: int = 0

    def drop(self, reason: str) -> None:
        """Count a delivery that is dropped, by its reason."""
        if reason == "queue_full":
            self.dropped_queue_full += 1
        elif reason == "store_share":
            self.dropped_store_share += 1
        elif reason == "expired":
            self.dropped_expired += 1
        elif reason == "too_large":
            self.dropped_too_large += 1
        elif reason == "slow_consumer":
            self.dropped_slow_consumer += 1
        elif reason == "offline_qos0":
            self.dropped_offline_qos0 += 1
        elif reason == "denied":
            self.dropped_denied += 1
        elif reason == "memory":
            self.dropped_memory += 1
        elif reason == "not_kept":
            self.dropped_not_kept += 1
        else:
            self.dropped_session_ended += 1

    def dropped(self) -> int:
        """Messages dropped for any reason."""
        return (
            self.dropped_queue_full
            + self.dropped_store_share
            + self.dropped_expired
            + self.dropped_too_large
            + self.dropped_slow_consumer
            + self.dropped_offline_qos0
            + self.dropped_denied
            + self.dropped_revoked
            + self.dropped_hook
            + self.dropped_session_ended
            + self.dropped_retained_full
            + self.dropped_memory
            + self.dropped_not_kept
            + self.dropped_unreadable
            + self.dropped_worker_away
        )

    def snapshot(self) -> dict[str, int]:
        """All counters by name, with their sums, for `$SYS`, the API and the metrics page."""
        counters = {name: int(getattr(self, name)) for name in COUNTERS}
        counters["messages_received"] = (
            self.messages_received_qos0 + self.messages_received_qos1 + self.messages_received_qos2
        )
        counters["dropped"] = self.dropped()
        return counters


#: The names of all counters, in the order in which they are shown.
COUNTERS: Final[tuple[str, ...]] = (
    "bytes_received",
    "bytes_sent",
    "packets_received",
    "messages_received_qos0",
    "messages_received_qos1",
    "messages_received_qos2",
    "messages_sent",
    "messages_acked",
    "messages_retransmitted",
    "messages_no_subscriber",
    "messages_queued",
    "dropped_queue_full",
    "dropped_store_share",
    "dropped_expired",
    "dropped_too_large",
    "dropped_slow_consumer",
    "dropped_offline_qos0",
    "dropped_denied",
    "dropped_revoked",
    "dropped_hook",
    "dropped_session_ended",
    "dropped_retained_full",
    "dropped_memory",
    "dropped_not_kept",
    "dropped_unreadable",
    "dropped_worker_away",
    "messages_crossed",
    "connections_accepted",
    "connections_refused",
    "connections_closed",
    "connects_refused",
    "malformed_packets",
    "keepalive_timeouts",
    "connect_timeouts",
    "accepts_paused_full",
    "accepts_paused_rate",
    "accepts_paused_files",
    "refused_address",
    "refused_crowded",
    "refused_in_line",
    "strangers_ended",
    "refused_overload",
    "refused_banned",
    "refused_not_kept",
    "claims_failed",
    "claims_timed_out",
    "first_byte_timeouts",
    "send_timeouts",
    "rate_limited",
    "rate_limited_out",
    "memory_caches_dropped",
    "memory_refused",
    "memory_waited",
    "memory_shed",
    "memory_hung_up",
    "memory_unauthenticated_closed",
    "clients_flapping",
    "clients_kicked",
    "auth_failures",
    "auth_failures_delayed",
    "auth_failures_refused",
    "auth_failures_bans",
    "auth_expired",
    "auth_revoked",
    "reauthentications",
    "sessions_created",
    "sessions_resumed",
    "sessions_takenover",
    "sessions_expired",
    "sessions_discarded",
    "wills_published",
    "subscribes",
    "unsubscribes",
    "subscribes_denied",
    "subscriptions_revoked",
    "publishes_denied",
    "rights_decided",
    "routes_built",
    "gather_rests",
    "crashes",
)
