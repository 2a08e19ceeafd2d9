"""`scripts/cluster`, with an etcd and a mqttd that only say what they were started with."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqttd.config.load import load
from tests.support.servers import free_ports

ROOT = Path(__file__).resolve().parents[2]

#: Listens where etcd would, and lives until it is ended.
ETCD = f"""#!{sys.executable}
import signal, socket, sys
url = sys.argv[sys.argv.index("--listen-client-urls") + 1]
server = socket.create_server(("127.0.0.1", int(url.rpartition(":")[2])))
signal.pause()
"""


class Script:
    """The script in a checkout of its own; `run` with an etcd that has this text."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "three"
        (folder / "scripts").mkdir()
        (folder / "bin").mkdir()
        shutil.copy(ROOT / "scripts/cluster", folder / "scripts")
        self.put("etcd", ETCD)
        self.put("mqttd", '#!/bin/sh\necho "started: $*"\n')
        while True:
            ports = free_ports(3)
            self.clients, self.pages, self.etcd = ports
            if _is_free(self.etcd + 1):
                break
        self.process: subprocess.Popen[str] | None = None
        #: Variables that are set.
        self.more: dict[str, str] = {}

    def put(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def start(self) -> subprocess.Popen[str]:
        environ = {
            **self.more,
            **os.environ,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "MQTTD_PORT": str(self.clients),
            "MQTTD_PAGE_PORT": str(self.pages),
            "MQTTD_ETCD_PORT": str(self.etcd),
        }
        self.process = subprocess.Popen(
            [self.folder / "scripts/cluster", self.home], env=environ, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return self.process

    def said(self) -> str:
        """All that it says until the nodes are started; then it is ended."""
        process = self.start()
        assert process.stdout is not None
        lines: list[str] = []
        while sum("started:" in line for line in lines) < 3:
            lines.append(process.stdout.readline())
            assert lines[-1], "".join(lines)
        self.end()
        return "".join(lines)

    def refused(self) -> str:
        """What it says when it fails."""
        said, _ = self.start().communicate(timeout=20)
        assert self.process is not None and self.process.returncode == 1, said
        return said

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.communicate(timeout=20)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    made = Script(tmp_path)
    yield made
    made.end()


def test_all_may_have_one_port(script: Script) -> None:
    script.more["MQTTD_ONE_PORT"] = "1"
    script.said()
    for name in "abc":
        config = load(str(script.home / name / "mqttd.conf"), {})
        listener = config.listener["tcp"]["default"]
        assert listener.reuse_port
        assert listener.address == ("127.0.0.1", script.clients)


def test_a_configuration_that_is_there_stays(script: Script) -> None:
    assert "keeps" not in script.said()
    conf, rules = script.home / "b/mqttd.conf", script.home / "b/acl.conf"
    conf.write_text(conf.read_text() + '\n[session]\nreplicate = "jetstream"\n')
    rules.write_text("{deny, all}.\n")
    before = conf.read_text()
    assert f"b  keeps its {conf}" in script.said()
    assert conf.read_text() == before
    assert rules.read_text() == "{deny, all}.\n"


def test_a_configuration_of_other_ports_is_refused(script: Script) -> None:
    script.said()
    conf = script.home / "a/mqttd.conf"
    conf.write_text(conf.read_text().replace(f":{script.etcd}", ":1"))
    said = script.refused()
    assert f"{conf} is there and has no port {script.etcd} (etcd)" in said
    assert "started:" not in said


def test_the_etcd_of_others_is_not_joined(script: Script) -> None:
    with socket.create_server(("127.0.0.1", script.etcd)):
        said = script.refused()
    assert f"something listens at 127.0.0.1:{script.etcd} already" in said
    assert "MQTTD_ETCD_PORT" in said
    assert not script.home.joinpath("a/mqttd.conf").exists()


def test_an_etcd_that_ends_is_told(script: Script) -> None:
    script.put("etcd", "#!/bin/sh\necho no room >&2\nexit 3\n")
    said = script.refused()
    assert f"etcd has ended ({script.home}/etcd.log)" in said
    assert "no room" in said and "started:" not in said


def test_who_is_killed_is_told_and_the_others_go_on(script: Script) -> None:
    script.put("mqttd", "#!/bin/sh\necho started: $*\nexec sleep 600\n")
    process = script.start()
    assert process.stdout is not None
    ids: dict[str, int] = {}
    while len(ids) < 4:
        line = process.stdout.readline()
        assert line
        if found := re.search(r"^(\w+)  .*process (\d+)$", line):
            ids[found[1]] = int(found[2])
    said = []
    for name, says in (("etcd", "etcd has ended (SIGKILL); the nodes go on"),
                       ("b", "b  has ended (SIGKILL); again: ")):  # fmt: skip
        os.kill(ids[name], signal.SIGKILL)
        while says not in (line := process.stdout.readline()):
            assert line
            said.append(line)
    assert not [line for line in said if "Killed" in line]
    assert process.poll() is None
    os.kill(ids["a"], 0)
    script.end()
    with pytest.raises(ProcessLookupError):
        os.kill(ids["a"], 0)
