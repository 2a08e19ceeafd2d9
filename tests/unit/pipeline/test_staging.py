"""Staging in a broker in memory: a batch is published once, whoever asks, or dies when."""

from __future__ import annotations

import json
import queue
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mqttd.codec import properties as prop
from mqttd.codec.packets import Publish, Subscription
from mqttd.codec.properties import Properties
from mqttd.codec.serializer import serialize
from mqttd.pipeline.log.reader import LogReader, events
from mqttd.pipeline.stage_store import Batch, StageError, StageStore, weight_of
from mqttd.session.ground.message import Message
from mqttd.testing import LoadedPlugin, MemoryBroker, MemoryClient
from mqttd.types import OK, STOP
from mqttd_plugins.spark import spark

DEADLINE = 30.0


class Node(MemoryBroker):
    """A broker with the plugin, over a directory that outlives it."""

    def __init__(self, path: Path, **config: Any) -> None:
        super().__init__()
        self.path = path
        self.calls: queue.Queue[Callable[[], None]] = queue.Queue()
        self.clock.callFromThread = self.calls.put
        config = {"path": str(path / "log"), **config}
        self.loaded: LoadedPlugin = self.load(spark, config, str(path))
        self.heard = self.subscribe("out/#")

    def task(self, name: str = "task", **more: Any) -> Task:
        return Task(self, self.connect(name, **more), name)

    def turn(self) -> None:
        """Let time pass, and the writing thread speak."""
        self.advance(0.1)
        try:
            self.calls.get(timeout=0.01)()
        except queue.Empty:
            pass
        self.settle()

    def stop(self) -> None:
        log = self.loaded.plugin.log
        self.loaded.unload()
        assert log.join(DEADLINE)

    def logged(self) -> list[bytes]:
        reader = LogReader(str(self.path / "log"))
        return [
            event.payload or b""
            for event in events(reader, "memory", *reader.bounds()["memory"])
            if event.event == "message.publish"
        ]


class Task:
    """A client that stages."""

    def __init__(self, node: Node, client: MemoryClient, name: str) -> None:
        self.node = node
        self.name = name
        self.client = client
        assert client.subscribe(Subscription(f"$mqttd/reply/{name}", 1)) == [1]

    def ask(
        self, request: str, payload: bytes = b"", turns: int = 200, skip: bool = False
    ) -> dict[str, Any]:
        properties: Properties = {
            prop.RESPONSE_TOPIC: f"$mqttd/reply/{self.name}",
            prop.CORRELATION_DATA: b"1",
        }
        if skip:
            properties[prop.USER_PROPERTY] = [("onRefused", "skip")]
        self.client.publish(f"$mqttd/stage/{request}", payload, 1, properties=properties)
        for _ in range(turns):
            self.node.turn()
            for answer in self.client.messages():
                assert answer.properties == {prop.CORRELATION_DATA: b"1"}
                found: dict[str, Any] = json.loads(answer.payload)
                return found
        raise AssertionError("no answer")

    def put(self, stage: str, *payloads: bytes, query: str = "q", chunk: int = 0) -> dict[str, Any]:
        return self.ask(f"put/{query}/{stage}/{chunk}", rows(*payloads))

    def release(self, batch: int, *stages: str, query: str = "q") -> dict[str, Any]:
        return self.ask(f"release/{query}/{batch}", json.dumps(dict.fromkeys(stages, 1)).encode())


def rows(*payloads: bytes, topic: str = "out/a", qos: int = 1, retain: bool = False) -> bytes:
    packet_id = 1 if qos else 0
    return b"".join(
        serialize(Publish(topic, one, qos, retain, packet_id=packet_id), 5) for one in payloads
    )


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.stop()
    assert not made.faults


def heard(node: Node) -> list[bytes]:
    return [one.payload for one in node.heard]


def test_staged_rows_are_published_when_they_are_released_and_not_before(node: Node) -> None:
    one, two = node.task("one"), node.task("two")
    assert one.ask("hello")["ok"]
    assert one.put("a", b"1", b"2") == {"ok": True} == two.put("b", b"3")
    assert heard(node) == []
    assert node.task("driver").release(0, "a", "b") == {"ok": True, "published": 3}
    assert heard(node) == [b"1", b"2", b"3"]
    assert node.heard[0].client_id == "driver"


