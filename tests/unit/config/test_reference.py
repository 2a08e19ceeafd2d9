"""The shipped file and the reference page say what the schema says, no more and no less."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from mqttd.config import reference
from mqttd.config.load import load
from mqttd.config.options import OPTIONS, TABLES
from mqttd.config.schema import LISTENER_KINDS, Config

ROOT = Path(__file__).parents[3]
CONF = ROOT / reference.CONF
PAGE = ROOT / reference.PAGE


def test_the_shipped_file_is_the_one_the_schema_writes() -> None:
    """Run ``python -m mqttd.config.reference`` after a change of the schema."""
    assert CONF.read_text(encoding="utf-8") == reference.conf_text()


def test_the_reference_page_is_the_one_the_schema_writes() -> None:
    """Run ``python -m mqttd.config.reference`` after a change of the schema."""
    assert PAGE.read_text(encoding="utf-8") == reference.page_text()


def test_the_shipped_file_loads_to_the_defaults_but_for_what_is_said(tmp_path: Path) -> None:
    """The dashboard is on where somebody starts with the shipped file, and nothing else differs."""
    assert reference.SHIPPED == {"admin.page.enabled": True}
    shipped, empty = tmp_path / "mqttd.conf", tmp_path / "empty.conf"
    shipped.write_bytes(CONF.read_bytes())
    empty.write_text("admin.page.enabled = true\n")
    config, wanted = load(str(shipped), {}), load(str(empty), {})
    assert set(config.given) == set(reference.SHIPPED)
    assert msgspec.structs.replace(config, path=wanted.path, given=wanted.given) == wanted


def test_the_shipped_file_uncommented_loads_to_the_defaults(tmp_path: Path) -> None:
    """Taking every ``#`` away in front of a key changes nothing: each shows its true default."""
    commented, uncommented = tmp_path / "mqttd.conf", tmp_path / "uncommented.conf"
    commented.write_bytes(CONF.read_bytes())
    text = re.sub(r"(?m)^#(?=[a-z0-9_]+ = |\[)", "", CONF.read_text(encoding="utf-8"))
    uncommented.write_text(text, encoding="utf-8")
    config = load(str(uncommented), {})
    assert set(config.given) == {path.replace("NAME", "default") for path in OPTIONS}
    assert set(config.listener) == set(LISTENER_KINDS)
    plain = load(str(commented), {})
    listener = {"tcp": config.listener["tcp"]}
    assert (
        msgspec.structs.replace(config, path=plain.path, given=plain.given, listener=listener)
        == plain
    )


def test_every_key_stands_once_in_the_shipped_file() -> None:
    text = CONF.read_text(encoding="utf-8").replace("\n#[", "\n[")
    wrong = []
    for path in OPTIONS:
        table, _, name = path.replace("NAME", "default").rpartition(".")
        section = text.split(f"\n[{table}]\n")[1].split("\n[")[0]
        mark = "" if path in reference.SHIPPED else "#"
        if len(re.findall(rf"(?m)^{mark}{name} = ", section)) != 1:
            wrong.append(path)
    assert not wrong


def test_every_key_stands_once_on_the_reference_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert not [path for path in OPTIONS if text.count(f"### `{path}`\n") != 1]


def test_the_shipped_file_holds_no_other_table() -> None:
    def tables(document: dict[str, object], above: str = "") -> set[str]:
        found: set[str] = set()
        for key, value in document.items():
            if isinstance(value, dict):
                found |= {above + key} | tables(value, f"{above}{key}.")
        return found

    text = CONF.read_text(encoding="utf-8").replace("\n#[", "\n[")
    known = {table.replace("NAME", "default") for table in TABLES}
    kinds = {f"listener.{kind}" for kind in LISTENER_KINDS}
    assert tables(tomllib.loads(text)) == known | {"listener"} | kinds


def test_the_shipped_file_opens_one_plain_port() -> None:
    assert list(load(str(CONF), {}).listener) == ["tcp"]


def test_every_section_of_the_configuration_is_in_the_file() -> None:
    sections = {table.partition(".")[0] for table in TABLES}
    assert sections == set(Config.__struct_fields__) - {"path", "given"}


def test_the_check_tells_a_stale_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert reference.main(["--check"]) == 1
    assert "etc/mqttd.conf is out of date" in capsys.readouterr().out
    assert reference.main([]) == 0
    assert reference.main(["--check"]) == 0
