"""What workers have in common: who was away has it, and nothing that was taken back meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mqttd.access.roles.roles import Roles
from mqttd.broker.ground.roles import Change, Group, Member, Role
from mqttd.broker.rights.bans import Bans
from mqttd.workers.commons import Commons
from mqttd.workers.draining import shares_of

NAMES = st.sampled_from(["a", "b", "c"])


def commons() -> Commons:
    bans = SimpleNamespace(told=None, list=list)
    broker: Any = SimpleNamespace(bans=bans, trail=None)
    made = Commons(broker, lambda name, what: None)
    made.roles = Roles()
    return made


@st.composite
def sets_of_roles(draw: st.DrawFn) -> Change:
    roles = draw(st.lists(NAMES, unique=True))
    groups = draw(st.lists(NAMES, unique=True))
    members = draw(st.lists(NAMES, unique=True))
    text = draw(st.sampled_from(["", "{allow, all}."]))
    has = draw(st.booleans())
    return Change(
        roles=[Role(name=name, rules=text) for name in roles],
        groups=[Group(name=name, roles=roles if has else []) for name in groups],
        members=[
            Member(username=name, roles=roles if has else [], groups=groups, enabled=has)
            for name in members
        ],
    )


@given(sets_of_roles(), sets_of_roles())
def test_who_was_away_has_the_roles_of_who_serves(serves: Change, had: Change) -> None:
    one, other = commons(), commons()
    one.roles.put(serves)
    other.roles.put(had)
    for name, what in one.all():
        other.calls[name](what)
    for kind in ("roles", "groups", "members", "names", "disabled"):
        assert getattr(other.roles, kind) == getattr(one.roles, kind)


def test_who_was_away_has_the_bans_of_who_serves_as_they_were_made() -> None:
    one, other = (Commons(broker_with(Bans(seconds=lambda at=at: at)), lambda name, what: None)  # type: ignore[misc]
                  for at in (10.0, 20.0))  # fmt: skip
    one.broker.bans.add("client_id", "bad", "is", 100.0)
    other.broker.bans.add("client_id", "bad", "is", 100.0)
    other.broker.bans.add("client_id", "lifted")
    for name, what in one.all():
        other.calls[name](what)
    assert other.broker.bans.list() == one.broker.bans.list()
    assert [ban.since for ban in other.broker.bans.list()] == [10.0]


def broker_with(bans: Bans) -> Any:
    return SimpleNamespace(bans=bans, trail=None, enforce_bans=lambda: None)


@given(
    st.floats(0.1, 10_000),
    st.dictionaries(st.integers(1, 8), st.integers(0, 1000), min_size=1),
)
def test_a_drain_has_one_rate(rate: float, left: dict[int, int]) -> None:
    shares = shares_of(rate, left)
    assert shares.keys() == left.keys() and min(shares.values()) > 0
    assert sum(shares.values()) <= rate + 0.01 * len(left) + 1e-6
