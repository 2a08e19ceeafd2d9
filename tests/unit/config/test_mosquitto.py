"""`mqttd-ctl import`: configurations as mosquitto's manual and its users write them."""

from __future__ import annotations

import gzip
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from mqttd.access.acl.rules import AclRules
from mqttd.admin.ctl.main import main
from mqttd.config.load import load
from mqttd.config.mosquitto import Imported, import_mosquitto
from mqttd.types import Action, ClientInfo, Verdict

#: What a configuration says -> what of it is to be found in ours.
CASES: dict[str, dict[str, Any]] = {
    "": {"auth": {"anonymous": "loopback"}},
    "listener 1883": {"listener": {"tcp": {"default": {"bind": ":1883"}}}},
    "listener 1883 localhost": {"listener": {"tcp": {"default": {"bind": "localhost:1883"}}}},
    "listener 1883 ::1": {"listener": {"tcp": {"default": {"bind": "[::1]:1883"}}}},
    "port 1884": {"listener": {"tcp": {"default": {"bind": ":1884"}}}},
    "port 1884\nbind_address 127.0.0.1": {
        "listener": {"tcp": {"default": {"bind": "127.0.0.1:1884"}}}},
    "bind_address 10.0.0.1": {"listener": {"tcp": {"default": {"bind": "10.0.0.1:1883"}}}},
    "listener 1883\nallow_anonymous true": {"auth": {"anonymous": None}},
    "listener 1883\nallow_anonymous false": {"auth": {"anonymous": "never"}},
    "listener 1883\npassword_file pw": {"auth": {"username": {"file": "users.conf"}}},
    "listener 8883\ncertfile s.crt\nkeyfile s.key": {
        "listener": {"ssl": {"default": {"certificate": "BASE/s.crt",
                                         "private_key": "BASE/s.key"}}}},
    "listener 8883\ncafile ca.crt\ncertfile s.crt\nkeyfile s.key\nrequire_certificate true\n"
    "use_identity_as_username true\ntls_version tlsv1.3": {
        "listener": {"ssl": {"default": {"verify": "required", "ca_file": "BASE/ca.crt",
                                         "cert_as_username": "cn", "tls_version": "1.3"}}}},
    "listener 8883\ncafile ca\ncertfile s\nkeyfile k\nuse_subject_as_username true\ncrlfile c\n"
    "require_certificate true": {
        "listener": {"ssl": {"default": {"cert_as_username": "dn", "crl_file": "BASE/c"}}}},
    "listener 9001\nprotocol websockets": {
        "listener": {"ws": {"default": {"bind": ":9001", "path": "/mqtt", "origins": ["*"]}}}},
    "listener 9001\nprotocol websockets\ncertfile s\nkeyfile k\nwebsockets_origin https://a.b": {
        "listener": {"wss": {"default": {"origins": ["https://a.b"]}}}},
    "listener 1883\n\nlistener 9001\nprotocol websockets\nmax_connections 10": {
        "listener": {"tcp": {"default": {}}, "ws": {"port-9001": {"max_connections": 10}}}},
    "listener 0 /run/mosquitto.sock": {
        "listener": {"unix": {"default": {"path": "/run/mosquitto.sock"}}}},
    "listener 1883\nmax_connections -1\nmount_point dev/": {
        "listener": {"tcp": {"default": {"mountpoint": "dev/"}}}},
    "listener 1883\nmax_qos 1\nmax_topic_alias 0": {"mqtt": {"max_qos": 1, "max_topic_alias": 0}},
    "listener 1883\naccept_protocol_versions 4, 5": {
        "listener": {"tcp": {"default": {"protocol_versions": ["3.1.1", "5.0"]}}}},
    "max_inflight_messages 20\nmax_queued_messages 0": {
        "session": {"max_inflight": 20}, "mqueue": {"max_length": 100_000_000}},
    "max_inflight_messages 0\nmax_queued_bytes 1048576\nqueue_qos0_messages true": {
        "session": {"max_inflight": 65535},
        "mqueue": {"max_bytes": 1_048_576, "store_qos0": True}},
    "max_packet_size 268435455\nretain_available false": {
        "mqtt": {"max_packet_size": 268_435_455, "retain_available": False}},
    "message_size_limit 10000": {"mqtt": {"max_packet_size": 10_000}},
    "max_packet_size 65536\nmessage_size_limit 100000": {"mqtt": {"max_packet_size": 65_536}},
    "message_size_limit 65536\nmax_packet_size 100000": {"mqtt": {"max_packet_size": 65_536}},
    "persistence true\n": {
        "session": {"expiry_interval": "never", "max_expiry_interval": "never"}},
    "persistent_client_expiration 2m": {"session": {"expiry_interval": "60d"}},
    "persistent_client_expiration 14h": {"session": {"max_expiry_interval": "14h"}},
    "upgrade_outgoing_qos true\nsys_interval 10": {
        "session": {"upgrade_qos": True}, "sys": {"interval": "10s"}},
    "log_dest stderr\nlog_type error\nlog_type warning": {"log": {"level": "warn"}},
    "log_type all": {"log": {"level": "info"}},
    "per_listener_settings true\nlistener 1883 localhost\nallow_anonymous true\n"
    "listener 8883\nallow_anonymous false\npassword_file pw": {
        "listener": {"tcp": {"default": {"auth_chain": ["username", "anonymous"]},
                             "port-8883": {"auth_chain": ["username"]}}},
        "auth": {"username": {"file": "users.conf"}, "anonymous": "always"}},
    "persistence true": {"store": {"kind": "sqlite"}},
    "persistence false": {"store": {"kind": "memory"}},
    "include_dir conf.d": {"mqtt": {"max_qos": 1}},
}  # fmt: skip


