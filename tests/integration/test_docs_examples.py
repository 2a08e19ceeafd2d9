"""What the documentation tells a reader to type, typed against a real broker.

The commands are taken from the pages themselves: a page that changes is tested as it is then.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mqttd import __version__
from tests.support.broker import Broker, start_broker
from tests.support.needs import needs_program

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs/examples"
TUTORIAL = ROOT / "docs/tutorial/01-first-messages.md"
RULES = ROOT / "docs/howto/write-acl-rules.md"
DAEMON = ROOT / "docs/howto/run-as-a-daemon.md"
BIN = Path(sys.executable).parent
CTL = str(BIN / "mqttd-ctl")
DEADLINE = 15.0  # seconds
STEP = 0.1

PASSWORDS = {"alice": "alices-secret", "bob": "bobs-secret"}


def commands(page: Path) -> list[str]:
    """The lines of the page's shell blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


def outputs(page: Path) -> list[str]:
    """The text of the page's other blocks."""
    return re.findall(r"^```text\n(.*?)\n```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def words(command: str, broker: Broker) -> list[str]:
    """A command of the page, for this broker's port."""
    result = [str(broker.port) if word == "1883" else word for word in shlex.split(command)]
    assert str(broker.port) in result, f"no port in: {command}"
    return result


def mosquitto(section: int) -> list[str]:
    """The mosquitto commands of one numbered section of the tutorial."""
    needs_program("mosquitto_sub", "mosquitto-clients")
    text = TUTORIAL.read_text("utf-8")
    (part,) = re.findall(rf"(?ms)^## {section}\. .*?(?=^## |\Z)", text)
    return re.findall(r"(?m)^mosquitto_\w+ .*$", part)


def run(arguments: list[str], **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        arguments, capture_output=True, text=True, timeout=DEADLINE, cwd=ROOT, **more
    )


@contextmanager
def subscriber(command: str, broker: Broker) -> Iterator[subprocess.Popen[str]]:
    """A subscribing command that has its SUBACK and ends with its first message."""
    debug = ["-d", "-C", "1", "-W", str(int(DEADLINE))]
    process = subprocess.Popen(
        ["stdbuf", "-oL", *words(command, broker), *debug],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "SUBACK" in line:
                break
        yield process
    finally:
        process.kill()
        process.communicate()


def received(process: subprocess.Popen[str]) -> list[str]:
    """The lines that are no debug output of mosquitto_sub."""
    # Read from the same buffer as `subscriber`: a line may have come along with the SUBACK.
    assert process.stdout is not None
    lines = [line.rstrip("\n") for line in process.stdout]
    process.wait(DEADLINE)
    noise = ("Client ", "Subscribed ", "Unsubscribed ")
    return [line for line in lines if not line.startswith(noise)]


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker of the tutorial's first sections: the files as shipped, on a free port."""
    broker = start_broker(
        tmp_path_factory.mktemp("shipped"), acl=(ROOT / "etc/acl.conf").read_text("utf-8")
    )
    yield broker
    broker.stop()


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker of the last section, with its users and rules; still on loopback."""
    folder = tmp_path_factory.mktemp("opened")
    users = folder / "etc/users.conf"
    users.parent.mkdir()
    asked = [line for line in commands(TUTORIAL) if "mqttd-ctl users" in line]
    for line in asked:
        arguments = shlex.split(line)[1:]
        done = run([CTL, *arguments, "--file", str(users)], input=PASSWORDS[arguments[-1]] + "\n")
        assert done.returncode == 0, done.stderr
    assert len(asked) == len(PASSWORDS)
    assert users.stat().st_mode & 0o777 == 0o600
    broker = start_broker(
        folder,
        acl=(EXAMPLES / "open/acl.conf").read_text("utf-8"),
        auth={"anonymous": "never", "username": {"file": "users.conf"}},
    )
    yield broker
    broker.stop()


def test_the_ready_line_is_the_one_the_tutorial_shows(shipped: Broker) -> None:
    (shown,) = [text for text in outputs(TUTORIAL) if text.startswith("mqttd ready")]
    (ready,) = [line for line in shipped.lines if "mqttd ready" in line]
    ready = ready[ready.index("mqttd ready") :].replace(str(shipped.port), "1883")
    assert ready.replace("pure Python (slower)", "compiled") == shown


def test_a_message_goes_from_one_terminal_to_the_other(shipped: Broker) -> None:
    subscribe, publish = mosquitto(2)
    with subscriber(subscribe, shipped) as process:
        assert run(words(publish, shipped)).returncode == 0
        lines = received(process)
    assert lines == ["greetings/world hello"]
    assert lines[0] in outputs(TUTORIAL)


def test_the_python_program_prints_its_message(shipped: Broker) -> None:
    assert any(line.endswith(" docs/examples/first_messages.py") for line in commands(TUTORIAL))
    done = run([sys.executable, "docs/examples/first_messages.py", str(shipped.port)])
    assert (done.stdout, done.returncode) == ("greetings/python hello\n", 0), done.stderr
    assert done.stdout.strip() in outputs(TUTORIAL)


def test_the_broker_tells_about_itself(shipped: Broker) -> None:
    assert shipped.directory is not None
    config = str(shipped.directory / "etc/mqttd.conf")
    asked = [shlex.split(line)[1:] for line in commands(TUTORIAL)
             if "mqttd-ctl" in line and "users" not in line]  # fmt: skip
    assert asked
    for arguments in asked:
        done = run([CTL, "--config", config, *arguments])
        assert done.returncode == 0, done.stderr
    (command,) = mosquitto(4)
    with subscriber(command, shipped) as process:
        assert received(process) == [f"$SYS/broker/version mqttd {__version__}"]
    assert any(text.startswith("$SYS/broker/version mqttd ") for text in outputs(TUTORIAL))


def test_new_rules_count_after_the_reload_the_page_tells(tmp_path: Path) -> None:
    dry, real = [
        shlex.split(line, comments=True)[1:] for line in commands(RULES) if "reload" in line
    ]
    broker = start_broker(tmp_path, acl="{deny, all}.\n")
    ctl = [CTL, "--config", str(tmp_path / "etc/mqttd.conf")]
    try:
        program = str(EXAMPLES / "first_messages.py")
        (tmp_path / "etc/acl.conf").write_text("{allow, all}")
        assert run([*ctl, *real]).returncode != 0  # no full stop: the old rules stay
        (tmp_path / "etc/acl.conf").write_text("{allow, all}.\n")
        assert "rules: 1 added, 1 removed" in run([*ctl, *dry]).stdout
        assert run([*ctl, *real]).returncode == 0
        done = run([sys.executable, program, str(broker.port)])
        assert done.stdout == "greetings/python hello\n"
    finally:
        broker.stop()


def test_opened_up_the_rules_say_who_may_publish(opened: Broker) -> None:
    subscribe, alice, bob, nobody = mosquitto(5)
    with subscriber(subscribe, opened) as process:
        assert run(words(bob, opened)).returncode == 0  # dropped; 3.1.1 has no way to say so
        assert run(words(alice, opened)).returncode == 0
        assert received(process) == ["greetings/all good morning"]
    assert "greetings/all good morning" in outputs(TUTORIAL)
    assert opened.says("denied:")
    denied = [line for line in opened.lines if "denied:" in line]
    assert len(denied) == 1
    assert "username=bob " in denied[0] and "acl.conf:" in denied[0]
    refused = run(words(nobody, opened))
    assert refused.returncode != 0
    assert refused.stderr.splitlines()[0] in outputs(TUTORIAL)


def test_opened_up_the_ready_line_says_so(opened: Broker) -> None:
    said = "every client needs a user name and password"
    assert said in opened.output and said in TUTORIAL.read_text("utf-8")


DAEMONS = [line for line in commands(DAEMON) if "--pidfile=/var" in line]


@pytest.mark.parametrize("command", DAEMONS)
def test_a_daemon_starts_logs_and_stops_as_the_page_says(tmp_path: Path, command: str) -> None:
    program, *rest = shlex.split(command)
    assert program.endswith("/bin/twistd")
    (tmp_path / "lib").mkdir()
    config = tmp_path / "etc/mqttd.conf"
    config.parent.mkdir()
    (config.parent / "acl.conf").write_text("{deny, all}.\n")
    config.write_text(
        (EXAMPLES / "daemon.conf").read_text("utf-8").replace("/var/lib/mqttd", str(tmp_path / "d"))
        + '[listener.tcp.default]\nbind = "127.0.0.1:0"\n'
    )
    places = {"/var/lib/mqttd": str(tmp_path / "lib"), "/etc/mqttd": str(config.parent)}
    for shown, ours in places.items():
        rest = [word.replace(shown, ours) for word in rest]
    done = run([str(BIN / "twistd"), *rest])
    assert done.returncode == 0, done.stderr
    log, pidfile = tmp_path / "lib/mqttd.log", tmp_path / "lib/mqttd.pid"
    wait_until(lambda: log.exists() and "mqttd ready:" in log.read_text(), "the ready line")
    pid = int(pidfile.read_text())
    # Twisted looks out for it when the reactor runs, which is after that line.
    wait_until(lambda: catches(pid, signal.SIGTERM), "a daemon that SIGTERM stops")
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not pidfile.exists(), "the end of the daemon")
    assert "Server Shut Down" in log.read_text()


def test_a_daemon_that_cannot_start_says_so_in_the_foreground(tmp_path: Path) -> None:
    config = tmp_path / "mqttd.conf"
    config.write_text('[mqtt]\nmax_qos = "many"\n')
    files = [f"--pidfile={tmp_path}/m.pid", f"--logfile={tmp_path}/m.log"]
    done = run([str(BIN / "twistd"), *files, "mqttd", "--config", str(config)])
    assert done.returncode != 0
    assert "mqtt.max_qos" in done.stdout + done.stderr
    assert not (tmp_path / "m.pid").exists()


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def wait_until(true: object, what: str) -> None:
    """Wait for a state of a process that is not ours to wait for."""
    assert callable(true)
    until = time.monotonic() + DEADLINE
    tick = threading.Event()
    while not true():
        assert time.monotonic() < until, f"waited in vain for {what}"
        tick.wait(STEP)
