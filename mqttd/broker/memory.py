"""The memory budget of a node: what is done, step by step, when more is held than it allows.

    held > 85 %     memory.high_water is told, once
    held > budget   caches are dropped, memory that is free goes back to the system
                    QoS 0 that waits is dropped, and none is kept for later
                    no new session, subscription or retained message is taken in (0x97)
    and 1/128 more  whoever holds most is shed: connection and session end
    held < 90 %     all is as before

*Held* is what the account says (`mqttd.session.account`), which is too much where messages are
shared: so it is never taken for more than the process has grown since its start, as the system
says, and that is asked for only near the budget.

Retained messages may take half of the budget: the other half is held by somebody who can go.

Promise: checked after each turn, for a few additions while far from the budget; each step is
counted, logged when it begins, and shown by the alarm `memory` while it lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import nlargest
from typing import Final

from mqttd.broker.publishing import Publishing
from mqttd.broker.registry import Registry
from mqttd.codec import reasons
from mqttd.session.account import SESSION
from mqttd.session.session import Session

__all__ = ["LARGEST", "Memory"]

#: How many of those who hold most are shown.
LARGEST: Final = 20
#: In hundredths of the budget: when the hook is told, and when all is as before.
_HIGH: Final = 85
_LOW: Final = 90
#: So much of the budget more is given those who hold most, while nobody new comes.
_SLACK: Final = 128
#: Bytes that may come between two looks at the process.
_MOVED: Final = 2 << 20
#: Sessions that one look sheds at most.
_SHED: Final = 64
#: A session that holds less is not shed: it cannot have grown, and none begins any more.
_WORTH: Final = 4 * SESSION
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
        self.grown: Callable[[], int] = _unknown
        self.caches: list[Callable[[], object]] = []
        #: What others hold for clients in this process, in bytes; asked a few times a second.
        self.others: list[Callable[[], float]] = []
        #: The last step that was taken.
        self.step: int = FINE
        #: memory.high_water was told.
        self.high: bool = False
        self._process: int = 0
        self._asked_at: int = -1
        self._told_at: int = -_TELL
        self._default: int = 0
        broker.retainer.share = self.budget // 2
        self._shed: int = 0
        self._shed_at: int = -1
        self._shed_used: int = 0

    def watch(self, default: int, grown: Callable[[], int], cache: Callable[[], object]) -> None:
        """What only the process knows.

        default: the budget where the configuration has none; grown: by how many bytes the process
        has grown since the start, 0 where nobody knows; cache: gives up what is there for speed.
        """
        self._default = default
        self.grown = grown
        self.caches.append(cache)
        self.configure()

    def configure(self) -> None:
        """Hold to the settings as they are now."""
        settings = self.broker.settings
        account = self.broker.account
        account.per_session = settings.memory_per_session
        account.per_user = settings.memory_per_user
        self.budget = settings.memory_budget if settings.memory_budget else self._default
        # Retained messages belong to nobody who could be shed.
        self.broker.retainer.share = self.budget // 2

    def used(self) -> int:
        """What the account says."""
        broker = self.broker
        account = broker.account
        retainer = broker.retainer
        account.retained = retainer.bytes + retainer.held
        account.topics = broker.router.bytes
        account.output = broker.backlog
        return account.used()

    def held(self, fresh: bool = False) -> int:
        """What is held, as far as account and process agree; `fresh`: ask the system now."""
        used = self.used()
        # What weights may be short of.
        most = used + used // 4
        # Divided, not multiplied: a product of large numbers looks for signals half way, and a
        # watchdog that breaks a plugin off right there ends the process (CPython 3.11, mypyc).
        if most // _HIGH < self.budget // 100:
            return used
        if fresh or self._asked_at < 0 or abs(used - self._asked_at) > _MOVED:
            self._asked_at = used
            self._process = self.grown()
        process = self._process
        return most if 0 < most < process else (process if process else used)

    def check(self, fresh: bool = False) -> None:
        """Look at what is held, and take the steps that follow."""
        budget = self.budget
        if fresh:
            other = 0
            for asked in self.others:
                other += int(asked())
            self.broker.account.other = other
        if not budget:
            return
        held = self.held(fresh)
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

    # -- steps ---------------------------------------------------------------------------------

    def _save(self, budget: int) -> None:
        """One step after the other until what is held fits."""
        broker = self.broker
        account = broker.account
        if self.step < CACHES:
            self._drop_caches()
            self._begin(CACHES)
        if self.held(True) > budget:
            if self.step < TIGHT:
                account.tight = True
                self._begin(TIGHT)
                self._drop_qos0()
            if self.held(True) > budget:
                if self.step < FULL:
                    account.full = True
                    self._begin(FULL)
                    self._drop_caches()
                if self.held(True) > budget + budget // _SLACK:
                    self._shed_largest(budget)

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
        """Those who hold most go, until what they held covers what is too much."""
        broker = self.broker
        used = broker.account.used()
        if broker.now == self._shed_at and used - self._shed_used < _MOVED:
            return  # nothing has come since everybody was looked at
        self._shed_at = broker.now
        too_much = self.held() - budget * _LOW // 100
        gone = 0
        for session in nlargest(_SHED, broker.sessions.values(), key=weight_of):
            weight = weight_of(session)
            if too_much <= 0 or weight < _WORTH:
                break
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

    def describe(self) -> dict[str, object]:
        """Who holds what: by kind, and those who hold most."""
        broker = self.broker
        account = broker.account
        budget = self.budget
        used = self.used()
        sessions = nlargest(LARGEST, broker.sessions.values(), key=weight_of)
        users = nlargest(LARGEST, account.purses.values(), key=_bytes_of)
        return {
            "budget": budget,
            "used": used,
            "grown": self.grown(),
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
                    "queued": session.mqueue.size if session.mqueue is not None else 0,
                    "inflight": session.flying(),
                    "subscriptions": len(session.subscriptions or ()),
                }
                for session in sessions
            ],
            "users": [
                {"username": purse.name, "sessions": purse.sessions, "bytes": purse.bytes}
                for purse in users
            ],
        }


def weight_of(session: Session) -> int:
    """What a session and its connection hold."""
    weight = session.weight + session.flying()
    channel = session.channel
    if channel is not None:
        weight += channel.out_bytes + channel.held()
    return weight


def _bytes_of(purse: object) -> int:
    return int(getattr(purse, "bytes", 0))


def _unknown() -> int:
    return 0
