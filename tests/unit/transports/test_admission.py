"""Address rules, the accept rate, and what of the engine's ports pauses."""

from __future__ import annotations

import pytest

from mqttd.config.schema import TcpListener
from mqttd.transports.admission import Admission


def admission(*access: str, rate: int = 0) -> Admission:
    return Admission(TcpListener(access=access or ("allow all",)).rules, rate, 0)


def test_the_first_rule_that_matches_decides() -> None:
    gate = admission("deny 10.0.0.7", "allow 10.0.0.0/8", "allow 2001:db8::/32", "deny all")
    assert not gate.allows("10.0.0.7")
    assert gate.allows("10.0.0.8")
    assert gate.allows("::ffff:10.0.0.8")
    assert not gate.allows("::ffff:10.0.0.7")
    assert gate.allows("2001:db8::1")
    assert not gate.allows("fe80::1%eth0")
    assert not gate.allows("192.0.2.1")
    assert gate.allows("unix")


def test_without_rules_everybody_may_connect() -> None:
    assert admission().allows("192.0.2.1")
    assert not admission("deny all").allows("192.0.2.1")


@pytest.mark.parametrize(
    "access,told",
    [
        ([], "allow all"),
        (["allow 10.0.0.0/8"], "the last one"),
        (["permit all"], "neither"),
        (["deny 10.0.0.1/8", "allow all"], "host bits"),
        (["deny", "allow all"], "names no network"),
    ],
)
def test_what_is_no_rule_is_told(access: list[str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        _ = TcpListener(access=tuple(access)).rules


def test_accepts_have_a_burst_then_a_rate() -> None:
    gate = admission(rate=10)
    assert gate.room(0, 256) == 20
    gate.take(20)
    assert gate.room(0, 256) == 0
    assert gate.room(100, 256) == 1
    gate.take(3)
    assert gate.room(200, 256) == 0  # what was too much is paid for
    assert gate.room(1_000_000, 256) == 20
    assert gate.room(1_000_000, 8) == 8
