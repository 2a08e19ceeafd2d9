"""Who must stay out whatever it shows: client identifiers, user names, addresses, and clients.

    ban --> store, or bans.json --> every CONNECT is compared with it, before any module is asked
     |
     '--> connections that it is about end (DISCONNECT 0x98), their sessions stay

With a store on disk they are in its drawer `DRAWER`, one JSON object each; a file of before moves
there. Without one they are in the file, which is replaced as a whole, mode 0600. A ban ends by
itself at its time, if it has one. One of a *client* is of a client identifier in the hands of one
user, or of one house (`mqttd.net.fair`) where there is no name: others may have it.

Promise: comparing costs four look-ups, and one more for each banned network; at most `MOST` bans
and `MOST_NETWORKS` networks; a file that cannot be read keeps the broker from starting.
"""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import json
import os
import time
from collections.abc import Callable, Container
from dataclasses import asdict, dataclass
from heapq import heapify, heappop, heappush
from typing import Any, Final

from mqttd.broker.ground.drawers import MOST_KEY, Drawer
from mqttd.broker.ground.roles import ANONYMOUS
from mqttd.net.fair import house_of
from mqttd.secrets.files import replace_file
from mqttd.types import StoreFull

__all__ = [
    "DRAWER",
    "KINDS",
    "MOST",
    "MOST_NETWORKS",
    "Ban",
    "BanError",
    "Bans",
    "client_value",
    "load_ban",
]

#: The name of their drawer, which no plugin can have.
DRAWER: Final = "$bans"

#: What a ban may be about.
KINDS: Final = ("client_id", "username", "peerhost", "client")
MOST: Final = 100_000
MOST_NETWORKS: Final = 1000
#: Of these bans the automatic ones, and the bytes of whom they name: the oldest makes room.
MOST_AUTOMATIC: Final = 50_000
AUTOMATIC_BYTES: Final = 16 << 20

#: The end of the last year with four digits.
_NEVER: Final = 253_402_300_800

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class BanError(ValueError):
    """A ban that is none, or a file of bans that cannot be used; the text says what to do."""


@dataclass(slots=True, frozen=True)
class Ban:
    """One ban; ``until`` is in seconds since 1970, None for ever."""

    kind: str
    value: str
    reason: str = ""
    until: float | None = None
    since: float = 0.0

    def dump(self) -> bytes:
        """As JSON, the way a store keeps it."""
        return json.dumps(asdict(self)).encode()

    def key(self) -> str:
        """What a store keeps it under; a value that is too long for a key is named by its hash."""
        key = f"{self.kind} {self.value}"
        if len(key.encode()) > MOST_KEY:
            key = f"{self.kind} sha256 {hashlib.sha256(self.value.encode()).hexdigest()}"
        return key


def client_value(client_id: str, username: str | None, peerhost: str) -> str:
    """Whom a ban of this client is about: ``["pump-7", "alice"]``, ``["pump-7", null, HOUSE]``."""
    whose = [username] if username is not None else [None, house_of(peerhost)]
    return json.dumps([client_id, *whose])


def load_ban(data: bytes | str) -> Ban:
    """What `Ban.dump` has made, or one entry of a file. Raises ValueError."""
    try:
        ban = _ban(json.loads(data))
    except RecursionError as error:
        raise ValueError(f"no ban: {error}") from None
    # What is no number, or in no calendar, can be neither compared nor shown.
    if not (abs(ban.since) < _NEVER and (ban.until is None or abs(ban.until) < _NEVER)):
        raise ValueError("since and until: expected seconds since 1970")
    f"{ban.value}{ban.reason}".encode()  # half of a character is none
    return ban


