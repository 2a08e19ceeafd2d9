"""The table of workloads is complete, and can be asked for by name."""

from __future__ import annotations

import pytest

from benchmarks.__main__ import main
from benchmarks.brokers import BROKERS, Broker, Mqttd
from benchmarks.workloads import COST, TWINS, WORKLOADS, selected
from mqttd.access.acl.conf import read_acl
from mqttd.config.load import load


def test_names_are_used_once() -> None:
    assert len({workload.name for workload in WORKLOADS}) == len(WORKLOADS)


def test_workloads_are_chosen_by_name_and_pattern_in_the_order_asked() -> None:
    names = [workload.name for workload in selected("idle*,p2p-q1,idle")]
    assert names == ["idle", "idle-sub", "idle-echo", "p2p-q1"]
    assert selected(None) == WORKLOADS


def test_the_list_is_of_those_that_were_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--only", "idle*"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == ["idle", "idle-sub", "idle-echo"]


def test_rows_of_messages_have_twins_whose_sizes_vary() -> None:
    names = [workload.name for workload in TWINS]
    assert len(set(names)) == len(names) == 2 * len({name.split("/")[0] for name in names})
    assert {"p2p-q1/127", "subids300-q1/16k", "v5props-q0/127", "trickle-q1/127"} <= set(names)
    assert not {"large1m-q1/127", "idle/127", "filters-new/127"} & set(names)
    assert [workload.name for workload in selected("fanout-q1/*")] == [
        "fanout-q1/127", "fanout-q1/16k",
    ]  # fmt: skip
    assert selected("*/127") == tuple(w for w in TWINS if w.name.endswith("/127"))
    assert all(w in WORKLOADS for w in selected("fan*"))
    (twin,) = selected("p2p-q0/127")
    assert twin.arguments(1, 0)[-6:-4] == ["--vary", "40-200"] and not twin.bounds


def test_a_wrong_name_is_answered_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match=r"no workload 'p2p-q3'; there are: v5props-q0, .*idle"):
        selected("p2p-q3")


def test_nothing_may_fall_far_behind_without_the_compiled_part() -> None:
    bounded = [w for w in WORKLOADS if w.pure_bound is not None]
    assert all(w.pure_bound >= 0.6 for w in bounded if w.pure_bound)
    assert len(bounded) >= 18 and all(w.measure == COST for w in bounded)


def test_what_must_be_shown_is_asked_for() -> None:
    """Times mosquitto and FlashMQ, as it was decided; what is faster may raise these."""
    asked = {
        "v5props-q0": (8, 1), "v5props-q1": (5, 1), "topics100k-q0": (3.5, 1),
        "topics100k-q1": (3.5, 1), "rules100k-q1": (8, 0.5), "churn-q0": (5, 1),
        "churn-q1": (4, 1), "coldfilters": (3, 1), "share5-q0": (6, 1), "retain-q0": (8, 1),
        "retain-q1": (5, 1), "mixfan-q1": (7, 1), "mixfan-q2": (7, 1), "large256k-q1": (0.85, 1),
        "large1m-q1": (0.65, 1), "small5000-q0": (0.9, 0.7), "trickle-q0": (0.7, 0.7),
        "trickle-q1": (0.95, 0.7), "retained": (2.5, 1), "connstorm": (1.2, 1),
        "tls1-q0": (1.2, 1), "ws1-q0": (1.2, 1), "hook-q0": (6, 1), "hook-q1": (5, 1),
        "log-q0": (4, 1), "log-q1": (4, 1), "own-q0": (1, 0.5), "own-q1": (1, 0.5),
        "filters": (1, 0.5), "filters-new": (1, 0.5),
    }  # fmt: skip
    for name, (mosquitto, flashmq) in asked.items():
        (workload,) = selected(name)
        assert workload.bounds["mosquitto"] >= mosquitto, name
        assert workload.bounds["flashmq"] >= flashmq, name
    assert [refused.bounds for refused in selected("denied*")] == [{"flashmq": 0.5}] * 4
    (held,) = selected("held-q1")
    assert held.bounds["itself"] == pytest.approx(1 / 1.3, abs=0.01)
    (subscribe,) = selected("subscribe190k")
    assert subscribe.most == 500


def test_arguments_name_the_scenario_and_the_times() -> None:
    (workload,) = selected("window1-q1")
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
        "node", "listener", "mqtt", "session", "mqueue", "output", "acl", "store",
    }  # fmt: skip


def test_the_ready_line_tells_the_port_and_whether_it_is_compiled() -> None:
    line = "... mqttd ready: tcp 127.0.0.1:40123; clients on this machine ...; hot path compiled;"
    assert Mqttd().ready_port(line, 0) == 40123
    assert Mqttd().ready_port("mqttd starts", 0) is None


@pytest.mark.parametrize("door", ["tcp 127.0.0.1:5", "ssl 127.0.0.1:5", "ws 127.0.0.1:5/mqtt"])
def test_the_ready_line_tells_the_port_of_any_door(door: str) -> None:
    assert Mqttd().ready_port(f"mqttd ready: {door}; who; hot path pure Python", 0) == 5


def test_times_that_belong_to_a_workload_are_not_the_callers() -> None:
    (workload,) = selected("coldfilters")
    assert workload.arguments(3, 0.5)[-4:] == ["--duration", "0.3", "--warmup", "0"]


@pytest.mark.parametrize("text", ["old", "=here", "old=", "mosquitto=here", "itself=here"])
def test_another_checkout_has_a_name_and_a_place(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--mqttd", text])
    assert "NAME=CHECKOUT, with a name that no broker has" in capsys.readouterr().err


def test_a_broker_is_not_compared_with_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--against", "mqttd"])
    assert left.value.code == 2
    assert "--broker and --against are both mqttd" in capsys.readouterr().err
