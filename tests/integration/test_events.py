"""The event log of a real broker: what was acknowledged is in it, whoever reads it from where.

MQTTD_LONG=1 takes the numbers that issue and docs speak of; CI a few seconds.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqttd.pipeline.client import Address, Client
from mqttd.pipeline.log.groups import groups
from mqttd.pipeline.log.pull import PullError, PullReader
from mqttd.pipeline.log.reader import DataLoss, LogReader, events, runs_of, split
from tests.support.broker import Broker, start_broker
from tests.support.certificates import Authority
from tests.support.numbered import Publisher
from tests.support.waiting import until
from tests.unit.pipeline.logs import delete_first

LONG = os.environ.get("MQTTD_LONG") == "1"
DEADLINE = 60.0
TOKEN = "0123456789abcdef0123456789abcdef"
OTHER = "fedcba9876543210fedcba9876543210"
THIRD = "00112233445566778899aabbccddeeff"


def start(path: Path, conf: str = "", tcp: dict[str, Any] | None = None, **more: Any) -> Broker:
    files = {"plugins/spark.conf": conf, "tokens": TOKEN + "\n", "pull": f"# Spark\n{OTHER}\n"}
    admin = {"tcp": {"bind": "127.0.0.1:0", **tcp}} if tcp is not None else {}
    return start_broker(
        path,
        files={**files, **more.pop("files", {})},
        plugins={"load": ["spark"]},
        auth={"anonymous": "always"},
        admin=admin,
        **more,
    )


def everything(path: Path) -> list[Any]:
    log = LogReader(str(path / "data/events"))
    return [event for node, bounds in log.bounds().items() for event in events(log, node, *bounds)]


def ctl(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "mqttd.admin.ctl.main",
        "-c",
        str(path / "etc/mqttd.conf"),
        *words,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=50)


@pytest.mark.timeout(600 if LONG else 120)
def test_what_was_acknowledged_is_in_the_log_whenever_the_broker_is_killed(tmp_path: Path) -> None:
    """kill -9 of the broker, and with it of the writer, while four clients publish."""
    conf = 'events = ["message.publish"]\nacked_means_logged = true\nsegment_bytes = 200_000\n'
    chance = random.Random(7)
    broker = start(tmp_path, conf)
    publishers = [Publisher(lambda: broker.port, f"t/{i}") for i in range(4)]
    for one in publishers:
        one.start()
    for _ in range(20 if LONG else 2):
        before = sum(len(one.acknowledged) for one in publishers)
        until(
            lambda before=before: sum(len(one.acknowledged) for one in publishers) > before + 500,
            "no message is acknowledged",
        )
        time.sleep(chance.random() * 0.3)  # a moment of no particular kind
        broker.stop(hard=True)
        broker = start(tmp_path, conf)
    before = sum(len(one.acknowledged) for one in publishers)
    until(lambda: sum(len(one.acknowledged) for one in publishers) > before + 500, "stuck")
    for one in publishers:
        one.stop()
    broker.stop()
    found = everything(tmp_path)
    assert [event.seq for event in found] == list(range(len(found)))
    assert not [event for event in found if event.event != "message.publish"]
    logged = {(event.topic, int(event.payload)) for event in found}
    told = {(one.topic, number) for one in publishers for number in one.acknowledged}
    assert told <= logged
    assert len(told) > 1000


def test_a_life_is_told_and_ctl_shows_it(tmp_path: Path) -> None:
    broker = start(tmp_path)
    try:
        one = Publisher(lambda: broker.port, "a/b", rate=200)
        one.start()
        until(lambda: len(one.acknowledged) >= 20, "nothing is acknowledged")
        one.stop()
        until(
            lambda: any(event.event == "session.terminated" for event in everything(tmp_path)),
            "the end of the session is not in the log",
        )
        info = json.loads(ctl(tmp_path, "events", "info", "--json").stdout)
        assert info["schema"] == 2 and info["nodes"]["mqttd"]["lost"] == 0
        tail = ctl(tmp_path, "events", "tail", "-n", "2").stdout.splitlines()
        assert len(tail) == 2 and "session.terminated client_id=p-a/b" in tail[1]
        tail = ctl(tmp_path, "events", "tail", "-n", "2", "--event", "client.connected").stdout
        assert len(tail.splitlines()) == 1 and " client.connected " in tail
        wrong = ctl(tmp_path, "events", "tail", "--filter", "a/#/b")
        assert wrong.returncode == 1 and "--filter a/#/b: # before the last level" in wrong.stderr
        dump = ctl(
            tmp_path, "events", "dump", "--event", "message.publish", "--filter", "a/+"
        ).stdout
        found = [json.loads(line) for line in dump.splitlines()]
        assert [int(event["payload"]) for event in found] == list(range(len(found)))
        assert len(found) >= 20
        done = ctl(tmp_path, "events", "verify")
        assert done.returncode == 0 and "are whole" in done.stdout
    finally:
        broker.stop()
    # Without a broker too, and what is wrong is found.
    (segment,) = (tmp_path / "data/events/mqttd").glob("*.events")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    done = ctl(tmp_path, "events", "verify")
    assert done.returncode == 1 and "are NOT whole" in done.stdout
    done = ctl(tmp_path, "events", "tail", "--path", str(tmp_path))
    assert done.returncode == 1 and "no event log here" in done.stderr


@pytest.mark.parametrize("overflow", ["drop", "acked_means_logged"])
def test_a_full_disk_pauses_the_export_and_qos_0_flows(tmp_path: Path, overflow: str) -> None:
    """No file of the broker may grow: writes fail half-way, as on a full disk, until it may."""
    more = "queue_bytes = 65_536\n" if overflow == "drop" else "acked_means_logged = true\n"
    broker = start(tmp_path, 'events = ["message.publish"]\n' + more)
    assert broker.process is not None
    limits = resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE)
    publishers: list[Publisher] = []

    def publish(topic: str, rate: float) -> Publisher:
        publishers.append(Publisher(lambda: broker.port, topic, rate=rate))
        publishers[-1].start()
        return publishers[-1]

    def segment() -> int:
        return sum(one.stat().st_size for one in (tmp_path / "data/events").rglob("*.events"))

    try:
        first = publish("a", 500)
        until(lambda: len(first.acknowledged) >= 100, "nothing is acknowledged")
        full = (segment() + 3000, limits[1])
        resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, full)
        with Client(Address("127.0.0.1", broker.port)) as client:
            client.subscribe("b")
            until(lambda: "cannot be written: File too large" in broker.output, "no alarm")
            # Acknowledgements of what was sent just before wait for the disk.
            second = publish("a/more", 0)
            if overflow == "drop":
                until(lambda: "events were lost" in broker.output, "nothing is dropped")
            else:
                until(lambda: second.refused, "nothing is refused")
                assert {code for _, code in second.refused} == {0x97}
            second.stop()
            client.publish("b", b"flows", 0)
            client.flush()
            message = client.receive(30)
            assert message is not None and message.payload == b"flows"
        resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, limits)
        until(lambda: "plugin.spark" not in ctl(tmp_path, "alarms").stdout, "alarms stay")
        third = publish("c", 500)
        until(lambda: len(third.acknowledged) >= 100, "the disk is not used again")
    finally:
        for one in publishers:
            if one.is_alive():
                one.stop()
        broker.stop()
    found = everything(tmp_path)
    gaps = [event for event in found if event.event == "log.gap"]
    logged = {(event.topic, event.payload) for event in found}
    at = 0
    for event in found:  # dense: a gap has the offsets of what was lost
        assert event.seq == at
        at += event.lost or 1
    if overflow == "drop":
        assert gaps and all("File too large" in str(one.reason) for one in gaps)
        assert {("c", b"%d" % number) for number in third.acknowledged} <= logged
    else:
        told = {(one.topic, b"%d" % n) for one in publishers for n in one.acknowledged}
        assert not gaps and told <= logged


def test_tail_goes_on_with_what_comes(tmp_path: Path) -> None:
    broker = start(tmp_path, 'events = ["message.publish"]\n')
    command = [sys.executable, "-m", "mqttd.admin.ctl.main", "-c", str(tmp_path / "etc/mqttd.conf"),
               "events", "tail", "-n", "1", "-f", "--filter", "a/#"]  # fmt: skip
    following = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        with Client(Address("127.0.0.1", broker.port)) as client:
            lines: list[str] = []
            assert following.stdout is not None
            os.set_blocking(following.stdout.fileno(), False)

            def said() -> bool:
                client.publish("a/b", b"x", 1)
                client.publish("b", b"x", 1)
                client.flush()
                lines.extend(following.stdout.readlines())  # type: ignore[union-attr]
                return len(lines) >= 3

            until(said, "tail tells nothing")
        assert all("message.publish" in line and "topic=a/b" in line for line in lines)
    finally:
        following.terminate()
        following.wait(10)
        broker.stop()


# -- pull


@pytest.fixture
def pulled(tmp_path: Path) -> Iterator[tuple[Path, int, Broker]]:
    """A broker with some events, and its TCP side over TLS."""
    authority = Authority()
    authority.write(tmp_path / "etc")
    authority.server("localhost").write(tmp_path / "etc", "server")
    broker = start(
        tmp_path,
        "segment_bytes = 8000\nblock_events = 16\n",
        {
            "token_file": "tokens",
            "pull_token_file": "pull",
            "certificate": "server.crt",
            "private_key": "server.key",
        },
    )
    try:
        found = until(
            lambda: [line for line in broker.lines if "HTTP interface on port" in line],
            broker.output,
        )
        port = int(found[0].rpartition(":")[2])
        one = Publisher(lambda: broker.port, "a/b")
        one.start()
        until(lambda: len(one.acknowledged) >= 500, "nothing is acknowledged")
        segments = tmp_path / "data/events/mqttd"
        until(lambda: len(list(segments.glob("*.events"))) >= 2, "it stays one segment")
        one.stop()
        until(
            lambda: [e.event for e in everything(tmp_path)[-1:]] == ["session.terminated"],
            "the log has no end",
        )
        yield tmp_path, port, broker
    finally:
        broker.stop()


def pull(path: Path, port: int, token: str = OTHER) -> PullReader:
    return PullReader(
        f"https://localhost:{port}", token, str(path / "etc/ca.crt"), sleep=lambda seconds: None
    )


def test_another_machine_reads_the_same_events(pulled: tuple[Path, int, Broker]) -> None:
    path, port, _ = pulled
    here, there = LogReader(str(path / "data/events")), pull(path, port)
    assert there.log_id == here.log_id
    bounds = until(
        lambda: here.bounds() if here.bounds() == there.bounds() else None, "the logs differ"
    )
    (node,) = bounds
    start, end = bounds[node]
    blocks = here.blocks(node, start, end)
    assert [one[4:] for one in there.blocks(node, start, end)] == [one[4:] for one in blocks]
    assert list(events(there, node, start, end)) == list(events(here, node, start, end))
    assert list(events(there, node, 37, 211)) == list(events(here, node, 37, 211))
    for run in runs_of(there.blocks(node, start, end), 4000):
        assert sum(1 for _ in split(there.read_run(run), run))
    there.commit("etl", {node: end})
    assert groups(str(path / "data/events"))["etl"]["nodes"] == {node: end}
    with pytest.raises(DataLoss, match=f"events {end} to {end + 9} of node {node}"):
        there.blocks(node, end, end + 10)
    there.close()


def test_a_range_that_is_gone_is_named_to_who_pulls_it(pulled: tuple[Path, int, Broker]) -> None:
    path, port, _ = pulled
    there = pull(path, port)
    bounds = there.bounds()["mqttd"]
    blocks = there.blocks("mqttd", *bounds)
    first, second = sorted((path / "data/events/mqttd").glob("*.events"))[:2]
    delete_first(path / "data/events/mqttd")
    assert not first.exists()
    run = runs_of(blocks[:1])[0]  # of 16 events at most: a busy writer takes what there is
    with pytest.raises(DataLoss, match=f"events 0 to {run.end - 1} of node mqttd were deleted"):
        there.read_run(run)
    assert there.bounds()["mqttd"].earliest == int(second.name[:20])


def test_tokens_are_asked_for_and_reach_what_they_are_for(
    pulled: tuple[Path, int, Broker],
) -> None:
    path, port, broker = pulled
    with pytest.raises(PullError, match="the token is missing or wrong"):
        pull(path, port, "nonsense")
    with pytest.raises(PullError, match="certificate is not trusted"):
        PullReader(f"https://localhost:{port}", OTHER)
    with pytest.raises(PullError, match="cannot be reached"):
        PullReader(f"http://localhost:{port}", OTHER, sleep=lambda seconds: None)
    assert pull(path, port, TOKEN).bounds() == pull(path, port).bounds()
    for token, status in ((OTHER, 403), (TOKEN, 200), ("", 401), (TOKEN[:-1], 401)):
        assert asked(path, port, "/api/v1/clients", token)[0] == status
    assert asked(path, port, "/api/v1/plugins/spark/logs", OTHER)[0] == 403
    assert asked(path, port, "/api/v1/plugins/spark/log/../../clients", OTHER)[0] in (403, 404)
    (path / "etc/pull").write_text(f"{THIRD}\n")  # a changed file counts at once
    with pytest.raises(PullError):
        pull(path, port)
    assert pull(path, port, THIRD).bounds()
    assert broker.says("without a good token")
    assert TOKEN not in broker.output and OTHER not in broker.output


@pytest.mark.parametrize(
    ("request_", "status", "told"),
    [
        ("nothing", 404, "no 'nothing' here"),
        ("blocks?node=mqttd&start=1&end=1", 400, "start: expected less than end"),
        ("blocks?node=mqttd&start=-1&end=1", 400, "start = '-1': expected an offset"),
        ("blocks?node=mqttd&start=1", 400, "end: expected once"),
        ("headers?node=../etc&start=0&end=1", 404, "no node '../etc' in this log"),
        ("blocks?node=mqttd&start=0&end=99999999", 410, "are not in the log"),
        ("progress", 405, "progress takes POST"),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(
    pulled: tuple[Path, int, Broker], request_: str, status: int, told: str
) -> None:
    path, port, _ = pulled
    found, body = asked(path, port, f"/api/v1/plugins/spark/log/{request_}", OTHER)
    assert found == status and told in json.loads(body)["detail"]


def asked(path: Path, port: int, target: str, token: str) -> tuple[int, bytes]:
    import ssl

    context = ssl.create_default_context(cafile=str(path / "etc/ca.crt"))
    connection = http.client.HTTPSConnection("localhost", port, timeout=20, context=context)
    try:
        connection.request("GET", target, None, {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("tcp", "told"),
    [
        ({"token_file": "tokens", "bind": "0.0.0.0:0"}, "tokens do not travel in plain"),
        ({"token_file": "missing"}, "admin.tcp.token_file = .*No such file"),
        ({"token_file": "short"}, "expected tokens of at least 16 characters"),
        ({"token_file": "tokens", "certificate": "acl.conf"}, "admin.tcp.private_key"),
    ],
)
def test_an_unsafe_or_broken_endpoint_keeps_the_broker_from_starting(
    tmp_path: Path, tcp: dict[str, Any], told: str
) -> None:
    with pytest.raises(RuntimeError, match=told):
        start(tmp_path, "", tcp, files={"short": "abc\n"})


def test_without_tokens_nothing_listens(tmp_path: Path) -> None:
    broker = start(tmp_path, "", {})
    try:
        assert "HTTP interface on port" not in broker.output
    finally:
        broker.stop()
