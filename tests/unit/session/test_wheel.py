"""Times: seconds in milliseconds, without a product."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqttd.session.ground.wheel import milliseconds


@given(st.integers(0, 0xFFFFFFFF))
def test_milliseconds(seconds: int) -> None:
    assert milliseconds(seconds) == 1000 * seconds
