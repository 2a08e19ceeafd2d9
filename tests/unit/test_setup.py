"""The compiled modules are built with Python's C flags, whatever CFLAGS says."""

from __future__ import annotations

import ast
import runpy
import shlex

import pytest
import setuptools
from setuptools._distutils import ccompiler, sysconfig

from tests.support.compiling import SETUP, hot_modules

ROOT = SETUP.parent


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


def test_no_class_that_stays_python_derives_from_a_compiled_one() -> None:
    """It could not be made: a session with a long queue stayed at its node, compiled."""
    modules = hot_modules()
    compiled = {
        (module.replace("/", "."), node.name)
        for module in modules
        for node in ast.walk(ast.parse((ROOT / f"{module}.py").read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    assert ("mqttd.broker.ground.turns", "Job") in compiled
    found = []
    for folder in ("mqttd", "mqttd_plugins"):
        for file in (ROOT / folder).rglob("*.py"):
            path = file.relative_to(ROOT).with_suffix("").as_posix()
            if path not in modules:
                tree = ast.parse(file.read_text("utf-8"))
                known = {
                    alias.asname or alias.name: (node.module, alias.name)
                    for node in ast.walk(tree)
                    if isinstance(node, ast.ImportFrom)
                    for alias in node.names
                }
                found += [
                    f"{path}: {node.name}({base.id})"
                    for node in ast.walk(tree)
                    if isinstance(node, ast.ClassDef)
                    for base in node.bases
                    if isinstance(base, ast.Name) and known.get(base.id) in compiled
                ]
    assert not found
