"""What the flow plane needs of the configuration, flattened to plain numbers.

The hot path reads attributes of one native object; the configuration file's sections, units and
validation live in `mqttd.config`. `Settings()` without arguments holds the documented defaults.
"""

from __future__ import annotations

from typing import Final

__all__ = ["NEVER", "Settings"]

#: Session Expiry Interval that never runs out (MQTT 5.0, 3.1.2.11.2), in seconds.
NEVER: Final = 0xFFFFFFFF


class Settings:
    """Limits and policies of a server. Times are in milliseconds unless the name says seconds."""

    def __init__(self) -> None:
        self.max_packet_size: int = 1 << 20
        self.max_connect_size: int = 1 << 16
        self.max_client_id_length: int = 256
        self.max_topic_levels: int = 256
        self.max_topic_length: int = 65535
        self.max_topic_alias: int = 65535
        self.outbound_topic_alias: bool = False
        self.max_qos: int = 2
        self.retain_available: bool = True
        self.wildcard_subscription: bool = True
        self.shared_subscription: bool = True
        self.shared_strategy: str = "round_robin"
        self.shared_prefer: str = "local"
        self.server_keepalive_seconds: int = 0
        self.keepalive_multiplier: float = 1.5
        self.connect_timeout: int = 10_000
        self.response_information: str = ""
        self.max_inflight: int = 100
        self.receive_maximum: int = 1000
        self.retry_interval: int = 30_000
        self.max_awaiting_rel: int = 1000
        self.await_rel_timeout: int = 300_000
        self.expiry_interval_seconds: int = 7200
        self.max_expiry_interval_seconds: int = 30 * 86400
        #: The session of a client id belongs to the user who took it; else to the client id alone.
        self.owned_by_user: bool = True
        #: Wills when the broker is stopped: publish, keep, drop.
        self.wills_at_stop: str = "publish"
        #: What client ids must look like, with the user's name as `%u`; "" for anything.
        self.client_id_pattern: str = ""
        #: 0: no limit.
        self.max_sessions_per_user: int = 0
        self.max_sessions_per_address: int = 0
        self.max_subscriptions: int = 10_000
        self.upgrade_qos: bool = False
        self.mqueue_max_length: int = 1000
        self.mqueue_max_bytes: int = 8 << 20
        #: Of a session, and of all, while a journal keeps what waits.
        self.mqueue_in_memory: int = 1 << 20
        self.mqueue_in_memory_total: int = 256 << 20
        self.mqueue_store_qos0: bool = True
        self.mqueue_priorities: dict[str, int] | None = None
        self.retained_max_messages: int = 1_000_000
        self.retained_max_bytes: int = 1 << 30
        self.retained_max_payload: int = 1 << 20
        #: Of one user; 0: no limit.
        self.retained_max_per_user: int = 500_000
        self.retained_max_bytes_per_user: int = 512 << 20
        self.retained_expiry: int = 0  # 0: never
        self.high_watermark: int = 1 << 20
        self.low_watermark: int = 256 << 10
        self.backlog: int = 256 << 20
        #: What may be held in memory in bytes, by all, a session, a user, all that are not let in;
        #: 0: no limit.
        self.memory_budget: int = 0
        self.memory_per_session: int = 128 << 20
        self.memory_per_user: int = 0
        self.memory_unauthenticated: int = 64 << 20
        #: Seconds that an edge rests after a turn so that the kernel gathers; 0: never.
        self.gather: float = 20e-6
        self.deny_disconnect: bool = False
        #: A subscription that is revoked takes the connection along.
        self.revoke_disconnect: bool = False
        #: Topics in use that are remembered with their routes.
        self.topic_cache_bytes: int = 128 << 20
        self.topic_cache_entries: int = 1_000_000
        #: Topics in the cache from which on one has to be seen twice to be kept.
        self.topic_cache_selective: int = 65_536
        #: Switches of the optimisations: the slow twin must give the same bytes (tests use them).
        self.fast_path: bool = True
        self.coalesce_runs: bool = True
        #: Topics in use from which on those of a chunk are looked up together.
        self.look_ahead: int = 8192
        self.cache_grants: bool = True