def test_a_replayed_batch_is_dropped_whole_however_its_rows_are_shuffled(node: Node) -> None:
    task = node.task()
    task.put("a", b"1", b"2")
    task.put("b", b"3")
    task.release(0, "a", "b")
    task.put("c", b"3", b"1")
    task.put("d", b"2")
    assert task.release(0, "d", "c") == {"ok": True, "published": 0, "replayed": True}
    task.put("e", b"4")
    assert task.release(1, "e")["published"] == 1
    assert heard(node) == [b"1", b"2", b"3", b"4"]
    assert node.loaded.metrics()["staged_bytes"] == 0
    assert json.loads(node.loaded.command("stage"))["queries"] == [
        {"query": "q", "batch": 1, "rows": 1, "published": True}
    ]


def test_what_is_missing_is_told_and_nothing_of_the_batch_is_published(node: Node) -> None:
    task = node.task()
    task.put("a", b"1")
    answer = task.release(0, "a", "b")
    assert not answer["ok"] and "stage b of query q has 0 of 1 chunks" in answer["error"]
    task.put("b", b"2")
    assert task.release(0, "a", "b")["published"] == 2
    assert heard(node) == [b"1", b"2"]


def test_queries_of_other_users_are_other_queries(node: Node) -> None:
    alice, bob = node.task("alice", username="al"), node.task("bob", username="bo")
    alice.put("a", b"1")
    assert not bob.release(9, "a")["ok"]
    assert alice.release(0, "a")["published"] == 1


def test_rows_need_the_right_to_their_topics(node: Node) -> None:
    node.deny("out/secret", "$SYS/a")
    task = node.task()
    for topic in ("out/secret", "$SYS/a", "$mqttd/stage/put/q/x/0"):
        answer = task.ask("put/q/a/0", rows(b"x", topic=topic))
        assert answer == {"ok": False, "error": f"not authorized to publish to {topic}"}
    # Where its client may publish it may stage.
    assert task.client.publish("$SYS/b", b"x", 1) != 0x87
    assert task.ask("put/q/a/0", rows(b"x", topic="$SYS/b"))["ok"]


def test_nobody_hears_what_others_stage(node: Node) -> None:
    eve = node.connect("eve")
    for topic_filter in ("$mqttd/#", "$mqttd/stage/#", "$mqttd/reply/task", "$mqttd/reply/+"):
        assert eve.subscribe(topic_filter)[0] >= 0x80
    # Who is called like a filter hears no more.
    for name in ("+", "#"):
        pattern = node.connect(name)
        for share in ("", "$share/g/"):
            assert pattern.subscribe(f"{share}$mqttd/reply/{name}")[0] >= 0x80
    node.task().put("a", b"1")
    assert not eve.messages()
    assert b"$mqttd" not in b"".join(node.logged())


@pytest.mark.parametrize(
    ("request_", "payload"),
    [
        ("put/q/a/0", b""),
        ("put/q/a/0", b"\xff\xff"),
        ("put/q/a/0", rows(b"1")[:-1]),
        ("put/q/a/x", rows(b"1")),
        ("put/q/../0", rows(b"1")),
        ("put/q/a/0", rows(*[b"1"] * 513)),
        ("release/q/0", b"no json"),
        ("release/q/0", b"[]"),
        ("release/q/0", b"[" * 100_000),
        ("release/q/-1", b'{"a": 1}'),
        ("release/q", b'{"a": 1}'),
        ("other", b""),
    ],
)
def test_a_wrong_request_is_refused(node: Node, request_: str, payload: bytes) -> None:
    answer = node.task().ask(request_, payload)
    assert answer["ok"] is False and answer["error"]


def test_no_more_is_staged_than_there_is_room_for(tmp_path: Path) -> None:
    node = Node(tmp_path, stage_bytes=1 << 17)
    try:
        task = node.task()
        assert task.put("a", b"x" * 60_000)["ok"]
        answer = task.put("b", b"x" * 60_000)
        assert not answer["ok"] and "stage_bytes" in answer["error"]
        task.ask("abort/q", b'{"a": 1}')
        assert task.put("b", b"x" * 60_000)["ok"]
    finally:
        node.stop()


