"""The Dockerfile: its steps, as a script, in an empty directory; and the unit for systemd."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.packaging.conftest import LEFT_BEHIND, ROOT, clean_environ
from tests.support.needs import needs_program

pytestmark = pytest.mark.timeout(600)

PLACES = ("/src", "/opt/mqttd", "/etc/mqttd", "/var/lib/mqttd")
#: What belongs to the image's own user data base.
OF_THE_IMAGE = ("useradd", "chown")


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"(?m)^#.*\n", "", (ROOT / "Dockerfile").read_text("utf-8"))
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line]


def test_it_runs_as_a_user_of_its_own_and_names_what_it_needs() -> None:
    found = dict(instructions())
    assert found["USER"] == "mqttd"
    assert "1883" in found["EXPOSE"]
    assert found["CMD"].startswith('["mqttd", ')


def test_its_steps_make_a_broker_that_starts(tmp_path: Path) -> None:
    shutil.copytree(ROOT, tmp_path / "src", ignore=LEFT_BEHIND, symlinks=True)
    environ = {**clean_environ(), "MQTTD_PURE": "1"}

    def run(command: str) -> str:
        here = re.sub("|".join(PLACES), lambda found: f"{tmp_path}{found[0]}", command)
        done = subprocess.run(
            ["sh", "-euc", here], cwd=tmp_path, env=environ, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{here}:\n{done.stdout}{done.stderr}"
        return done.stdout

    (tmp_path / "opt").mkdir()
    for name, text in instructions():
        if name == "RUN" and not text.startswith(OF_THE_IMAGE):
            run(text)
    config = "/etc/mqttd/mqttd.conf"
    assert run(f"/opt/mqttd/bin/mqttd --config {config} --check-config").endswith(
        "mqttd.conf: ok\n"
    )


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    needs_program("systemd-analyze", "systemd")
    unit = tmp_path / "mqttd.service"
    text = (ROOT / "docs/examples/mqttd.service").read_text("utf-8")
    assert "/opt/mqttd/bin/mqttd" in text
    unit.write_text(text.replace("/opt/mqttd/bin/mqttd", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and "mqttd.service" not in done.stderr, done.stderr


def test_systemd_finds_little_that_the_unit_leaves_open() -> None:
    needs_program("systemd-analyze", "systemd")
    unit = ROOT / "docs/examples/mqttd.service"
    # Exposure from 0.0 to 10.0, in tenths: that of a unit with nothing set is 9.6.
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20"]
    done = subprocess.run([*command, str(unit)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
