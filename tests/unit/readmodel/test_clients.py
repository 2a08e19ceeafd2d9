"""Pages of clients: what is in them, in which order, and what a page costs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, succeed

from mqttd.broker.broker import Broker
from mqttd.broker.sessions.directory import Directory
from mqttd.codec.packets import Disconnect
from mqttd.readmodel.clients import SORTS, Clients, Wish
from mqttd.readmodel.pages import BadWish, read_cursor, write_cursor
from mqttd.readmodel.slices import Slice, in_slices
from mqttd.readmodel.subscriptions import Subscriptions
from mqttd.session.session import Session
from tests.unit.admin.node import MemoryClient, make_broker


def at_once(work: Iterator[None]) -> Deferred[Any]:
    deque(work, 0)
    return succeed(None)


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return make_broker(tmp_path)


@pytest.fixture
def clients(broker: Broker) -> Clients:
    return Clients(broker, at_once)


def result(waiting: Deferred[Any]) -> Any:
    found: list[Any] = []
    waiting.addCallback(found.append)
    return found[0]


def names(clients: Clients, **wish: Any) -> list[str]:
    """The ids of all pages."""
    found: list[str] = []
    cursor = None
    while True:
        page = result(clients.page(Wish(cursor=cursor, **wish)))
        assert len(page.clients) <= wish.get("limit", 100)
        found += [client.client_id for client in page.clients]
        cursor = page.cursor
        if cursor is None:
            return found


def connected(broker: Broker, client_id: str, username: str | None) -> MemoryClient:
    client = MemoryClient(broker, client_id)
    broker.sessions[client_id].purse = broker.account.purse(username)
    return client


@given(st.lists(st.text(max_size=3), unique=True), st.text(max_size=3), st.integers(1, 5))
def test_a_directory_is_a_sorted_list(ids: list[str], place: str, count: int) -> None:
    directory = Directory()
    for client_id in ids:
        directory.add(client_id)
    for client_id in ids[::3]:
        directory.remove(client_id)
    left = sorted(set(ids) - set(ids[::3]))
    assert len(directory) == len(left)
    assert directory.after(None, count) == left[:count]
    assert directory.after(place, count) == [name for name in left if name > place][:count]
    assert directory.after(place, count, True) == [name for name in left if name >= place][:count]
    assert directory.before(None, count) == left[::-1][:count]
    assert directory.before(place, count) == [n for n in left[::-1] if n < place][:count]


@pytest.mark.parametrize("sort", [*SORTS, *(f"-{name}" for name in SORTS)])
@pytest.mark.parametrize("limit", [1, 2, 7, 100])
def test_every_order_shows_everybody_once(
    broker: Broker, clients: Clients, sort: str, limit: int
) -> None:
    for name in "dbeacgf":
        client = connected(broker, name, name.upper() if name in "abc" else None)
        for number in range(ord(name) % 3):
            client.subscribe(f"t/{number}")
    found = names(clients, sort=sort, limit=limit)
    key = SORTS[sort.removeprefix("-")]
    wanted = sorted(broker.sessions.values(), key=lambda one: (key(one), one.client_id))
    if sort.startswith("-"):
        wanted.reverse()
    assert found == [session.client_id for session in wanted]


@pytest.mark.parametrize("clock", [0, 1 << 41])
@pytest.mark.parametrize("sort", ["session_age", "-session_age", "idle", "-idle"])
def test_pages_by_age_show_everybody_once_though_all_grow_older(
    broker: Broker, clients: Clients, sort: str, clock: int
) -> None:
    clients.clock = clock
    for name in "dbeacgf":
        connected(broker, name, None)
        broker.now += 1500
    found: list[str] = []
    cursor = None
    while len(found) < 7:
        page = result(clients.page(Wish(cursor=cursor, sort=sort, limit=2)))
        found += [client.client_id for client in page.clients]
        cursor = page.cursor
        broker.now += 4000
    assert cursor is None and sorted(found) == list("abcdefg")
    if sort.endswith("session_age"):
        assert found == list("dbeacgf" if sort.startswith("-") else "fgcaebd")


def test_filters_hold_together_and_alone(broker: Broker, clients: Clients) -> None:
    away = connected(broker, "meter-1", "ann")
    away.send(Disconnect(0))
    connected(broker, "meter-2", "ann").subscribe("a/#")
    connected(broker, "meter", "bob")
    connected(broker, "other", "ann")
    for wish, found in (
        ({"prefix": "meter-"}, ["meter-1", "meter-2"]),
        ({"prefix": "meter", "sort": "-client_id"}, ["meter-2", "meter-1", "meter"]),
        ({"prefix": "meter", "sort": "subscriptions"}, ["meter", "meter-1", "meter-2"]),
        ({"prefix": "z"}, []),
        ({"username": "ann", "state": "connected"}, ["meter-2", "other"]),
        ({"subscription": "a/#"}, ["meter-2"]),
        ({"subscription": "a/b"}, []),
        ({"address": "127.0.0.0/8", "state": "connected", "username": "bob"}, ["meter"]),
        ({"listener": "default", "state": "connected", "prefix": "o"}, ["other"]),
    ):
        assert names(clients, limit=1, **wish) == found, wish


@pytest.mark.parametrize(
    "wish",
    [{"sort": "age"}, {"sort": "--idle"}, {"address": "nowhere"}, {"cursor": "?"},
     {"cursor": "W10"}, {"cursor": "ü"}, {"sort": "idle", "cursor": write_cursor("x", "a")}],
)  # fmt: skip
def test_a_wish_that_means_nothing_is_refused(clients: Clients, wish: dict[str, str]) -> None:
    with pytest.raises(BadWish):
        clients.page(Wish(**wish))  # type: ignore[arg-type]


@given(st.one_of(st.integers(), st.text()), st.text())
def test_a_cursor_says_what_it_was_made_of(key: int | str, name: str) -> None:
    assert read_cursor(write_cursor(key, name), type(key)) == (key, name)


def test_who_comes_and_goes_between_pages_changes_nobody_else(
    broker: Broker, clients: Clients
) -> None:
    held = {name: MemoryClient(broker, name) for name in ("b", "d", "f", "h")}
    first = result(clients.page(Wish(limit=2)))
    held["d"].send(Disconnect(0, {0x11: 0}))
    MemoryClient(broker, "a")
    MemoryClient(broker, "e")
    second = result(clients.page(Wish(limit=2, cursor=first.cursor)))
    assert [client.client_id for client in second.clients] == ["e", "f"]


def test_a_page_among_many_looks_at_few(broker: Broker, clients: Clients) -> None:
    """What a page costs is what it shows: counted in sessions that are looked at."""
    for number in range(20_000):
        name = f"c{number:06}"
        broker.sessions[name] = Session(broker, name, None)
        broker.registry.directory.add(name)
    looked: list[str] = []
    found = clients._fits(Wish())
    clients._fits = lambda wish: lambda one: looked.append(one.client_id) or found(one)  # type: ignore[method-assign,func-returns-value]
    page = result(clients.page(Wish(limit=50, cursor=write_cursor("", "c010000"))))
    assert [page.clients[0].client_id, len(page.clients)] == ["c010001", 50]
    assert len(looked) == 51


def test_looking_at_clients_keeps_nothing_of_them(broker: Broker, clients: Clients) -> None:
    client = MemoryClient(broker, "a")
    client.channel.forget_known()
    assert names(clients, listener="default", address="127.0.0.1") == ["a"]
    assert client.channel.known is None


def test_work_yields_when_its_slice_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("mqttd.readmodel.slices.perf_counter", lambda: now[0])
    time = Slice()
    assert not time.over()
    now[0] = 1.0
    assert time.over() and not time.over()


def test_work_of_one_slice_is_done_at_once() -> None:
    done: list[int] = []

    def work() -> Iterator[None]:
        done.append(1)
        yield from ()

    assert result(in_slices(work())) is None and done == [1]


def test_subscriptions_of_a_filter_and_filters_in_pages(broker: Broker, clients: Clients) -> None:
    for name in "abc":
        client = MemoryClient(broker, name)
        client.subscribe("all/#")
        client.subscribe(f"only/{name}", 1)
    MemoryClient(broker, "silent")
    subscriptions = Subscriptions(broker, clients)
    found, cursor = [], None
    while True:
        page = result(subscriptions.page(1, cursor, "all/#"))
        found += [(one.client_id, one.topic_filter) for one in page.subscriptions]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == [("a", "all/#"), ("b", "all/#"), ("c", "all/#")]
    first = result(subscriptions.filters(2))
    second = result(subscriptions.filters(2, first.cursor))
    assert [one.topic_filter for one in (*first.topics, *second.topics)] == [
        "all/#", "only/a", "only/b", "only/c"
    ]  # fmt: skip
    assert first.topics[0].subscribers == 3 and second.cursor is None
    assert subscriptions.of("nobody") is None
