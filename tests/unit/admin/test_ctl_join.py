"""`mqttd-ctl cluster join` writes what would start, and nothing else."""

from __future__ import annotations

import json
import os
import threading
from base64 import b64decode, b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mqttd.admin.ctl import main as ctl
from mqttd.cluster.etcd.keys import Member
from mqttd.config.load import load
from tests.support.certificates import Authority
from tests.support.servers import free_port


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, in which the command is called; no configuration is found elsewhere."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    folder = tmp_path / "new"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def etcd() -> str:
    """The URL of one that is not there."""
    return f"http://127.0.0.1:{free_port()}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["127.0.0.1:2379"], "cluster.endpoints"),
        (["--node", "no/name"], "node.name"),
        (["--bind", ":0"], "nodes do not speak in plain"),
        (["--bind", "nowhere"], "cluster.bind"),
        (["--certificate", "absent.crt"], "cluster.private_key"),
        (["--etcd-user", "mqttd"], "cluster.etcd_password_file"),
    ],
)
def test_what_would_not_start_is_not_written(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    endpoints = [] if words[0][0] == "1" else [etcd()]
    assert ctl.main(["cluster", "join", *endpoints, *words]) == 1
    told = capsys.readouterr().err
    assert "nothing is written" in told and said in told and "\\n" not in told
    assert not list(home.iterdir())


def test_nor_is_it_where_there_is_a_configuration(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "etc").mkdir()
    file = home / "etc/mqttd.conf"
    (home / "etc/acl.conf").write_text("{allow, all}.\n")
    text = '#[cluster]\n[node]\nworkers = 2\nname = "before"\n\n[mqtt]\nmax_qos = 1\n'
    text += "[session]\nupgrade_qos = true\n"
    file.write_text(text)
    join = ["cluster", "join", etcd(), "--node", "n"]
    assert ctl.main(join) == 1
    assert "session.upgrade_qos = true is not possible" in capsys.readouterr().err
    assert file.read_text() == text
    file.write_text(text.replace("upgrade_qos = true\n", ""))
    assert ctl.main([*join, "--anyway"]) == 0
    loaded = load(str(file), {})
    assert (loaded.node.name, loaded.cluster.kind, loaded.mqtt.max_qos) == ("n", "etcd", 1)
    assert ctl.main(join) == 1
    assert "names a cluster already" in capsys.readouterr().err


def test_nothing_is_written_where_no_etcd_answers(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A URL that is mistyped is seen here, and not by a node that waits for ever."""
    url, other = etcd(), etcd()
    assert ctl.main(["cluster", "join", url, other, "--node", "n"]) == 1
    told = capsys.readouterr().err
    assert "nothing is written: etcd has not answered" in told and "--anyway" in told
    assert url in told and other in told
    assert not list(home.iterdir())


class Etcd(BaseHTTPRequestHandler):
    """Answers that these nodes are in the cluster of this name."""

    nodes = {"mqttd": ("a", "b")}

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        start = b64decode(asked["key"]).decode()
        told = Member("", "1", "h:1", "1", (1, 1)).dump()
        names = self.nodes.get(start.split("/")[2], ())
        keys = [b64encode(f"{start}{name}".encode()).decode() for name in names]
        kvs = [{"key": key, "value": b64encode(told).decode()} for key in keys]
        data = json.dumps({"header": {"revision": "7"}, "kvs": kvs}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


@pytest.mark.parametrize(
    ("cluster", "said"), [("mqttd", "'mqttd' has a, b"), ("typo", "'typo' has no node yet")]
)
def test_who_joins_is_told_who_is_there(
    home: Path, capsys: pytest.CaptureFixture[str], cluster: str, said: str
) -> None:
    """A name of a cluster that is mistyped is one of its own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Etcd)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    join = ["cluster", "join", f"http://127.0.0.1:{server.server_port}", "--cluster", cluster]
    try:
        taken = ctl.main([*join, "--node", "a"])
        assert taken == (1 if cluster == "mqttd" else 0)
        if taken:
            assert "'a' is in use in the cluster 'mqttd'" in capsys.readouterr().err
            assert ctl.main([*join, "--node", "c"]) == 0
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert said in capsys.readouterr().out


def test_who_is_out_and_does_not_run_is_told_to_start_first(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ctl.main(["--socket", "s", "cluster", "join"]) == 1
    assert "no broker is running at s: start it first" in capsys.readouterr().err


def test_a_node_on_another_machine_joins_by_one_command(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files are named from where the command is called; an etcd that is not there is said."""
    authority = Authority()
    authority.write(home / "tls")
    authority.node("n").write(home / "tls", "n")
    (home / "secret").write_text("s3cret\n")
    words = ["--node", "n", "--bind", ":4370", "--advertise", "n.example:4370"]
    words += ["--certificate", "tls/n.crt", "--private-key", "tls/n.key", "--ca-file", "tls/ca.crt"]
    words += ["--etcd-user", "mqttd", "--etcd-password-file", "secret"]
    words += ["--etcd-ca-file", "tls/ca.crt"]
    assert ctl.main(["cluster", "join", etcd(), *words, "--anyway"]) == 0
    told = capsys.readouterr()
    assert "etcd has not answered" in told.err and "start or restart mqttd" in told.out
    assert "written all the same" in told.err
    secret = next(line for line in told.err.splitlines() if "mode 0644" in line)
    assert secret.startswith("mqttd-ctl: ") and "Warning" not in told.err
    cluster = load(os.path.join("etc", "mqttd.conf"), {}).cluster
    assert cluster.certificate == str(home / "tls/n.crt")
    assert (cluster.bind, cluster.advertise) == (":4370", "n.example:4370")
    assert cluster.etcd_password_file == str(home / "secret")
