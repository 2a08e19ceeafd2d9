"""What an operator reads of a mistake: the file, what is wrong, nothing else."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from mqttd.admin.ctl import main as ctl
from mqttd.config.files import initialize
from mqttd.service import Options
from tests.support.certificates import Authority

ROOT = Path(__file__).parents[2]


LISTENER = (
    '[listener.ssl.default]\nbind = "127.0.0.1:8883"\ncertificate = "server.crt"\n'
    'private_key = "server.key"\n'
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shipped configuration."""
    for file in ("mqttd.conf", "acl.conf"):
        (tmp_path / file).write_text((ROOT / "etc" / file).read_text("utf-8"))
    monkeypatch.setenv("MQTTD__NODE__DATA_DIR", str(tmp_path / "data"))
    return tmp_path


def check(folder: Path) -> None:
    Options().parseOptions(["--config", str(folder / "mqttd.conf"), "--check-config"])


def change(folder: Path, old: str, new: str) -> None:
    path = folder / "mqttd.conf"
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1))


def line_of(folder: Path, begin: str) -> str:
    """File and number of the first line that begins so."""
    path = folder / "mqttd.conf"
    lines = path.read_text("utf-8").splitlines()
    return f"{path}:{next(n for n, line in enumerate(lines, 1) if line.startswith(begin))}"


def test_an_etcd_in_plain_is_warned_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = '[cluster]\nkind = "etcd"\nendpoints = ["http://etcd.example:2379"]\n'
    change(folder, "[cluster]\n", told)
    with pytest.raises(SystemExit) as ended:
        check(folder)
    assert ended.value.code == 0
    told = capsys.readouterr()
    assert "no https" in told.err and told.out.endswith(": ok\n")


