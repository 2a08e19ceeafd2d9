"""The broker inside other programs: asyncio and Twisted ones, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mqttd.config.load import ConfigError
from mqttd.embed import Broker, NotRunning
from tests.integration.embed_programs import PROGRAMS

ROOT = Path(__file__).parents[2]
DEADLINE = 50


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=["asyncio", "twisted"])
def output(request: pytest.FixtureRequest) -> str:
    return run("-m", "tests.integration.embed_programs", request.param)


@pytest.mark.parametrize("program", PROGRAMS)
def test_in_a_program(program: str, output: str) -> None:
    assert f"ok {program}\n" in output, output


def test_the_asyncio_example_runs() -> None:
    lines = run("docs/examples/embed_asyncio.py").splitlines()
    assert lines[0].startswith("listening on port ")
    assert lines[1:] == ["receivers: 1", "greetings/world hello!"]


def test_the_twisted_example_runs() -> None:
    assert (
        run("docs/examples/embed_twisted.py").splitlines()
        == ["sensors/kitchen/temperature 21.5"] * 3
    )


def test_importing_it_installs_no_reactor() -> None:
    run("-c", "import sys, mqttd.embed; assert 'twisted.internet.reactor' not in sys.modules")


def test_another_reactor_in_an_asyncio_program_is_explained() -> None:
    text = (
        "import asyncio, twisted.internet.reactor, mqttd.embed\n"
        "try: asyncio.run(mqttd.embed.Broker().start())\n"
        "except RuntimeError as error: print(error)"
    )
    assert "asyncioreactor.install()" in run("-c", text)


def test_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError, match=r"listener.tcp.default.bind"):
        Broker(listeners={"default": "nowhere:at:all"})
    with pytest.raises(ConfigError, match=r"mqtt.max_qos = 7"):
        Broker({"mqtt": {"max_qos": 7}})
    with pytest.raises(NotRunning):
        Broker().subscribe("t")
