"""The memory budget of a node: what is done, step by step, when more is held than it allows.

    held > 85 %     memory.high_water is told, once
    held > 90 %     large messages that have waited wait on, but for a few
    (`mqttd.broker.ground.room`) held > budget   caches are dropped, memory that is free goes back
    to the system
                    QoS 0 that waits is dropped, and none is kept for later
                    no new session, subscription or retained message is taken in (0x97)
    and 1/128 more  whoever holds most is shed: connection and session end, until 90 % are held
    for 5 s         the same, where somebody new was refused, however little more is held
    held < 90 %     all is as before

Who holds most is a user with all sessions of some size together, or a house (`mqttd.net.fair`) with
those of nobody: so many middle-sized sessions of one go before a large one of another. Of each the
largest go first, and none any more when others hold more. Small sessions, of which a thousand
devices may have some under one name, come after all these, and by their houses. Where all that are
left hold next to nothing together nobody is shed: their end would make no room.

What is there for speed goes before anybody does, and may take a quarter of the budget.

*Held* is what the account says (`mqttd.session.ground.account`), which is too much where messages
are shared: so it is never taken for more than the process has grown since its start, as the system
says, and that is asked for only near the budget.

The process is to stay within the budget and 64 MiB: what it takes beyond 32 MiB before it serves
anybody comes off the budget (`limit`). One that has grown beyond it all the same, though less is
held, gives back what is free. Where that is not enough, since what is free lies between what is
not, *held* is what the process has grown by, for as long as clients hold an eighth of the budget;
below that it is not they who fill it, and to refuse them would help nobody. Those who have not been
let in keep a sixteenth of it then, and connections with large unfinished packets or unread answers
end, the largest first, without their sessions; then the steps above follow.

Retained messages may take half of the budget: the other half is held by somebody who can go. Those
that another process has accepted are taken at every step, as they are one set.

Whether the account is right is looked at too: a process that has grown by far more than is held for
clients has a leak, or holds what nobody weighs. That is the alarm `memory_account`.

Promise: checked after each turn, for a few additions while far from the budget; each step is
counted, logged when it begins, and shown by the alarm `memory` while it lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import nlargest
from typing import Final

from mqttd.broker.memory.shedding import connections, offenders, weight_of
from mqttd.broker.publish.publishing import Publishing
from mqttd.broker.sessions.registry import Registry
from mqttd.codec import reasons
from mqttd.session.session import Session

__all__ = ["LARGEST", "Memory"]

#: How many of those who hold most are shown.
LARGEST: Final = 20
#: In hundredths of the budget: when the hook is told, and when all is as before.
_HIGH: Final = 85
_LOW: Final = 90
#: So much of the budget more is given those who hold most, while nobody new comes; and so little
#: is next to nothing.
_SLACK: Final = 128
#: The part of the budget that topics in use may take.
_CACHED: Final = 4
#: Bytes that may come between two looks at the process.
_MOVED: Final = 2 << 20
#: Sessions that one look sheds at most, and such a part of all: whoever looks walks through them.
_SHED: Final = 64
#: In powers of two below the budget: smaller sessions do not count to their user's. 128 KiB of
#: 512 MiB.
_MIDDLE: Final = 12
#: Milliseconds between two looks at whether the account is right, and looks in a row that say it
#: is not before anybody is told.
_LOOK: Final = 5000
_LOOKS: Final = 12
#: Bytes that the process may have grown by beside what is held and half of that, and beside an
#: eighth of the budget: what is free and has not gone back to the system.
_SPARE: Final = 64 << 20
#: Milliseconds between two times that a process beyond the budget gives back what is free.
_TRIM: Final = 1000
#: Bytes by which the process may grow beyond the budget before that counts as held, ...
_ROOM: Final = 16 << 20
#: ... the part of the budget that has to be held for it, and the part that strangers keep then.
_FLOOR: Final = 8
_STRANGERS: Final = 16
#: Milliseconds for which new clients are refused for the sake of those that hold everything.
_PATIENCE: Final = 5000
#: Milliseconds between two lines about those who were shed.
_TELL: Final = 1000

FINE: Final = 0
CACHES: Final = 1
TIGHT: Final = 2
FULL: Final = 3
SHEDDING: Final = 4

_STEPS: Final = (
    "",
    "caches are dropped",
    "QoS 0 messages that would wait are dropped",
    "new sessions, subscriptions and retained messages are refused",
    "whoever holds most is shed",
)


class Memory:
    """Keeps a broker within `settings.memory_budget`, or what `watch` says; 0: there is none."""

    def __init__(self, broker: Publishing, registry: Registry) -> None:
        self.broker = broker
        self.registry = registry
        self.budget: int = broker.settings.memory_budget
        #: The budget without what the process takes more than it should.
        self.limit: int = self.budget
        self.grown: Callable[[], int] = _unknown
        self.caches: list[Callable[[], object]] = []
        #: What others hold for clients in this process, in bytes; asked a few times a second.
        self.others: list[Callable[[], float]] = []
        self._others: int = 0
        #: The last step that was taken.
        self.step: int = FINE
        #: memory.high_water was told.
        self.high: bool = False
        self._process: int = 0
        self._asked_at: int = -1
        self._told_at: int = -_TELL
        #: From when on those who are new have been refused.
        self._full_at: int = 0
        self._default: int = 0
        self._shed: int = 0
        self._shed_at: int = -1
        self._shed_used: int = 0
        #: By how much the process has grown, when that was looked at last; 0: nobody knows.
        self.growth: int = 0
        self._looked_at: int = broker.now
        #: Looks in a row that found far more than the account says.
        self._odd: int = 0
        self._own: int = 0
        self._trimmed_at: int = broker.now
        #: By how much the process had grown at the last tick, and what was held then.
        self._seen: int = 0
        self._seen_used: int = 0
        #: When nobody was found whose end would give back much.
        self._nobody_at: int = -_TRIM
        self._share_out()

    def watch(
        self, default: int, grown: Callable[[], int], cache: Callable[[], object], own: int = 0
    ) -> None:
        """What only the process knows.

        default: the budget where the configuration has none; grown: by how many bytes the process
        has grown since the start, 0 where nobody knows; cache: gives up what is there for speed;
        own: bytes that the process takes by itself, beyond what the budget leaves it.
        """
        self._default = default
        self._own = own
        self.grown = grown
        self.caches.append(cache)
        self.configure()

    def configure(self) -> None:
        """Hold to the settings as they are now."""
        settings = self.broker.settings
        account = self.broker.account
        account.per_session = settings.memory_per_session
        if settings.memory_per_user and not account.per_user:
            self._count_flying()
        account.per_user = settings.memory_per_user
        self.budget = settings.memory_budget if settings.memory_budget else self._default
        self.limit = self.budget - min(self._own, self.budget // 4)
        self._share_out()

    def _share_out(self) -> None:
        """Retained messages and topics in use belong to nobody who could be shed."""
        broker = self.broker
        broker.retainer.share = self.limit // 2
        most = broker.settings.topic_cache_bytes
        if self.limit and self.limit // _CACHED < most:
            most = self.limit // _CACHED
        broker.router.max_bytes = most

    def _count_flying(self) -> None:
        """There is a limit for users from now on: count what is in flight to each."""
        for purse in self.broker.account.purses.values():
            purse.flying = 0
        for session in self.broker.sessions.values():
            if session.purse is not None:
                session.purse.flying += session.flying()

    def used(self) -> int:
        """What the account says."""
        broker = self.broker
        account = broker.account
        retainer = broker.retainer
        account.retained = retainer.bytes + retainer.held
        account.topics = broker.router.bytes
        account.output = broker.backlog + broker.fans.bytes
        account.other = self._others + broker.journal.unwritten + broker.journal.reading
        return account.used()

    def held(self, fresh: bool = False) -> int:
        """What is held, as far as account and process agree; `fresh`: ask the system now."""
        used = self.used()
        # What weights may be short of.
        most = used + used // 4
        # Divided, not multiplied: a product of large numbers looks for signals half way, and a
        # watchdog that breaks a plugin off right there ends the process (CPython 3.11, mypyc).
        beyond = self._beyond(used)
        if beyond > 0 and used > self.limit // _FLOOR:
            return self.limit + beyond
        if most // _HIGH < self.limit // 100:
            return used
        if fresh or self._asked_at < 0 or abs(used - self._asked_at) > _MOVED:
            self._asked_at = used
            self._process = self.grown()
        process = self._process
        return most if 0 < most < process else (process if process else used)

    def check(self, fresh: bool = False) -> None:
        """Look at what is held, and take the steps that follow."""
        budget = self.limit
        if fresh:
            other = 0
            for asked in self.others:
                other += int(asked())
            self._others = other
            if budget:
                self._see(budget)
            if self.broker.now - self._looked_at >= _LOOK:
                self._looked_at = self.broker.now
                self._compare(budget)
        if not budget:
            self.broker.room.see(False, fresh)
            return
        held = self.held(fresh)
        self.broker.room.see(held // _LOW >= budget // 100, fresh)
        if held // _HIGH < budget // 100:
            self.high = False
        elif not self.high:
            self.high = True
            if "memory.high_water" in self.broker.points:
                self.broker.hooks.run_hooks("memory.high_water", (held, budget))
        if held > budget:
            self._save(budget)
        elif self.step and held // _LOW < budget // 100:
            self._relax()
        if self.step >= FULL and self.broker.account.refused:
            self._make_way(budget)

    def _beyond(self, used: int) -> int:
        """By how much the process is larger than it may be, where `used` is held by now."""
        return self._seen + used - self._seen_used - self.limit - _ROOM if self._seen else 0

    def _see(self, budget: int) -> None:
        """Look at the process; one that has grown beyond the budget gives back what is free."""
        grown = self.grown()
        if grown > budget and self.broker.now - self._trimmed_at >= _TRIM:
            self._trimmed_at = self.broker.now
            for cache in self.caches:
                cache()
            grown = self.grown()
        self._seen = grown
        self._seen_used = self.used()

    def unexplained(self) -> int:
        """Bytes by which the process has grown more than what is held accounts for."""
        used = self.used()
        more = self.growth - used - used // 2
        return more if more > 0 else 0

    def _compare(self, budget: int) -> None:
        """See whether the account and the process tell of the same memory."""
        self.growth = self.grown()
        more = self.unexplained() - _SPARE
        alarms = self.broker.alarms
        if not budget or more <= budget // 8:
            if self._odd >= _LOOKS:
                alarms.clear("memory_account")
            self._odd = 0
            return
        self._odd += 1
        if self._odd == _LOOKS - 1:
            for cache in self.caches:
                cache()  # what is free goes back to the system, before it is called held
        if self._odd >= _LOOKS:
            alarms.activate(
                "memory_account",
                f"the process has grown by {self.growth >> 20} MiB, {self.used() >> 20} MiB of it"
                " are held for clients: a plugin or a leak has the rest",
            )

    # -- steps ---------------------------------------------------------------------------------

    def _save(self, budget: int) -> None:
        """One step after the other until what is held fits."""
        broker = self.broker
        account = broker.account
        if self.step < CACHES:
            self._drop_caches()
            self._begin(CACHES)
        over = self.held(True) - budget
        strangers = account.unauthenticated
        if over > 0 and strangers > budget // _STRANGERS:
            broker.crowd_out(budget // _STRANGERS)
            broker.perform_later()
            over -= strangers - account.unauthenticated
        beyond = self._beyond(self.used())
        if over > 0 and beyond > 0:
            over -= self._hang_up(beyond)
        if over <= 0:
            return  # what was ended gives it back at the end of the turn
        if self.held(True) > budget:
            if self.step < TIGHT:
                account.tight = True
                self._begin(TIGHT)
                self._drop_qos0()
            if self.held(True) > budget:
                if self.step < FULL:
                    account.full = True
                    account.refused = False
                    self._full_at = broker.now
                    self._begin(FULL)
                    self._drop_caches()
                if self.held(True) > budget + budget // _SLACK:
                    if broker.router.bytes > budget // _SLACK:
                        self._drop_caches()  # new topics have come since
                    if self.held(True) > budget + budget // _SLACK:
                        self._shed_largest(budget)

    def _make_way(self, budget: int) -> None:
        """Those who are new are refused for the sake of whoever holds most, but not for long."""
        broker = self.broker
        if broker.now - self._full_at >= _PATIENCE:
            self._full_at = broker.now
            broker.account.refused = False
            self._shed_largest(budget)

    def _hang_up(self, beyond: int) -> int:
        """Disconnect whose unfinished packets and unread answers are largest; sessions stay.

        That gives back what the process can give back, and loses nothing that was acknowledged.
        Returns how many bytes.
        """
        broker = self.broker
        if broker.now - self._nobody_at < _TRIM:
            return 0
        found = connections(broker.sessions.values(), broker.channel_of)
        if not found:
            self._nobody_at = broker.now
        freed: int = 0
        for minus, _, channel in found[:_SHED]:
            if freed >= beyond:
                break
            freed -= minus
            broker.metrics.memory_hung_up += 1
            broker.end_channel(channel, reasons.QUOTA_EXCEEDED, "it held most of a full memory")
        if freed:
            broker.perform_later()
        return freed

    def _begin(self, step: int) -> None:
        broker = self.broker
        self.step = step
        broker.log(
            "memory short",
            {"step": _STEPS[step], "held": self.held(), "budget": self.budget},
        )
        broker.alarms.activate("memory", f"the memory budget is used up: {_STEPS[step]}")

    def _relax(self) -> None:
        """There is room again."""
        broker = self.broker
        self.step = FINE
        broker.account.tight = False
        broker.account.full = False
        broker.log("memory enough", {"held": self.held(), "budget": self.budget})
        broker.alarms.clear("memory")

    def _drop_caches(self) -> None:
        broker = self.broker
        broker.metrics.memory_caches_dropped += 1
        broker.router.drop_cache()
        for cache in self.caches:
            cache()

    def _drop_qos0(self) -> None:
        """What waits with QoS 0 is dropped."""
        for session in list(self.broker.sessions.values()):
            mqueue = session.mqueue
            if mqueue is not None and mqueue.qos0:
                session.drop_qos0()

    def _shed_largest(self, budget: int) -> None:
        """Those who hold most go, until what they held covers what is over 90 % of the budget."""
        broker = self.broker
        used = broker.account.used()
        if broker.now == self._shed_at and used - self._shed_used < _MOVED:
            return  # nothing has come since everybody was looked at
        self._shed_at = broker.now
        too_much = self.held() - budget + budget // 10
        gone = 0
        most = _SHED + len(broker.sessions) // _SHED
        left, found = offenders(broker.sessions.values(), most, budget >> _MIDDLE)
        for weight, session in found:
            if too_much <= 0 or left < budget // _SLACK:
                break
            left -= weight
            if self.step < SHEDDING:
                self._begin(SHEDDING)
            too_much -= weight
            gone += 1
            self._end(session, weight)
        self._shed_used = broker.account.used()
        if gone:
            for cache in self.caches:
                cache()
            self._asked_at = -1
            broker.perform_later()

    def _end(self, session: Session, weight: int) -> None:
        broker = self.broker
        broker.metrics.memory_shed += 1
        self._shed += 1
        if broker.now - self._told_at >= _TELL:
            self._told_at = broker.now
            broker.log(
                "session shed",
                {
                    "client_id": session.client_id,
                    "username": session.username,
                    "bytes": weight,
                    "sessions": self._shed,
                },
            )
            self._shed = 0
        self.registry.discard(session, reasons.QUOTA_EXCEEDED, "it held most of a full memory")

    # -- shown ---------------------------------------------------------------------------------

    def describe(
        self, sessions: list[Session] | None = None, held_by: dict[str, int] | None = None
    ) -> dict[str, object]:
        """Who holds what: by kind, and those who hold most.

        These are looked for, unless `sessions` are they and `held_by` says what those of each user
        hold.
        """
        broker = self.broker
        account = broker.account
        budget = self.budget
        used = self.used()
        retained = broker.retainer.users
        if sessions is None or held_by is None:
            sessions = nlargest(LARGEST, broker.sessions.values(), key=weight_of)
            held_by = {}
            for session in broker.sessions.values():
                if session.username is not None:
                    known = held_by.get(session.username, 0)
                    held_by[session.username] = known + weight_of(session)
        for name, kept in retained.items():
            held_by[name] = held_by.get(name, 0) + kept.bytes
        users = nlargest(LARGEST, held_by, key=held_by.__getitem__)
        return {
            "budget": budget,
            "used": used,
            "grown": self.grown(),
            "unexplained": self.unexplained(),
            "held": self.held(True),
            "step": _STEPS[self.step],
            "unauthenticated": account.unauthenticated,
            "kinds": account.by_kind(),
            "sessions": [
                {
                    "client_id": session.client_id,
                    "username": session.username,
                    "connected": session.channel is not None,
                    "bytes": weight_of(session),
                    "queued": session.mqueue.held if session.mqueue is not None else 0,
                    "inflight": session.flying(),
                    "subscriptions": session.subscribed(),
                }
                for session in sessions
            ],
            "users": [
                {
                    "username": name,
                    "sessions": account.purses[name].sessions if name in account.purses else 0,
                    "bytes": held_by[name],
                    "retained": retained[name].count if name in retained else 0,
                }
                for name in users
            ],
        }


def _unknown() -> int:
    return 0
