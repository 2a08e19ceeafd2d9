"""A result can be read by people and programs, and names no machine."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.compare import Comparison, compare
from benchmarks.load import Measurement
from benchmarks.plot import main as plot
from benchmarks.plot import svg
from benchmarks.report import as_json, machine, page, ratio, table
from benchmarks.workloads import COST, FIRST, MEMORY, WORKLOADS

RUN = Measurement(True, 1000, 2.0, 1.0, 0.5, 100, 0, 0, 0, 0, {}, ())
FAST = Measurement(True, 1000, 0.5, 1.0, 0.5, 50, 0, 0, 0, 0, {}, ())
ABOUT = {
    "machine": machine(),
    "broker": "mqttd",
    "peers": ["mosquitto", "flashmq"],
    "versions": {"mqttd": "mqttd 0.1 (compiled)", "mosquitto": "mosquitto 2.0.11"},
    "configurations": {"mqttd": {"mqttd.conf": "[node]\n"}, "mosquitto": {"m.conf": "a b\n"}},
    "cores": {"broker": 0, "mqttload": 1},
    "duration": 3.0,
    "warmup": 0.5,
    "rounds": "3",
}


def rows() -> list[Comparison]:
    return [
        compare(workload, peer, [RUN], [theirs], workload.bounds.get(peer))
        for workload in WORKLOADS
        for peer, theirs in (("mosquitto", RUN), ("flashmq", FAST))
    ]


def test_every_workload_has_one_line_with_all_peers_ratios_and_bounds() -> None:
    lines = table(rows()).splitlines()
    assert len(lines) == len(WORKLOADS) + 2
    assert len({len(line) for line in lines}) == 1, "not aligned"
    (first,) = [line for line in lines if line.startswith("| p2p-q0 ")]
    cells = [cell.strip() for cell in first.strip("|").split("|")]
    assert cells[2:] == ["2 us", "2 us", "1.00 x >= 12 x", "0.5 us", "0.25 x >= 1 x", "FAIL"]


def test_a_peer_that_a_row_does_not_have_leaves_its_cells_empty() -> None:
    (workload,) = [w for w in WORKLOADS if w.name == "held-q1"]
    both = [*rows()[:2], compare(workload, "itself", [RUN], [FAST], 0.77)]
    line = table(both).splitlines()[-1]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[2:] == ["2 us", "", "", "", "", "0.5 us", "0.25 x >= 0.77 x", "FAIL"]


def test_several_rounds_show_their_spread() -> None:
    row = compare(WORKLOADS[0], "mosquitto", [FAST, FAST, FAST], [RUN, RUN, FAST], None)
    assert "4.00 x [1.00 x, 4.00 x]" in table([row])


def test_what_varies_leads() -> None:
    groups = [workload.group for workload in WORKLOADS]
    assert groups[0] == FIRST
    assert sorted(groups, key=list(dict.fromkeys(groups)).index) == groups, "groups are apart"


@pytest.mark.parametrize(
    ("value", "text"), [(31.4, "31 x"), (8.04, "8.0 x"), (0.95, "0.95 x"), (0.0031, "0.0031 x")]
)
def test_ratios_have_the_digits_that_say_something(value: float, text: str) -> None:
    assert ratio(COST, value) == text


def test_memory_is_a_difference() -> None:
    assert ratio(MEMORY, 1234) == "+1,234 B"


def test_the_json_is_whole_and_has_the_runs_behind_each_row() -> None:
    runs = {"p2p-q0": {"mqttd": [RUN], "mosquitto": [RUN]}}
    found = json.loads(json.dumps(as_json(rows(), runs, ABOUT)))
    assert found["runs"]["p2p-q0"]["mqttd"][0]["rate"] == 1000
    (row,) = [
        row
        for row in found["results"]
        if (row["workload"], row["peer"]) == ("v5props-q0", "mosquitto")
    ]
    assert (row["bound"], row["group"], row["who"]) == (8, FIRST, "mqttd")
    assert found["machine"]["cores"] and found["machine"]["cpu"]
    assert found["date"].endswith("+00:00")


def test_a_result_tells_the_shape_of_the_machine_and_not_its_name() -> None:
    assert set(machine()) == {
        "cores", "cpu", "memory", "kernel", "python", "open_files", "load_average",
    }  # fmt: skip


def test_the_page_shows_all_configurations() -> None:
    text = page(as_json(rows(), {}, ABOUT), rows())
    assert "mqttd, `mqttd.conf`:\n\n```text\n[node]\n```" in text
    assert "mosquitto, `m.conf`:\n\n```text\na b\n```" in text
    assert text.startswith("# mqttd beside mosquitto, flashmq, ")


def test_the_picture_is_well_formed_and_has_a_bar_per_ratio_to_the_first_peer() -> None:
    result = as_json(rows(), {}, ABOUT)
    found = ElementTree.fromstring(svg(result))
    bars = [e for e in found.iter() if e.tag.endswith("rect")]
    assert len(bars) == 1 + sum(w.measure == COST for w in WORKLOADS)


def test_what_is_not_a_result_is_not_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.json").write_text('{"results": [], "peers": ["mosquitto"]}')
    assert plot([str(tmp_path / "r.json")]) == 2
    assert "no ratio in this result" in capsys.readouterr().err
