"""Plugins of a real broker: installed in three ways, listed when they fail, remembered, missed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

import mqttd
from mqttd.admin.ctl.new_plugin import write_project
from tests.support import packets as mq
from tests.support.broker import start_broker
from tests.support.client import RawClient
from tests.support.ctl import run

ROOT = Path(__file__).parents[2]
DEADLINE = 60.0  # seconds
TWISTD = "from twisted.scripts.twistd import run; run()"
CTL = "import sys; from mqttd.admin.ctl.main import main; sys.exit(main())"

Ctl = Callable[..., subprocess.CompletedProcess[str]]


class Environment(NamedTuple):
    """An environment of its own that sees ours, so that what is installed goes with the test."""

    python: Path
    folder: Path

    def run(self, *argv: str | Path, **more: object) -> subprocess.CompletedProcess[str]:
        """A program of this environment, which must succeed."""
        done = subprocess.run(  # type: ignore[call-overload]
            [self.python, *argv], cwd=self.folder, env=self.environ(), text=True, timeout=DEADLINE,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done  # type: ignore[no-any-return]

    def pip(self, *argv: str | Path) -> None:
        """Our pip, working on this environment, offline."""
        done = subprocess.run(
            [sys.executable, "-m", "pip", "--python", self.python, "--disable-pip-version-check",
             *argv],
            cwd=self.folder, env=self.environ(), text=True, timeout=DEADLINE,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout

    def environ(self, **more: str) -> dict[str, str]:
        """The environment variables without what would let other plugins in."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return {**kept, "PYTHONUNBUFFERED": "1", **more}


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    made = tmp_path / "venv"
    venv.create(made, with_pip=False)
    (packages,) = made.glob("lib/python*/site-packages")
    ours = [path for path in sys.path if path.endswith("-packages")]
    (packages / "ours.pth").write_text("\n".join([str(Path(mqttd.__file__).parents[1]), *ours]))
    folder = tmp_path / "run"
    (folder / "etc").mkdir(parents=True)
    (folder / "etc/mqttd.conf").write_text('[listener.tcp.default]\nbind = "127.0.0.1:0"\n')
    (folder / "etc/acl.conf").write_text("{allow, all}.\n")
    return Environment(made / "bin/python", folder)


@pytest.mark.timeout(180)
def test_a_plugin_is_found_however_it_is_installed(
    environment: Environment, tmp_path: Path
) -> None:
    projects = {}
    for name in ("acme_wheel", "acme_editable", "acme_path", "acme_broken"):
        projects[name] = tmp_path / "projects" / name
        write_project(name, str(projects[name]))
    code = projects["acme_broken"] / "mqttd_plugins/acme_broken/__init__.py"
    code.write_text("import no_such_module\n" + code.read_text())
    wheels = tmp_path / "wheels"
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    environment.pip("wheel", *offline, "--wheel-dir", wheels, projects["acme_wheel"])
    (wheel,) = wheels.glob("*.whl")
    environment.pip("install", *offline, wheel)

    log = environment.folder / "log"
    with log.open("w") as output:
        broker = subprocess.Popen(
            [environment.python, "-c", TWISTD, "-n", "--pidfile=", "mqttd", "-c", "etc/mqttd.conf"],
            cwd=environment.folder, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT,
            env=environment.environ(
                PYTHONPATH=f"{projects['acme_path']}:{projects['acme_broken']}"),
        )  # fmt: skip
    try:
        wait_until(lambda: "mqttd ready" in log.read_text(), log.read_text)
        # The broker runs already: it finds what is installed now.
        environment.pip("install", *offline, "--editable", projects["acme_editable"])
        listed = json.loads(environment.run("-c", CTL, "--json", "plugins", "list").stdout)
        found = {entry["name"]: entry for entry in listed["plugins"]}
        assert found["acme_broken"]["state"] == "failed"
        assert found["acme_broken"]["error"] == (
            "ModuleNotFoundError: No module named 'no_such_module'"
        )
        for name in ("acme_wheel", "acme_editable", "acme_path"):
            assert found[name]["state"] == "unloaded", found[name]
            environment.run("-c", CTL, "plugins", "load", name)
            assert "client." in environment.run("-c", CTL, "plugins", "info", name).stdout
            assert "nothing yet" in environment.run("-c", CTL, name, "last").stdout
        assert "site-packages" in found["acme_wheel"]["file"]
        assert found["acme_editable"]["file"].startswith(str(projects["acme_editable"]))
    finally:
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(DEADLINE) in {0, -signal.SIGTERM}, log.read_text()
    # And its own tests pass there.
    tests = projects["acme_editable"] / "tests"
    done = environment.run("-m", "pytest", "-q", "-p", "no:cacheprovider", tests)
    assert " passed" in done.stdout