def test_one_user_leaves_room_for_what_others_stage(tmp_path: Path) -> None:
    """Until now whoever came first had all of it, for a day."""
    store = StageStore(str(tmp_path / "stage.db"), 100_000)
    with pytest.raises(StageError, match="no room"):
        for chunk in range(100):
            store.put("mallory", "q", "a", chunk, 1, b"x" * 1000)
    assert 40_000 < store.bytes < 60_000
    store.put("ann", "q", "a", 0, 1, b"x" * 20_000)
    held = store.bytes
    store.put("ann", "q", "a", 0, 1, b"x" * 20_000)  # sent again
    assert store.bytes == held
    store.abort("mallory", "q", [])
    assert store.bytes == weight_of("ann", "q", "a", b"x" * 20_000)
    store.close()
    again = StageStore(str(tmp_path / "stage.db"), 100_000)
    assert again.bytes == weight_of("ann", "q", "a", b"x" * 20_000)
    again.close()


def test_what_a_chunk_takes_beside_its_rows_is_weighed(tmp_path: Path) -> None:
    """Its names are there twice, once in the index: of chunks of a few bytes they are the most."""
    path = tmp_path / "stage.db"
    store = StageStore(str(path), 4_000_000)
    for chunk in range(200):
        store.put("m" * 500, "q" * 64, "s" * 64, chunk, 1, b"x")
    weight = store.bytes
    store.close()
    assert path.stat().st_size < weight + 50_000


