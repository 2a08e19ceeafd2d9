"""`mqttd-ctl` without a broker: its command line, the password file, what it prints."""

from __future__ import annotations

import contextlib
import copy
import errno
import io
import json
import os
import stat
from pathlib import Path

import pytest

from mqttd.admin.ctl import client as ctl_client
from mqttd.admin.ctl import main as ctl
from mqttd.admin.ctl import printing as ctl_print
from mqttd.admin.ctl.store import counted


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "etc" / "mqttd.conf"
    path.parent.mkdir()
    path.write_text("")
    return path


def test_one_line_says_that_no_broker_is_running(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ctl.main(["--config", str(config), "status"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"mqttd-ctl: no broker is running at {config.parent.parent}/data/mqttd.sock\n"


def test_a_mistake_in_the_configuration_is_named(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text("[mqtt]\nmax_qoz = 1\n")
    assert ctl.main(["--config", str(config), "status"]) == 1
    err = capsys.readouterr().err
    assert "max_qoz" in err and err.count("\n") == 1
    assert err.endswith("is reached with --socket PATH all the same\n")


@pytest.mark.parametrize("argv", [[], ["clients"], ["clients", "show"], ["publish", "a"],
                                  ["publish", "a", "b", "--qos", "3"], ["nonsense"],
                                  ["--socket", "s", "--config", "c", "status"]])  # fmt: skip
def test_a_wrong_command_line_has_exit_status_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        ctl.main(argv)
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("argv", "says"), [([], "listeners"), (["clients"], "kick"), (["listeners"], "restart")]
)
def test_a_command_that_is_missing_is_asked_for_with_those_there_are(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        ctl.main(argv)
    out, err = capsys.readouterr()
    assert out == "" and f"usage: {' '.join(['mqttd-ctl', *argv])} " in err and f"  {says} " in err


def test_what_a_broker_tells_is_printed_for_people(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands of a plugin for its name alone, times as dates, chains of listeners by name."""
    module = {"kind": "auth", "seq": 1, "name": "username"}
    answers = {
        "/plugins/acme": {
            "name": "acme", "state": "loaded", "loaded_at": 1763715600.5,
            "registered": {"hooks": [], "commands": {"show": "Show it.", "clear": ""}},
        },
        "/plugins/spark": {"name": "spark", "state": "unloaded"},
        "/auth": {"modules": [{**module, "listener": ""}, {**module, "listener": "tcp:apart"}]},
    }  # fmt: skip

    def request(client: ctl.Client, method: str, path: str, body: object = None) -> ctl.Json:
        if path not in answers:
            raise ctl.CtlError("no such plugin")
        return copy.deepcopy(answers[path])

    monkeypatch.setattr(ctl.Client, "request", request)
    for argv in (["--socket", "s", "acme"], ["--socket", "s", "--json", "acme"]):
        assert ctl.main(argv) == 2
        assert capsys.readouterr().err == (
            "usage: mqttd-ctl acme COMMAND ...\n  clear\n  show                  Show it.\n"
        )
    for words, told in (
        (["acme", "--help"], "usage: mqttd-ctl acme COMMAND ...\n  clear\n  show "),
        (["acme", "show", "--help"], "usage: mqttd-ctl acme show [ARGUMENT ...]\nShow it.\n"),
        (["help", "acme", "show"], "usage: mqttd-ctl acme show [ARGUMENT ...]\nShow it.\n"),
        (["spark", "package", "-h"], "plugin spark is unloaded: mqttd-ctl plugins load spark\n"),
    ):
        assert ctl.main(["--socket", "s", *words]) == 0
        out, err = capsys.readouterr()
        assert told in out and not err
    with pytest.raises(SystemExit):
        ctl.main(["--socket", "s", "nonsense"])
    assert "invalid choice: 'nonsense'" in capsys.readouterr().err
    assert ctl.main(["--socket", "s", "plugins", "info", "acme"]) == 0
    assert "2025-11-21T09:00:00Z" in capsys.readouterr().out
    assert ctl.main(["--socket", "s", "auth", "list"]) == 0
    head, one, other = capsys.readouterr().out.splitlines()
    assert head.startswith("listener ")
    assert one.startswith("all others") and other.startswith("tcp:apart ")


def test_an_option_that_is_none_is_told_with_those_of_its_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        ctl.main(["clients", "kick", "a", "--force"])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert "usage: mqttd-ctl clients kick" in told and "unrecognized arguments: --force" in told


@pytest.mark.parametrize("argv", [["--json", "auth", "list"], ["auth", "list", "--json"]])
def test_json_may_stand_before_or_behind_the_command(argv: list[str]) -> None:
    assert ctl._parser().parse_args(argv).json is True
    assert ctl._parser().parse_args(["auth", "list"]).json is False


def run_users(monkeypatch: pytest.MonkeyPatch, config: Path, *argv: str, password: str = "") -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(password))
    return ctl.main(["--config", str(config), "users", *argv])


def test_users_are_added_changed_listed_and_deleted(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = config.parent / "users.conf"
    assert run_users(monkeypatch, config, "add", "bob", password="one\n") == 0
    first = file.read_text()
    assert first.startswith("bob:$argon2id$")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert run_users(monkeypatch, config, "passwd", "bob", password="two\n") == 0
    assert file.read_text() != first
    capsys.readouterr()
    assert run_users(monkeypatch, config, "list") == 0
    assert capsys.readouterr().out == "bob\n"
    assert run_users(monkeypatch, config, "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"users": ["bob"]}
    assert run_users(monkeypatch, config, "del", "bob") == 0
    assert file.read_text() == ""


@pytest.mark.parametrize(
    ("argv", "password", "says"),
    [
        (["add", "bob"], "x\n", "is there already"),
        (["add", "new"], "", "an empty password"),
        (["add", "#new"], "x\n", "user name '#new'"),
        (["passwd", "new"], "x\n", "no user 'new'"),
        (["del", "new"], "", "no user 'new'"),
    ],
)
def test_what_cannot_be_done_to_a_user_is_said_and_changes_nothing(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    argv: list[str], password: str, says: str,
) -> None:  # fmt: skip
    run_users(monkeypatch, config, "add", "bob", password="one\n")
    before = (config.parent / "users.conf").read_text()
    capsys.readouterr()
    assert run_users(monkeypatch, config, *argv, password=password) == 1
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1
    assert (config.parent / "users.conf").read_text() == before


def test_tables_hide_no_escape_sequences(capsys: pytest.CaptureFixture[str]) -> None:
    ctl_print.print_table([{"client_id": "a\x1b[2J\n", "qos": 1}], ["client_id", "qos"])
    assert capsys.readouterr().out == "client id   qos\na\\x1b[2J\\n    1\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59, "59 s"), (61, "1 m 1 s"), (86400 + 7200 + 61, "1 d 2 h")],
)
def test_durations_have_two_units(seconds: int, text: str) -> None:
    assert ctl_print.duration_text(seconds) == text


def test_a_time_without_its_unit_is_told_which_it_may_be() -> None:
    assert ctl_print.seconds_of("--for", "2h") == 7200
    with pytest.raises(ctl.CtlError, match="a time has its unit: 60s, 60m or 60h?"):
        ctl_print.seconds_of("--for", "60")
    with pytest.raises(ctl.CtlError, match="1d or 1w$"):
        ctl_print.seconds_of("--for", "soon")


def test_a_reload_says_last_what_is_not_applied(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change = {"text": "node.workers: 1 -> 2: waits", "key": "node.workers", "applies": False}
    answer = {"changes": [change], "files": [], "warnings": [], "notes": [], "applied": True}
    monkeypatch.setattr(ctl.Client, "request", lambda *_: answer)
    assert ctl.main(["--socket", "s", "reload"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "reloaded: configuration, users, rules, certificates; not applied: node.workers"
    )


def test_a_backup_that_is_in_a_tmp_of_the_brokers_own_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its command would say how large it is, and the file go with systemd's PrivateTmp."""
    copy = tmp_path / "copy.db"
    monkeypatch.setattr(ctl.Client, "request", lambda *_: {"path": str(copy), "bytes": 7})
    assert ctl.main(["--socket", "s", "backup", str(copy)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and f"{copy}: the broker has written it where" in err and "PrivateTmp" in err
    copy.write_text("1234567")
    assert ctl.main(["--socket", "s", "backup", str(copy)]) == 0
    assert capsys.readouterr().out == f"{copy}: 7 bytes\n"


def test_a_node_that_leaves_says_each_thing_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left = [3, 0, 0]

    def request(client: ctl.Client, method: str, path: str, body: object = None) -> ctl.Json:
        if path == "/drain":
            if not left:
                raise ctl.CtlError("gone")
            return {"left": left.pop(0)}
        return {"stays": 0}

    monkeypatch.setattr(ctl.Client, "request", request)
    monkeypatch.setattr("mqttd.admin.ctl.cluster.time.sleep", lambda _: None)
    assert ctl.main(["--socket", "s", "cluster", "leave"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "3 clients still here",
        "handing sessions over",
        "the sessions are handed over; the node has ended",
    ]


def test_a_node_that_does_not_answer_has_not_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def request(client: ctl.Client, method: str, path: str, body: object = None) -> ctl.Json:
        if path == "/drain":
            raise ctl_client.NoAnswer("the broker at s did not answer within 30 s")
        return {"stays": 0}

    monkeypatch.setattr(ctl.Client, "request", request)
    assert ctl.main(["--socket", "s", "cluster", "leave"]) == 1
    out, error = capsys.readouterr()
    assert "did not answer" in error and "ended" not in out


def test_the_uptime_of_a_worker_has_its_unit() -> None:
    assert ctl_print.lasting({"uptime": 64}) == {"uptime": "1 m 4 s"}
    assert ctl_print.lasting({"uptime": None}) == {"uptime": None}


@pytest.mark.parametrize(
    "argv",
    ["--node b status", "status --node b", "--node=b --json status", "--node a status --node b"],
)
def test_17_a_node_may_be_named_before_the_command(
    monkeypatch: pytest.MonkeyPatch, argv: str
) -> None:
    asked = []
    monkeypatch.setattr(ctl.Client, "request", lambda client, *_: asked.append(client.node) or {})
    with contextlib.suppress(KeyError):  # of an answer with nothing in it
        ctl.main(["--socket", "s", *argv.split()])
    assert asked[0] == "b"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--node b cluster status", "this command asks the broker that --config, --socket or"),
        ("cluster drain b --node b", "this command asks the broker that"),
        ("--node b cluster join http://e:2379", "stands behind the command"),
        ("--node b acme show", "this command asks the broker that"),
    ],
)
def test_17_a_command_that_asks_no_node_by_its_name_says_so(
    capsys: pytest.CaptureFixture[str], argv: str, said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        ctl.main(["--socket", "/nowhere", *argv.split()])
    assert ended.value.code == 2 and said in capsys.readouterr().err


def test_a_node_of_a_cluster_says_that_its_users_are_its_own(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_users(monkeypatch, config, "add", "bob", password="one\n") == 0
    assert "this node" not in capsys.readouterr().out
    monkeypatch.setenv("MQTTD__NODE__NAME", "a")
    monkeypatch.setenv("MQTTD__CLUSTER__KIND", "etcd")
    monkeypatch.setenv("MQTTD__CLUSTER__ENDPOINTS", '["http://127.0.0.1:1"]')
    monkeypatch.setenv("MQTTD__CLUSTER__BIND", "127.0.0.1:0")
    for argv, password in ((["passwd", "bob"], "two\n"), (["del", "bob"], "")):
        assert run_users(monkeypatch, config, *argv, password=password) == 0
        told = capsys.readouterr().out
        assert "this node alone: other nodes of the cluster have files of their own" in told


def test_two_values_of_plugins_are_counted_in_english() -> None:
    assert counted({"sessions": 2, "retained": 2, "values": 2}) == (
        "2 sessions, 2 retained messages, 2 plugin values"
    )


@pytest.mark.parametrize(
    "words", [["info"], ["check"], ["export", "-"], ["import", "-"], ["restore", "copy"]],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_data_directory_of_somebody_else_is_named(
    words: list[str],
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(path: str) -> list[str]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    data = config.parent.parent / "data"
    data.mkdir(exist_ok=True)
    monkeypatch.setattr(os, "listdir", refuse)  # root may look everywhere
    group = [] if words[0] == "restore" else ["store"]
    assert ctl.main(["--config", str(config), *group, *words]) == 1
    assert capsys.readouterr().err == (
        f"mqttd-ctl: no right to look into {data}: run this as the broker's user, or as root\n"
    )
