"""The models of docs/design/cluster: searched in their short form, and each rule is needed."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

_PATH = Path(__file__).parents[3] / "docs/design/cluster/model.py"
_CLAIMS = 5 if os.environ.get("MQTTD_LONG") == "1" else 3


@pytest.fixture(scope="module")
def model() -> Any:
    spec = importlib.util.spec_from_file_location("cluster_model", _PATH)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


def test_nothing_goes_wrong(model: Any) -> None:
    count, way = model.search(model.Ownership(_CLAIMS))
    assert (way, count > 5000) == ([], True)
    assert model.search(model.Ownership(3, kills=0, stops=2))[1] == []
    assert model.search(model.Moving())[1] == []
    count, way = model.search(model.Link())
    assert (way, count > 1000) == ([], True)


@pytest.mark.parametrize("rule", ["check", "anew", "whose"])
def test_ownership_needs_each_rule(model: Any, rule: str) -> None:
    assert model.search(model.Ownership(3, **{rule: False}))[1]


@pytest.mark.parametrize("rule", ["back", "asks"])
def test_a_node_that_stands_still_needs_each_rule(model: Any, rule: str) -> None:
    assert model.search(model.Ownership(3, kills=0, stops=1, **{rule: False}))[1]


@pytest.mark.parametrize("rule", ["revision", "marks", "both", "again", "sending", "since"])
def test_a_move_needs_each_rule(model: Any, rule: str) -> None:
    assert model.search(model.Moving(**{rule: False}))[1]


@pytest.mark.parametrize("rule", ["arrears", "answer", "kept", "counted"])
def test_order_over_a_cut_link_needs_each_rule(model: Any, rule: str) -> None:
    assert model.search(model.Link(**{rule: False}))[1]


def test_who_goes_on_without_has_no_order(model: Any) -> None:
    """As after 30 seconds of a cut: what `docs/design/cluster-failures.md` says of it."""
    way = model.search(model.Link(patience=True))[1]
    assert way[-1] == "of 3, 2, 1 x has 2, 3"