def test_the_last_batches_of_a_user_with_few_queries_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a batch of theirs that is asked for again would be published twice."""
    monkeypatch.setattr("mqttd.pipeline.stage_store.MOST_QUERIES", 5)
    now = [1000.0]
    store = StageStore(str(tmp_path / "stage.db"), 100_000, lambda: now[0])
    for owner, query in [("ann", "mine"), *(("mallory", f"q{i}") for i in range(9))]:
        now[0] += 1
        made, _ = store.release(Batch(owner, query, 7, "c", None, 1, 0, "n", 5, False), {})
        store.finish(made)
    store.sweep(1e9)
    assert store.last("ann", "mine") is not None
    left = [i for i in range(9) if store.last("mallory", f"q{i}") is not None]
    assert left == [5, 6, 7, 8]
    store.close()


def test_what_a_failed_batch_has_staged_goes_whoever_has_staged_it(node: Node) -> None:
    task = node.task()
    for stage in ("a", "b"):
        assert task.put(stage, b"1")["ok"]
    assert task.put("a", b"1", query="other")["ok"]
    assert task.ask("abort/q", b"{}")["ok"]
    assert staged(node) == 1, "that of the other query"
    # The query may start again.
    assert task.put("c", b"2")["ok"] and task.release(0, "c")["published"] == 1


def test_a_write_that_was_given_up_takes_nothing_more(node: Node) -> None:
    task = node.task()
    assert task.put("a", b"1", query="batch-1")["ok"]
    assert task.ask("close/batch-1", b"{}")["ok"]
    late = task.put("b", b"2", query="batch-1")
    assert late == {"ok": False, "error": "the write batch-1 has failed and was given up"}
    assert staged(node) == 0
    assert node.task("another", username="u").put("b", b"2", query="batch-1")["ok"]


def test_where_a_stream_starts_again_what_the_run_before_has_staged_goes(node: Node) -> None:
    task = node.task()
    for stage in ("1a_x", "1a_y", "old"):
        assert task.put(stage, b"1")["ok"]
    assert task.put("2b_x", b"2")["ok"]
    assert staged(node) == 2, "this, and that of a sink that names no runs"
    late = task.put("1a_z", b"3")
    assert late == {"ok": False, "error": "another run of query q has begun"}
    assert task.put("2b_y", b"4")["ok"] and task.release(0, "2b_x", "2b_y")["published"] == 2
    assert heard(node) == [b"2", b"4"] and staged(node) == 0


def test_a_run_whose_batch_has_failed_takes_nothing_more(node: Node) -> None:
    """What a task put that Spark had not ended yet stayed."""
    task = node.task()
    assert task.put("1a_x", b"1")["ok"]
    assert task.ask("abort/q", b"{}")["ok"]
    late = task.put("1a_y", b"2")
    assert late == {"ok": False, "error": "a batch of query q has failed: its run is over"}
    assert staged(node) == 0
    assert task.put("2b_x", b"3")["ok"] and task.release(0, "2b_x")["published"] == 1


def staged(node: Node) -> int:
    """How many chunks wait for their release."""
    store = node.loaded.plugin.staging._store
    assert isinstance(store, StageStore)
    found: int = store.status()["staged_chunks"]
    return found


def test_after_a_stop_between_stage_and_release_the_release_still_works(tmp_path: Path) -> None:
    first = Node(tmp_path)
    first.task().put("a", b"1", b"2")
    first.stop()
    second = Node(tmp_path)
    assert second.task().release(3, "a")["published"] == 2
    second.stop()
    assert heard(second) == [b"1", b"2"] == second.logged()


def broken_off(tmp_path: Path, published: int, qos: int = 1) -> Batch:
    """A broker dies between the record of a batch of three and its last message."""
    first = Node(tmp_path)
    first.task().ask("put/q/a/0", rows(b"1", b"2", b"3", qos=qos))
    first.stop()
    store = StageStore(str(tmp_path / "data/spark/stage.db"), 1 << 20)
    made = 5 << 64
    position = LogReader(str(tmp_path / "log")).bounds()["memory"].latest
    batch = Batch("", "q", 7, "driver", None, made, 0, "memory", position, False)
    store.release(batch, {"a": 1})
    store.close()
    broken = Node(tmp_path, stage=False)
    for number in range(published):
        broken.broker.publish(Message(made + number, "out/a", b"%d" % (number + 1), 1))
    broken.stop()
    return batch


def gone_on(node: Node) -> list[bytes]:
    """What is heard when a batch of before is gone on with."""
    for _ in range(200):
        node.turn()
        if node.loaded.metrics()["batches_total"]:
            break
    for _ in range(30):
        node.turn()
    node.stop()
    return heard(node)


@pytest.mark.parametrize("published", [0, 1, 3])
def test_a_batch_that_was_broken_off_goes_on_where_the_log_ends(
    tmp_path: Path, published: int
) -> None:
    """As after a kill of a broker without a store."""
    broken_off(tmp_path, published)
    second = Node(tmp_path)
    if published != 1:
        # Whether the sink asks again or nobody does.
        assert second.task().release(7, "b")["published"] == 0
    assert gone_on(second) == [b"1", b"2", b"3"][published:]
    assert second.logged() == [b"1", b"2", b"3"]


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize(
    ("qos", "routed", "logged", "comes"),
    [(2, 2, 0, b"3"), (2, 2, 1, b"3"), (2, 0, 2, b"123"), (0, 2, 1, b"3"), (1, 2, 1, b"23"),
     (1, 1, 2, b"23"), (2, 3, 0, b"")],
)  # fmt: skip
def test_what_the_store_says_is_routed_is_only_logged(
    tmp_path: Path, qos: int, routed: int, logged: int, comes: bytes, hooked: bool
) -> None:
    batch = broken_off(tmp_path, logged, qos)
    second = Node(tmp_path)
    drawer = second.broker.drawers.open("spark")
    drawer.put(f"batch {batch.first_id:032x}", b"%d" % routed)
    drawer.put(f"batch {1:032x}", b"1")  # of one that was published
    if hooked:
        second.hooks.hook("message.publish", lambda message: OK(message.replace(retain=False)))
    assert b"".join(gone_on(second)) == comes
    assert sorted(second.logged()) == [b"1", b"2", b"3"]
    assert drawer.keys() == []


def test_what_a_hook_has_stopped_is_stopped_again(tmp_path: Path) -> None:
    batch = broken_off(tmp_path, 0, 2)
    second = Node(tmp_path)
    second.broker.drawers.open("spark").put(f"batch {batch.first_id:032x}", b"2")
    second.hooks.hook("message.publish", lambda message: STOP(None))
    assert gone_on(second) == [] == second.logged()


def test_nothing_is_published_that_the_store_could_not_keep(node: Node) -> None:
    task = node.task()
    task.put("a", b"1", b"2")
    node.broker.drawers.stuck = True
    answer = task.release(0, "a")
    assert not answer["ok"] and "the store takes nothing" in answer["error"]
    assert heard(node) == []
    node.broker.drawers.stuck = False
    assert task.release(0, "a")["ok"]
    assert heard(node) == [b"1", b"2"]


@pytest.mark.parametrize(
    ("limit", "most", "row", "why"),
    [
        ("retained_max_payload", 4, rows(b"12345", retain=True),
         "5 bytes to be retained, at most 4 are (retained.max_payload)"),
        ("retain_available", False, rows(b"1", retain=True),
         "retained messages are not offered (mqtt.retain_available)"),
        ("max_qos", 1, rows(b"1", qos=2), "QoS 2 is not offered (mqtt.max_qos)"),
        ("max_topic_levels", 6, rows(b"1", topic="out/a/3/4/5/6/7"),
         "at most 6 levels are taken (mqtt.max_topic_levels)"),
        ("max_topic_length", 50, rows(b"1", topic="out/a" + "x" * 46),
         "at most 50 bytes are taken (mqtt.max_topic_length)"),
    ],
)  # fmt: skip
def test_what_is_beyond_a_limit_is_not_staged(
    node: Node, limit: str, most: int, row: bytes, why: str
) -> None:
    task = node.task()
    setattr(node.settings, limit, most)
    answer = task.ask("put/q/a/0", rows(b"12345") + row)
    assert not answer["ok"] and answer["error"].startswith("refused a message to out/a")
    assert answer["error"].endswith(f": {why}")


def refusing(node: Node, how: str) -> Callable[[], None]:
    """Have the broker refuse a second retained message; gives what lets it in."""
    if how == "retained":
        node.broker.retainer.max_messages = 1

        def let_in() -> None:
            node.broker.retainer.max_messages = 0

    else:
        full = [True]

        def hook(message: Message) -> Any:
            return STOP(0x97) if full[0] and message.topic == "out/b" else OK

        node.hooks.hook("message.publish", hook)

        def let_in() -> None:
            full[0] = False

    return let_in


THREE = b"".join(rows(b"123"[i : i + 1], topic=f"out/{'abc'[i]}", retain=i < 2) for i in range(3))
REFUSED = "refused a message to out/b: Quota exceeded (0x97)"


@pytest.mark.parametrize("how", ["retained", "hook"])
def test_a_batch_stops_at_a_message_that_is_refused_and_goes_on_with_it(
    node: Node, how: str
) -> None:
    """It was passed over, and the batch told as published."""
    let_in = refusing(node, how)
    task = node.task()
    task.ask("put/q/a/0", THREE)
    for _ in range(2):
        assert task.release(0, "a") == {"ok": False, "error": REFUSED}
        assert heard(node) == [b"1"]
    let_in()
    assert task.release(0, "a")["ok"]
    assert heard(node) == [b"1", b"2", b"3"]
    task.put("b", b"4")
    assert task.release(1, "b")["published"] == 1
    assert sorted(node.logged()) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("before", [False, True], ids=["at once", "when it had stopped"])
@pytest.mark.parametrize("how", ["retained", "hook"])
def test_a_batch_goes_on_behind_what_is_refused_where_that_is_to_be_skipped(
    node: Node, how: str, before: bool
) -> None:
    """Its rows stayed until they were let in: there was no way out."""
    refusing(node, how)
    task = node.task()
    task.ask("put/q/a/0", THREE)
    if before:
        assert task.release(0, "a") == {"ok": False, "error": REFUSED}
    answer = task.ask("release/q/0", b'{"a": 1}', skip=True)
    assert answer["ok"] and answer["skipped"] == 1
    assert answer["refused"] == f"1 skipped: {REFUSED}"
    assert heard(node) == [b"1", b"3"]
    assert json.loads(node.loaded.command("stage"))["bytes"] == 0
    assert node.loaded.metrics()["batch_skipped_total"] == 1
    task.put("b", b"4")
    assert task.release(1, "b")["published"] == 1
    assert heard(node) == [b"1", b"3", b"4"]


def test_rows_that_may_not_be_staged_are_left_out_where_they_are_to_be_skipped(node: Node) -> None:
    node.deny("out/no")
    node.settings.max_topic_levels = 6
    task = node.task()
    refused = rows(b"1", b"2", topic="out/no") + rows(b"3", topic="out/1/2/3/4/5/6")
    assert not task.ask("put/q/a/0", refused + rows(b"4"))["ok"]
    answer = task.ask("put/q/a/0", refused + rows(b"4"), skip=True)
    assert answer["ok"] and answer["skipped"] == 3
    assert answer["refused"].startswith(
        "3 skipped: not authorized to publish to out/no, not authorized to publish to out/no, "
    )
    # Of a chunk nothing may be left: it is there all the same.
    assert task.ask("put/q/a/1", refused, skip=True)["skipped"] == 3
    answer = task.ask("release/q/0", b'{"a": 2}', skip=True)
    assert answer == {"ok": True, "published": 1} and heard(node) == [b"4"]
    many = task.ask("put/q/b/0", rows(*[b"x"] * 40, topic="out/no"), skip=True)
    assert many["skipped"] == 40 and many["refused"].endswith(", ...")


def test_a_write_that_stopped_there_and_was_given_up_is_not_gone_on_with(tmp_path: Path) -> None:
    first = Node(tmp_path)
    refusing(first, "hook")
    task = first.task()
    task.ask("put/q/a/0", THREE)
    task.ask("put/w/a/0", THREE)
    assert task.release(0, "a", query="w")["error"] == REFUSED
    assert task.release(0, "a")["error"] == REFUSED
    assert task.ask("close/w", b"{}")["ok"]
    first.stop()
    second = Node(tmp_path)
    assert gone_on(second) == [b"2", b"3"]
    assert sorted(second.logged()) == [b"1", b"1", b"2", b"3"]


class _Failing:
    """A connection to a disk that is full when a statement of this kind comes."""

    def __init__(self, inner: sqlite3.Connection, statement: str) -> None:
        self.inner = inner
        self.statement = statement

    @property
    def in_transaction(self) -> bool:
        return self.inner.in_transaction

    def execute(self, text: str, values: Any = ()) -> Any:
        if text.startswith(self.statement):
            raise sqlite3.OperationalError("database or disk is full")
        return self.inner.execute(text, values)


def test_the_store_keeps_what_was_released_and_forgets_what_never_is(tmp_path: Path) -> None:
    now = [1000.0]
    store = StageStore(str(tmp_path / "stage.db"), 10_000, lambda: now[0])
    store.put("", "q", "a", 0, 1, b"xx")
    store.put("", "q", "a", 0, 1, b"xxx")  # sent again
    assert store.bytes == weight_of("", "q", "a", b"xxx")
    now[0] += 100
    store.put("", "q", "b", 0, 1, b"y")
    assert store.sweep(50) == 1 and store.bytes == weight_of("", "q", "b", b"y")
    batch = Batch("", "q", 0, "c", None, 1 << 100, 0, "n", 5, False)
    made, new = store.release(batch, {"b": 1})
    assert new and made.rows == 1 and store.unfinished() == [made]
    with pytest.raises(StageError, match="still being published"):
        store.release(Batch("", "q", 1, "c", None, 1, 0, "n", 5, False), {})
    with pytest.raises(StageError, match="released already"):
        store.put("", "q", "b", 0, 1, b"z")
    assert [store.read(made, *one[:2]) for one in store.chunks(made)] == [b"y"]
    whole = store._file
    for failing in ("DELETE", "COMMIT"):
        store._file = _Failing(whole, failing)  # type: ignore[assignment]
        with pytest.raises(sqlite3.OperationalError, match="disk"):
            store.finish(made)
        store._file = whole
        assert store.unfinished() == [made], "all of it or nothing"
    store.finish(made)
    assert store.bytes == 0 and store.unfinished() == []
    assert store.release(batch, {"b": 1})[1] is False
    store.close()
