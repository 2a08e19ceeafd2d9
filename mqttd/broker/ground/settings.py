"""The configuration as the numbers of the flow plane: milliseconds, bytes, switches."""

from __future__ import annotations

from mqttd.config.schema import Config
from mqttd.session.ground.settings import NEVER, Settings

__all__ = ["settings_of"]


def settings_of(config: Config, into: Settings | None = None) -> Settings:
    """Flatten the configuration for the flow plane; `into`, settings that are in use already."""
    s = Settings() if into is None else into
    mqtt, session, queue = config.mqtt, config.session, config.mqueue
    s.max_packet_size = mqtt.max_packet_size
    s.max_connect_size = min(Settings().max_connect_size, mqtt.max_packet_size)
    s.max_client_id_length = mqtt.max_client_id_length
    s.max_topic_levels = mqtt.max_topic_levels
    s.max_topic_length = mqtt.max_topic_length
    s.max_topic_alias = mqtt.max_topic_alias
    s.outbound_topic_alias = mqtt.outbound_topic_alias
    s.topic_cache_bytes = mqtt.topic_cache
    s.topic_cache_entries = mqtt.topic_cache_entries
    s.max_qos = mqtt.max_qos
    s.retain_available = mqtt.retain_available
    s.wildcard_subscription = mqtt.wildcard_subscription
    s.shared_subscription = mqtt.shared_subscription
    s.shared_strategy = mqtt.shared_strategy
    s.shared_prefer = mqtt.shared_prefer
    s.server_keepalive_seconds = int(mqtt.server_keepalive)
    s.keepalive_multiplier = float(mqtt.keepalive_multiplier)
    s.connect_timeout = int(mqtt.connect_timeout * 1000)
    s.response_information = mqtt.response_information
    s.max_inflight = session.max_inflight
    s.receive_maximum = session.receive_maximum
    s.retry_interval = int(session.retry_interval * 1000)
    s.max_awaiting_rel = session.max_awaiting_rel
    s.await_rel_timeout = int(session.await_rel_timeout * 1000)
    s.expiry_interval_seconds = int(session.expiry_interval)
    s.max_expiry_interval_seconds = int(session.max_expiry_interval)
    s.wills_at_stop = session.wills_at_stop
    s.owned_by_user = session.owner == "user"
    s.client_id_pattern = session.client_id
    s.max_sessions_per_user = session.max_per_user
    s.max_sessions_per_address = session.max_per_address
    s.max_subscriptions = session.max_subscriptions
    s.upgrade_qos = session.upgrade_qos
    s.mqueue_max_length = queue.max_length
    s.mqueue_max_bytes = queue.max_bytes
    s.mqueue_in_memory = queue.in_memory
    s.mqueue_in_memory_total = queue.in_memory_total
    s.mqueue_store_qos0 = queue.store_qos0
    s.mqueue_priorities = dict(queue.priorities) or None
    s.retained_max_messages = config.retained.max_messages
    s.retained_max_bytes = config.retained.max_bytes
    s.retained_max_payload = config.retained.max_payload
    s.retained_max_per_user = config.retained.max_per_user
    s.retained_max_bytes_per_user = config.retained.max_bytes_per_user
    expiry = config.retained.expiry
    s.retained_expiry = 0 if expiry == NEVER else int(expiry * 1000)
    s.memory_budget = config.memory.budget
    s.memory_per_session = config.memory.per_session
    s.memory_per_user = config.memory.per_user
    s.memory_unauthenticated = config.memory.unauthenticated
    s.high_watermark = config.output.high_watermark
    s.low_watermark = config.output.low_watermark
    s.backlog = config.output.backlog
    s.gather = float(config.output.gather)
    s.deny_disconnect = config.acl.deny_action == "disconnect"
    s.revoke_disconnect = config.acl.on_revoke == "disconnect"
    s.cache_grants = config.acl.cache
    return s
