"""The actions that are made once are what would be made each time."""

from __future__ import annotations

import pytest

from mqttd.broker.ground.actions import PUBLISHING, RETAINING, SUBSCRIBING
from mqttd.types import Action


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_is_what_it_says(qos: int) -> None:
    assert PUBLISHING[qos] == Action("publish", qos, False)
    assert RETAINING[qos] == Action("publish", qos, True)
    assert SUBSCRIBING[qos] == Action("subscribe", qos, False)
