"""What a reload is said to do with a key that differs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mqttd.config.plan import differences
from mqttd.config.schema import Config


@pytest.mark.parametrize(
    ("table", "key", "value", "effect"),
    [
        ("session", "max_subscriptions", 3, "in force at once, or when a client connects again"),
        ("mqueue", "max_length", 3, "in force for queues that begin from now on"),
        ("mqueue", "priorities", {"a": 1}, "in force for queues that begin from now on"),
        ("mqueue", "store_qos0", False, "in force at once, or when a client connects again"),
        ("mqtt", "max_qos", 1, "in force from the next message on"),
    ],
)
def test_a_key_says_when_it_is_in_force(table: str, key: str, value: Any, effect: str) -> None:
    before = Config()
    changed = msgspec.structs.replace(getattr(before, table), **{key: value})
    (change,) = differences(before, msgspec.structs.replace(before, **{table: changed}))
    assert (change.key, change.effect) == (f"{table}.{key}", effect)
