"""Every command and group of `mqttd-ctl` explains itself, whether a broker runs or not."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from mqttd.admin import ctl


def words(
    parser: argparse.ArgumentParser, before: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    yield before
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from words(below, (*before, name))


@pytest.mark.parametrize("given", list(words(ctl._parser())), ids=" ".join)
def test_help(given: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        ctl.main([*given, "--help"])
    assert ended.value.code == 0
    asked_so = capsys.readouterr().out
    assert asked_so.startswith("usage: ")
    with pytest.raises(SystemExit) as ended:
        ctl.main(["help", *given])
    assert ended.value.code == 0
    assert capsys.readouterr().out == asked_so
