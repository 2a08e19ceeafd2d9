"""`mqttd-ctl cluster join` writes what would start, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mqttd.admin.ctl import main as ctl
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
    cluster = load(os.path.join("etc", "mqttd.conf"), {}).cluster
    assert cluster.certificate == str(home / "tls/n.crt")
    assert (cluster.bind, cluster.advertise) == (":4370", "n.example:4370")
    assert cluster.etcd_password_file == str(home / "secret")
