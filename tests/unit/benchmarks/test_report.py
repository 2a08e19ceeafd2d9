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
from benchmarks.report import as_json, machine, page, table
from benchmarks.workloads import WORKLOADS

RUN = Measurement(True, 1000, 2.0, 1.0, 0.5, 100, 0, 0, 0, 0, {}, ())
ABOUT = {
    "machine": machine(),
    "broker": "mqttd",
    "against": "mosquitto",
    "versions": {"mqttd": "mqttd 0.1 (compiled)", "mosquitto": "mosquitto 2.0.11"},
    "configurations": {"mqttd": {"mqttd.conf": "[node]\n"}, "mosquitto": {"m.conf": "a b\n"}},
    "cores": {"broker": 0, "mqttload": 1},
    "duration": 3.0,
    "warmup": 0.5,
    "rounds": "3",
}


def rows() -> list[Comparison]:
    return [compare(workload, [RUN], [RUN], workload.bound) for workload in WORKLOADS]


def test_every_workload_has_its_line_with_ratio_spread_and_bound() -> None:
    lines = table(rows()).splitlines()
    assert len(lines) == len(WORKLOADS) + 2
    assert len({len(line) for line in lines}) == 1, "not aligned"
    (first,) = [line for line in lines if line.startswith("| p2p-qos0 ")]
    cells = [cell.strip() for cell in first.strip("|").split("|")]
    assert cells[4:] == ["1.00 x", "[1.00 x, 1.00 x]", ">= 12 x", "FAIL"]


def test_the_json_is_whole_and_has_the_runs_behind_each_row() -> None:
    runs = {"p2p-qos0": {"mqttd": [RUN], "mosquitto": [RUN]}}
    found = json.loads(json.dumps(as_json(rows(), runs, ABOUT)))
    assert found["runs"]["p2p-qos0"]["mqttd"][0]["rate"] == 1000
    assert found["results"][0]["bound"] == 12
    assert found["machine"]["cores"] and found["machine"]["cpu"]
    assert found["date"].endswith("+00:00")


def test_a_result_tells_the_shape_of_the_machine_and_not_its_name() -> None:
    assert set(machine()) == {
        "cores", "cpu", "memory", "kernel", "python", "open_files", "load_average",
    }  # fmt: skip


def test_the_page_shows_both_configurations() -> None:
    text = page(as_json(rows(), {}, ABOUT), rows())
    assert "mqttd, `mqttd.conf`:\n\n```text\n[node]\n```" in text
    assert "mosquitto, `m.conf`:\n\n```text\na b\n```" in text


def test_the_picture_is_well_formed_and_has_a_bar_per_ratio() -> None:
    result = as_json(rows(), {}, ABOUT)
    found = ElementTree.fromstring(svg(result))
    bars = [e for e in found.iter() if e.tag.endswith("rect")]
    assert len(bars) == 1 + sum(w.measure == "rate" for w in WORKLOADS)


def test_what_is_not_a_result_is_not_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.json").write_text('{"results": []}')
    assert plot([str(tmp_path / "r.json")]) == 2
    assert "no ratio in this result" in capsys.readouterr().err
