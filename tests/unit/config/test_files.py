"""Where a configuration is looked for, and what `mqttd-ctl init` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqttd.config import files
from mqttd.config.files import SHIPPED, find, initialize, places, shipped
from mqttd.config.load import load
from mqttd.options import check_files

ROOT = Path(__file__).parents[3]


def test_the_checkout_the_user_and_the_system_are_asked_in_this_order() -> None:
    assert places({"HOME": "/home/u"}) == [
        "etc/mqttd.conf", "/home/u/.config/mqttd/mqttd.conf", "/etc/mqttd/mqttd.conf",
    ]  # fmt: skip
    assert places({"HOME": "/home/u", "XDG_CONFIG_HOME": "/x"})[1] == "/x/mqttd/mqttd.conf"
    assert places({}) == ["etc/mqttd.conf", "/etc/mqttd/mqttd.conf"]


def test_the_first_that_is_there_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "x")}
    initialize(str(tmp_path / "x" / "mqttd"), str(tmp_path / "data"))
    assert find(environ) == str(tmp_path / "x" / "mqttd" / "mqttd.conf")
    initialize(".")
    assert find(environ) == "etc/mqttd.conf"


def test_what_is_written_starts_a_broker_and_is_what_the_checkout_has(tmp_path: Path) -> None:
    fresh, kept = initialize(str(tmp_path))
    assert [Path(path).relative_to(tmp_path) for path in fresh] == [
        Path("etc"), Path("data"), Path("etc/mqttd.conf"), Path("etc/acl.conf"),
    ]  # fmt: skip
    assert kept == []
    for name in SHIPPED:
        assert shipped(name) == (ROOT / "etc" / name).read_text("utf-8")
    config = load(str(tmp_path / "etc" / "mqttd.conf"), {})
    assert config.node.data_dir == str(tmp_path / "data")
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    check_files(config)


def test_what_an_operator_has_changed_in_a_checkout_goes_into_no_other_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SHIPPED:
        path = tmp_path / "etc" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    monkeypatch.setattr(files, "__file__", str(tmp_path / "mqttd/config/files.py"))
    monkeypatch.chdir(tmp_path)
    initialize("new")
    for name in SHIPPED:
        assert (tmp_path / "new/etc" / name).read_text() != "mine"


def test_a_data_directory_elsewhere_is_named_in_the_file(tmp_path: Path) -> None:
    initialize(str(tmp_path / "etc"), str(tmp_path / "var"))
    config = load(str(tmp_path / "etc" / "mqttd.conf"), {})
    assert config.node.data_dir == str(tmp_path / "var")
    check_files(config)


def test_nothing_is_written_over(tmp_path: Path) -> None:
    initialize(str(tmp_path))
    (tmp_path / "etc" / "acl.conf").write_text("mine")
    fresh, kept = initialize(str(tmp_path))
    assert fresh == [] and len(kept) == 4
    assert (tmp_path / "etc" / "acl.conf").read_text() == "mine"
