"""The compiled modules are built with Python's C flags, whatever CFLAGS says."""

from __future__ import annotations

import runpy
import shlex
from pathlib import Path

import pytest
import setuptools
from setuptools._distutils import ccompiler, sysconfig

SETUP = Path(__file__).parents[2] / "setup.py"


def command(monkeypatch: pytest.MonkeyPatch, cflags: str | None) -> list[str]:
    """The compiler's command line after setup.py has had its say."""
    monkeypatch.setattr(setuptools, "setup", lambda **keywords: None)
    monkeypatch.setenv("MQTTD_PURE", "1")
    if cflags is None:
        monkeypatch.delenv("CFLAGS", raising=False)
    else:
        monkeypatch.setenv("CFLAGS", cflags)
    runpy.run_path(str(SETUP))
    compiler = ccompiler.new_compiler()
    sysconfig.customize_compiler(compiler)
    return [str(word) for word in compiler.compiler_so]


def test_flags_of_the_caller_come_after_pythons_own(monkeypatch: pytest.MonkeyPatch) -> None:
    own = shlex.split(sysconfig.get_config_var("CFLAGS"))
    found = command(monkeypatch, "-march=native -O1")
    assert set(own) <= set(found)
    assert found.index("-march=native") > max(found.index(flag) for flag in own)


@pytest.mark.parametrize("cflags", [None, ""])
def test_without_flags_of_the_caller_they_are_pythons(
    monkeypatch: pytest.MonkeyPatch, cflags: str | None
) -> None:
    own = shlex.split(sysconfig.get_config_var("CFLAGS"))
    assert set(own) <= set(command(monkeypatch, cflags))


def test_a_second_call_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    once = command(monkeypatch, "-O1")
    runpy.run_path(str(SETUP))
    compiler = ccompiler.new_compiler()
    sysconfig.customize_compiler(compiler)
    assert compiler.compiler_so == once
