"""Holds a broker's account to the structures that it counts.

Each sum is made anew from what is there: sessions, windows, queues, connections, the retained tree.
"""

from __future__ import annotations

from mqttd.broker.broker import Broker
from mqttd.broker.retained.retained import Retained
from mqttd.broker.retained.retainer import RetainedLevel, topic_weight
from mqttd.session.channel.channel import Channel
from mqttd.session.charged import flight_weight
from mqttd.session.ground.account import AWAITING, CONNECTION, REPLAY, SESSION, filter_weight
from mqttd.session.ground.message import entry_weight

__all__ = ["audit"]


def audit(broker: Broker, channels: list[Channel]) -> None:
    """Raises AssertionError where the account and the structures differ.

    channels: the connections that are there, whether their clients have been let in or not.
    """
    kinds = dict.fromkeys(
        ("sessions", "subscriptions", "queued", "inflight", "awaiting_rel", "wills", "replays"), 0
    )
    purses: dict[str, int] = {}
    flying: dict[str, int] = {}
    for session in broker.sessions.values():
        held = {
            "sessions": SESSION + len(session.client_id) + len(session.username or ""),
            "subscriptions": sum(
                filter_weight(topic_filter, topic_filter in (session.identifiers or {}))
                for topic_filter in session.subscriptions or {}
            ),
            "queued": sum(map(entry_weight, session.mqueue.items())) if session.mqueue else 0,
            "awaiting_rel": AWAITING * len(session.awaiting_rel or ()),
            "wills": session.will.weight() if session.will is not None else 0,
            "replays": REPLAY * len(session.all_replays())
            + (0 if session.replays is None else session.replays.held),
        }
        assert session.weight == sum(held.values()), (session.client_id, session.weight, held)
        if session.username is not None:
            purses[session.username] = purses.get(session.username, 0) + session.weight
            flying[session.username] = flying.get(session.username, 0) + session.flying()
        held["inflight"] = sum(map(flight_weight, (session.inflight or {}).values()))
        assert session.flying() == held["inflight"]
        for kind, size in held.items():
            kinds[kind] += size
    account = broker.account
    open_ones = [channel for channel in channels if channel.turn is broker]
    kinds["connections"] = CONNECTION * len(open_ones)
    kinds["unfinished"] = sum(channel.unfinished() + channel.asking for channel in open_ones)
    kinds["aliases"] = sum(
        channel.aliases.bytes for channel in open_ones if channel.aliases is not None
    )
    shown = account.by_kind()
    assert {kind: shown[kind] for kind in kinds} == kinds
    assert {name: purse.bytes for name, purse in account.purses.items()} == purses
    if account.per_user:
        assert {name: purse.flying for name, purse in account.purses.items()} == flying
    assert account.unauthenticated == sum(
        CONNECTION + channel.kept for channel in open_ones if channel.stranger
    )
    assert broker.memory.used() == sum(account.by_kind().values())
    assert account.topics == sum(route.weight for route in broker.router.table.values())
    _audit_retained(broker)


def _audit_retained(broker: Broker) -> None:
    retainer = broker.retainer
    assert retainer.bytes == sum(level.size for level in retainer.topics.values())
    users: dict[str, list[int]] = {}
    for level in retainer.topics.values():
        message = level.message
        if isinstance(message, Retained) and message.source:
            assert message.charged >= level.size
            users.setdefault(message.username or "", []).append(message.charged)
    assert {name: (share.count, share.bytes) for name, share in retainer.users.items()} == {
        name: (len(charged), sum(charged)) for name, charged in users.items()
    }
    levels: list[RetainedLevel] = [retainer.root]
    words: set[tuple[int, str]] = set()
    held = sum(map(topic_weight, retainer.topics))
    while levels:
        level = levels.pop()
        below = level.first
        first = True
        while below is not None:
            held += 136 if first else 236
            first = False
            depth = below.depth()
            if (depth, below.word) not in words:
                words.add((depth, below.word))
                held += 160 + len(below.word)
            levels.append(below)
            below = below.next
    assert retainer.held == held