class Bans:
    """The bans of one broker, kept in the file `path` ("": nowhere), or in a drawer.

    With a drawer the file is only read, and goes when its bans are kept there: see `take_in`.
    Raises BanError for a file that cannot be used, naming it.
    """

    def __init__(
        self,
        path: str = "",
        seconds: Callable[[], float] = time.time,
        drawer: Drawer | None = None,
    ) -> None:
        self.path = path
        self.drawer = drawer
        self._seconds = seconds
        #: User names that are disabled: banned, until they are enabled again.
        self.disabled: Container[str] = ()
        self._bans: dict[tuple[str, str], Ban] = {}
        self._networks: dict[str, Network] = {}
        #: When bans end, and which; some of these have been lifted since, or made longer.
        self._ends: list[tuple[float, tuple[str, str]]] = []
        #: Automatic bans, the oldest first, and how many bytes name whom each is about.
        self._automatic: dict[tuple[str, str], int] = {}
        self._automatic_bytes = 0
        #: Told of each ban that is made (True) or lifted; one of those that are over is not.
        self.told: Callable[[Ban, bool], object] | None = None
        #: Calls what it is given with "" when all others have heard of what was told, or can; with
        #: the reason when that has to wait.
        self.when_told: Callable[[Callable[[str], None]], object] = lambda heard: heard("")
        if path and os.path.exists(path):
            self._load()

    def __len__(self) -> int:
        return len(self._bans)

    def take_in(self) -> list[str]:
        """What the drawer has kept; bans of the file that it does not have move there.

        Returns what of it could not be read, by its keys.
        """
        drawer = self.drawer
        assert drawer is not None
        before, self._bans, self._networks = self._bans, {}, {}
        found: list[Ban] = []
        bad: list[str] = []
        for key in drawer.keys():
            try:
                found.append(load_ban(drawer.get(key) or b""))
            except ValueError:
                bad.append(key)
        for ban in sorted(found, key=lambda each: each.since):
            self._put(ban)
        for name, ban in before.items():
            if name not in self._bans:
                drawer.put(ban.key(), ban.dump())
                self._put(ban)
        if self.path and os.path.exists(self.path):
            drawer.when_kept(self._file_done)
        return bad

    def _file_done(self) -> None:
        os.replace(self.path, f"{self.path}.moved")

    def _put(self, ban: Ban) -> None:
        self._bans[(ban.kind, ban.value)] = ban
        self._note_end(ban)
        if ban.kind == "peerhost":
            _, network = _address(ban.value)
            if network is not None:
                self._networks[ban.value] = network

    def when_kept(self, told: Callable[[str], None]) -> None:
        """Call `told("")` when every change so far outlasts the process, as far as one does; or
        with the reason when that has to wait: the store cannot be written.
        """
        if self.drawer is None:
            told("")
        else:
            self.drawer.when_sure(told)

    def add(
        self,
        kind: str,
        value: str,
        reason: str = "",
        until: float | None = None,
        stored: bool = True,
        since: float = 0.0,
    ) -> Ban:
        """Ban until a second since 1970 (None: for ever), in place of a ban there is.

        since: when it was made, where that was elsewhere (0: now).
        With `stored` False the file is not written for it, which is too slow for automatic bans; a
        store that takes no more is no hindrance to these, and the oldest makes room for another.
        Raises BanError for a kind or value that cannot be, OSError if it cannot be stored.
        """
        if kind not in KINDS:
            raise BanError(f"kind = {kind!r}: expected one of {', '.join(KINDS)}")
        if not value:
            raise BanError(f"an empty {kind} cannot be banned")
        network = None
        if kind == "peerhost":
            value, network = _address(value)
        elif kind == "client":
            _check_client(value)
        self._purge()
        if not stored:
            self._make_room(len(value))
        if (kind, value) not in self._bans and len(self._bans) >= MOST:
            raise BanError(f"there are {MOST} bans; expected no more")
        if network is not None and value not in self._networks:
            if len(self._networks) >= MOST_NETWORKS:
                raise BanError(f"there are {MOST_NETWORKS} banned networks; expected no more")
        ban = Ban(kind, value, reason, until, since or self._seconds())
        if self.drawer is not None:
            try:
                self.drawer.put(ban.key(), ban.dump())
            except StoreFull as error:
                if stored:
                    raise OSError(errno.ENOSPC, str(error)) from None
            self._bans[(kind, value)] = ban
        elif stored:
            self._store({**self._bans, (kind, value): ban})
        else:
            self._bans[(kind, value)] = ban
        self._note_end(ban)
        self._count_automatic((kind, value), 0 if stored else len(value))
        if network is not None:
            self._networks[value] = network
        if self.told is not None:
            self.told(ban, True)
        return ban

    def remove(self, kind: str, value: str) -> bool:
        """Lift a ban; False if there is none.  Raises as `add`."""
        if kind == "peerhost":
            value, _ = _address(value)
        ban = self._bans.get((kind, value))
        if ban is None:
            return False
        if self.drawer is not None:
            self.drawer.delete(ban.key())
            del self._bans[(kind, value)]
        else:
            self._store({key: ban for key, ban in self._bans.items() if key != (kind, value)})
        self._networks.pop(value, None) if kind == "peerhost" else None
        self._count_automatic((kind, value), 0)
        if self.told is not None:
            self.told(ban, False)
        return True

    def of(self, kind: str, value: str) -> Ban | None:
        """The ban that holds of just this one."""
        self._purge()
        return self._bans.get((kind, value))

    def list(self) -> list[Ban]:
        """All bans that hold, the oldest first."""
        self._purge()
        return sorted(self._bans.values(), key=lambda ban: ban.since)

    def disabling(self, username: str | None) -> Ban | None:
        """What keeps this user out because it is disabled; None if it is not."""
        name = username or ANONYMOUS
        return Ban("username", name, "this user is disabled") if name in self.disabled else None

    def match(self, client_id: str, username: str | None, peerhost: str) -> Ban | None:
        """The ban that keeps this client out, None if there is none."""
        bans = self._bans
        if self.disabled and (ban := self.disabling(username)) is not None:
            return ban
        if not bans:
            return None
        found = bans.get(("client_id", client_id))
        if found is None and username is not None:
            found = bans.get(("username", username))
        if found is None:
            found = bans.get(("client", client_value(client_id, username, peerhost)))
        if found is None:
            found = bans.get(("peerhost", peerhost)) or self._in_network(peerhost)
        if found is None or found.until is None or found.until > self._seconds():
            return found
        self._purge()
        return self.match(client_id, username, peerhost)

    def _in_network(self, peerhost: str) -> Ban | None:
        try:
            address = ipaddress.ip_address(peerhost)
        except ValueError:
            return None
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        found = self._bans.get(("peerhost", str(address)))
        if found is not None:
            return found
        for value, network in self._networks.items():
            if address in network:
                return self._bans.get(("peerhost", value))
        return None

    def _purge(self) -> None:
        """Forget bans whose time is over; the file forgets them when it is written next."""
        now, ends = self._seconds(), self._ends
        while ends and ends[0][0] <= now:
            until, key = heappop(ends)
            ban = self._bans.get(key)
            if ban is not None and ban.until is not None and ban.until <= now:
                self._forget(key, ban)

    def _forget(self, key: tuple[str, str], ban: Ban) -> None:
        del self._bans[key]
        if self.drawer is not None:
            self.drawer.delete(ban.key())
        if key[0] == "peerhost":
            self._networks.pop(key[1], None)
        self._count_automatic(key, 0)

    def _note_end(self, ban: Ban) -> None:
        """A ban was made: know when it is over."""
        if ban.until is None:
            return
        heappush(self._ends, (ban.until, (ban.kind, ban.value)))
        if len(self._ends) > 2 * len(self._bans) + 1000:
            self._ends = [
                (each.until, key) for key, each in self._bans.items() if each.until is not None
            ]
            heapify(self._ends)

    def _make_room(self, size: int) -> None:
        """There is to be another automatic ban, of somebody with a name of `size` bytes."""
        automatic = self._automatic
        while automatic and (
            len(automatic) >= MOST_AUTOMATIC or self._automatic_bytes + size > AUTOMATIC_BYTES
        ):
            key = next(iter(automatic))
            self._forget(key, self._bans[key])

    def _count_automatic(self, key: tuple[str, str], size: int) -> None:
        """A ban is an automatic one, or (0) is not any more."""
        self._automatic_bytes += size - self._automatic.pop(key, 0)
        if size:
            self._automatic[key] = size

    def _load(self) -> None:
        try:
            with open(self.path, encoding="utf-8") as file:
                entries = json.load(file)
            for entry in entries:
                self._put(_ban(entry))
        except OSError as error:
            raise BanError(f"{self.path}: {error.strerror}") from None
        except (ValueError, TypeError) as error:
            raise BanError(
                f"{self.path}: no list of bans ({error}); repair it, or move it away to start"
                " without bans"
            ) from None

    def _store(self, bans: dict[tuple[str, str], Ban]) -> None:
        if self.path:
            replace_file(self.path, json.dumps([asdict(ban) for ban in bans.values()], indent=1))
        self._bans = bans


