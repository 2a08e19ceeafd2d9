"""A session's filters, few or many, are what a dict of them would be."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqttd.session.filters import NEW, OTHER, SAME, Filters
from mqttd.session.ground.account import filter_room, filter_weight
from tests.support.memory import MemoryBroker

NAMES = [f"a/{number}" for number in range(24)]


@pytest.mark.parametrize("options", [1, 3], ids=["alike", "different"])
@pytest.mark.parametrize("names", [1, 3, 24])
@pytest.mark.parametrize("seed", range(20))
def test_as_a_dict(seed: int, names: int, options: int) -> None:
    rnd = random.Random(seed)
    node = MemoryBroker()
    node.connect("c")
    session = node.session("c")
    assert isinstance(session, Filters)
    model: dict[str, int] = {}
    for _ in range(200):
        name = rnd.choice(NAMES[:names])
        if rnd.random() < 0.6:
            given = rnd.randrange(options)
            kind = NEW if name not in model else SAME if model[name] == given else OTHER
            assert session.add_subscription(name, given, 0) == kind
            model[name] = given
        else:
            assert session.remove_subscription(name) == (name in model)
            model.pop(name, None)
        assert (session.subscriptions or {}) == model
        assert session.subscribed() == len(model)
        for known in NAMES[:names]:
            assert session.options_of(known) == model.get(known, -1)


@given(st.text("a/+#é", max_size=30), st.sampled_from(["", "$share/g/", "$queue/"]), st.booleans())
def test_no_filter_weighs_more_than_it_is_held_to_before_it_is_weighed(
    text: str, start: str, identifier: bool
) -> None:
    assert filter_weight(start + text, identifier) <= filter_room(start + text)