def made(tmp_path: Path, text: str) -> tuple[Imported, dict[str, Any]]:
    """The import of a text, written and loaded."""
    (tmp_path / "mosquitto.conf").write_text(text)
    (tmp_path / "pw").write_text("ann:$7$101$c2FsdA==$aGFzaA==\n")
    (tmp_path / "conf.d").mkdir(exist_ok=True)
    (tmp_path / "conf.d" / "more.conf").write_text("listener 1883\nmax_qos 1\n")
    (tmp_path / "conf.d" / "ignored.txt").write_text("port 1\n")
    found = import_mosquitto(str(tmp_path / "mosquitto.conf"))
    (tmp_path / "mqttd.conf").write_text(found.config)
    load(str(tmp_path / "mqttd.conf"), {})
    AclRules.from_text(found.rules, "acl.conf")
    return found, tomllib.loads(found.config)


def holds(found: Any, wanted: Any, base: str) -> bool:
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            key in found and holds(found[key], value, base) for key, value in wanted.items()
        )
    if isinstance(wanted, str):
        wanted = wanted.replace("BASE", base)
    return wanted is None or bool(found == wanted)


@pytest.mark.parametrize("text", CASES, ids=lambda text: text.replace("\n", "; ")[:60] or "none")
def test_a_setting_finds_its_key(tmp_path: Path, text: str) -> None:
    imported, document = made(tmp_path, text)
    assert holds(document, CASES[text], str(tmp_path)), imported.config


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("autosave_interval 60", "autosave_interval 60: "),
        ("plugin /usr/lib/x.so", "plugins for mosquitto are C libraries"),
        ("connection hub\naddress 10.0.0.1\ntopic # both\nbridge_cafile ca", "bridges are not"),
        ("listener 8883\npsk_hint x", "pre-shared keys"),
        ("port 1\nno_such_setting 1", "mosquitto.conf:2: no_such_setting: not known here"),
        ("max_qos many", "its value is none"),
        ("acl_file none.acl", "everything is denied until rules are written"),
        ("log_dest syslog", "log_dest syslog: "),
        ("log_dest file /var/log/mosquitto/mosquitto.log", 'log.to = "file"'),
        ("listener 1\nmount_point a", 'ends with "/"'),
    ],
)
def test_what_has_no_place_is_listed_with_its_reason(tmp_path: Path, text: str, told: str) -> None:
    imported, _ = made(tmp_path, text)
    assert len(imported.left) == 1 and told in imported.left[0], imported.left


