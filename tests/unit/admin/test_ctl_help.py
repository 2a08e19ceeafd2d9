"""Every command and group of `mqttd-ctl` explains itself, whether a broker runs or not."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator

import pytest

from mqttd.admin.ctl import main as ctl


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
    assert capsys.readouterr().out.startswith("usage: ")


@pytest.mark.parametrize("given", ["", "bans", "bans add"])
def test_help_may_be_the_first_word(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for argv in (["--json", "help", *given.split()], ["--json", *given.split(), "--help"]):
        with pytest.raises(SystemExit):
            ctl.main(argv)
        told.append(capsys.readouterr().out)
    assert told[0] == told[1] and told[0].startswith("usage: ")


def test_a_command_imports_no_broker() -> None:
    """It would be most of the time that a command takes."""
    code = (
        "import sys, mqttd.admin.ctl.main;"
        "print({'mqttd.broker.broker', 'mqttd.session.session', 'twisted'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
