"""Bans: who is kept out, what becomes of who is in, and what outlives a restart."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from mqttd.broker.ground.drawers import Drawers
from mqttd.broker.rights.bans import DRAWER, Ban, BanError, Bans, load_ban
from mqttd.codec.packets import Connect
from mqttd.session.journal import Journal
from tests.support.memory import MemoryBroker


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def banned(bans: Bans, client_id: str = "c", username: str | None = "u", host: str = "::1") -> bool:
    return bans.match(client_id, username, host) is not None


@pytest.mark.parametrize(
    "kind,value,yes,no",
    [
        ("client_id", "c", {}, {"client_id": "C"}),
        ("username", "u", {}, {"username": None}),
        ("peerhost", "10.0.0.7", {"host": "10.0.0.7"}, {"host": "10.0.0.70"}),
        ("peerhost", "10.0.0.7", {"host": "::ffff:10.0.0.7"}, {"host": "unix"}),
        ("peerhost", "10.0.0.0/8", {"host": "10.9.8.7"}, {"host": "11.0.0.1"}),
        ("peerhost", "10.0.0.0/8", {"host": "::ffff:10.9.8.7"}, {"host": "fe80::1%eth0"}),
        ("peerhost", "2001:db8::/32", {"host": "2001:db8::1"}, {"host": "2001:db9::1"}),
        ("peerhost", "0:0:0:0:0:0:0:1", {"host": "::1"}, {"host": "::2"}),
        ("peerhost", "unix", {"host": "unix"}, {"host": "127.0.0.1"}),
    ],
)
def test_a_ban_is_about_those_it_names(
    kind: str, value: str, yes: dict[str, str], no: dict[str, str]
) -> None:
    bans = Bans()
    bans.add(kind, value)
    assert banned(bans, **yes)
    assert not banned(bans, **no)
    assert bans.remove(kind, value)
    assert not banned(bans, **yes)
    assert not bans.remove(kind, value)


def test_who_has_no_user_name_is_kept_out_by_its_own_name() -> None:
    bans = Bans()
    bans.disabled = {"$anonymous"}
    assert banned(bans, username=None) and not banned(bans, username="u")
    bans.disabled = {"u"}
    assert banned(bans, username="u") and not banned(bans, username=None)


def test_a_ban_ends_at_its_time() -> None:
    seconds = Time()
    bans = Bans(seconds=seconds)
    bans.add("client_id", "c", until=1010.0)
    bans.add("peerhost", "::/0", until=1010.0)
    assert banned(bans)
    seconds.now = 1010.0
    assert not banned(bans)
    assert len(bans) == 0


def test_a_ban_that_was_made_elsewhere_was_made_then() -> None:
    bans = Bans(seconds=Time())
    bans.add("client_id", "here")
    assert bans.add("client_id", "there", since=400.0).since == 400.0
    assert [ban.value for ban in bans.list()] == ["there", "here"]


def test_bans_outlive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "bans.json"
    seconds = Time()
    bans = Bans(str(path), seconds)
    bans.add("username", "u", "was rude")
    bans.add("peerhost", "10.0.0.0/8", until=2000.0)
    bans.add("client_id", "c", until=1001.0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    seconds.now = 1500.0
    again = Bans(str(path), seconds)
    assert [(ban.value, ban.reason) for ban in again.list()] == [
        ("u", "was rude"),
        ("10.0.0.0/8", ""),
    ]
    assert banned(again, "x", None, "10.1.1.1")
    assert not banned(again, "c", None)


@pytest.mark.parametrize("text", ["", "{}1", '[{"kind": "x", "value": "y"}]', '["a"]', "[1]"])
def test_a_broken_file_keeps_the_broker_from_starting_without_its_bans(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "bans.json"
    path.write_text(text)
    with pytest.raises(BanError, match=r"bans\.json: no list of bans"):
        Bans(str(path))


def test_what_cannot_be_stored_is_not_in_force(tmp_path: Path) -> None:
    bans = Bans(str(tmp_path / "missing" / "bans.json"))
    with pytest.raises(OSError, match="No such file"):
        bans.add("client_id", "c")
    assert not banned(bans)


@pytest.mark.parametrize(
    "kind,value", [("ip", "::1"), ("client_id", ""), ("peerhost", "host.example"), ("peerhost", "")]
)
def test_what_is_no_ban_is_refused(kind: str, value: str) -> None:
    with pytest.raises(BanError):
        Bans().add(kind, value)


def test_bans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqttd.broker.rights.bans.MOST", 2)
    bans = Bans()
    for name in ("a", "b", "b"):
        bans.add("client_id", name)
    with pytest.raises(BanError, match="there are 2 bans"):
        bans.add("client_id", "c")


@pytest.mark.parametrize("version,code", [(5, 0x8A), (4, 5)])
def test_a_banned_client_is_refused_before_it_is_authenticated(version: int, code: int) -> None:
    node = MemoryBroker()
    node.broker.bans.add("client_id", "c", "was rude")
    client = node.client(version)
    client.send(Connect("c", version=version))
    (connack,) = client.take()
    assert connack.reason_code == code  # type: ignore[union-attr]
    assert client.closed
    ((_, fields),) = [event for event in node.events if event[0] == "connect refused"]
    assert fields["detail"] == "banned: client_id c: was rude"


def test_a_ban_ends_the_connections_it_is_about() -> None:
    node = MemoryBroker()
    bad, good = node.connect("bad", 5, username="eve"), node.connect("good", 5, username="bob")
    node.broker.bans.add("username", "eve")
    assert node.broker.enforce_bans() == 1
    (packet,) = bad.take()
    assert packet.reason_code == 0x98  # type: ignore[union-attr]
    assert bad.closed
    assert not good.closed


def test_the_file_is_plain_json(tmp_path: Path) -> None:
    path = tmp_path / "bans.json"
    Bans(str(path), Time()).add("client_id", "c", "r")
    assert json.loads(path.read_text()) == [
        {"kind": "client_id", "value": "c", "reason": "r", "until": None, "since": 1000.0}
    ]


class Server:
    """A broker of which drawers are all there is; `kept` is what a store was told."""

    def __init__(self) -> None:
        self.journal = Journal()


def test_bans_of_a_store_are_in_it_and_come_from_it(tmp_path: Path) -> None:
    drawers = Drawers(Server())
    seconds = Time()
    drawer = drawers.open(DRAWER, 1 << 20)
    bans = Bans(str(tmp_path / "bans.json"), seconds, drawer)
    assert bans.take_in() == []
    bans.add("username", "u" * 70_000, "was rude")
    seconds.now += 1
    bans.add("peerhost", "10.0.0.0/8", until=2000.0)
    bans.add("client_id", "c", until=1010.0, stored=False)
    bans.add("client_id", "lifted")
    assert bans.remove("client_id", "lifted")
    assert not (tmp_path / "bans.json").exists()
    assert len(drawer) == 3
    seconds.now = 1500.0
    again = Bans("", seconds, drawer)
    assert again.take_in() == []
    assert [(ban.value[:9], ban.reason, ban.until) for ban in again.list()] == [
        ("uuuuuuuuu", "was rude", None),
        ("10.0.0.0/", "", 2000.0),
    ]
    assert banned(again, "x", None, "10.1.1.1")
    assert not banned(again, "c", None)
    assert len(drawer) == 2, "what is over is not kept either"


def test_a_file_of_before_moves_into_the_store(tmp_path: Path) -> None:
    path = tmp_path / "bans.json"
    seconds = Time()
    Bans(str(path), seconds).add("username", "old", "of the file")
    drawer = Drawers(Server()).open(DRAWER, 1 << 20)
    drawer.put("client_id bad", b"{")
    drawer.put("peerhost x", b'{"kind": "peerhost", "value": "nowhere", "since": 1.0}')
    drawer.put("username new", Ban("username", "new", since=5.0).dump())
    bans = Bans(str(path), seconds, drawer)
    assert bans.take_in() == ["client_id bad", "peerhost x"]
    assert [ban.value for ban in bans.list()] == ["new", "old"]
    assert not path.exists() and (tmp_path / "bans.json.moved").exists()
    assert load_ban(drawer.get("username old") or b"").reason == "of the file"


def test_a_store_that_takes_no_more_refuses_a_ban_but_no_automatic_one() -> None:
    drawers = Drawers(Server())
    bans = Bans(drawer=drawers.open(DRAWER, 1 << 20))
    drawers.stuck = True
    with pytest.raises(OSError, match="disk"):
        bans.add("client_id", "c")
    assert not banned(bans)
    bans.add("client_id", "c", stored=False)
    assert banned(bans)


def test_automatic_bans_are_bounded_by_number_and_bytes_and_leave_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mqttd.broker.rights.bans.MOST", 5)
    monkeypatch.setattr("mqttd.broker.rights.bans.MOST_AUTOMATIC", 3)
    monkeypatch.setattr("mqttd.broker.rights.bans.AUTOMATIC_BYTES", 1000)
    bans = Bans()
    for number in range(10):
        bans.add("client_id", f"c{number}", until=1e12, stored=False)
    assert [ban.value for ban in bans.list()] == ["c7", "c8", "c9"]
    bans.add("client_id", "x" * 996, until=1e12, stored=False)
    assert [ban.value[:2] for ban in bans.list()] == ["c8", "c9", "xx"]
    bans.add("client_id", "c8")  # an operator's from now on
    bans.add("client_id", "mine")
    for number in range(10):
        bans.add("client_id", f"d{number}", until=1e12, stored=False)
    assert [ban.value for ban in bans.list()] == ["c8", "mine", "d7", "d8", "d9"]
    assert bans.remove("client_id", "d8")
    bans.add("client_id", "last", until=1e12, stored=False)
    assert [ban.value for ban in bans.list()][2:] == ["d7", "d9", "last"]


def test_bans_end_each_at_its_time_whatever_was_made_longer_or_lifted() -> None:
    now = [0.0]
    bans = Bans(seconds=lambda: now[0])
    for number in range(3000):
        bans.add("client_id", f"c{number % 10}", until=1.0 + number % 7)
    bans.add("client_id", "c0", until=100.0)
    bans.add("client_id", "c1")
    bans.remove("client_id", "c2")
    before = {ban.value: ban.until for ban in bans.list()}
    assert len(bans._ends) < 2000
    for second in range(1, 9):
        now[0] = float(second)
        left = {ban.value for ban in bans.list()}
        assert left == {name for name, until in before.items() if until is None or until > second}
