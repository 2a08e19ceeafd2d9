"""Builds the project once, outside the tree, and installs it into an empty environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
LEFT_BEHIND = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", ".hypothesis", ".tox", "__pycache__", "build", "data", "dist",
    "dropin.cache", "node_modules", "*.egg-info", "*.so",
)  # fmt: skip


class Installed(NamedTuple):
    """An environment with the wheel in it, and an empty folder to run it from."""

    bin: Path
    folder: Path

    def run(self, program: str, *arguments: str) -> str:
        """The output of a program of this environment, which must succeed."""
        return run([str(self.bin / program), *arguments], self.folder)


def run(command: list[str], folder: Path, **environ: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**clean_environ(), **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}"
    return done.stdout


def clean_environ() -> dict[str, str]:
    """The environment without what would let the tree's own code in."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in {"PYTHONPATH", "MQTTD_PURE", "VIRTUAL_ENV"}
    }


def build(folder: Path, *arguments: str, **environ: str) -> tuple[Path, str]:
    """Build a copy of the tree; the wheel, and what was printed."""
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=LEFT_BEHIND, symlinks=True)
    command = [sys.executable, "-m", "build", "--outdir", str(folder), *arguments, str(source)]
    output = run(command, folder, **environ)
    (wheel,) = folder.glob("*.whl")
    return wheel, output


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, made from the source distribution; compiled where CI demands it.

    MQTTD_WHEEL names one that was made so just before.
    """
    if given := os.environ.get("MQTTD_WHEEL"):
        return Path(given)
    required = {"MQTTD_REQUIRE_COMPILED": "1"} if os.environ.get("CI") == "true" else {}
    return build(tmp_path_factory.mktemp("built"), **required)[0]


@pytest.fixture(scope="session")
def pure(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The wheel of a machine without a C compiler, and what its build printed."""
    without = {"CC": "/bin/false", "MQTTD_REQUIRE_COMPILED": "0"}
    return build(tmp_path_factory.mktemp("pure"), "--wheel", **without)


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", with_pip=True)
    made = Installed(folder / "venv" / "bin", folder)
    made.run("python", "-m", "pip", "install", "--quiet", str(wheel), "paho-mqtt>=2")
    return made


@pytest.fixture(scope="session")
def installed_pure(
    installed: Installed, pure: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    """The pure wheel in an environment that borrows the other one's dependencies."""
    folder = tmp_path_factory.mktemp("installed-pure")
    venv.create(folder / "venv", with_pip=True)
    made = Installed(folder / "venv" / "bin", folder)
    made.run("python", "-m", "pip", "install", "--quiet", "--no-deps", str(pure[0]))
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    theirs, ours = (place.run("python", "-c", where).strip() for place in (installed, made))
    # Behind its own packages: mqttd itself is found in this environment first.
    (Path(ours) / "borrowed.pth").write_text(f"{theirs}\n")
    return made
