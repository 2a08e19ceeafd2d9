"""What the pages tell a reader to type: shells take it, mqttd-ctl has it, configurations load.

The blocks that start and stop brokers are run by tests/integration/test_docs_examples.py and
tests/packaging; here every command line of every page is held to the programs' own parsers.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from mqttd.admin.ctl import main as ctl
from mqttd.config.load import from_tables
from mqttd.config.schema import Config
from mqttd.options import Options

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Plugins of the pages' stories, whose commands stand for those of mqttd-ctl itself.
PLUGINS = {"acme", "acme_thing", "locked_machines", "spark", "trace", "delayed", "presence",
           "counter", "prometheus", "lobby", "greeter", "webhook"}  # fmt: skip


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> list[str]:
    return [text for language, text in BLOCK.findall(page.read_text("utf-8"))
            if language in languages]  # fmt: skip


def commands(block: str, program: str) -> list[list[str]]:
    """The arguments of each call of a program in a block, comments and pipes left aside."""
    found = []
    for line in block.replace("\\\n", " ").splitlines():
        try:
            lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            words = list(lexer)
        except ValueError:
            continue  # a text over several lines
        while words:
            end = next((i for i, word in enumerate(words) if set(word) <= set("|&;<>()")), None)
            call, words = words[:end], words[end + 1 :] if end is not None else []
            if not call:
                continue
            places = [i for i, word in enumerate(call) if word.rpartition("/")[2] == program]
            if program == "mqttd" and places != [0] and not call[0].endswith("twistd"):
                continue  # a user or a container of this name
            if places:
                found.append(call[places[-1] + 1 :])
    return found


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_shell_takes_every_block(page: Path) -> None:
    for block in blocks(page, "sh", "bash"):
        done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True)
        assert done.returncode == 0, f"{block}\n{done.stderr}"


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    return ctl._parser()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_mqttd_ctl_has_what_is_typed(page: Path, parser: argparse.ArgumentParser) -> None:
    known = [word for action in parser._actions for word in action.choices or ()]
    for block in blocks(page, "sh", "bash"):
        for words in commands(block, "mqttd-ctl"):
            given = [word for word in words if not word.startswith("-")]
            if PLUGINS & set(given[:2]) and given[0] not in known:
                continue
            told = io.StringIO()
            try:
                with contextlib.redirect_stderr(told), contextlib.redirect_stdout(told):
                    parser.parse_args(words)
            except SystemExit as stopped:
                assert not stopped.code, f"mqttd-ctl {' '.join(words)}: {told.getvalue()}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_broker_takes_the_options_that_are_typed(page: Path) -> None:
    long = {f"--{option.rstrip('=')}" for option in Options().longOpt}
    for block in blocks(page, "sh", "bash"):
        for words in commands(block, "mqttd"):
            for word in words:
                if word.startswith("--"):
                    assert word.partition("=")[0] in long, f"mqttd {' '.join(words)}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_configurations_load_as_printed(page: Path, tmp_path: Path) -> None:
    tables = set(Config.__struct_fields__) - {"path", "given"}
    for block in blocks(page, "toml"):
        document = tomllib.loads(block)
        if document and set(document) <= tables:
            from_tables(document, str(tmp_path))
