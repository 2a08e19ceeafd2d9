"""Who fails to log in again and again: answered late, then refused for a while that grows.

    a failed log-in counts for    user_limit  x 1   client (user name and client id) from this house
                                              x 5   user name, from this house
                                  address_limit     house

    over `delay_after`   the answer is put off, by 1, 2, 4 ... x delay
    at the limit         refused unasked, for 1, 2, 4 ... x ban up to max_ban

A house is an address, or the /64 of one (`mqttd.net.fair`). A user name is counted for each house
by itself: a stranger who tries one from elsewhere locks nobody out. Whoever got in from a house
before is refused there for its own failures alone, not for those of others; devices that share a
name or an address do not pay for one of them.

Promise: a log-in costs a few look-ups; at most `MOST` counts and as many clients that got in are
kept, those of the longest ago go first, of a long name its hash. Of a client that got in there are
a few bytes (`mqttd.access.auth.known`). Times are seconds of any clock that is handed in.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from mqttd.access.auth.known import Known
from mqttd.config.schema import AuthFailures
from mqttd.net.fair import house_of
from mqttd.types import ClientInfo

__all__ = ["MOST", "Failures"]

#: Counts that are kept, and clients that are known to have got in.
MOST: Final = 100_000
#: How many times `user_limit` a user name has, whatever the client ids.
_CLIENTS: Final = 5
#: Characters of a name that is kept as it is: strangers choose names, of up to 65,535 bytes.
_SHORT: Final = 64
#: Seconds by which an answer is put off at most.
_LONGEST: Final = 4.0

#: House, user name, client id; a house and a user name alone have "" in the places behind them.
_Key = tuple[str, str, str]


class _Count:
    """Failures within a window, and bans so far."""

    __slots__ = ("bans", "barred_until", "failures", "since")

    def __init__(self, now: float) -> None:
        self.failures = 0
        self.since = now
        self.bans = 0
        self.barred_until = 0.0


class Failures:
    """The failed log-ins of one chain, judged by the settings; at most `most` of each kind."""

    def __init__(self, settings: AuthFailures, most: int = MOST) -> None:
        self.settings = settings
        self.most = most
        #: Who has failed of late; empty while nobody has.
        self.counts: dict[_Key, _Count] = {}
        #: Clients that got in.
        self._known = Known(most)

    def bars(self, client: ClientInfo, now: float) -> float:
        """Seconds that this client stays out; 0 if it may be asked about."""
        if not self.counts:
            return 0.0
        key = _key(client, client.username)
        left = self._left(key, now)
        if not left and key not in self._known:
            house, user, _ = key
            left = max(self._left((house, user, ""), now), self._left((house, "", ""), now))
        return left

    def let_in(self, client: ClientInfo, username: str | None) -> None:
        """It is who it says; `username` is what it said."""
        key = _key(client, username)
        self._known.add(key)
        if self.counts:
            self.counts.pop(key, None)

    def note(self, client: ClientInfo, username: str | None, now: float) -> tuple[float, float]:
        """It has failed: seconds to put the answer off, and of a ban that begins with it (or 0)."""
        settings = self.settings
        key = _key(client, username)
        house, user, _ = key
        own, ban = self._add(key, settings.user_limit, now)
        all_of_user, ban_of_user = self._add((house, user, ""), settings.user_limit * _CLIENTS, now)
        _, ban_of_house = self._add((house, "", ""), settings.address_limit, now)
        over = max(own, all_of_user // _CLIENTS) - settings.delay_after
        delay = 0.0
        if settings.delay and over > 0:
            delay = min(settings.delay * 2.0 ** min(over - 1, 20), _LONGEST)
        return delay, max(ban, ban_of_user, ban_of_house)

    def _left(self, key: _Key, now: float) -> float:
        count = self.counts.get(key)
        return max(count.barred_until - now, 0.0) if count is not None else 0.0

    def _add(self, key: _Key, limit: int, now: float) -> tuple[int, float]:
        """Count one: how many there are now, and the seconds of the ban that brings."""
        settings = self.settings
        counts = self.counts
        count = counts.pop(key, None)
        if count is None:
            if len(counts) >= self.most:
                del counts[next(iter(counts))]
            count = _Count(now)
        passed = (now - max(count.since, count.barred_until)) / settings.window
        if passed > 1:
            # As many bans fewer as windows have passed.
            count.failures = 0
            count.bans = max(count.bans - int(passed), 0)
            count.since = now
        counts[key] = count
        count.failures += 1
        failures = count.failures
        if not limit or failures < limit:
            return failures, 0.0
        seconds = min(settings.ban * 2.0 ** min(count.bans, 30), settings.max_ban)
        count.bans += 1
        # After the ban a few more are taken before the next one.
        count.failures = limit - max(limit // 4, 1)
        count.since = now
        count.barred_until = now + seconds
        return failures, seconds


def _key(client: ClientInfo, username: str | None) -> _Key:
    # A name is never empty here: those without one are told apart from those called "".
    user = "?" if username is None else _name(username)
    return house_of(client.peerhost), user, _name(client.client_id)


def _name(text: str) -> str:
    """What stands for a name, of bounded length."""
    if len(text) <= _SHORT:
        return f"={text}"
    return f"#{blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"
