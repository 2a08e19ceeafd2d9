"""The wheel: what is in it, and a broker from it that passes a message."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.packaging.conftest import ROOT, Installed, clean_environ
from tests.support.compiling import hot_modules

pytestmark = pytest.mark.timeout(900)  # compiles, and installs from the package index

DEADLINE = 30.0  # seconds
READY = re.compile(r"mqttd ready: .*?\btcp \S*?:(\d+)")

CONFIG = """
[node]
data_dir = "data"
[listener.tcp.default]
bind = "127.0.0.1:0"
"""

ONE_MESSAGE = """
import queue, sys
import paho.mqtt.client as paho

inbox = queue.Queue()
client = paho.Client(paho.CallbackAPIVersion.VERSION2, "packaging", protocol=paho.MQTTv5)
client.on_connect = lambda *_: client.subscribe("packaging/#", 1)
client.on_subscribe = lambda *_: client.publish("packaging/one", b"a message", 1)
client.on_message = lambda c, u, message: inbox.put(message.payload)
client.connect("127.0.0.1", int(sys.argv[1]))
client.loop_start()
print(inbox.get(timeout=10).decode())
client.disconnect()
"""


def names_in(wheel: Path) -> list[str]:
    with ZipFile(wheel) as archive:
        return archive.namelist()


def compiled_modules(names: list[str]) -> set[str]:
    return {name.split(".")[0] for name in names if name.endswith(".so")} - {"mqttd__mypyc"}


def test_every_module_to_compile_exists() -> None:
    missing = {module for module in hot_modules() if not (ROOT / f"{module}.py").exists()}
    assert not missing


def test_the_wheel_puts_exactly_one_file_into_twisted(wheel: Path) -> None:
    assert [name for name in names_in(wheel) if name.startswith("twisted/")] == [
        "twisted/plugins/mqttd_plugin.py"
    ]


def test_the_wheel_holds_every_module_and_nothing_else_of_the_tree(wheel: Path) -> None:
    names = names_in(wheel)
    modules = {
        str(path.relative_to(ROOT))
        for folder in ("mqttd", "mqttd_plugins")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert modules <= set(names)
    assert "mqttd/py.typed" in names
    assert "mqttd/config/acl.conf" in names
    page = ROOT / "mqttd/transports/page"
    assert {str(path.relative_to(ROOT)) for path in page.iterdir()} <= set(names)
    tops = {name.split("/")[0].split(".")[0] for name in names}
    assert {re.sub(r"-.*", "", top) for top in tops} <= {
        "mqttd", "mqttd_plugins", "twisted", "mqttd__mypyc",
    }  # fmt: skip


def test_the_wheel_is_compiled_completely_or_not_at_all(wheel: Path) -> None:
    compiled = compiled_modules(names_in(wheel))
    assert compiled in (set(), hot_modules())
    if os.environ.get("CI") == "true":
        assert compiled


def test_without_a_c_compiler_the_wheel_is_pure_and_the_build_says_so(
    pure: tuple[Path, str],
) -> None:
    wheel, output = pure
    assert "hot path not compiled" in output
    names = names_in(wheel)
    assert not [name for name in names if name.endswith(".so")]
    assert "mqttd/codec/parser.py" in names


def test_twistd_lists_mqttd(installed: Installed) -> None:
    assert re.search(r"^ +mqttd +An MQTT broker\.$", installed.run("twistd", "--help"), re.M)


def test_the_control_command_is_installed(installed: Installed) -> None:
    assert (installed.bin / "mqttd-ctl").exists()


def test_a_foreground_broker_passes_a_message(installed: Installed, tmp_path: Path) -> None:
    with foreground(installed, tmp_path) as port:
        assert one_message(installed, port) == "a message"


def test_a_daemon_passes_a_message(installed: Installed, tmp_path: Path) -> None:
    with daemon(installed, tmp_path) as port:
        assert one_message(installed, port) == "a message"


def test_a_pure_broker_says_so_and_passes_a_message(
    installed_pure: Installed, installed: Installed, tmp_path: Path
) -> None:
    version = installed_pure.run(
        "python", "-c", "import mqttd; print(mqttd.compiled(), mqttd.__file__)"
    )
    assert version.startswith("False") and str(installed_pure.folder) in version
    with foreground(installed_pure, tmp_path) as port:
        assert one_message(installed, port) == "a message"
    assert "pure Python (slower)" in (tmp_path / "log").read_text()


def test_uninstalling_leaves_twisted_whole(installed: Installed) -> None:
    program = "import twisted.plugins as p; print(p.__file__)"
    before = installed.run("python", "-c", program)
    # The last test of the environment: what it takes away is not put back.
    installed.run("python", "-m", "pip", "uninstall", "--quiet", "--yes", "mqttd")
    assert installed.run("python", "-c", program) == before
    assert "mqttd" not in installed.run("twistd", "--help")


def one_message(installed: Installed, port: int) -> str:
    return installed.run("python", "-c", ONE_MESSAGE, str(port)).strip()


def twistd(installed: Installed) -> list[str | Path]:
    """The command; where Twisted is borrowed its script is not there."""
    script = installed.bin / "twistd"
    if script.exists():
        return [script]
    return [installed.bin / "python", "-c", "from twisted.scripts.twistd import run; run()"]


@contextmanager
def foreground(installed: Installed, folder: Path) -> Iterator[int]:
    log = folder / "log"
    with log.open("w") as output:
        broker = subprocess.Popen(
            [*twistd(installed), "-n", "--pidfile=", "mqttd", "--config", config(folder)],
            cwd=folder, env=clean_environ(), stdout=output, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        yield wait_for_port(log)
    finally:
        broker.terminate()
        assert broker.wait(DEADLINE) in {0, -signal.SIGTERM}


@contextmanager
def daemon(installed: Installed, folder: Path) -> Iterator[int]:
    log, pid_file = folder / "log", folder / "pid"
    subprocess.run(
        [installed.bin / "twistd", f"--pidfile={pid_file}", f"--logfile={log}", "mqttd",
         "--config", config(folder)],
        cwd=folder, env=clean_environ(), stdin=subprocess.DEVNULL, check=True, timeout=DEADLINE,
    )  # fmt: skip
    try:
        yield wait_for_port(log)
    finally:
        os.kill(int(pid_file.read_text()), signal.SIGTERM)
        until = time.monotonic() + DEADLINE
        while pid_file.exists() and time.monotonic() < until:
            time.sleep(0.05)
        assert not pid_file.exists()


def config(folder: Path) -> Path:
    path = folder / "mqttd.conf"
    path.write_text(CONFIG)
    (folder / "acl.conf").write_text("{allow, all}.\n")
    return path


def wait_for_port(log: Path) -> int:
    until = time.monotonic() + DEADLINE
    while time.monotonic() < until:
        text = log.read_text() if log.exists() else ""
        if found := READY.search(text):
            return int(found[1])
        time.sleep(0.05)
    raise TimeoutError(f"the broker did not get ready:\n{text}")


#: The first commit whose wheel calls itself 0.2.0.
BEFORE = "5eb4f87635"


@pytest.mark.skipif(not os.environ.get("MQTTD_LONG"), reason="two wheels: MQTTD_LONG=1")
def test_an_upgrade_in_place_from_the_first_release(pure: tuple[Path, str], tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    archive = subprocess.run(["git", "archive", BEFORE], cwd=ROOT, capture_output=True)
    if archive.returncode:
        pytest.skip("a clone without its history")
    subprocess.run(["tar", "x"], cwd=source, input=archive.stdout, check=True)
    command = ["-m", "build", "--wheel", "--outdir", str(tmp_path), str(source)]
    subprocess.run(
        [sys.executable, *command], env={**clean_environ(), "MQTTD_PURE": "1"}, check=True
    )
    (before,) = tmp_path.glob("*.whl")
    done = subprocess.run(
        [str(ROOT / "scripts/first-day"), str(before), str(pure[0])],
        env=clean_environ(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)


def test_the_first_day_of_an_operator(pure: tuple[Path, str]) -> None:
    done = subprocess.run(
        [str(ROOT / "scripts/first-day"), str(pure[0])],
        env=clean_environ(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
