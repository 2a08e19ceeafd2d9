"""What the pipelines compute, without Spark: sessions and anomalies of one client."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mqttd.pipeline.spark.pipelines import NAMES, command
from mqttd.pipeline.spark.pipelines.anomalies import Limits, flags_of
from mqttd.pipeline.spark.pipelines.command import main
from mqttd.pipeline.spark.pipelines.sessions import sessions_of
from mqttd.pipeline.spark.sessions import NoJava, check_java

S = 1_000_000
NEW_CLIENT = (0, 0, 0, 0, 0, 0.0, 0.0, 0)


class Happened(NamedTuple):
    event: str
    at: int
    username: str | None = None
    peer: str | None = None
    reason: str | None = None


class Counted(NamedTuple):
    bucket: int
    connects: int = 0
    denials: int = 0
    messages: int = 0


def came(at: int, peer: str = "p") -> Happened:
    return Happened("client.connected", at * S, "u", peer)


def went(at: int, reason: str = "closed") -> Happened:
    return Happened("client.disconnected", at * S, "u", "p", reason)


def told(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """connected at, disconnected at, seconds, gap, reason"""
    return [(row[3] // S, row[4] // S, *row[5:]) for row in rows]


def test_pairs_become_sessions_with_their_gaps_over_micro_batches() -> None:
    first, known = sessions_of("c", (0, None, None, 0), iter([came(10), went(15), came(20)]))
    second, known = sessions_of("c", known, iter([went(50, "keep alive"), came(51)]))
    assert told(first) == [(10, 15, 5.0, None, "closed")]
    assert told(second) == [(20, 50, 30.0, 5.0, "keep alive")]
    assert known == (51 * S, "u", "p", 50 * S)


def test_a_client_that_is_replaced_or_was_there_before_is_no_riddle() -> None:
    rows, _ = sessions_of(
        "c", (0, None, None, 0), iter([went(5), came(10, "a"), came(12, "b"), went(13)])
    )
    assert told(rows) == [(10, 12, 2.0, None, "replaced"), (12, 13, 1.0, 0.0, "closed")]
    assert [row[2] for row in rows] == ["a", "b"]


def test_each_kind_is_flagged_once_a_bucket() -> None:
    limits = Limits(flapping=3, denied=2)
    counts = [Counted(60, 1, 1)] * 5 + [Counted(120, 2)] + [Counted(180, 3, 2)]
    rows, _ = flags_of("c", NEW_CLIENT, iter(counts), limits)
    assert [row[1:4] for row in rows] == [
        ("denied", 60, 2), ("flapping", 60, 3), ("flapping", 180, 3), ("denied", 180, 2),
    ]  # fmt: skip


def test_a_spike_is_what_is_unusual_for_this_client() -> None:
    limits = Limits(spike=10)
    usual = [Counted(60 * i, messages=100 + i % 3) for i in range(1, 20)]
    rows, known = flags_of("c", NEW_CLIENT, iter(usual), limits)
    assert rows == []
    rows, known = flags_of("c", known, iter([Counted(1200, messages=1)] * 150), limits)
    assert [row[1:3] for row in rows] == [("spike", 1200)]
    assert 100 < rows[0][4] < 103 and rows[0][3] < 115
    rows, _ = flags_of("quiet", NEW_CLIENT, iter([Counted(60, messages=10_000)]), limits)
    assert rows == []  # nothing is known of it yet


@pytest.mark.parametrize("name", NAMES)
def test_each_pipeline_tells_its_arguments(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert "--path" in capsys.readouterr().out


class Frames(dict[str, str]):
    """What stands for Spark's reader: the options it was given."""

    def option(self, name: str, value: str) -> Frames:
        self[name] = value
        return self


def test_any_option_of_the_format_may_be_given() -> None:
    parser = argparse.ArgumentParser()
    command._add_arguments(parser)
    given = ["--cluster", "c", "--etcd", "https://e:2379", "--option", "etcdCaFile=a=b.crt"]
    found = command._configured(Frames(), parser.parse_args([*given, "--option", "archive="]))
    assert (found["cluster"], found["etcdCaFile"], found["archive"]) == ("c", "a=b.crt", "")
    with pytest.raises(ValueError, match="--option archive: expected NAME=VALUE"):
        command._configured(Frames(), parser.parse_args([*given, "--option", "archive"]))


def test_without_java_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert main(["rates", "--path", "data/events", "--out", "x"]) == 1
    assert capsys.readouterr().err == (
        "mqttd rates: Spark needs Java 17: install it (Debian: apt install"
        " default-jre-headless) or set JAVA_HOME\n"
    )


def test_a_path_without_a_log_is_one_line_before_spark_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "check_java", lambda: None)
    monkeypatch.setattr(command, "session", lambda *_, **__: pytest.fail("Spark is started"))
    for path in (str(tmp_path), tmp_path.as_uri()):
        assert main(["latest", "--path", path, "--out", str(tmp_path / "z")]) == 1
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1
        assert err.startswith(f"mqttd latest: {tmp_path}: no event log here (no log.json)")


@pytest.mark.parametrize(
    ("version", "told"),
    [('openjdk version "11.0.2" 2019', "is Java 11"), ('java version "1.8.0_292"', "is Java 8"),
     ('openjdk version "17.0.15" 2025', None), ('openjdk version "21" 2023', None)],
)  # fmt: skip
def test_an_old_java_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, told: str | None
) -> None:
    java = tmp_path / "bin/java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if told is None:
        check_java()
    else:
        with pytest.raises(NoJava, match=told):
            check_java()


@pytest.mark.parametrize("version", ["3.5.1", "4.1.2", "5.0.0"])
def test_a_pyspark_that_has_not_what_is_needed_is_told(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    import pyspark

    from mqttd.pipeline.spark import register

    monkeypatch.setattr(pyspark, "__version__", version)
    with pytest.raises(RuntimeError, match=f"from 4.2 up to.* 5; this is {version}"):
        register(object())
