"""What became of one message, in words."""

from __future__ import annotations

import pytest

from mqttd.readmodel.why import REASONS, Step, life_of


@pytest.mark.parametrize(
    ("detail", "told"),
    [
        ("/etc/acl.conf:9 {deny, all}", "a rule denies it to the publisher"),
        ("<rules from token_table>:1 {deny, all}", "a rule denies it to the publisher"),
        ("more than 128 levels", REASONS["denied"]),
    ],
)
def test_what_a_rule_denied_is_told_as_that(detail: str, told: str) -> None:
    lost = Step(at=1.0, id="1", what="lost", topic="a", reason="denied", detail=detail)
    assert life_of([lost]).answer == [f"{told}: {detail}"]