def wait_until(true: Callable[[], bool], what: Callable[[], str]) -> None:
    until = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < until, what()
        time.sleep(0.05)


PLUGIN = '''
from zope.interface import implementer
from mqttd.interfaces import IPlugin
from mqttd.plugins.declare import MqttdPlugin
from mqttd.types import STOP, AuthError

guard = MqttdPlugin(name="guard", version="1.0", description="Lets friends in.",
                    factory="mqttd_plugins.guard:Guard")

@implementer(IPlugin)
class Guard:
    """Lets friends in, says so in every way a plugin can."""

    def load(self, handle, config):
        if config.get("fail"):
            raise OSError("no database")
        self.handle = handle
        handle.hook("client.authenticate", self.authenticate)
        handle.hook("client.connected", self.connected)
        handle.subscribe("shout/#", self.shouted)
        handle.add_metric("friends_total", "Friends let in.", lambda: self.friends)
        handle.add_sys_topic("friends", lambda: self.friends)
        handle.add_command("friends", lambda argv: " ".join([str(self.friends), *argv]))
        handle.add_route("friends", self.resource())
        handle.in_thread(sum, [1, 2]).addCallback(lambda result: handle.alarm("sum", str(result)))
        self.friends = 0
        return handle.add_listener("tcp:0:interface=127.0.0.1", "side").addCallback(self.listening)

    def listening(self, address):
        self.handle.add_command("port", lambda argv: str(address.port))

    def resource(self):
        from twisted.web.resource import Resource
        from twisted.web.static import Data
        root = Resource()
        root.putChild(b"names", Data(b"friends and others", "text/plain"))
        return root

    def authenticate(self, client, password, verdict):
        if not client.client_id.startswith("friend"):
            return STOP(AuthError("no friend"))

    def connected(self, client, acc):
        self.friends += 1

    def shouted(self, message):
        self.handle.publish("echo/" + message.topic[6:], message.payload)

    def unload(self):
        pass
'''


@pytest.fixture
def ctl(tmp_path: Path) -> Ctl:
    return partial(run, tmp_path)


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "etc/plugins"
    directory.mkdir(parents=True)
    directory.chmod(0o755)
    path = directory / "guard.py"
    path.write_text(PLUGIN)
    yield path


def curl(tmp_path: Path, path: str) -> str:
    """GET over the broker's Unix socket."""
    from mqttd.admin.ctl.client import _UnixConnection

    connection = _UnixConnection(str(tmp_path / "data/mqttd.sock"), 20)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def test_all_that_a_plugin_can_add_works_and_goes(plugin: Path, ctl: Ctl, tmp_path: Path) -> None:
    broker = start_broker(tmp_path, sys={"interval": "100ms"})
    try:
        assert ctl("plugins", "load", "guard").stdout == "plugin guard is loaded\n"
        stranger = RawClient(broker.port, mq.V5)
        stranger.send(mq.connect("stranger", version=mq.V5))
        assert stranger.expect(mq.CONNACK).reason == 0x86
        friend = RawClient(broker.port, mq.V5)
        friend.connect("friend-1")
        friend.subscribe(("echo/#", 0))
        friend.publish("shout/hello", b"there")
        assert friend.message(topic="echo/hello").payload == b"there"
        assert ctl("guard", "friends", "--and", "more").stdout == "1 --and more\n"
        assert re.search(r"plugin_guard_friends_total +1", ctl("metrics").stdout)
        friend.subscribe(("$SYS/broker/plugins/guard/friends", 0))
        while friend.message(topic="$SYS/broker/plugins/guard/friends").payload != b"1":
            pass  # what was retained before the friend came
        assert curl(tmp_path, "/api/v1/plugins/guard/friends/names") == "friends and others"
        side = RawClient(int(ctl("guard", "port").stdout), mq.V5)
        side.connect("friend-2")
        info = ctl("plugins", "info", "guard").stdout
        for text in ("client.authenticate", "shout/#", "side", "sum: 3"):
            assert text in info, info

        assert ctl("plugins", "unload", "guard").stdout == "plugin guard is unloaded\n"
        side.expect_close(0x8B)
        friend.ping()
        stranger = RawClient(broker.port, mq.V5)
        stranger.connect("stranger")
        assert ctl("guard", "friends").returncode == 1
        assert "plugin_guard" not in ctl("metrics").stdout
        assert "not loaded" in curl(tmp_path, "/api/v1/plugins/guard/friends/names")
        assert (tmp_path / "data/loaded_plugins").read_text().count("guard") == 0
        assert stat.S_IMODE((tmp_path / "data/mqttd.sock").stat().st_mode) == 0o600
    finally:
        broker.stop()


