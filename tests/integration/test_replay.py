"""mqttd-ctl replay on real brokers: what was recorded arrives again, where it was sent."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from mqttd.codec.packets import Publish
from mqttd.pipeline.client import Address, Client
from tests.integration.test_events import ctl, everything, start
from tests.support.waiting import until


def listener(port: int, topic_filter: str, client_id: str = "") -> Client:
    client = Client(Address("127.0.0.1", port), client_id)
    client.subscribe(topic_filter)
    return client


def arrived(client: Client, count: int) -> list[Publish]:
    found: list[Publish] = []
    while len(found) < count:
        message = client.receive(30)
        assert message is not None, f"{len(found)} of {count} arrived"
        found.append(message)
    return found


def test_recorded_messages_are_fed_back_to_topics_a_client_and_another_broker(
    tmp_path: Path,
) -> None:
    one = start(tmp_path / "one", 'events = ["message.publish"]\n')
    two = start(tmp_path / "two", "")
    try:
        wanted = [(f"a/{i % 3}", b"%d" % i) for i in range(600)]
        with Client(Address("127.0.0.1", one.port)) as client:
            for topic, payload in wanted:
                client.publish(topic, payload, 1, False, {3: "text/plain"})
            client.flush()
        until(lambda: len(everything(tmp_path / "one")) == 600, "nothing is logged")
        times = [event.timestamp for event in everything(tmp_path / "one")]

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            done = ctl(tmp_path / "one", "replay", *words)
            assert done.returncode == 0, done.stderr
            return done

        def told(found: list[Publish]) -> list[Any]:
            return [(message.topic, message.payload) for message in found]

        heard = listener(one.port, "again/#", "heard")
        assert "600 messages" in run("--speed", "max", "--to-topic", "again").stdout
        found = arrived(heard, 600)
        assert told(found) == [(f"again/{topic}", payload) for topic, payload in wanted]
        assert found[0].qos == 1 and found[0].properties == {3: "text/plain"}

        nothing = run("--filter", "none", "--to-topic", "again").stdout
        assert nothing.startswith("0 messages sent\nno message") and " from 0 to " in nothing

        only = listener(one.port, "none", "only")
        run("--from", "0", "--to", "9", "--filter", "+/1", "--to-client", "only")
        assert told(arrived(only, 3)) == [("a/1", b"1"), ("a/1", b"4"), ("a/1", b"7")]
        assert heard.receive(0.2) is None

        there = listener(two.port, "a/#")
        run("--to", "600", "--speed", "1000x", "--to-broker", f"127.0.0.1:{two.port}")
        assert told(arrived(there, 600)) == wanted
        assert times == sorted(times)

        done = ctl(tmp_path / "one", "replay", "--to-client", "nobody", "--to", "1")
        assert done.returncode == 1 and "client 'nobody' is not connected" in done.stderr
        done = ctl(tmp_path / "one", "replay", "--to-topic", "x", "--from", "yesterday")
        assert done.returncode == 1 and "expected an offset or a time" in done.stderr
        done = ctl(tmp_path / "one", "replay", "--to-broker", "127.0.0.1:1", "--to", "1")
        assert done.returncode == 1 and "cannot be reached" in done.stderr
        for client in (heard, only, there):
            client.close()
    finally:
        one.stop()
        two.stop()
