"""What the broker answers to CONNECT: the properties of CONNACK, and hook client.connack.

MQTT 5.0, 3.2.2.3: what differs from what a client assumes without it, and Receive Maximum and
Maximum Packet Size always. It fits the client's own Maximum Packet Size: what may be left out is,
and a client that takes less is refused (MQTT-3.1.2-24).
"""

from __future__ import annotations

from mqttd.broker.hooks.taps import Taps
from mqttd.broker.sessions.login import Login
from mqttd.codec import properties as prop
from mqttd.codec import reasons
from mqttd.codec.packets import Connack, Connect
from mqttd.codec.properties import Properties, encode_properties
from mqttd.codec.serializer import serialize_within
from mqttd.session.channel.channel import Channel
from mqttd.session.channel.limits import Limits
from mqttd.types import ClientInfo

__all__ = ["Connacks"]


class Connacks:
    """Makes the answers of one broker."""

    def __init__(self, broker: Taps) -> None:
        self.broker = broker
        #: This node is being drained: with this reason and Server Reference nobody is let in.
        self.elsewhere: tuple[int, str] | None = None

    def accepting(
        self, channel: Channel, connect: Connect, client: ClientInfo, limits: Limits | None
    ) -> Properties | None:
        """The properties of a CONNACK that accepts; None before MQTT 5.0."""
        properties: Properties | None = None
        if connect.version == 5:
            properties = self._said(channel, connect, limits)
        if "client.connack" in self.broker.points:
            changed = self._asked(client, reasons.SUCCESS, properties)
            if not channel.v5:
                return None
            if serialize_within(Connack(False, 0, changed), channel.takes()):
                return changed
            # What hooks have added is too much for this client.
        return properties

    def fits(self, channel: Channel, connect: Connect, limits: Limits | None, largest: int) -> bool:
        """Whether a CONNACK that accepts has at most so many bytes, hooks left aside."""
        said = self._said(channel, connect, limits)
        return len(serialize_within(Connack(False, 0, said), largest)) > 0

    def _said(self, channel: Channel, connect: Connect, limits: Limits | None) -> Properties:
        properties = self._offered(connect, channel.assigned, limits)
        login = channel.auth
        if isinstance(login, Login) and login.method:
            properties[prop.AUTHENTICATION_METHOD] = login.method
            if login.data is not None:
                properties[prop.AUTHENTICATION_DATA] = login.data
        return properties

    def refusing(self, channel: Channel, connect: Connect, code: int) -> Properties | None:
        """The properties of a CONNACK that refuses."""
        properties: Properties | None = None
        elsewhere = self.elsewhere
        if elsewhere is not None and elsewhere[0] == code and elsewhere[1]:
            properties = {prop.SERVER_REFERENCE: elsewhere[1]}
        if "client.connack" not in self.broker.points:
            return properties
        host, port = channel.edge.peer(channel)
        client = ClientInfo(
            connect.client_id,
            connect.username,
            host,
            port,
            channel.listener,
            connect.version,
            connect.clean_start,
            connect.keep_alive,
        )
        properties = self._asked(client, code, properties)
        return properties if channel.v5 else None

    def _asked(
        self, client: ClientInfo, code: int, properties: Properties | None
    ) -> Properties | None:
        """Hook client.connack: the properties that go into the packet."""
        given = dict(properties) if properties is not None else None
        _, changed = self.broker.hooks.run_hooks("client.connack", (client, code), given)
        if changed is None:
            return None
        try:
            encode_properties(changed)
        except Exception:
            self.broker.hooks.unusable("client.connack", changed)
            return properties
        result: Properties = changed
        return result

    def _offered(self, connect: Connect, assigned: bool, limits: Limits | None) -> Properties:
        settings = self.broker.settings
        largest = settings.max_packet_size
        if limits is not None and limits.largest:
            largest = limits.largest
        properties: Properties = {
            prop.RECEIVE_MAXIMUM: settings.receive_maximum,
            prop.MAXIMUM_PACKET_SIZE: largest,
        }
        if settings.max_topic_alias:
            properties[prop.TOPIC_ALIAS_MAXIMUM] = settings.max_topic_alias
        if settings.max_qos < 2:
            properties[prop.MAXIMUM_QOS] = settings.max_qos
        if not settings.retain_available:
            properties[prop.RETAIN_AVAILABLE] = 0
        if not settings.wildcard_subscription:
            properties[prop.WILDCARD_SUBSCRIPTION_AVAILABLE] = 0
        if not settings.shared_subscription:
            properties[prop.SHARED_SUBSCRIPTION_AVAILABLE] = 0
        if settings.server_keepalive_seconds:
            properties[prop.SERVER_KEEP_ALIVE] = settings.server_keepalive_seconds
        if assigned:
            properties[prop.ASSIGNED_CLIENT_IDENTIFIER] = connect.client_id
        asked = connect.properties
        if asked is not None:
            expiry = asked.get(prop.SESSION_EXPIRY_INTERVAL)
            if isinstance(expiry, int) and expiry > settings.max_expiry_interval_seconds:
                properties[prop.SESSION_EXPIRY_INTERVAL] = settings.max_expiry_interval_seconds
            if asked.get(prop.REQUEST_RESPONSE_INFORMATION) == 1 and settings.response_information:
                properties[prop.RESPONSE_INFORMATION] = settings.response_information
        return properties
