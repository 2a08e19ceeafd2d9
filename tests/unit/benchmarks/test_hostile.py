"""The attacks of benchmarks.hostile: each opens against anything that listens, and stops."""

from __future__ import annotations

import importlib
import inspect
import socket
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from benchmarks.hostile import wire
from benchmarks.hostile.__main__ import judge, line, main
from benchmarks.hostile.honest import Times, TurnedAway
from benchmarks.hostile.mixed import draw
from benchmarks.hostile.rows import ROWS, Row
from mqttd.codec import properties as prop
from mqttd.codec.packets import Connect, Publish, Subscribe, Unsubscribe
from mqttd.codec.parser import Parser
from tests.support.waiting import until

NAMES = ["client_hellos", "endless_connects", "silence", "wrong_passwords"]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(10)
        yield made


@pytest.mark.parametrize("name", NAMES)
def test_it_opens_and_stops(listener: socket.socket, name: str) -> None:
    module = importlib.import_module(f"benchmarks.hostile.{name}")
    attack = module.open_attack(listener.getsockname()[1], rate=100.0)
    peer, address = listener.accept()
    assert address[0] == "127.0.0.66"
    peer.settimeout(10)
    assert peer.recv(100)
    until(lambda: attack.steps > 0, "a step", 10)
    module.stop(attack)
    while peer.recv(65536):
        pass
    peer.close()
    assert attack.sent > 0


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_row_names_arguments_that_its_attack_takes(row: Row) -> None:
    module = importlib.import_module(f"benchmarks.hostile.{row.module or row.name}")
    taken = inspect.signature(module.open_attack).parameters
    assert {*row.arguments, *row.shapes} <= {*taken}
    assert row.told.endswith(".")


def test_a_seed_draws_the_same_attacks_each_time() -> None:
    drawn = [[(row.name, shape) for row, shape in draw(Random(7))] for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert {row.name for seed in range(500) for row, _ in draw(Random(seed))} == {
        row.name for row in ROWS.values() if row.shapes
    }


def test_its_packets_are_packets() -> None:
    parser = Parser(1 << 20)
    sent = [
        wire.connect(b"me", wire.FOREVER, 1, b"gone", b"user", b"pass"),
        wire.publish(b"a/b", b"x", 1, retain=True, properties=wire.pairs(1000, 20)),
        wire.subscribe([b"#", b"a/+"], qos=1, packet_id=9),
        wire.unsubscribe([b"#"]),
    ]
    connect, publish, subscribe, unsubscribe = parser.feed(b"".join(sent))
    assert isinstance(connect, Connect)
    assert (connect.username, connect.password) == ("user", b"pass")
    assert connect.will is not None and connect.will.payload == b"gone"
    assert isinstance(publish, Publish) and publish.properties is not None
    assert publish.retain and len(publish.properties[prop.USER_PROPERTY]) > 40  # type: ignore[arg-type]
    assert isinstance(subscribe, Subscribe)
    assert [(one.topic_filter, one.qos) for one in subscribe.subscriptions] == [
        ("#", 1), ("a/+", 1)
    ]  # fmt: skip
    assert isinstance(unsubscribe, Unsubscribe)


def found(**other: Any) -> dict[str, Any]:
    times = Times([0.01, 0.02])
    return {
        "row": "topics", "broker": "mqttd", "attack": {"steps": 1, "sent": 1, "failed": 0},
        "cpu": 1.0, "peak": 500.0, "ended": "", "newcomers": times.summary(),
        "residents": times.summary(), **other,
    }  # fmt: skip


def test_bounds_are_judged() -> None:
    assert judge(found(), 512) == []
    assert "topics" in line(found())
    slow, dropped, none = Times([0.3, 0.3]), Times([0.1]), Times()
    dropped.fail(ConnectionError("gone"))
    none.fail(TurnedAway(0x97))
    assert judge(found(newcomers=slow.summary()), 512) == ["newcomers: p99 300 > 250 ms"]
    assert "gone" in judge(found(residents=dropped.summary()), 512)[0]
    assert judge(found(newcomers=none.summary()), 512) == ["newcomers: none came through"]
    assert len(judge(found(peak=600.0, ended="ended with 1"), 512)) == 2


def test_rows_can_be_listed_and_must_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert all(name in capsys.readouterr().out for name in list(ROWS)[:1])
    assert main(["--only", "no-such-row"]) == 2