def test_a_loaded_plugin_is_there_before_the_first_client_after_a_restart(
    plugin: Path, ctl: Ctl, tmp_path: Path
) -> None:
    for start in ("by hand", "remembered", "configured"):
        broker = start_broker(
            tmp_path, **({"plugins": {"load": ["guard"]}} if start == "configured" else {})
        )
        try:
            if start == "by hand":
                ctl("plugins", "load", "guard")
            client = RawClient(broker.port, mq.V5)
            client.send(mq.connect("stranger", version=mq.V5))
            assert client.expect(mq.CONNACK).reason == 0x86
        finally:
            assert broker.stop() in {0, -signal.SIGTERM}
        assert "Traceback" not in broker.output


@pytest.mark.parametrize("example", ["locked_machines", "token_table"])
def test_sessions_outlast_the_orderly_end_of_a_broker_whose_plugin_judges(
    example: str, plugin: Path, ctl: Ctl, tmp_path: Path
) -> None:
    """Modules go before the broker does: nobody's rights are looked at without them."""
    shutil.copy(ROOT / f"docs/examples/access/{example}.py", plugin.parent)
    broker = start_broker(tmp_path)
    assert ctl("plugins", "load", example).returncode == 0
    filters = [f"t/{n}" for n in range(200)]
    for name in ("away", "also-away"):
        client = RawClient(broker.port, mq.V311).connect(name, clean=False)
        client.subscribe(*((each, 1) for each in filters))
        client.disconnect()
    publisher = RawClient(broker.port, mq.V5).connect("publisher")
    publisher.publish("t/7", b"kept", qos=1)
    broker.stop()
    assert "revoked" not in broker.output and "denied" not in broker.output
    broker = start_broker(tmp_path)
    try:
        for name in ("away", "also-away"):
            client = RawClient(broker.port, mq.V311).connect(name, clean=False)
            assert client.message(topic="t/7").payload == b"kept"
    finally:
        broker.stop()


def test_a_configured_plugin_that_is_missing_stops_the_start(plugin: Path, tmp_path: Path) -> None:
    (plugin.parent / "torn.py").write_text("def (\n")
    with pytest.raises(RuntimeError) as error:
        start_broker(tmp_path, plugins={"load": ["guard", "gaurd"]})
    text = str(error.value)
    assert re.search(r"plugin 'gaurd' was not found; found: [a-z_, ]*\bguard\b", text), text
    assert f"failed: {plugin.parent}/torn.py: SyntaxError: " in text


def test_a_configured_plugin_that_cannot_load_stops_the_start(plugin: Path, tmp_path: Path) -> None:
    (plugin.parent / "guard.conf").write_text("fail = true\n")
    with pytest.raises(RuntimeError) as error:
        start_broker(tmp_path, plugins={"load": ["guard"]})
    assert "plugin 'guard' was not loaded: OSError: no database" in str(error.value)
    assert "mqttd ready" not in str(error.value)


def test_a_mistake_in_its_configuration_stops_the_start(plugin: Path, tmp_path: Path) -> None:
    (plugin.parent / "guard.conf").write_text("fail = \n")
    with pytest.raises(RuntimeError, match=r"guard.conf: not valid TOML"):
        start_broker(tmp_path, plugins={"load": ["guard"]})
