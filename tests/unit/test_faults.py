"""What plugins get wrong, as the log has it."""

from __future__ import annotations

from typing import Any

import pytest

from mqttd.faults import Faults
from mqttd.plugins.calls.budget import UNBOUNDED, Budget
from mqttd.plugins.handle.access import PluginFailed


class Lines:
    """The fields of each event."""

    def __init__(self) -> None:
        self.told: list[dict[str, object]] = []

    def __call__(self, event: str, fields: dict[str, object]) -> None:
        self.told.append({"event": event, **fields})

    error = __call__


@pytest.mark.parametrize(
    ("limit", "point", "error", "said"),
    [
        (10, "message.publish", RuntimeError(), "3 of 10"),
        (10, "auth acme.check", TimeoutError(), "3 of 10"),
        (10, "auth acme.check", RuntimeError(), "4, not counted against the limit"),
        (UNBOUNDED, "message.publish", RuntimeError(), "4"),
    ],
)
def test_errors_are_told_with_their_limit_where_there_is_one(
    limit: int, point: str, error: Exception, said: str
) -> None:
    lines, owner = Lines(), Budget("acme", error_limit=limit)
    owner.noted("raised", "for one client")
    for _ in range(2):
        owner.failed("raised", "for all", 0.0)
    Faults(lines).callback(point, print, error, owner)
    assert [told["errors"] for told in lines.told] == [said]


def test_what_the_policy_does_is_told_with_the_failure() -> None:
    lines = Lines()
    faults = Faults(lines)
    faults.callback("client.authenticate", print, RuntimeError(), Budget("acme", "deny"))
    faults.callback("client.connected", print, RuntimeError(), Budget("acme", "deny"))
    assert [told.get("policy") for told in lines.told] == ["deny", None]
    lines.told.clear()
    faults.module("auth", "ldap of plugin acme", KeyError("a"), "the client is refused")
    faults.module("auth", "ldap of plugin acme", PluginFailed("told"), "the next module is asked")
    first, second = lines.told
    assert first["module"] == second["module"] == "auth ldap of plugin acme"
    assert (first["then"], second["then"]) == ("the client is refused", "the next module is asked")
    # Of a plugin's callback there is a line with the traceback already.
    assert "KeyError" in str(first["traceback"]) and "traceback" not in second


def test_no_limit_is_shown_where_there_is_none() -> None:
    shown: Any = Budget("embed", error_limit=UNBOUNDED).describe()
    assert shown["limits"]["error_limit"] is None
    assert repr(Budget("embed", error_limit=UNBOUNDED)) == "<Budget embed active 0 errors>"
    assert repr(Budget("acme")) == "<Budget acme active 0/10 errors>"
