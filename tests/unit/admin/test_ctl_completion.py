"""Completion: every command, and scripts that the shells take."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from mqttd.admin.ctl.main import main


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_is_in_it(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    for word in ("reload", "sessions", "kick", "retained"):
        assert word in text
    assert shell in text.splitlines()[0]


def test_bash_completes_what_was_begun(capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "bash"])
    script = capsys.readouterr().out
    for typed, told in (
        (["mqttd-ctl", "relo"], ["reload"]),
        (["mqttd-ctl", "clients", "k"], ["kick"]),
        (["mqttd-ctl", "clients", "list", "--us"], ["--user"]),
    ):
        words = " ".join(f"'{word}'" for word in typed)
        asked = (
            f"{script}\nCOMP_WORDS=({words}); COMP_CWORD={len(typed) - 1}\n_mqttd_ctl\n"
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
        assert done.stdout.split() == told


def test_fish_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "fish"])
    script = capsys.readouterr().out
    assert script.count("'") % 2 == script.count("\\'") % 2
    if (fish := shutil.which("fish")) is not None:
        subprocess.run([fish, "--no-execute"], input=script, text=True, check=True)
