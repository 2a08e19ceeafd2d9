"""The benchmark of hooks: its variants start, its shares add up, and a bound can be missed."""

from __future__ import annotations

import pytest

from benchmarks import hooks


def test_the_shares_add_up_to_what_a_no_op_hook_costs() -> None:
    cpu = {"none": 0.25, "apart": 0.5, "message": 1.0, "noop": 1.5, "five": 3.5}
    found = hooks.shares(cpu)
    assert found == {
        "lost run coalescing": 0.25,
        "Message building": 0.5,
        "the call": 0.5,
        "each further call": 0.5,
    }
    assert sum(found.values()) - found["each further call"] == cpu["noop"] - cpu["none"]


@pytest.mark.parametrize("variant", list(hooks.VARIANTS))
def test_every_variant_is_a_program(variant: str) -> None:
    text = hooks.Hooked(variant).configuration("PORT")["broker.tac"]
    compile(text, "broker.tac", "exec")
    assert hooks.VARIANTS[variant] in text


@pytest.mark.parametrize(("theirs", "met"), [(10.0, True), (4.0, False)])
def test_a_bound_that_is_missed_is_told(
    capsys: pytest.CaptureFixture[str], theirs: float, met: bool
) -> None:
    found = {name: [1.0, 1.0] for name in hooks.VARIANTS} | {"mosquitto": [theirs, theirs]}
    assert hooks.report(0, found, "mosquitto") is met
    assert f"one no-op hook: {theirs:.1f} x mosquitto (at least 5 x)" in capsys.readouterr().out
