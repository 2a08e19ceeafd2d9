"""What a row asks of a broker is in its configuration, and is asked of every broker alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.brokers import Checkout, FlashMQ, Mosquitto, Mqttd, StartError
from benchmarks.companions import failed, fault_of
from benchmarks.peers import mosquitto_noop
from benchmarks.setting import PASSWORD, PLAIN, USER, Setting, password_line
from benchmarks.workloads import WORKLOADS
from mqttd.access.acl.conf import read_acl
from mqttd.config.load import load

SETTINGS = sorted({workload.setting for workload in WORKLOADS} | {PLAIN}, key=str)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_mqttd_reads_what_a_row_asks_of_it(setting: Setting, tmp_path: Path) -> None:
    for name, text in Mqttd().under(setting).configuration(0).items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    config = load(str(tmp_path / "mqttd.conf"), {})
    (kind,) = (kind for kind, listeners in config.listener.items() if listeners)
    assert kind == {"tcp": "tcp", "tls": "ssl", "ws": "ws"}[setting.door]
    assert (config.output.gather > 0) is setting.gather
    assert len(read_acl(tmp_path / "acl.conf")) == (setting.rules or 2)
    assert bool(config.plugins.load) is bool(setting.plugin)
    assert config.store.kind == ("sqlite" if setting.store else "memory")
    assert config.durability.default == (setting.store or "os")
    assert config.node.workers == setting.workers
    if setting.plugin and setting.plugin != "spark":
        compile((tmp_path / "plugins/probe.py").read_text(), "probe.py", "exec")


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_peers_get_the_same_door_rules_and_password(setting: Setting) -> None:
    others = setting.of_others()
    for files in (
        Mosquitto().under(others).configuration(1883),
        FlashMQ().under(others).configuration(1883),
    ):
        text = next(iter(files.values()))
        assert ("websockets" in text) is (setting.door == "ws")
        assert ("server.key" in files) is (setting.door == "tls")
        assert ("allow_anonymous false" in text) is bool(setting.rules)
        if setting.rules:
            assert files["acl"].count("topic readwrite") == setting.rules
            assert files["passwd"] == password_line()


def test_a_rule_that_names_the_client_is_the_same_for_all() -> None:
    setting = Setting(own=True)
    rules = Mqttd().under(setting).configuration(0)["acl.conf"]
    assert '{allow, all, publish, ["dev/%c/#"]}.' in rules
    for files in (
        Mosquitto().under(setting).configuration(1883),
        FlashMQ().under(setting).configuration(1883),
    ):
        assert files["acl"] == "topic read #\npattern write dev/%c/#\n"
        assert "acl_file CWD/acl" in next(iter(files.values()))


def test_the_rules_let_in_who_mqttload_comes_as() -> None:
    setting = Setting(rules=1000)
    assert setting.arguments() == ["--username", USER, "--password", PASSWORD]
    rules = Mqttd().under(setting).configuration(0)["acl.conf"].splitlines()
    assert rules[-1] == f'{{allow, {{user, "{USER}"}}, pubsub, ["#"]}}.'


def test_of_others_nothing_is_asked_that_only_mqttd_has() -> None:
    ours = Setting(door="ws", plugin="held", gather=False, workers=2)
    assert ours.of_others() == Setting(door="ws")


def test_a_hook_is_measured_beside_a_plugin_of_the_peer() -> None:
    setting = Setting(plugin="noop").of_others()
    plugin = mosquitto_noop()
    text = Mosquitto().under(setting).configuration(1883)["mosquitto.conf"]
    assert (f"plugin {plugin}" in text) is (plugin is not None)
    assert "plugin" not in Mosquitto().configuration(1883)["mosquitto.conf"]


def test_a_configured_broker_leaves_the_other_as_it_was() -> None:
    plain = Mqttd()
    assert plain.under(Setting(door="ws")).setting.door == "ws"
    assert plain.setting == PLAIN


def test_a_checkout_without_its_environment_is_told(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"old: no .*\.venv/bin/python: make the checkout's"):
        Checkout("old", tmp_path)


def test_a_checkout_runs_its_own_twistd_from_its_own_root(tmp_path: Path) -> None:
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for name in ("python", "twistd"):
        (tmp_path / ".venv/bin" / name).write_text("")
        (tmp_path / ".venv/bin" / name).chmod(0o755)
    broker = Checkout("old", tmp_path).under(Setting(plugin="noop"))
    command = broker.command(Path("/run"), 0)
    assert command[:2] == [str(tmp_path / ".venv/bin/python"), str(tmp_path / ".venv/bin/twistd")]
    assert (broker.name, broker.cwd) == ("old", tmp_path)


def test_flashmq_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="no FlashMQ at .*missing"):
        FlashMQ(tmp_path / "missing").version()


@pytest.mark.parametrize(
    ("out", "fault"),
    [
        ('ready\n{"changes": 2000, "answered": 2000, "refused": 0, "seconds": 10}', ""),
        ('ready\n{"changes": 900, "answered": 9, "refused": 0, "seconds": 10}', "only 90 changes"),
        ('ready\n{"changes": 2000, "answered": 9, "refused": 3, "seconds": 10}', "3 filters"),
        ("ready\n", "ended early: why"),
    ],
)
def test_a_churn_that_did_not_keep_its_pace_is_a_fault(out: str, fault: str) -> None:
    found = fault_of(out, "why")
    assert fault in found if fault else not found


def test_of_a_long_reason_the_first_line_and_the_last_are_told() -> None:
    assert failed("it ended:\n  a\n  b\nError: c\n").deviation() == "it ended: ... Error: c"
    assert failed("short").deviation() == "short"
