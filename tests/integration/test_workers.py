"""Several workers as one broker: real clients, and the processes behind it killed and stopped.

What differs from one process is where a client's session is: `id_at` makes client ids that belong
to a worker, so that each test knows which way its messages go.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mqttd.workers.place import worker_of
from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.ctl import told as ctl
from tests.support.doors import dial, doors_of, start_with_doors
from tests.support.waiting import until

COUNT = 3
_serial = itertools.count()


def id_at(worker: int, count: int = COUNT) -> str:
    """A new client id that belongs to this worker; as long as all, for limits weigh them."""
    return next(name for n in _serial if worker_of(name := f"c{n:06}", count) == worker)


def asked(broker: Broker, *words: str) -> dict[str, Any]:
    """The same as JSON."""
    found: dict[str, Any] = json.loads(ctl(broker, "--json", *words))
    return found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    started = start_broker(
        tmp_path_factory.mktemp("workers"), node={"workers": COUNT}, sys={"interval": "1s"}
    )
    yield started
    started.stop()


Connect = Callable[..., RawClient]


@pytest.fixture
def connect(broker: Broker) -> Iterator[Connect]:
    clients: list[RawClient] = []

    def connected(worker: int, *, client_id: str = "", version: int = mq.V5, **fields: Any) -> Any:
        client = RawClient(broker.port, version)
        clients.append(client)
        return client.connect(client_id or id_at(worker), **fields)

    yield connected
    for client in clients:
        client.close()


@pytest.fixture
def topic() -> str:
    return f"t{next(_serial)}"


@pytest.mark.parametrize("version", [mq.V311, mq.V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_reaches_subscribers_on_all_workers(
    connect: Connect, topic: str, qos: int, version: int
) -> None:
    filters = [topic + "/a", topic + "/+", topic + "/#"]
    subscribers = [connect(worker, version=v) for worker in (1, 2, 3) for v in (mq.V311, mq.V5)]
    for subscriber, wanted in zip(subscribers, itertools.cycle(filters), strict=False):
        subscriber.subscribe(wanted, qos=2)
    publisher = connect(1, version=version)
    for n in range(20):
        publisher.publish(topic + "/a", b"%d" % n, qos=qos)
    for subscriber in subscribers:
        assert subscriber.payloads(20) == [b"%d" % n for n in range(20)]


def test_subscribe_then_publish_elsewhere_at_once_misses_nothing(
    connect: Connect, topic: str
) -> None:
    publisher, subscriber = connect(1), connect(2)
    for n in range(200):
        subscriber.subscribe(f"{topic}/{n}")
        publisher.publish(f"{topic}/{n}", b"%d" % n)
    assert subscriber.payloads(200) == [b"%d" % n for n in range(200)]


def test_unsubscribe_ends_it(connect: Connect, topic: str) -> None:
    publisher, subscriber = connect(1), connect(2)
    subscriber.subscribe(topic)
    subscriber.unsubscribe(topic)
    subscriber.subscribe(topic + "/end")
    publisher.publish(topic, b"no")
    publisher.publish(topic + "/end", b"end")
    assert subscriber.payloads(1) == [b"end"]


def test_properties_and_retain_as_published_cross(connect: Connect, topic: str) -> None:
    publisher, subscriber = connect(1), connect(2)
    subscriber.subscribe((topic, 0x08 | 1), props=[(mq.SUBSCRIPTION_ID, 9)])
    props = [(mq.USER_PROPERTY, ("a", "b")), (mq.MESSAGE_EXPIRY, 60)]
    publisher.publish(topic, b"kept", qos=1, retain=True, props=props)
    message = subscriber.message(payload=b"kept", retain=True)
    assert (mq.USER_PROPERTY, ("a", "b")) in message.props
    assert (mq.SUBSCRIPTION_ID, 9) in message.props
    publisher.publish(topic, b"plain", qos=1)
    subscriber.message(payload=b"plain", retain=False)


def test_retained_messages_are_one_set(connect: Connect, topic: str) -> None:
    one, two = connect(1), connect(2)
    one.publish(topic, b"first", qos=1, retain=True)
    two.publish(topic, b"second", qos=1, retain=True)
    for worker in (1, 2, 3):
        late = connect(worker)
        late.subscribe(topic)
        late.message(payload=b"second", retain=True)
    two.publish(topic, b"", qos=1, retain=True)
    for worker in (1, 2, 3):
        late = connect(worker)
        late.subscribe(topic, topic + "/end")
        one.publish(topic + "/end", b"end")
        late.message(payload=b"end")


def test_a_shared_group_spans_workers_and_prefers_its_own(connect: Connect, topic: str) -> None:
    here, there, away = connect(1), connect(2), connect(3)
    for member in (here, there):
        member.subscribe(f"$share/g/{topic}", qos=1)
    publisher = connect(1)
    for n in range(10):
        publisher.publish(topic, b"%d" % n, qos=1)
    assert here.payloads(10) == [b"%d" % n for n in range(10)]
    here.unsubscribe(f"$share/g/{topic}")
    away.subscribe(topic, qos=1)
    for n in range(10):
        publisher.publish(topic, b"%d" % n, qos=1)
    assert there.payloads(10) == [b"%d" % n for n in range(10)]
    assert away.payloads(10) == [b"%d" % n for n in range(10)]
    there.expect_nothing()


def test_a_shared_group_that_prefers_nobody_takes_turns(tmp_path: Path, topic: str) -> None:
    broker = start_broker(tmp_path, node={"workers": 2}, mqtt={"shared_prefer": "any"})
    clients = [RawClient(broker.port, mq.V5) for _ in range(4)]
    try:
        here, there, other, publisher = (
            client.connect(id_at(worker, 2))
            for client, worker in zip(clients, (1, 2, 2, 1), strict=True)
        )
        for member in (here, there, other):
            member.subscribe(f"$share/g/{topic}", qos=1)
        for n in range(40):
            publisher.publish(topic, b"%d" % n, qos=1)
        shares = here.payloads(20), there.payloads(10), other.payloads(10)
        assert sorted(int(payload) for share in shares for payload in share) == list(range(40))
    finally:
        for client in clients:
            client.close()
        broker.stop()


def test_who_was_the_last_member_elsewhere_leaves_messages_to_one_that_is_away(
    connect: Connect, topic: str
) -> None:
    """They were on their way between two workers when it went."""
    share = f"$share/g/{topic}"
    name = id_at(1)
    kept = [(mq.SESSION_EXPIRY, 300)]
    away = connect(1, client_id=name, props=kept)
    away.subscribe(share, qos=1)
    away.drop()
    publisher = connect(1)
    came: set[bytes] = set()
    for n in range(60):
        present = connect(2)
        present.subscribe(share, qos=1)
        present.send(mq.disconnect(mq.V5))
        publisher.publish(topic, b"%d" % n, qos=1)
        while (packet := present.receive()) is not None and packet.type == mq.PUBLISH:
            came.add(packet.payload)
    away = connect(1, client_id=name, props=kept, clean=False)
    # One that a member was sent and had not acknowledged when it went comes to the other as well.
    while len(came) < 60:
        came.add(away.message().payload)
    assert came == {b"%d" % n for n in range(60)}


def test_a_will_is_heard_elsewhere(connect: Connect, topic: str) -> None:
    watcher = connect(2)
    watcher.subscribe(topic)
    connect(1, will=mq.Will(topic, b"gone")).drop()
    watcher.message(payload=b"gone")


def test_a_takeover_meets_the_same_session(connect: Connect, topic: str) -> None:
    name = id_at(2)
    expiry = [(mq.SESSION_EXPIRY, 60)]
    for _ in range(10):  # by whichever worker's socket it comes
        first = connect(2, client_id=name, clean=False, props=expiry)
        second = connect(2, client_id=name, clean=False, props=expiry)
        assert second.resumed
        first.wait_for(mq.DISCONNECT, reason=0x8E)
    second.subscribe(topic, qos=1)
    second.drop()
    connect(1).publish(topic, b"waits", qos=1)
    third = connect(2, client_id=name, clean=False, props=expiry)
    assert third.resumed
    third.message(payload=b"waits")


def test_an_empty_client_id_is_served_where_it_came(broker: Broker, topic: str) -> None:
    for _ in range(6):
        client = RawClient(broker.port, mq.V5)
        client.connect("")
        client.subscribe(topic)
        client.publish(topic, b"own")
        client.message(payload=b"own")
        client.close()


def test_long_connects_that_fill_the_way_to_their_worker_are_all_let_in(broker: Broker) -> None:
    stopped = pid_of(broker, 1)
    clients = [RawClient(broker.port, mq.V5) for _ in range(90)]
    os.kill(stopped, signal.SIGSTOP)
    try:
        for client in clients:
            long = [(mq.USER_PROPERTY, ("a", "b" * 40_000))]
            client.send(mq.connect(id_at(1), mq.V5, props=long))
    finally:
        os.kill(stopped, signal.SIGCONT)
    for client in clients:
        client.expect(mq.CONNACK, reason=0)
        client.close()


def test_ctl_shows_one_broker(connect: Connect, broker: Broker) -> None:
    names = {id_at(worker): worker for worker in (1, 2, 3)}
    clients = [connect(worker, client_id=name) for name, worker in names.items()]
    listed = {
        each["client_id"]: each["worker"] for each in asked(broker, "clients", "list")["clients"]
    }
    assert names.items() <= listed.items()
    status = asked(broker, "status")
    assert len(status["workers"]) == COUNT
    assert status["stats"]["clients_connected"] >= 3
    for name, worker in names.items():
        assert asked(broker, "clients", "show", name)["worker"] == worker
        ctl(broker, "clients", "kick", name)
    for client in clients:
        client.wait_for(mq.DISCONNECT, reason=0x98)


def test_a_ban_holds_on_all_workers(connect: Connect, broker: Broker) -> None:
    name = id_at(3)
    client = connect(3, client_id=name)
    ctl(broker, "bans", "add", "client_id", name)
    client.wait_for(mq.DISCONNECT, reason=0x98)
    ctl(broker, "bans", "del", "client_id", name)
    until(lambda: _lets_in(broker, name), "lifted")


def _lets_in(broker: Broker, name: str) -> bool:
    client = RawClient(broker.port, mq.V5)
    try:
        client.send(mq.connect(name, mq.V5))
        return client.expect(mq.CONNACK).reason == 0
    finally:
        client.close()


def test_sys_topics_tell_the_sum(connect: Connect) -> None:
    clients = [connect(worker) for worker in (1, 2, 3)]
    watcher = clients[2]
    watcher.subscribe("$SYS/broker/clients/connected")
    while int(watcher.message(deadline=30).payload) < len(clients):
        pass


def pid_of(broker: Broker, worker: int) -> int:
    workers = asked(broker, "status")["workers"]
    return next(int(each["pid"]) for each in workers if each["worker"] == worker)


def all_back(broker: Broker) -> None:
    """Wait for a worker that was killed: on a busy machine it takes its time to start."""
    until(lambda: all_serve(broker), "all workers")


def all_serve(broker: Broker) -> bool:
    """Whether no worker is being started."""
    return all(one["state"] != "starting" for one in asked(broker, "status")["workers"])


@pytest.mark.parametrize("qos", [1, 2])
def test_a_killed_worker_loses_nothing_that_was_acknowledged(
    connect: Connect, broker: Broker, topic: str, qos: int
) -> None:
    name, expiry = id_at(2), [(mq.SESSION_EXPIRY, 600)]
    subscriber = connect(2, client_id=name, clean=False, props=expiry)
    subscriber.subscribe(topic, qos=qos)
    watcher, publisher = connect(3), connect(1)
    watcher.subscribe(topic, qos=1)
    for n in range(20):
        publisher.publish(topic, b"%d" % n, qos=qos)
    os.kill(pid_of(broker, 2), signal.SIGKILL)
    for n in range(20, 300):  # goes on while the worker is away
        publisher.publish(topic, b"%d" % n, qos=qos)
    assert watcher.payloads(300) == [b"%d" % n for n in range(300)]
    subscriber.drain()  # its connection is over
    all_back(broker)
    back = connect(2, client_id=name, clean=False, props=expiry)
    assert back.resumed
    publisher.publish(topic, b"end", qos=qos)
    seen: list[bytes] = []
    while not seen or seen[-1] != b"end":
        seen.append(back.message().payload)
    first = list(dict.fromkeys(seen))
    assert first == [b"%d" % n for n in range(300)] + [b"end"]


def test_a_worker_that_is_back_has_filters_and_retained_messages(
    connect: Connect, broker: Broker, topic: str
) -> None:
    publisher, gone = connect(1), connect(2)
    gone.subscribe(topic + "/gone")
    publisher.publish(topic + "/kept", b"old", qos=1, retain=True)
    publisher.publish(topic + "/dropped", b"old", qos=1, retain=True)
    os.kill(pid_of(broker, 2), signal.SIGKILL)
    gone.drain()
    publisher.publish(topic + "/kept", b"new", qos=1, retain=True)
    publisher.publish(topic + "/dropped", b"", qos=1, retain=True)
    all_back(broker)
    late = connect(2)
    late.subscribe(topic + "/#")
    late.message(payload=b"new", retain=True)
    publisher.publish(topic + "/live", b"live")
    late.message(payload=b"live")


def test_connections_that_stay_where_they_came_are_served_by_their_worker(
    tmp_path: Path, topic: str
) -> None:
    broker = start_with_doors(tmp_path, ("ssl", "wss", "unix"), node={"workers": 2})
    clients: list[RawClient] = []
    try:
        large = b"x" * 600_000  # more than is under way at a time
        for door in doors_of(broker).values():
            for worker in (1, 2):
                sock = dial(door, tmp_path / "etc" / "certs")
                client = RawClient(broker.port, mq.V5, sock=sock)
                clients.append(client.connect(id_at(worker, 2)))
        for client in clients:
            client.subscribe(topic, qos=1)
        for client in clients:
            client.publish(topic, large, qos=1)
        for client in clients:
            assert client.payloads(len(clients)) == [large] * len(clients)
        name = id_at(1, 2)
        sock = dial(doors_of(broker)["wss:twisted"], tmp_path / "etc" / "certs")
        client = RawClient(broker.port, mq.V5, sock=sock).connect(name)
        ctl(broker, "clients", "kick", name)
        client.wait_for(mq.DISCONNECT, reason=0x98)
        client.expect_close()
        client.close()
    finally:
        for client in clients:
            client.close()
        broker.stop()


@pytest.mark.parametrize("after", [2, 3, 1])
def test_sigterm_ends_all_and_sessions_are_there_again(
    tmp_path: Path, topic: str, after: int
) -> None:
    names = [id_at(worker, 2) for worker in (1, 2)]
    expiry = [(mq.SESSION_EXPIRY, 600)]
    broker = start_broker(tmp_path, node={"workers": 2})
    pids = [pid_of(broker, worker) for worker in (1, 2)]
    for name in names:
        client = RawClient(broker.port, mq.V5).connect(name, clean=False, props=expiry)
        client.subscribe(topic, qos=1)
        client.disconnect()
    publisher = RawClient(broker.port, mq.V5).connect(id_at(1, 2))
    publisher.publish(topic, b"kept", qos=1, retain=True)
    broker.stop()
    publisher.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    broker = start_broker(tmp_path, node={"workers": after})
    try:
        for name in names:
            client = RawClient(broker.port, mq.V5).connect(name, clean=False, props=expiry)
            assert client.resumed
            client.message(payload=b"kept")
            client.close()
        late = RawClient(broker.port, mq.V5).connect(id_at(2, 2))
        late.subscribe(topic)
        late.message(payload=b"kept", retain=True)
        late.close()
    finally:
        broker.stop()


@pytest.mark.parametrize("after", [1, 3])
def test_what_waits_for_a_worker_that_does_not_live_is_there_with_another_number(
    tmp_path: Path, topic: str, after: int
) -> None:
    """Acknowledged while it was away, and all of them are killed before it is back."""
    expiry = [(mq.SESSION_EXPIRY, 600)]
    name = id_at(2, 2)
    broker = start_broker(tmp_path, node={"workers": 2})
    away = RawClient(broker.port, mq.V5).connect(name, clean=False, props=expiry)
    away.subscribe(topic, qos=2)
    away.disconnect()
    publisher = RawClient(broker.port, mq.V5).connect(id_at(1, 2), clean=False, props=expiry)
    first, second = (pid_of(broker, worker) for worker in (1, 2))
    os.kill(second, signal.SIGKILL)
    for n in range(20):
        publisher.publish(topic, b"%d" % n, qos=1 + n % 2)
    os.kill(first, signal.SIGKILL)
    broker.stop(hard=True)
    publisher.close()
    until(lambda: not processes_of(tmp_path), "the end of all workers")
    broker = start_broker(tmp_path, node={"workers": after})
    try:
        back = RawClient(broker.port, mq.V5).connect(name, clean=False, props=expiry)
        assert back.resumed
        assert back.payloads(20) == [b"%d" % n for n in range(20)]
        back.close()
    finally:
        broker.stop()


def processes_of(folder: Path) -> list[int]:
    """Those that were started with a configuration below it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            pass  # it has gone
    return found