def verdict(rules: AclRules, user: str | None, kind: str, topic: str) -> bool:
    client = ClientInfo("c1", user, "10.0.0.1", 1, "tcp:default", 5)
    return rules.decide(client, Action(kind), topic).verdict is Verdict.ALLOW


def test_rules_mean_what_they_meant(tmp_path: Path) -> None:
    (tmp_path / "acl").write_text(
        "# everybody's\ntopic read news/#\n\nuser ann\ntopic readwrite a/#\ntopic deny a/secret\n"
        "topic write b\nuser bob jones\ntopic c/%u\npattern readwrite own/%u/#\n"
        "pattern write id/%c\n"
    )
    imported, _ = made(tmp_path, "listener 1883\npassword_file pw\nacl_file acl")
    assert [line.split(": ", 1)[1] for line in imported.left] == [
        "topic read news/#: clients without a user name alone: give $anonymous a role",
        "topic deny a/secret: taken over; a subscription that would cover it is refused as a whole"
        " here",
    ]
    rules = AclRules.from_text(imported.rules, "acl.conf")
    for user, kind, topic, allowed in (
        ("ann", "publish", "a/x", True), ("ann", "subscribe", "a/b/#", True),
        ("ann", "publish", "a/secret", False), ("ann", "publish", "b", True),
        ("ann", "subscribe", "b", False), ("bob jones", "publish", "a/x", False),
        ("bob jones", "publish", "c/%u", True), ("bob jones", "publish", "c/bob jones", False),
        ("ann", "publish", "own/ann/1", True), ("ann", "publish", "own/bob/1", False),
        ("ann", "publish", "id/c1", True), (None, "publish", "x", False),
        ("ann", "publish", "$SYS/x", False),
    ):  # fmt: skip
        assert verdict(rules, user, kind, topic) is allowed, (user, kind, topic)


def test_without_rules_everything_is_allowed_as_it_was(tmp_path: Path) -> None:
    imported, _ = made(tmp_path, "listener 1883\nallow_anonymous true")
    assert verdict(AclRules.from_text(imported.rules, "acl.conf"), None, "publish", "any/thing")


def test_the_command_writes_what_starts_and_never_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mosquitto.conf").write_text("listener 1883\npassword_file pw\nautosave_interval 9\n")
    Path("pw").write_text("ann:$7$101$c2FsdA==$aGFzaA==\n")
    assert main(["import", "mosquitto.conf"]) == 0
    assert "autosave_interval 9: " in capsys.readouterr().out
    assert Path("etc/users.conf").stat().st_mode & 0o777 == 0o600
    assert load("etc/mqttd.conf", {}).auth.anonymous == "never"
    assert Path("data").stat().st_mode & 0o777 == 0o700
    assert main(["import", "mosquitto.conf"]) == 1
    assert "is there already" in capsys.readouterr().err
    assert main(["import", "none.conf"]) == 1
    assert main(["import", "mosquitto.conf", "--into", "a/mqttd", "--data", "b/mqttd"]) == 0
    told = capsys.readouterr().out
    assert load("a/mqttd/mqttd.conf", {}).node.data_dir == str(tmp_path / "b/mqttd")
    assert f"made {tmp_path}/b/mqttd" in told and not Path("a/data").exists()


