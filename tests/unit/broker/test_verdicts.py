"""What is no verdict is found where it is taken, and refuses one client."""

from __future__ import annotations

from typing import Any

import pytest

from mqttd.broker.ground.verdicts import fault_of, refusal
from mqttd.types import AUTH_IGNORE, AUTH_OK, AuthContinue, AuthError, AuthIgnore, AuthOk

TAKES = (AuthOk, AuthIgnore, AuthError, AuthContinue)


@pytest.mark.parametrize(
    "answer",
    [
        AUTH_OK,
        AUTH_IGNORE,
        AuthOk(True, "{allow, all}.", 2e9, {"a": 1}, "bob", b""),
        AuthOk(expires_at=7),
        AuthError("no"),
        AuthError("no", 0x86),
        AuthError("busy", 0x89),
        AuthContinue(b"x"),
    ],
)
def test_a_verdict_has_no_fault(answer: object) -> None:
    assert fault_of(answer, TAKES) == ""


@pytest.mark.parametrize(
    "answer,text",
    [
        (None, "not an AuthVerdict: None"),
        (True, "type bool"),
        (AuthOk, "type type"),
        (AuthOk(superuser="yes"), "superuser"),  # type: ignore[arg-type]
        (AuthOk(acl=["{allow, all}."]), "acl"),  # type: ignore[arg-type]
        (AuthOk(acl=b"{allow, all}."), "acl"),  # type: ignore[arg-type]
        (AuthOk(expires_at="soon"), "expires_at"),  # type: ignore[arg-type]
        (AuthOk(expires_at=float("nan")), "expires_at"),
        (AuthOk(expires_at=float("inf")), "expires_at"),
        (AuthOk(expires_at=True), "expires_at"),
        (AuthOk(attributes=[1]), "attributes"),  # type: ignore[arg-type]
        (AuthOk(attributes={7: "x"}), "attributes"),  # type: ignore[dict-item]
        (AuthOk(username=7), "username"),  # type: ignore[arg-type]
        (AuthOk(username="a\0"), "username"),
        (AuthOk(username="\ud800"), "username"),
        (AuthOk(username="x" * 65536), "username"),
        (AuthOk(data="text"), "data"),  # type: ignore[arg-type]
        (AuthOk(data=bytes(65536)), "data"),
        (AuthError(0x86), "reason"),  # type: ignore[arg-type]
        (AuthError("no", "0x86"), "reason_code"),  # type: ignore[arg-type]
        (AuthError("no", 0), "0x00 is no refusal"),
        (AuthError("no", 0x18), "0x18"),
        (AuthError("no", 0x91), "0x91"),
        (AuthError("no", 1 << 70), "reason_code"),
        (AuthContinue("text"), "data"),  # type: ignore[arg-type]
    ],
)
def test_anything_else_is_named_by_its_field_and_not_shown(answer: Any, text: str) -> None:
    fault = fault_of(answer, TAKES)
    assert text in fault
    assert "soon" not in fault


def test_an_object_that_lies_about_its_fields_is_none_either() -> None:
    class Odd(AuthOk):
        def __getattribute__(self, name: str) -> Any:
            raise ZeroDivisionError

    assert "ZeroDivisionError" in fault_of(Odd(), TAKES)


def test_a_refusal_stays_one_however_badly_it_is_put() -> None:
    assert refusal(AuthError("no", 0x86)) == AuthError("no", 0x86)
    assert refusal(AuthError(0x86)).reason_code == 0x86  # type: ignore[arg-type]
    assert refusal(AuthError("no", 3)) == AuthError("no", 0x87)
    assert refusal(AuthError("no", None)).reason_code == 0x87  # type: ignore[arg-type]


def test_milliseconds_are_shown_where_seconds_are_expected() -> None:
    fault = fault_of(AuthOk(expires_at=1767225600000), TAKES)
    assert "expected seconds since 1970, got 1767225600000" in fault
