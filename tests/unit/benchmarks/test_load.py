"""What mqttload said is read as it was meant, and its failed checks are never overlooked.

`recorded/` holds what mqttload 1.1 wrote: five runs that passed, and `dropped.json` from a
forwarder that loses every hundredth message.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.load import Failure, Mqttload, NotFound, build, read

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.json").read_text("utf-8")


def raw(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(recorded(name))
    return found


def test_rates_and_cpu_are_taken_as_given() -> None:
    run, given = read(recorded("p2p"), 0), raw("p2p")
    assert run.ok and not run.deviation()
    assert run.rate == given["out_per_s"]
    assert run.cpu == given["broker"]["cpu_s_per_m_out"]
    assert run.cores == given["broker"]["cpu_cores"]
    assert run.loader_cores == given["loader"]["cpu_cores"]


def test_connections_are_counted_per_second_and_by_cpu() -> None:
    run, given = read(recorded("connstorm"), 0), raw("connstorm")
    assert run.rate == given["out_per_s"] > 0
    assert run.cpu == pytest.approx(given["broker"]["cpu_s"] / 300 * 1e6, rel=0.02)


def test_memory_of_a_connection_is_in_bytes() -> None:
    run, given = read(recorded("idle"), 0), raw("idle")
    assert run.rss_per_connection == given["broker"]["rss_bytes_per_conn"]
    assert run.rss_peak == given["broker"]["rss_kb_peak"] * 1024


def test_latency_is_in_microseconds() -> None:
    run = read(recorded("latency"), 0)
    assert (run.p50, run.p99, run.p999) == tuple(
        raw("latency")["latency_us"][key] for key in ("p50", "p99", "p999")
    )


def test_retained_is_about_the_delivery_and_not_about_storing() -> None:
    run, given = read(recorded("retained"), 0), raw("retained")
    assert run.cores == pytest.approx(given["broker"]["drain_cpu_s"] / given["drain_s"])
    assert run.cores != given["broker"]["cpu_cores"]


def test_of_what_reaches_nobody_each_message_that_was_sent_counts() -> None:
    given = raw("p2p")
    broker = {**given["broker"], "cpu_s_per_m_in": 1.5, "cpu_s_per_m_out": 0.0}
    some = {**given, "unheard": True, "in_per_s": 7.0, "out_per_s": 0.0, "broker": broker}
    run = read(json.dumps(some), 0)
    assert (run.rate, run.cpu) == (7.0, 1.5)
    assert run.p50 == given["ack_us"]["p50"]


def test_lost_messages_are_told_and_refuse_the_run() -> None:
    run = read(recorded("dropped"), 1)
    assert not run.ok
    assert run.deviation() == "lost 4,423"
    assert run.only_queued


def test_a_failed_exit_status_counts_though_the_figures_look_well() -> None:
    run = read(recorded("p2p"), 1)
    assert not run.ok
    assert run.deviation() == "a check failed"


def test_loss_at_qos_0_is_a_deviation_though_mqttload_lets_it_pass() -> None:
    """mqttload leaves with 0 after a loss at QoS 0; a rate of a lossy run is no figure."""
    run = read(json.dumps({**raw("p2p"), "qos": 0, "lost": 3}), 0)
    assert run.deviation() == "lost 3"


def test_wrong_identifiers_are_a_deviation() -> None:
    run = read(json.dumps({**raw("p2p"), "identifiers_wrong": 2}), 1)
    assert run.deviation() == "identifiers_wrong 2"


def test_out_of_order_is_more_than_queued() -> None:
    run = read(json.dumps({**raw("dropped"), "out_of_order": 1}), 1)
    assert not run.only_queued


@pytest.mark.parametrize("text", ["", "usage: mqttload", "[]", "{}", '{"ok": true}'])
def test_what_is_not_a_result_is_a_failure(text: str) -> None:
    with pytest.raises(Failure, match="left with 2 and no figures"):
        read(text, 2)


def test_the_option_goes_before_the_environment(tmp_path: Path) -> None:
    paths = []
    for name in ("one", "two"):
        paths.append(tmp_path / name)
        paths[-1].write_text("")
        paths[-1].chmod(0o755)
    environ = {"MQTTLOAD": str(paths[1])}
    assert Mqttload.find(str(paths[0]), 1, environ).path == paths[0]
    assert Mqttload.find(None, 1, environ).path == paths[1]


def test_without_mqttload_the_message_says_where_it_was_sought(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no mqttload at .*missing: without --mqttload"):
        Mqttload.find(str(tmp_path / "missing"), 1, {})


@pytest.mark.parametrize("tool", ["make", "cc"])
def test_without_a_compiler_the_message_says_what_to_install(tmp_path: Path, tool: str) -> None:
    for name in {"make", "cc"} - {tool}:
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(NotFound, match=f"cannot be built without {tool}: install it .apt install"):
        build(tmp_path / "out", {"PATH": str(tmp_path)})


@pytest.mark.skipif(not (shutil.which("make") and shutil.which("cc")), reason="no compiler here")
@pytest.mark.slow
def test_it_is_built_when_it_is_not_there(tmp_path: Path) -> None:
    program = build(tmp_path / "out", os.environ)
    assert Mqttload(program, 0).version() == "mqttload 1.5"
    first = program.stat().st_mtime_ns
    assert build(tmp_path / "out", os.environ).stat().st_mtime_ns == first


def test_a_source_that_does_not_compile_is_told(tmp_path: Path) -> None:
    (tmp_path / "make").write_text("#!/bin/sh\necho 'line 1: error' >&2\nexit 2\n")
    (tmp_path / "cc").write_text("")
    for name in ("make", "cc"):
        (tmp_path / name).chmod(0o755)
    with pytest.raises(NotFound, match="does not build:\nline 1: error"):
        build(tmp_path / "out", {"PATH": f"{tmp_path}:/usr/bin:/bin"})


@pytest.mark.skipif(not (shutil.which("make") and shutil.which("cc")), reason="no compiler here")
@pytest.mark.slow
def test_14_what_payloads_hold_is_chosen_by_name(tmp_path: Path) -> None:
    program = build(tmp_path / "out", os.environ)
    done = subprocess.run([program, "--fill", "noise"], capture_output=True, text=True, timeout=10)
    assert done.returncode == 2
    assert done.stderr == "mqttload: --fill: expected letters, text or random, got 'noise'\n"


def test_14_the_first_threads_share_of_the_cpu_is_read() -> None:
    given = raw("p2p")
    given["broker"] |= {"cpu_s": 2.0, "first_thread_cpu_s": 0.5}
    run = read(json.dumps(given), 0)
    assert run.more["first_thread"] == 0.25 and run.more["received"] == given["received"]
    assert read(recorded("p2p"), 0).more["first_thread"] == 1  # mqttload 1.1 did not tell