def test_each_mistake_in_what_was_written_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not left out: a listener without its mountpoint would show the whole tree."""
    monkeypatch.chdir(tmp_path)
    Path("mosquitto.conf").write_text("listener 1\nmount_point $a/\nlistener 2\nmount_point +/\n")
    assert main(["import", "mosquitto.conf"]) == 1
    told = capsys.readouterr().err
    assert told.count("mountpoint = ") == 2 and "; etc/mqttd.conf:" in told and "\\n" not in told


def test_lines_of_a_password_file_that_nobody_could_use_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mosquitto.conf").write_text("listener 1883\npassword_file pw\n")
    good = "ann:$7$101$c2FsdA==$aGFzaA==\n"
    Path("pw").write_text(f"# old\n{good}bob:plain\n{good}nobody\n")
    assert main(["import", "mosquitto.conf"]) == 0
    told = capsys.readouterr().out
    assert f"{tmp_path}/pw:3: user 'bob': expected an argon2id hash" in told
    assert f"{tmp_path}/pw:4: user 'ann' is in line 2 already" in told
    assert f"{tmp_path}/pw:5: expected USER:HASH" in told and "plain" not in told
    assert Path("etc/users.conf").read_text() == f"# old\n{good}"


def shipped() -> list[Path]:
    places = ("/usr/share/doc/mosquitto/examples", "/etc/mosquitto")
    return [path for place in places for path in sorted(Path(place).glob("mosquitto.conf*"))]


@pytest.mark.parametrize("path", shipped(), ids=str)
def test_what_its_package_ships_is_taken(tmp_path: Path, path: Path) -> None:
    """As it is, and with each of its commented settings on its own."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    imported = made(tmp_path, text)[0]
    assert not [line for line in imported.left if "not known here" in line]
    for setting in re.findall(r"(?m)^#([a-z][a-z0-9_.]+ \S.*)$", text):
        told = made(tmp_path, setting)[0]
        assert not [line for line in told.left if "not known here" in line], setting


PROOF = "$7$101$" + "A" * 16 + "$" + "B" * 88


@pytest.mark.parametrize(
    ("content", "means"),
    [
        (b'{"type":"store","version":3}\n{"type":"user","proof":"' + PROOF.encode() + b'"}\n',
         "mqttd-ctl store import other"),
        (b"\xef\xbb\xbf\n [1]", "JSON"),
        (b"SQLite format 3\0" + bytes(84), "mqttd-ctl restore other"),
        (b"PK\x03\x04\0\0" + PROOF.encode(), "no text"),
        (b"ann:" + PROOF.encode() + b"\nbob:" + PROOF.encode(), "no setting in it"),
        (f"secret {PROOF}\n".encode(), "no setting in it"),
        (f"port {PROOF}\n".encode(), "other:1: port: expected a port"),
        (f"listener {PROOF}\n".encode(), "other:1: listener: expected a port"),
    ],
)  # fmt: skip
def test_what_is_no_mosquitto_conf_is_refused_before_anything_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: bytes,
    means: str,
) -> None:
    """Each of its lines was printed as a setting that is not known, hashes and all."""
    monkeypatch.chdir(tmp_path)
    Path("other").write_bytes(content)
    assert main(["import", "other"]) == 1
    told = capsys.readouterr()
    assert means in told.err and "AAAA" not in told.err + told.out
    assert [made.name for made in tmp_path.iterdir()] == ["other"]


def test_of_a_line_that_is_not_known_the_key_alone_is_told(tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.conf"
    acl = tmp_path / "acl"
    acl.write_text(f"topic read a/#\nsecret {PROOF}\n")
    path.write_text(
        f"listener 1883\nacl_file acl\nour_key {PROOF}\n{PROOF}\nann:{PROOF} x\n"
        f"auth_opt_pass {PROOF}\nmax_inflight_bytes 5\n"
    )
    left = "\n".join(import_mosquitto(str(path)).left)
    assert "AAAA" not in left
    for told in ("our_key: not known", "4: no setting: not", "5: no setting: not"):
        assert told in left
    for told in ("secret: not known", "auth_opt_pass: belongs", "max_inflight_bytes 5: "):
        assert told in left
