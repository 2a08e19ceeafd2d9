"""Several results become one: medians, the range over the runs, and the table of a first page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.compare import compare
from benchmarks.load import Measurement
from benchmarks.merge import MARKS, merged, put, short, table
from benchmarks.plot import svg
from benchmarks.report import as_json
from benchmarks.workloads import selected

NAMES = "p2p-q0,v5props-q0,v5props-q1,idle-sub,latency"


def run(cpu: float, ok: bool = True) -> Measurement:
    faults = {} if ok else {"lost": 1}
    return Measurement(ok, 1000, cpu, 1.0, 0.5, cpu * 100, 0, 0, int(cpu * 100), 0, faults, ())


def result(ours: float, theirs: float, ok: bool = True) -> dict[str, Any]:
    rows = [
        compare(workload, peer, [run(ours, ok)], [run(theirs * times)], workload.bounds.get(peer))
        for workload in selected(NAMES)
        for peer, times in (("mosquitto", 1), ("flashmq", 0.25))
    ]
    about = {
        "broker": "mqttd", "peers": ["mosquitto", "flashmq"], "machine": {"cores": 2},
        "versions": {"mqttd": "mqttd 1", "mosquitto": "mosquitto 2", "flashmq": "FlashMQ 1"},
    }  # fmt: skip
    return as_json(rows, {}, about)


RUNS = [result(1, 8), result(2, 20), result(1, 12)]


def test_the_result_is_the_median_of_the_runs_with_their_range() -> None:
    row = merged(RUNS)[0]
    assert (row.workload, row.peer) == ("v5props-q0", "mosquitto")
    assert (row.ours, row.theirs) == (1, 12)
    assert (row.low, row.value, row.high, row.runs, row.refused) == (8, 10, 12, 3, 0)
    assert row.passed


def test_rows_are_in_the_tables_order_and_not_in_that_of_the_runs() -> None:
    assert list(dict.fromkeys(row.workload for row in merged(RUNS))) == [
        "v5props-q0", "v5props-q1", "p2p-q0", "latency", "idle-sub",
    ]  # fmt: skip


def test_a_refused_run_does_not_count_and_is_told() -> None:
    rows = merged([*RUNS, result(1, 100, ok=False)])
    assert (rows[0].value, rows[0].runs, rows[0].refused) == (10, 3, 1)
    assert "- v5props-q0, mosquitto: refused in 1 of 4 runs" in table(rows)


def test_what_was_always_refused_has_no_ratio_and_fails_its_bound() -> None:
    row = merged([result(1, 8, ok=False)])[0]
    assert (row.value, row.passed) == (None, False)
    assert "refused" in table([row])


def test_a_row_that_only_some_runs_have_counts_those() -> None:
    partly = {**RUNS[0], "results": RUNS[0]["results"][:2]}
    runs = {row.workload: row.runs for row in merged([partly, RUNS[1]])}
    assert runs == {"p2p-q0": 2, "v5props-q0": 1, "v5props-q1": 1, "idle-sub": 1, "latency": 1}


def test_the_table_has_range_runs_and_verdict() -> None:
    lines = table(merged(RUNS)).splitlines()
    assert len({len(line) for line in lines}) == 1, "not aligned"
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert cells == [
        "v5props-q0", "5.0, properties that differ, QoS 0", "1 us", "12 us",
        "10.0 x [8.0 x, 12.0 x] >= 8 x", "3 us", "2.50 x [2.00 x, 3.00 x] >= 1 x", "3", "pass",
    ]  # fmt: skip


def test_the_short_table_joins_what_differs_in_qos_and_leads_with_what_varies() -> None:
    lines = short(merged(RUNS)).splitlines()
    assert lines[0] == "| | mqttd | mosquitto |  | FlashMQ |  |"
    assert lines[2].startswith("| **Traffic that varies** |")
    assert lines[3] == (
        "| 5.0, properties that differ, QoS 0 / 1 | 1 / 1 µs | 12 / 12 µs"
        " | 10.0 × (8.0–12.0) / 10.0 × (8.0–12.0)"
        " | 3 / 3 µs | 2.50 × (2.00–3.00) / 2.50 × (2.00–3.00) |"
    )
    assert {line.count("|") for line in lines} == {7}


def test_in_the_short_table_a_lower_latency_is_a_higher_ratio_and_memory_has_none() -> None:
    lines = {line.split(" | ")[0][2:]: line for line in short(merged(RUNS)).splitlines()}
    assert "10.0 × (8.0–12.0)" in lines["latency at 1,000/s, QoS 1, p50"]
    assert "| 100 B | 1,200 B |  |" in lines["RSS, idle, one subscription"]


def test_one_run_has_no_range() -> None:
    assert "8.0 × |" in short(merged(RUNS[:1]))


def test_the_short_table_goes_between_the_marks() -> None:
    before = f"# a\n{MARKS[0]}\nold\n{MARKS[1]}\nb\n"
    assert put(before, "new") == f"# a\n{MARKS[0]}\nnew\n{MARKS[1]}\nb\n"
    assert put(put(before, "new"), "new") == put(before, "new")
    with pytest.raises(ValueError, match="it has no <!-- benchmarks -->"):
        put("# a\n", "new")


def files(folder: Path, results: Sequence[object]) -> list[str]:
    paths = []
    for number, one in enumerate(results):
        paths.append(folder / f"{number}.json")
        paths[-1].write_text(json.dumps(one))
    return [str(path) for path in paths]


def test_files_are_merged_written_and_put_into_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, page = tmp_path / "merged.json", tmp_path / "page.md"
    page.write_text("\n".join(MARKS))
    main(["--merge", *files(tmp_path, RUNS), "--json", str(out), "--into", str(page)])
    assert "range over 3 runs" in capsys.readouterr().out
    assert "Traffic that varies" in page.read_text()
    assert "range over 3 runs" in out.with_suffix(".md").read_text()
    found = json.loads(out.read_text())
    assert found["results"][0]["spread"] == [8, 12]
    assert svg(found)


@pytest.mark.parametrize("content", [{}, [], {"results": [{}]}])
def test_what_is_no_result_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: object
) -> None:
    assert main(["--merge", *files(tmp_path, [content])]) == 2
    assert "not results of this program" in capsys.readouterr().err