def _ban(entry: Any) -> Ban:
    """A ban of its fields; raises ValueError."""
    try:
        ban = Ban(**entry)
    except TypeError as error:
        raise ValueError(str(error)) from None
    if ban.kind not in KINDS or not isinstance(ban.value, str) or not isinstance(ban.reason, str):
        raise ValueError(f"no ban: {ban.kind!r}")
    if not isinstance(ban.since, int | float) or not isinstance(ban.until, int | float | None):
        raise ValueError("since and until: expected seconds")
    if ban.kind == "peerhost":
        _address(ban.value)
    elif ban.kind == "client":
        _check_client(ban.value)
    return ban


def _check_client(text: str) -> None:
    try:
        client_id, username, *house = json.loads(text)
        strings = isinstance(client_id, str) and isinstance(username, str | None)
        known = client_value(client_id, username, house[0] if house else "") if strings else ""
    except (ValueError, TypeError, AttributeError, RecursionError):
        known = ""
    if text != known:
        expected = '["CLIENT_ID", "USERNAME"] or ["CLIENT_ID", null, "ADDRESS"]'
        raise BanError(f"client = {text!r}: expected {expected}, as JSON")


def _address(text: str) -> tuple[str, Network | None]:
    """An address or network as it is kept, and the network if it is more than one address."""
    if text == "unix":
        return text, None
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise BanError(
            f"peerhost = {text!r}: expected an address or network such as 10.0.0.7 or 10.0.0.0/8"
        ) from None
    if network.num_addresses == 1:
        return str(network.network_address), None
    return str(network), network
