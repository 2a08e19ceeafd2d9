"""Clients and their sessions over HTTP: who is wanted, what is shown, what can be ended or changed.

A client is one session, whether it is connected or away; see `mqttd.admin.api` for the paths.
"""

from __future__ import annotations

import ipaddress
import time
from typing import Any

from twisted.web.iweb import IRequest

from mqttd.admin.requests import ApiError, argument_of
from mqttd.broker.broker import Broker
from mqttd.codec import reasons
from mqttd.codec.packets import Subscription
from mqttd.codec.reasons import MqttError
from mqttd.session.route import NO_LOCAL, QOS_MASK, RETAIN_AS_PUBLISHED
from mqttd.session.session import Session
from mqttd.session.settings import NEVER

__all__ = ["described", "subscribe", "subscriptions_of", "unsubscribe", "wanted"]

Json = dict[str, Any]


def wanted(request: IRequest, broker: Broker) -> list[str]:
    """The client ids that fit ``username``, ``address``, ``listener`` and ``state``."""
    username = argument_of(request, b"username")
    address = argument_of(request, b"address")
    listener = argument_of(request, b"listener")
    state = argument_of(request, b"state")
    if state not in (None, "connected", "away"):
        raise ApiError(400, "bad_request", f"state = {state!r}: expected connected or away")
    network = None
    if address is not None:
        try:
            network = ipaddress.ip_network(address, strict=False)
        except ValueError:
            raise ApiError(
                400, "bad_request", f"address = {address!r}: expected an address or a network"
            ) from None
    found: list[str] = []
    for client_id, session in broker.sessions.items():
        if username is not None and session.username != username:
            continue
        if state is not None and (session.channel is not None) != (state == "connected"):
            continue
        if network is not None or listener is not None:
            info = broker.client_of(session)
            if listener is not None and info.listener != listener:
                continue
            if network is not None and not _is_within(info.peerhost, network):
                continue
        found.append(client_id)
    return found


def _is_within(host: str, network: Any) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped in network
    return address in network


def described(broker: Broker, session: Session) -> Json:
    """One client as JSON; durations in seconds, times in seconds since 1970.

    What came and went is counted since the connection began, what was dropped since the session.
    """
    now = broker.now
    info = broker.client_of(session)
    channel = broker.channel_of(session)
    queue = session.mqueue
    expiry = session.expiry_interval
    keep_alive = 0
    connected_at = None
    if channel is not None:
        keep_alive = round(channel.keepalive / 1000 / broker.settings.keepalive_multiplier)
        connected_at = round(time.time() - (now - channel.since) / 1000)
    return {
        "client_id": session.client_id,
        "username": session.username,
        "connected": channel is not None,
        "peerhost": info.peerhost if channel is not None else "",
        "peerport": info.peerport if channel is not None else 0,
        "listener": info.listener if channel is not None else "",
        "protocol_version": channel.version if channel is not None else None,
        "superuser": info.superuser,
        "connected_at": connected_at,
        "keep_alive": keep_alive,
        "clean_start": info.clean_start if channel is not None else None,
        "session_age": (now - session.created_at) // 1000,
        "away": (now - session.away_since) // 1000 if channel is None else 0,
        "last_reason": session.last_reason or None,
        "session_expiry_interval": "never" if expiry == NEVER else expiry,
        "will": session.will.topic if session.will is not None else None,
        "subscriptions": session.subscribed(),
        "inflight": len(session.inflight or ()),
        "awaiting_rel": len(session.awaiting_rel or ()),
        "mqueue": queue.length if queue is not None else 0,
        "mqueue_bytes": queue.size if queue is not None else 0,
        "messages_received": channel.taken() if channel is not None else 0,
        "messages_dropped": session.dropped,
        "bytes_received": channel.bytes_received if channel is not None else 0,
        "bytes_sent": channel.bytes_sent if channel is not None else 0,
        "unsent_bytes": channel.out_bytes if channel is not None else 0,
        "idle": (now - channel.last) // 1000 if channel is not None else None,
    }


def subscriptions_of(session: Session) -> list[Json]:
    """The subscriptions of one client as JSON."""
    identifiers = session.identifiers or {}
    return [
        {
            "client_id": session.client_id,
            "topic_filter": topic_filter,
            "qos": options & QOS_MASK,
            "no_local": bool(options & NO_LOCAL),
            "retain_as_published": bool(options & RETAIN_AS_PUBLISHED),
            "subscription_identifier": identifiers.get(topic_filter),
        }
        for topic_filter, options in (session.subscriptions or {}).items()
    ]


def subscribe(broker: Broker, body: Json) -> Json:
    """Subscribe a client as the body of a request says; its rules are asked."""
    known = {"client_id", "topic_filter", "qos"}
    if unknown := sorted(set(body) - known):
        raise ApiError(
            400, "bad_request", f"unknown key {unknown[0]!r}; there are: {', '.join(sorted(known))}"
        )
    client_id, topic_filter, qos = (
        body.get("client_id"),
        body.get("topic_filter"),
        body.get("qos", 0),
    )
    if not isinstance(client_id, str) or not isinstance(topic_filter, str):
        raise ApiError(400, "bad_request", "client_id and topic_filter: expected texts")
    if type(qos) is not int or not 0 <= qos <= 2:
        raise ApiError(400, "bad_request", f"qos = {qos!r}: expected 0, 1 or 2")
    try:
        code = broker.subscribe_client(client_id, Subscription(topic_filter, qos))
    except KeyError:
        raise ApiError(404, "not_found", f"no client {client_id!r}") from None
    except MqttError as error:
        raise ApiError(400, "bad_topic", error.detail) from None
    if code >= 0x80:
        raise ApiError(409, "refused", f"{topic_filter!r}: {reasons.name_of(code)}")
    return {"client_id": client_id, "topic_filter": topic_filter, "qos": code}


def unsubscribe(broker: Broker, session: Session, topic_filter: str) -> Json:
    """End one subscription of a client."""
    if not broker.pubsub.unsubscribe(session, topic_filter):
        raise ApiError(
            404, "not_found", f"client {session.client_id!r} has not subscribed to {topic_filter!r}"
        )
    broker.tell("session.unsubscribed", session, topic_filter)
    broker.perform()
    return {"client_id": session.client_id, "topic_filter": topic_filter}
