"""What a node does that is in a minority: the alarm, and `cluster.minority`."""

from __future__ import annotations

from typing import Final

from twisted.logger import Logger

from mqttd.broker.broker import Broker
from mqttd.codec.reasons import USE_ANOTHER_SERVER
from mqttd.config.schema import Cluster as Settings
from mqttd.session.channel import Channel

__all__ = ["begins", "ends"]

#: The alarm of a node that etcd does not answer.
_ALARM: Final = "cluster_minority"
_LOG: Final = Logger(namespace="mqttd.cluster")


def begins(settings: Settings, broker: Broker) -> bool:
    """etcd does not answer; whether all clients are sent away for that."""
    text = (
        f"etcd has not answered for {settings.lease} s: other nodes do not count with"
        f" this one; minority = {settings.minority!r}"
    )
    _LOG.critical("{text}", text=text)
    broker.alarms.activate(_ALARM, text)
    if settings.minority != "refuse":
        return False
    for session in list(broker.sessions.values()):
        channel = broker.channel_of(session)
        if isinstance(channel, Channel):
            channel.close(USE_ANOTHER_SERVER, "this node is in a minority")
    return True


def ends(broker: Broker) -> None:
    """It answers again."""
    broker.alarms.clear(_ALARM)
    _LOG.info("etcd answers again: this node is a member")
