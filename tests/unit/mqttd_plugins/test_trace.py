"""trace: one client, topic or address in a file of its own, and nothing else."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from mqttd.testing import LoadedPlugin, MemoryBroker, PluginConformance
from mqttd_plugins.trace import trace
from mqttd_plugins.trace.plugin import TraceError


class TestConformance(PluginConformance):
    plugin = trace
    cycles = 10


@pytest.fixture
def node() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def loaded(node: MemoryBroker) -> LoadedPlugin:
    return node.load(trace)


def lines(node: MemoryBroker, loaded: LoadedPlugin, name: str) -> list[str]:
    node.advance(1)
    text = (Path(loaded.handle.data_dir) / f"{name}.log").read_text()
    return [line.split(" ", 1)[1] for line in text.splitlines()]


def test_a_client_is_followed_and_others_are_not(node: MemoryBroker, loaded: LoadedPlugin) -> None:
    assert "client=alice" in loaded.command("start", "t1", "client=alice")
    bob = node.connect("bob")
    bob.subscribe("chat", qos=1)
    alice = node.connect("alice", username="al", password=b"very secret")
    alice.subscribe("mine", qos=1)
    alice.publish("chat", b"hello", 1)
    bob.publish("mine", b"answer", 1)
    bob.publish("other", b"not hers")
    alice.disconnect()
    text = "\n".join(lines(node, loaded, "t1"))
    for expected in (
        "trace t1 starts: client=alice",
        "'alice' CONNECT from 127.0.0.1",
        "'alice' is connected",
        "'alice' subscribed to 'mine'",
        "'alice' publishes",
        "'hello'",
        "'bob' is sent",
        "'alice' is sent",
        "'answer'",
        "'alice' is disconnected",
    ):
        assert expected in text, text
    assert "not hers" not in text
    assert "very secret" not in text
    assert "'bob' is connected" not in text


def test_a_topic_is_followed(node: MemoryBroker, loaded: LoadedPlugin) -> None:
    loaded.command("start", "t", "topic=sensors/#")
    bob = node.connect("bob")
    bob.subscribe("#")
    node.connect("alice").publish("sensors/1", b"21.5")
    node.publish("sensors/2", b"22")
    bob.publish("lamp", b"on")
    text = "\n".join(lines(node, loaded, "t"))
    assert "21.5" in text and "22" in text and "'bob' is sent" in text
    assert "lamp" not in text and "connected" not in text


def test_an_address_is_followed(node: MemoryBroker, loaded: LoadedPlugin) -> None:
    loaded.command("start", "t", "address=192.0.2.7")
    node.connect("alice", peer=("192.0.2.7", 1)).publish("t", b"from there")
    node.connect("bob", peer=("192.0.2.8", 1)).publish("t", b"from elsewhere")
    text = "\n".join(lines(node, loaded, "t"))
    assert "from there" in text and "from elsewhere" not in text
    assert "'alice' is connected" in text and "bob" not in text


def test_wishes_are_combined(node: MemoryBroker, loaded: LoadedPlugin) -> None:
    loaded.command("start", "t", "client=alice", "topic=a/#")
    alice = node.connect("alice")
    alice.publish("a/1", b"yes")
    alice.publish("b/1", b"no")
    node.connect("bob").publish("a/2", b"neither")
    text = "\n".join(lines(node, loaded, "t"))
    assert "yes" in text and "no'" not in text and "neither" not in text


def test_nothing_is_hooked_but_while_a_trace_runs(node: MemoryBroker, loaded: LoadedPlugin) -> None:
    assert not node.broker.points and node.broker.fast
    loaded.command("start", "a", "client=x")
    loaded.command("start", "b", "client=y")
    assert "message.publish" in node.broker.points
    assert loaded.metrics() == {"running": 2.0}
    assert "1 lines" not in loaded.command("stop", "a")
    assert node.broker.points
    loaded.command("stop", "b")
    assert not node.broker.points and node.broker.fast
    assert not node.clock.getDelayedCalls()
    assert lines(node, loaded, "a")[-1] == "trace a ends: stopped"


def test_it_can_be_listed_and_looked_at(node: MemoryBroker, loaded: LoadedPlugin) -> None:
    assert loaded.command("list") == "no traces"
    loaded.command("start", "t", "topic=#")
    for number in range(30):
        node.publish("t", b"%d" % number)
    node.advance(1)
    assert "'29'" in loaded.command("show", "t", "2")
    assert len(loaded.command("show", "t").splitlines()) == 20
    assert "topic=#" in loaded.command("list")
    loaded.command("stop", "t")
    assert loaded.command("list").startswith("t  ended")
    with pytest.raises(TraceError, match="no such trace"):
        loaded.command("show", "other")


def test_a_trace_ends_by_itself(node: MemoryBroker) -> None:
    loaded = node.load(trace, {"minutes": 1, "max_bytes": 5000})
    loaded.command("start", "short", "client=alice")
    node.advance(61)
    assert lines(node, loaded, "short")[-1] == "trace short ends: its time is over"
    loaded.command("start", "large", "topic=#")
    for _ in range(100):
        node.publish("t", bytes(100))
    node.advance(1)
    assert "its file has" in lines(node, loaded, "large")[-1]
    assert not node.broker.points


def test_a_file_is_bounded_by_its_bytes_not_its_characters(node: MemoryBroker) -> None:
    loaded = node.load(trace, {"max_bytes": 10_000})
    loaded.command("start", "t", "topic=#")
    for _ in range(100):
        node.publish("\U0001f511" * 200)
        node.advance(0.25)
    file = Path(loaded.handle.data_dir) / "t.log"
    assert 10_000 <= file.stat().st_size < 14_000


def test_what_waits_for_the_disk_is_bounded(node: MemoryBroker) -> None:
    loaded = node.load(trace, {"max_waiting": 10})
    loaded.command("start", "t", "topic=#")
    for _ in range(100):
        node.publish("t")
    node.advance(1)
    text = (Path(loaded.handle.data_dir) / "t.log").read_text()
    assert len(text.splitlines()) == 11
    assert "(191 lines are missing up to here)" in text


def test_long_topics_are_cut_and_what_waits_is_bounded_by_bytes_too(node: MemoryBroker) -> None:
    loaded = node.load(trace, {"payload_bytes": 65_536})
    loaded.command("start", "t", "topic=#")
    alice = node.connect("alice")
    for _ in range(200):
        alice.publish("x" * 60_000, bytes(60_000))
    text = "\n".join(lines(node, loaded, "t"))
    assert "x" * 1000 + "'... (60000)" in text and "x" * 1001 not in text
    assert len(text) < 5 << 20 and "lines are missing" in text


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        ([], "usage"),
        (["t"], "usage"),
        (["../t", "client=a"], "is no name"),
        (["t", "client="], "usage"),
        (["t", "color=red"], "usage"),
        (["t", "client=a", "client=b"], "usage"),
        (["t", "topic=a/#/b"], "last level"),
        (["t", "address=nowhere"], "address=nowhere"),
    ],
)
def test_mistakes_are_named(loaded: LoadedPlugin, argv: list[str], why: str) -> None:
    with pytest.raises(TraceError, match=why):
        loaded.command("start", *argv)


def test_as_many_as_allowed(node: MemoryBroker) -> None:
    loaded = node.load(trace, {"max_traces": 1})
    loaded.command("start", "t", "client=a")
    with pytest.raises(TraceError, match="runs already"):
        loaded.command("start", "t", "client=a")
    with pytest.raises(TraceError, match="max_traces"):
        loaded.command("start", "u", "client=a")
    with pytest.raises(TraceError, match="there run: t"):
        loaded.command("stop", "u")


def test_files_are_mine_alone_and_links_are_not_followed(
    node: MemoryBroker, loaded: LoadedPlugin, tmp_path: Path
) -> None:
    loaded.command("start", "t", "client=a")
    mode = os.stat(Path(loaded.handle.data_dir) / "t.log").st_mode
    assert stat.S_IMODE(mode) == 0o600
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (Path(loaded.handle.data_dir) / "trap.log").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic"):
        loaded.command("start", "trap", "client=a")
    assert victim.read_text() == "precious"


def test_a_client_cannot_forge_lines(node: MemoryBroker, loaded: LoadedPlugin) -> None:
    loaded.command("start", "t", "topic=#")
    name = "x' is connected\n2026-01-01T00:00:00Z 'admin"
    client = node.connect(name)
    if not client.closed:
        client.publish("t\x1b[2J", b"\n2026 forged")
    for line in lines(node, loaded, "t"):
        assert "\x1b" not in line
        assert not line.startswith("'admin") and not line.startswith("forged")


def test_unloading_writes_what_waits(node: MemoryBroker, loaded: LoadedPlugin) -> None:
    loaded.command("start", "t", "topic=#")
    node.publish("t", b"last words")
    directory = Path(loaded.handle.data_dir)
    loaded.unload()
    assert "last words" in (directory / "t.log").read_text()
