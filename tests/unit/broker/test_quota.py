"""Whose a client id may be, and how many sessions a user and an address may have."""

from __future__ import annotations

import pytest

from mqttd.broker.sessions.quota import Quota, fits
from mqttd.session.ground.settings import Settings
from mqttd.testing import MemoryBroker, MemoryClient
from mqttd.types import ClientInfo

#: Session Expiry Interval, in seconds.
KEPT = {0x11: 20}


def broker(**limits: object) -> MemoryBroker:
    settings = Settings()
    for name, value in limits.items():
        setattr(settings, name, value)
    return MemoryBroker(settings)


def connect(
    node: MemoryBroker,
    client_id: str,
    username: str | None = None,
    peer: str = "10.0.0.1",
    kept: bool = True,
) -> tuple[MemoryClient, int]:
    client = node.connect(
        client_id,
        clean_start=not kept,
        username=username,
        properties=dict(KEPT) if kept else None,
        peer=(peer, 4000),
    )
    assert client.connack is not None
    return client, client.connack.reason_code


@pytest.mark.parametrize(
    ("pattern", "client_id", "username", "fitting"),
    [
        ("%u", "alice", "alice", True),
        ("%u", "alice2", "alice", False),
        ("%u", "", "", False),
        ("%u", "None", None, False),
        ("%u-*", "alice-", "alice", True),
        ("%u-*", "alice", "alice", False),
        ("*-%u", "x-alice", "alice", True),
        ("dev-*", "dev-1", None, True),
        ("*", "anything", None, True),
        ("a*b*c", "aXbYc", None, True),
        ("a*b*c", "abc", None, True),
        ("a*b*c", "acb", None, False),
        ("ab*ba", "aba", None, False),
        ("%u*%u", "alice", "alice", False),
        ("%u-*", "x*-1", "x*", True),  # a user's own name is no pattern
        ("%u-*", "xyz-1", "x*", False),
    ],
)
def test_a_pattern_holds_the_client_id_to_the_user(
    pattern: str, client_id: str, username: str | None, fitting: bool
) -> None:
    assert fits(pattern, client_id, username) is fitting


def test_a_client_id_that_is_not_as_the_pattern_wants_is_refused() -> None:
    node = broker(client_id_pattern="%u-*")
    assert connect(node, "alice-1", "alice")[1] == 0
    assert connect(node, "alice-2", "bob")[1] == 0x85
    assert connect(node, "lamp")[1] == 0x85


def test_a_session_belongs_to_the_user_who_took_its_client_id_until_it_ends() -> None:
    node = broker()
    first, code = connect(node, "lamp", "alice")
    assert code == 0
    first.disconnect()
    assert connect(node, "lamp", "bob")[1] == 0x87
    node.advance(21)
    assert connect(node, "lamp", "bob")[1] == 0


def test_where_the_client_id_decides_another_users_session_is_discarded_and_not_read() -> None:
    node = broker(owned_by_user=False)
    alice, _ = connect(node, "lamp", "alice")
    alice.subscribe("secret/#")
    bob, code = connect(node, "lamp", "bob")
    assert code == 0 and bob.connack is not None and not bob.connack.session_present
    assert alice.closed
    assert not node.broker.sessions["lamp"].subscriptions
    bob.subscribe("own")
    bob.disconnect()
    again, _ = connect(node, "lamp", "bob")
    assert again.connack is not None and again.connack.session_present


def test_a_user_has_so_many_sessions_away_ones_too() -> None:
    node = broker(max_sessions_per_user=2)
    first, _ = connect(node, "a", "alice")
    first.disconnect()
    assert connect(node, "b", "alice", peer="10.0.0.2")[1] == 0
    assert connect(node, "c", "alice", peer="10.0.0.3")[1] == 0x97
    assert connect(node, "a", "alice")[1] == 0  # it is counted already
    assert connect(node, "c", "bob")[1] == 0
    assert [connect(node, f"n{n}")[1] for n in range(3)] == [0, 0, 0]
    node.broker.kick("b")
    node.advance(21)
    assert connect(node, "c2", "alice")[1] == 0


def test_an_address_has_so_many_sessions_and_gets_them_back() -> None:
    node = broker(max_sessions_per_address=2)
    passing, _ = connect(node, "a", kept=False)
    assert connect(node, "b", "bob")[1] == 0
    assert connect(node, "c")[1] == 0x97
    assert connect(node, "c", peer="10.0.0.2")[1] == 0
    passing.disconnect()  # and with it its session
    assert connect(node, "d")[1] == 0
    taken, _ = connect(node, "d")  # the same session, taken over
    assert connect(node, "e")[1] == 0x97
    quota = node.broker.registry.quota
    assert quota._by_address == {"10.0.0.1": 2, "10.0.0.2": 1}


def test_a_limit_that_comes_later_counts_what_is_there() -> None:
    node = broker()
    connect(node, "a", "alice")
    assert not node.broker.registry.quota._from
    node.settings.max_sessions_per_user = 1
    node.settings.max_sessions_per_address = 2
    node.broker.settings_changed()
    assert connect(node, "b", "alice")[1] == 0x97
    assert connect(node, "b", "bob")[1] == 0
    assert connect(node, "c", "carol")[1] == 0x97
    node.settings.max_sessions_per_user = 0
    node.settings.max_sessions_per_address = 0
    node.broker.settings_changed()
    assert not node.broker.registry.quota._from
    assert connect(node, "c", "alice")[1] == 0


def test_counts_come_back_to_nothing() -> None:
    node = broker(max_sessions_per_user=100)
    for number in range(10):
        client, _ = connect(node, f"c{number}", "alice", kept=bool(number % 2))
        client.disconnect()
    node.advance(21)
    quota = node.broker.registry.quota
    assert not node.broker.sessions and not quota._from and not quota._by_user
    info = ClientInfo("x", "alice", "10.0.0.1", 1, "tcp:default", 5)
    assert isinstance(quota, Quota) and quota.refusal(info, False) is None


def test_an_address_of_ipv6_is_its_network() -> None:
    """One host has 2^64 of them, each of which had its own sessions."""
    node = broker(max_sessions_per_address=2)
    codes = [connect(node, f"c{i}", peer=f"2001:db8::{i:x}")[1] for i in range(5)]
    assert codes == [0, 0, 0x97, 0x97, 0x97]
    assert connect(node, "d", peer="2001:db8:0:1::1")[1] == 0
    assert connect(node, "e", peer="::ffff:10.0.0.1")[1] == 0
    assert connect(node, "f", peer="10.0.0.1")[1] == 0
    assert connect(node, "g", peer="10.0.0.1")[1] == 0x97


def test_to_take_the_sessions_of_others_is_no_way_past_the_limit() -> None:
    node = broker(max_sessions_per_user=2, owned_by_user=False)
    for i in range(2):
        connect(node, f"a{i}", "alice", peer=f"10.0.1.{i}")
        connect(node, f"b{i}", "bob", peer=f"10.0.2.{i}")
    assert connect(node, "a0", "bob")[1] == 0x97
    assert node.broker.sessions["a0"].username == "alice"
    assert connect(node, "b0", "bob")[1] == 0
    node = broker(max_sessions_per_address=1, owned_by_user=False)
    assert connect(node, "a", "alice")[1] == 0
    assert connect(node, "a", "bob", peer="10.0.0.2")[1] == 0
    assert connect(node, "c", "bob", peer="10.0.0.2")[1] == 0x97
    assert connect(node, "a", "alice", peer="10.0.0.2")[1] == 0  # in its place
    assert connect(node, "d", "alice")[1] == 0
    assert connect(node, "a", "carol")[1] == 0x97
