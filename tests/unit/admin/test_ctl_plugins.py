"""The commands for plugins: which words name a plugin, and the project that `new` writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mqttd.admin.ctl import main as ctl
from mqttd.admin.ctl.plugins import spelled_out

KNOWN = ["status", "plugins", "publish"]


@pytest.mark.parametrize(
    ("argv", "spelled"),
    [
        ("acme show x", "plugins run acme show x"),
        ("--json acme show", "--json plugins run acme show"),
        ("-c f acme show --all", "-c f plugins run acme show --all"),
        ("--socket s acme show", "--socket s plugins run acme show"),
        ("status", "status"),
        ("publish a b", "publish a b"),
        ("nonsense", "nonsense"),
        ("", ""),
        ("--help", "--help"),
        ("acme --help", "acme --help"),
    ],
)
def test_an_unknown_command_with_a_second_word_is_a_plugins(argv: str, spelled: str) -> None:
    assert spelled_out(argv.split(), KNOWN) == spelled.split()


def test_arguments_of_a_plugins_command_are_its_own() -> None:
    options = ctl._parser().parse_args(["plugins", "run", "acme", "show", "--json", "-x", "y"])
    assert (options.name, options.command, options.argv) == ("acme", "show", ["--json", "-x", "y"])


def test_new_tells_the_files_it_wrote_and_what_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ctl.main(["plugins", "new", "acme_log"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == (
        "next: cd mqttd-acme-log && pip install -e . && mqttd-ctl plugins load acme_log"
    )
    assert all((tmp_path / file).is_file() for file in out[:-1])
    assert ctl.main(["--json", "plugins", "new", "other", "--directory", "here"]) == 0
    assert json.loads(capsys.readouterr().out)["directory"] == "here"


def test_new_writes_over_nothing_and_says_so_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "README.md").write_text("mine")
    assert ctl.main(["plugins", "new", "acme", "--directory", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert "README.md" in err and "nothing was written" in err and err.count("\n") == 1
    assert ctl.main(["plugins", "new", "No-Name"]) == 1
    assert "expected a name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        ("plugins enable delayed", "load"),
        ("plugins disable delayed", "unload"),
        ("plugins relaod delayed", "reload"),
        ("roles remove x", "del"),
    ],
)
def test_the_command_that_was_meant_is_named(
    capsys: pytest.CaptureFixture[str], argv: str, meant: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        ctl.main(argv.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"; did you mean {meant}?\n")


def test_a_command_that_was_taken_for_a_plugin_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ctl.main(["--socket", str(tmp_path / "none"), "plugin", "list"]) == 1
    assert capsys.readouterr().err.endswith("; did you mean plugins?\n")
    assert ctl.main(["--socket", str(tmp_path / "none"), "plugins", "list"]) == 1
    assert "did you mean" not in capsys.readouterr().err
