"""Filters that are subscribed to, page by page."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqttd.readmodel.subscriptions import _First

NAMES = st.text("abc", min_size=1, max_size=3)


@given(st.lists(st.lists(NAMES, unique=True)), st.integers(1, 5), st.text("abc", max_size=3))
def test_the_first_names_are_counted_from_their_first_time_on(
    clients: list[list[str]], most: int, after: str
) -> None:
    first = _First(most, after)
    for names in clients:
        first.add(names)
        assert len(first.counts) <= 2 * most
    every = [name for names in clients for name in names if name > after]
    wanted = sorted(set(every))[:most]
    assert sorted(first.counts)[:most] == wanted
    assert all(first.counts[name] == every.count(name) for name in wanted)