def test_an_address_that_opens_nothing_is_warned_of(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(folder, "[admin.tcp]\n", '[admin.tcp]\nbind = "127.0.0.1:8081"\n')
    where = f'{line_of(folder, "bind = ")}: admin.tcp.bind = "127.0.0.1:8081"'
    told = f"{where} opens nothing: .* admin.tcp.token_file"
    with pytest.raises(SystemExit) as ended:
        check(folder)
    assert ended.value.code == 0
    assert re.search(told, capsys.readouterr().err)


def test_a_dashboard_that_is_not_there_is_warned_of_where_it_has_an_address(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mqttd.conf").write_text('[admin.page]\nbind = "127.0.0.1:1"\n')
    with pytest.raises(SystemExit):
        check(folder)
    told = 'mqttd.conf:2: admin.page.bind = "127.0.0.1:1" opens nothing: there is no dashboard'
    assert told in capsys.readouterr().err


def test_a_key_that_everybody_may_read_is_warned_of(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Authority().server("localhost").write(folder, "server")
    change(folder, "#[listener.ssl.default]\n", LISTENER)
    for mode, told in ((0o640, ""), (0o644, "mode 0644 lets everybody read it; expected 0600")):
        (folder / "server.key").chmod(mode)
        with pytest.raises(SystemExit):
            check(folder)
        assert told in (found := capsys.readouterr().err) and bool(found) == bool(told)
    assert f"{line_of(folder, 'private_key = ')}: listener.ssl.default.private_key = " in found


@pytest.mark.parametrize(
    ("certificate", "key", "told"),
    [
        ("server.key", "server.crt", "the certificate's file holds a private key, the key's a"),
        ("server.key", "server.key", "server.key holds no certificate (PEM"),
        ("server.crt", "server.crt", "server.crt holds no private key (PEM"),
        ("server.crt", "other.key", "the key is that of another certificate"),
    ],
)
@pytest.mark.parametrize("table", ["listener.ssl.default", "admin.page"])
def test_a_pair_that_is_none_is_told_with_what_is_wrong(
    folder: Path, certificate: str, key: str, told: str, table: str
) -> None:
    Authority().server("localhost").write(folder, "server")
    Authority().server("localhost").write(folder, "other")
    pair = LISTENER.replace('key = "server.key"', f'key = "{key}"')
    pair = pair.replace('certificate = "server.crt"', f'certificate = "{certificate}"')
    if table == "admin.page":
        change(folder, "[admin.page]\n", pair.replace("listener.ssl.default", table))
    else:
        change(folder, "#[listener.ssl.default]\n", pair)
    with pytest.raises(SystemExit) as ended:
        check(folder)
    if table == "admin.page" and key == "other.key":
        told = "no certificate with its own key"
    assert told in str(ended.value)
    assert str(folder / certificate) in str(ended.value) and "_ssl.c" not in str(ended.value)


def test_a_level_of_a_module_that_is_not_there_is_warned_of(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    levels = 'modules = { "mqttd.brokr" = "debug", "mqttd.access" = "debug", urllib3 = "info" }'
    change(folder, "[log]\n", f"[log]\n{levels}\n")
    with pytest.raises(SystemExit) as ended:
        check(folder)
    assert ended.value.code == 0
    where = f"{line_of(folder, 'modules = ')}: log.modules"
    told = f"mqttd: {where}: there is no module 'mqttd.brokr'; did you mean mqttd.broker?"
    assert capsys.readouterr().err.splitlines() == [told]


@pytest.mark.parametrize(
    "fault", ["key", "rules", "listener's rules", "certificate", "users", "log"]
)
def test_a_mistake_is_told_with_its_file(folder: Path, fault: str) -> None:
    if fault == "key":
        change(folder, "#max_qos", "max_quos")
        lines = (folder / "mqttd.conf").read_text("utf-8").splitlines()
        number = lines.index("max_quos = 2") + 1
        told = (
            "the configuration has mistakes:\n"
            f"{folder}/mqttd.conf:{number}: mqtt.max_quos: unknown key; "
            "the nearest known key is mqtt.max_qos"
        )
    elif fault == "rules":
        (folder / "acl.conf").unlink()
        told = (
            f"acl.file = '{folder}/acl.conf': No such file or directory;"
            f" `mqttd-ctl init {folder} --data {folder}/data` writes one"
        )
    elif fault == "listener's rules":
        change(folder, '#acl_file = ""', 'acl_file = "other.conf"')
        told = (
            f"{line_of(folder, 'acl_file = ')}: listener.tcp.default.acl_file"
            f" = '{folder}/other.conf': No such file or directory"
        )
    elif fault == "certificate":
        change(folder, "#[listener.ssl.default]", "[listener.ssl.default]")
        told = (
            f"listener.ssl.default.certificate = '{folder}/certs/server.crt':"
            " No such file or directory"
        )
    elif fault == "log":
        text = (folder / "mqttd.conf").read_text("utf-8")
        named = f'[log]\nto = "file"\nfile = "{folder}/logs/mqttd.log"\n'
        (folder / "mqttd.conf").write_text(text.replace("[log]\n", named, 1), "utf-8")
        told = f"log.file = '{folder}/logs/mqttd.log': there is no directory {folder}/logs"
    else:
        (folder / "users.conf").mkdir(mode=0o700)
        told = f"auth.username.file = '{folder}/users.conf': Is a directory"
    with pytest.raises(SystemExit) as stopped:
        check(folder)
    assert stopped.value.code == f"mqttd cannot start: {told}"


CHAIN = '#chain = ["username", "anonymous"]'


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            CHAIN,
            'chain = ["usernme"]',
            "auth.chain: no built-in auth module 'usernme'; expected one of: username, clientid,"
            " certificate, jwt, scram, anonymous, or the module of a plugin that plugins.load"
            " names; did you mean username?",
        ),
        (
            "#auth_chain = []",
            'auth_chain = ["ldap"]',
            "listener.tcp.default.auth_chain: no built-in auth module 'ldap'; expected one of:",
        ),
        (
            '#file = "acl.conf"',
            'file = "mqttd.conf"',
            "acl.file: {folder}/mqttd.conf:",
        ),
        (
            "#load = []",
            'load = ["presense"]',
            "plugins.load: plugin 'presense' was not found; found: ",
        ),
    ],
)
def test_a_name_that_is_not_there_is_told_with_its_line_and_its_like(
    folder: Path, old: str, new: str, told: str
) -> None:
    change(folder, old, new)
    with pytest.raises(SystemExit) as stopped:
        check(folder)
    begin = f"mqttd cannot start: {line_of(folder, new)}: {told.format(folder=folder)}"
    assert str(stopped.value.code).startswith(begin)
    assert "presense" not in new or "; did you mean presence?" in str(stopped.value.code)


def test_the_remedy_for_missing_rules_puts_them_where_they_are_missing(tmp_path: Path) -> None:
    folder = tmp_path / "broker's own"
    initialize(str(folder), str(folder / "data"))
    (folder / "acl.conf").unlink()
    with pytest.raises(SystemExit) as stopped:
        check(folder)
    _, _, remedy = str(stopped.value.code).partition("; `mqttd-ctl ")
    command = shlex.split(remedy.partition("` writes one")[0])
    assert ctl.main(command) == 0
    with pytest.raises(SystemExit) as stopped:
        check(folder)
    assert stopped.value.code == 0


def test_the_shipped_configuration_is_sound_and_a_check_makes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        check(folder)
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"{folder / 'mqttd.conf'}: ok\n"
    assert not (folder / "data").exists()


def test_without_a_configuration_it_is_said_where_one_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("mqttd.config.files.os.path.exists", lambda path: False)
    with pytest.raises(SystemExit) as stopped:
        Options().parseOptions([])
    assert stopped.value.code == (
        "mqttd cannot start: no configuration found; looked for etc/mqttd.conf,"
        f" {tmp_path}/mqttd/mqttd.conf, /etc/mqttd/mqttd.conf. `mqttd-ctl init .` writes one,"
        " --config FILE names another"
    )


def test_the_configuration_of_this_directory_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "etc").mkdir()
    for file in ("mqttd.conf", "acl.conf"):
        (folder / file).rename(folder / "etc" / file)
    monkeypatch.chdir(folder)
    options = Options()
    options.parseOptions([])
    assert options.configuration.path == str(folder / "etc" / "mqttd.conf")
    assert capsys.readouterr().err == "mqttd: configuration etc/mqttd.conf\n"
