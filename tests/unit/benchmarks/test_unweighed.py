"""The copy without the account: what is cut is there, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.unweighed import CUTS, main

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", CUTS)
def test_what_is_cut_is_there(name: str) -> None:
    source = (ROOT / name).read_text("utf-8")
    for before, after in CUTS[name].items():
        assert source.count(before) == 1
        source = source.replace(before, after)
    compile(source, name, "exec")


def test_without_a_directory_it_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "benchmarks.unweighed DIR" in capsys.readouterr().err
