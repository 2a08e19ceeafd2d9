"""The living example: its own tests run here, it shows every point, and a project of it works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mqttd.admin.ctl.new_plugin import write_project
from mqttd.broker.hooks.points import POINTS
from mqttd_plugins.template.plugin import Template
from mqttd_plugins.template.test_template import *  # noqa: F403

ROOT = Path(__file__).parents[3]


def test_it_shows_every_hook_point() -> None:
    assert set(Template().callbacks()) == set(POINTS)


@pytest.mark.slow
def test_a_new_project_is_complete_and_passes_its_own_tests(tmp_path: Path) -> None:
    files = write_project("my_sensors", str(tmp_path / "project"))
    assert [str(Path(file).relative_to(tmp_path / "project")) for file in files] == [
        "README.md",
        "setup.cfg",
        "pyproject.toml",
        ".gitignore",
        "etc/plugins/my_sensors.conf",
        "mqttd_plugins/my_sensors/__init__.py",
        "mqttd_plugins/my_sensors/plugin.py",
        "tests/test_my_sensors.py",
    ]
    assert not any("template" in Path(file).read_text().lower() for file in files[1:])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path / "project",
        env={"PYTHONPATH": f"{tmp_path}/project:{ROOT}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "setup.cfg").write_text("mine")
    with pytest.raises(FileExistsError):
        write_project("acme", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["setup.cfg"]


def test_a_project_gets_a_directory_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "other.conf").write_text("mine")
    with pytest.raises(FileExistsError, match="has other.conf in it.*mqttd-acme-two"):
        write_project("acme_two", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["other.conf"]
    empty = tmp_path / "new"
    (empty / ".git").mkdir(parents=True)
    assert write_project("acme_two", str(empty))


@pytest.mark.parametrize("name", ["", "My", "a-b", "../x", "template", "a" * 65, "class"])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="expected a name"):
        write_project(name, str(tmp_path))
