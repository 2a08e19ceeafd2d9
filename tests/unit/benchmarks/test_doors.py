"""The benchmark of doors: every listener is configured, and a bound can be missed."""

from __future__ import annotations

import tomllib

import pytest

from benchmarks import doors
from benchmarks.load import Measurement


def run(cpu: float, size: int = 0, fault: str = "") -> Measurement:
    faults = {fault: 1} if fault else {}
    return Measurement(not fault, 1000, cpu, 1, 0.5, 0, 0, 0, size, 0, faults, ())


def row(name: str) -> doors.Row:
    return next(row for row in doors.ROWS if row.name == name)


def test_every_door_has_a_listener_on_each_transport() -> None:
    broker = doors.MqttdDoors(doors.Certificates())
    listeners = tomllib.loads(broker.configuration("0")["mqttd.conf"])["listener"]
    for kind in doors.DOORS:
        for transport in ("engine", "twisted"):
            bind = listeners[kind][transport]["bind"]
            assert bind == f"127.0.0.1:{broker.port_of(transport, kind)}"


def test_the_peers_have_the_doors_they_are_asked_for() -> None:
    mosquitto = doors.MosquittoDoors(doors.Certificates())
    text = mosquitto.configuration(1)["mosquitto.conf"]
    for kind in doors.DOORS:
        assert f"listener {mosquitto.port_of('', kind)} " in text
    assert "WebSocketServer" in doors.AedesDoors().configuration(1)["server.mjs"]


@pytest.mark.parametrize(
    ("name", "ours", "base", "passed"),
    [("tls-1", 10.0, 9.5, True), ("tls-1", 10.0, 8.0, False), ("tls-20", 1.0, 5.5, True),
     ("ws", 16.0, 10.0, True), ("ws", 18.0, 10.0, False), ("handshakes", 1.0, 1.0, None)],
)  # fmt: skip
def test_a_bound_that_is_missed_is_told(
    name: str, ours: float, base: float, passed: bool | None
) -> None:
    other = "tcp engine" if row(name).base == "tcp" else "mosquitto"
    found = {"engine": [run(ours)] * 3, other: [run(base)] * 3}
    engine = doors.figures(row(name), found)[0]
    assert engine["passed"] is passed
    assert ("FAIL" in doors.line(row(name), engine)) is (passed is False)


def test_memory_is_a_difference_and_faults_pass_no_bound() -> None:
    found = {"engine": [run(1, 30_000)], "mosquitto": [run(1, 40_000)]}
    assert doors.figures(row("idle"), found)[0]["value"] == -10_000
    found = {"engine": [run(1, fault="lost")], "mosquitto": [run(1)]}
    assert doors.figures(row("tls-1"), found)[0]["passed"] is False
