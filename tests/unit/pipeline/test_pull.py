"""A reader by url and a broker that comes and goes; no network, no clock, no sleep."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from mqttd.pipeline.client import Address, Client, ClientError
from mqttd.pipeline.log.cluster import Exports
from mqttd.pipeline.log.groups import groups
from mqttd.pipeline.log.pull import TIMEOUT, Away, Elsewhere, PullError, PullReader
from mqttd.pipeline.log.reader import DataLoss, LogReader
from tests.unit.pipeline.logs import NODE, written
from tests.unit.pipeline.test_source import stream


class Broker:
    """Answers requests for a log until it goes away."""

    def __init__(self, path: Path) -> None:
        self.log = LogReader(str(path))
        self.now = 0.0
        self.back_at = self.hangs_until = 0.0
        self.gone: set[str] = set()
        self.asked: list[str] = []
        self.said: list[str] = []
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def reader(self, url: str = "http://a:1", **more: Any) -> PullReader:
        broker = self

        class Reader(PullReader):
            def _once(self, method: str, target: str, body: bytes | None) -> bytes:
                broker.asked.append(self.url)
                if broker.now < broker.hangs_until:
                    broker.now += self._timeout()
                    raise Away(f"{self.url} does not answer")
                if broker.now < broker.back_at or self.url in broker.gone:
                    raise Away(f"{self.url} cannot be reached")
                if method == "POST":
                    found = json.loads(body or b"")
                    broker.log.commit(
                        found["group"], found["nodes"], found["stopped"], found["reader"]
                    )
                    return b"{}"
                if target.startswith("headers"):
                    return b""  # how much is read is not the question here
                assert target.startswith("bounds")
                return json.dumps({"log": broker.log.log_id, "nodes": broker.log.bounds()}).encode()

        return Reader(url, sleep=self.sleep, clock=lambda: self.now, say=self.said.append, **more)


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(written(tmp_path, 3))


def test_a_broker_that_is_away_is_waited_for_with_growing_pauses_and_said_once(
    broker: Broker,
) -> None:
    reader = broker.reader(patience=300)
    broker.back_at = 60
    assert reader.bounds()[NODE] == (0, 30)
    assert 60 <= broker.now < 71 and 8 < len(broker.pauses) < 25
    waits = broker.pauses[1:]
    assert waits[0] < 1 < max(waits) <= 10 and waits[3] > waits[0]
    assert broker.said == [
        "mqttd: http://a:1 cannot be reached; waiting for up to 300 s",
        f"mqttd: http://a:1 is back after {broker.now:.0f} s",
    ]
    broker.back_at = broker.now + 30
    reader.bounds()
    assert len(broker.said) == 4


def test_patience_ends(broker: Broker) -> None:
    reader = broker.reader(patience=20)
    broker.back_at = 1000
    with pytest.raises(PullError, match="http://a:1 cannot be reached, for 2[01] s by now"):
        reader.bounds()


def test_a_connection_that_was_closed_meanwhile_is_not_worth_a_word(broker: Broker) -> None:
    reader = broker.reader(patience=0)
    broker.back_at = 1e-9
    broker.sleep(0)
    reader._sleep = lambda seconds: setattr(broker, "now", 1.0)
    assert reader.bounds() and not broker.said


def test_each_address_is_asked(broker: Broker) -> None:
    reader = broker.reader("http://a:1, http://b:2/path", patience=60)
    broker.asked.clear()
    broker.back_at = 1
    reader.bounds()
    assert {"http://a:1", "http://b:2/path"} == set(broker.asked)
    with pytest.raises(ValueError, match="url = 'b'"):
        broker.reader("http://a:1,b")


def test_a_broker_is_looked_for_where_it_is_by_now(broker: Broker, tmp_path: Path) -> None:
    there: dict[str, str] = {}
    reader = broker.reader(patience=60, elsewhere=Elsewhere("n", lambda: there.get("url")))
    broker.gone.add("http://a:1")

    def sleep(seconds: float) -> None:
        broker.sleep(seconds)
        if broker.now > 5:
            there.setdefault("url", "http://c:3")

    reader._sleep = sleep
    assert reader.blocks(NODE, 0, 30, whole=False) == []
    assert reader.url == "http://c:3" == broker.asked[-1]
    assert 5 < broker.now < 20
    assert broker.said[-1].startswith("mqttd: node n: http://c:3 is back after")
    # Another log is told from the one that was read.
    broker.log = LogReader(str(written(tmp_path / "other", 3)))
    broker.gone.add("http://c:3")
    there["url"] = "http://d:4"
    with pytest.raises(DataLoss, match="http://d:4: the log was made anew"):
        reader.blocks(NODE, 0, 30, whole=False)


def test_a_wrong_token_is_told_at_once_and_a_broker_that_starts_is_not(broker: Broker) -> None:
    reader = broker.reader(patience=60)
    assert isinstance(reader._refused(503, b""), Away)
    assert isinstance(reader._refused(404, b""), Away)  # its plugins come a moment later
    assert not isinstance(reader._refused(401, b""), Away)
    assert not isinstance(reader._refused(404, b'{"detail":"no node"}'), Away)
    reader._known = False
    assert not isinstance(reader._refused(404, b""), Away)  # that is a wrong url


def test_a_stream_goes_on_without_new_events_while_its_broker_is_away(
    tmp_path: Path, broker: Broker
) -> None:
    reader = stream(tmp_path, startingOffsets="earliest", outageTimeout="60s", groupId="etl")
    reader._log = log = broker.reader(patience=60)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable())["nodes"] == {NODE: 30}
    assert reader.reportLatestOffset()["offsetsBehindLatest"] == 0
    broker.back_at = broker.now + 50
    broker.pauses.clear()
    for _ in range(20):
        assert reader.latestOffset(start, ReadAllAvailable()) == start
        told = reader.reportLatestOffset()
        assert told["nodes"] == {NODE: 30} and "brokerAwaySeconds" in told
        broker.now += 2
    assert sum(broker.pauses) == 0  # nothing waits here
    assert broker.said == ["mqttd: http://a:1 cannot be reached; the query waits for up to 60 s"]
    assert len(broker.asked) < 25  # of 40 questions: pauses grow
    broker.now = broker.back_at + 5
    assert reader.latestOffset(start, ReadAllAvailable())["nodes"] == {NODE: 30}
    assert broker.said[1:] == ["mqttd: http://a:1 is back after 55 s"]
    assert "brokerAwaySeconds" not in reader.reportLatestOffset()
    broker.back_at = broker.now + 1000
    reader.latestOffset(start, ReadAllAvailable())
    broker.now += 61
    with pytest.raises(PullError, match=r"away for 61 s \(outageTimeout\)"):
        reader.latestOffset(start, ReadAllAvailable())
    assert log.patience == 60


@pytest.mark.parametrize("outage", [3.0, 20.0, 300.0])
def test_one_that_does_not_answer_is_away_since_it_was_asked(broker: Broker, outage: float) -> None:
    reader = broker.reader(patience=outage, outage=outage)
    began = broker.now
    broker.hangs_until = began + 1e6
    with pytest.raises(Away, match="does not answer, for"):
        reader.bounds()
    assert outage <= broker.now - began <= outage + 1
    assert bool(broker.said) is (outage > 30)  # one that was not to be asked again is just told
    # Each of several addresses has its part of that time.
    broker.asked.clear()
    with pytest.raises(Away):
        broker.reader("http://a:1,http://b:2", patience=outage, outage=outage)
    assert {"http://a:1", "http://b:2"} == set(broker.asked)


def test_who_has_other_things_to_do_waits_for_no_answer_most_of_the_time(broker: Broker) -> None:
    """`ManyLogs` and streams ask with no patience, again and again."""
    reader = broker.reader(patience=0.0, outage=600.0)
    broker.hangs_until = began = broker.now
    broker.hangs_until += 1e6
    spent = []
    while broker.now - began < 600:
        before = broker.now
        with pytest.raises(Away, match="does not answer"):
            reader.bounds()
        spent.append(broker.now - before)
        broker.now += 1
    assert spent[0] == 30 and max(spent[1:]) <= 10
    assert sum(spent) < 240 and sum(1 for one in spent if one) > 12
    broker.hangs_until = 0.0
    broker.now += 60
    assert reader.bounds() and reader.away_since is None


@pytest.mark.parametrize("tls", [False, True])
def test_a_door_that_takes_connections_and_says_nothing_is_left_in_time(tls: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        url = f"http{'s' if tls else ''}://127.0.0.1:{door.getsockname()[1]}"
        began = time.monotonic()
        hint = r"is it spoken there, or is it http://\?" if tls else "timed out"
        with pytest.raises(Away, match=hint):
            PullReader(url, patience=0.1, outage=0.1)
        assert time.monotonic() - began < TIMEOUT  # which it would wait where it does answer


def test_a_file_of_certificates_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for name, why in (("/nope", "No such file"), (str(tmp_path / "empty"), "no certificate in it")):
        with pytest.raises(ValueError, match=f"option caFile = '{name}': {why}"):
            PullReader("https://a:1", ca_file=name)
        with pytest.raises(ValueError, match=f"option etcdCaFile = '{name}': {why}"):
            Exports(["https://a:1"], "c", name)
        with pytest.raises(ClientError, match=f"TLS with a:1: {name}: "):
            Client(Address("a", 1, tls=True, ca_file=name)).connect()
    with pytest.raises(ValueError, match="options etcdCertificate = '/x', etcdPrivateKey = '/y'"):
        Exports(["https://a:1"], "c", "", "/x", "/y")


def test_a_url_with_a_path_that_leads_nowhere_is_told(broker: Broker) -> None:
    reader = broker.reader("http://a:1/api/v1")
    reader._known = False
    with pytest.raises(PullError, match="a path: http://host:port or https://host:port alone"):
        raise reader._refused(404, b"")


def test_a_run_with_an_end_waits_for_it(tmp_path: Path, broker: Broker) -> None:
    reader = stream(tmp_path, startingOffsets="earliest")
    reader._log = broker.reader(patience=60)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    broker.back_at = 40
    assert reader.latestOffset(start, ReadAllAvailable())["nodes"] == {NODE: 30}
    assert broker.now >= 40


def test_a_group_is_told_by_url_too(tmp_path: Path, broker: Broker) -> None:
    reader = stream(tmp_path, startingOffsets="earliest", groupId="etl")
    reader._log = broker.reader()
    start = reader.initialOffset()
    assert groups(str(tmp_path))["etl"]["nodes"] == {NODE: 0}
    end = reader.latestOffset(start, ReadAllAvailable())
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    found = groups(str(tmp_path))["etl"]
    assert (found["nodes"], found["stopped"]) == ({NODE: 30}, False)
    reader.stop()
    assert groups(str(tmp_path))["etl"]["stopped"]


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b'{"status": "ok"}', b'{"log": "a"}'])
def test_what_answers_and_is_no_pull_endpoint_is_told(
    monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    """The port of another HTTP server: it gave an error of the module json."""
    monkeypatch.setattr(PullReader, "_once", lambda *_: answer)
    with pytest.raises(PullError, match=r"^http://a:1: an answer, .*\[admin\.tcp\]"):
        PullReader("http://a:1")


def test_an_address_without_a_pull_endpoint_is_told(broker: Broker) -> None:
    reader = broker.reader()
    reader._known = False
    assert "there is no pull endpoint ([admin.tcp]" in str(reader._refused(404, b"Not found"))
    told = str(reader._refused(404, b'{"detail": "plugin \'spark\' is not loaded"}'))
    assert told == "http://a:1: plugin 'spark' is not loaded"


@pytest.mark.parametrize(
    "url, error, hint",
    [
        ("http://a:1", http.client.RemoteDisconnected("closed"), r"is TLS .*: https://\?\)$"),
        ("https://a:1", ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER]"), r"no TLS .* http://\?\)$"),
        ("https://a:1", http.client.RemoteDisconnected("closed"), r"reached: closed$"),
        ("http://a:1", ConnectionRefusedError(111, "no"), r"reached: no \(is that .*\)$"),
        ("http://a:1", socket.gaierror(-2, "Name not known"), r"reached: Name not known$"),
        ("https://a:1", TimeoutError("_ssl.c:989: timed out"), r"reached: timed out$"),
        ("https://a:1", ssl.SSLError(1, "[SSL] eof (_ssl.c:1006)"), r"reached: \[SSL\] eof$"),
        ("http://a:1", http.client.BadStatusLine(""), r"reached: .*$"),
    ],
)  # fmt: skip
def test_a_door_that_is_asked_in_the_wrong_way_is_told(
    monkeypatch: pytest.MonkeyPatch, url: str, error: Exception, hint: str
) -> None:
    def connect(self: PullReader) -> None:
        raise error

    monkeypatch.setattr(PullReader, "_connect", connect)
    with pytest.raises(Away, match=hint):
        PullReader(url, patience=0.0)
