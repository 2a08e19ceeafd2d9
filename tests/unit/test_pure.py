"""The choice between compiled modules and their sources."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from mqttd._pure import edited


def make_package(root: Path, *, newer: str, checkout: bool = True) -> Path:
    package = root / "mqttd"
    (package / "codec").mkdir(parents=True)
    if checkout:
        (root / "setup.py").touch()
    source = package / "codec" / "parser.py"
    module = package / "codec" / ("parser" + EXTENSION_SUFFIXES[0])
    for path in (source, module):
        path.touch()
        os.utime(path, (1000, 1000))
    os.utime({"source": source, "module": module}[newer], (2000, 2000))
    return package


def test_a_checkout_edited_after_its_compile_runs_its_sources(tmp_path: Path) -> None:
    assert edited(make_package(tmp_path, newer="source"))


def test_a_checkout_compiled_after_its_last_edit_runs_the_compiled_modules(tmp_path: Path) -> None:
    assert not edited(make_package(tmp_path, newer="module"))


def test_a_checkout_that_lost_a_source_runs_its_sources(tmp_path: Path) -> None:
    package = make_package(tmp_path, newer="module")
    (package / "codec" / "parser.py").unlink()
    assert edited(package)


def test_the_file_times_of_an_installed_package_say_nothing(tmp_path: Path) -> None:
    assert not edited(make_package(tmp_path, newer="source", checkout=False))


def test_mqttd_pure_runs_the_sources() -> None:
    program = "import mqttd, mqttd.codec.topic as t; print(mqttd.compiled(), t.__file__[-3:])"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "MQTTD_PURE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False", ".py"]
