"""The table of workloads is complete, and can be asked for by name."""

from __future__ import annotations

import pytest

from benchmarks.__main__ import main
from benchmarks.brokers import BROKERS, Broker, Mqttd
from benchmarks.workloads import RATE, WORKLOADS, selected
from mqttd.access.acl_conf import read_acl
from mqttd.config.load import load


def test_names_are_used_once() -> None:
    assert len({workload.name for workload in WORKLOADS}) == len(WORKLOADS)


def test_workloads_are_chosen_by_name_and_pattern_in_the_order_asked() -> None:
    names = [workload.name for workload in selected("idle*,p2p-qos1,idle")]
    assert names == ["idle", "idle-sub", "p2p-qos1"]
    assert selected(None) == WORKLOADS


def test_a_wrong_name_is_answered_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match=r"no workload 'p2p-qos3'; there are: p2p-qos0, .*idle"):
        selected("p2p-qos3")


def test_nothing_may_fall_far_behind_without_the_compiled_part() -> None:
    assert all(w.pure_bound and w.pure_bound >= 0.6 for w in WORKLOADS if w.measure == RATE)


def test_arguments_name_the_scenario_and_the_times() -> None:
    (workload,) = selected("window1-qos1")
    assert workload.arguments(1.5, 0.5) == [
        "--scenario", "p2p", "--pubs", "50", "--window", "1", "--inflight", "1", "--qos", "1",
        "--duration", "1.5", "--warmup", "0.5",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", BROKERS.values(), ids=list(BROKERS))
def test_what_a_peer_cuts_are_workloads_there_are(kind: type[Broker]) -> None:
    assert set(kind.cuts) <= {workload.name for workload in WORKLOADS}


def test_mqttd_is_measured_with_access_rules_on_and_its_queues_raised(tmp_path) -> None:  # type: ignore[no-untyped-def]
    for name, text in Mqttd().configuration(0).items():
        (tmp_path / name).write_text(text, "utf-8")
    config = load(str(tmp_path / "mqttd.conf"), {})
    assert read_acl(tmp_path / "acl.conf")
    assert (config.acl.nomatch, config.acl.cache) == ("deny", True)
    assert config.session.max_inflight == 65535
    assert config.listener["tcp"]["default"].transport == "engine"
    assert {key.partition(".")[0] for key in config.given} == {
        "node", "listener", "session", "mqueue", "output", "acl",
    }  # fmt: skip


def test_the_ready_line_tells_the_port_and_whether_it_is_compiled() -> None:
    line = "... mqttd ready: tcp 127.0.0.1:40123; clients on this machine ...; hot path compiled;"
    assert Mqttd().ready_port(line, 0) == 40123
    assert Mqttd().ready_port("mqttd starts", 0) is None


def test_a_broker_is_not_compared_with_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--against", "mqttd"])
    assert left.value.code == 2
    assert "--broker and --against are both mqttd" in capsys.readouterr().err
