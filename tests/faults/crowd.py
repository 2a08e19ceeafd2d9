"""A crowd of clients that remember, as the standard wants, and a ledger of what each was told.

    publishers   sessions of their own, QoS 1 and 2 by turns, a window of unacknowledged messages
    subscribers  one that stays, one that comes and goes (takes itself over), one that is away
    retained     one topic each publisher counts up in
    wills        of publishers, of who comes and goes, and of two whose sessions end with their
                 connections (5.0 and 3.1.1), a number higher with each connection
    reborn       one that begins anew now and then, with a topic of its own for each life
    pair         a shared group of two, there or away as the dice say

They survive the broker: what was not acknowledged is sent again with DUP, packet ids of QoS 2 are
kept until PUBREL. `faults` compares the ledgers: everything acknowledged was received, QoS 2 once,
each publisher's messages in the order they were sent (of one QoS), retained values never go back,
the will of each connection that was acknowledged and is over has come once, nothing of a life
before comes back, what the shared group is to get one of the two has. The last word of a burst is
an acknowledgement of a message, or a CONNACK, SUBACK or UNSUBACK that came in the midst of others'.
"""

from __future__ import annotations

import random
import select
from collections.abc import Callable, Iterator
from math import inf

from tests.faults.judge import login
from tests.faults.members import DEADLINE, Fleeting, Member, Reborn
from tests.support import packets as mq
from tests.support.waiting import Patience

__all__ = ["Crowd"]


class Crowd:
    """Everybody, and the dice."""

    def __init__(self, seed: int, disk_fails: bool = False, judged: bool = False) -> None:
        self.dice = random.Random(seed)
        self.publishers = [Member(f"p{number}", True, disk_fails) for number in range(3)]
        self.stays, self.away = Member("stays"), Member("away")
        self.comes = Member("comes", has_will=True)
        self.reborn = Reborn("reborn")
        self.fleeting = [Fleeting("flees5", mq.V5), Fleeting("flees3", mq.V311)]
        #: Whose wills are looked at.
        self.willed = [*self.publishers, self.comes, *self.fleeting]
        #: Who is always there, and subscribes to nothing.
        self.alive = [*self.publishers, *self.fleeting, self.reborn]
        self.subscribers = [self.stays, self.comes, self.away]
        self.pair = [Member("one"), Member("other")]
        self.everybody = [*self.alive, *self.subscribers, *self.pair]
        for member in self.everybody:
            member.login = login(member.name) if judged else {}
        self.port = 0

    def begin(self, port: int) -> None:
        """A broker is there (again)."""
        self.port = port
        there = [*self.alive, self.stays, self.comes]
        self.reborn.choose(self.dice)
        if not self.away.known:
            there.append(self.away)
        there.extend(one for one in self.pair if not one.known or self.dice.random() < 0.3)
        self._enter(there)
        for member in self.subscribers:
            if not member.known:
                member.send(mq.subscribe([("c/#", 2), ("w/#", 2)], 1, version=mq.V5))
        for member in self.pair:
            if not member.known:
                member.send(mq.subscribe([("$share/pair/c/#", 2)], 1, version=mq.V5))
        self.until(lambda: all(member.known for member in (*self.subscribers, *self.pair)))
        for member in self.publishers:
            member.known = True
        self.away.close()

    def _enter(self, members: list[Member]) -> None:
        """All of them connect; whoever is told to come later does so at once."""
        for member in members:
            member.close()

        def there() -> bool:
            for member in members:
                if member.sock is None:
                    member.connect(self.port)
            return all(member.connected for member in members)

        self.until(there)

    def burst(self, acknowledgements: int) -> None:
        """Publish until so many acknowledgements have come."""
        count = 0
        patience = Patience(DEADLINE)
        while count < acknowledgements:
            for publisher in self.publishers:
                if publisher.sock is None or self.dice.random() < 0.005:
                    publisher.connect(self.port)
                for _ in range(self.dice.randint(0, 4)):
                    publisher.publish(self.dice)
            for member in (self.comes, *self.fleeting):
                if self.dice.random() < 0.01 or member.sock is None:
                    member.connect(self.port)  # takes itself over
            if self.dice.random() < 0.02 or self.reborn.sock is None:
                self.reborn.choose(self.dice)
                self.reborn.connect(self.port)
            if self.dice.random() < 0.2:
                self.reborn.talk()
            if came := self.turn():
                count += came
                patience = Patience(DEADLINE)
            assert patience.left(), self._told()
        if self.dice.random() < 0.4:
            self._last_word()

    def see_off(self, turns: float = inf) -> None:
        """The broker ends in its own time: publish on, until nobody is there, or for some turns."""
        patience = Patience(DEADLINE)
        while turns > 0 and any(member.sock is not None for member in self.everybody):
            for publisher in self.publishers:
                publisher.publish(self.dice)
            self.turn()
            turns -= 1
            assert patience.left(), self._told()

    def _last_word(self) -> None:
        """Go on until somebody's CONNACK, SUBACK or UNSUBACK has come, and not a packet longer."""
        reborn = self.reborn
        who = self.dice.choice((reborn, reborn, *self.willed))
        if who is reborn:
            reborn.choose(self.dice)
        who.connect(self.port)
        word = self.dice.randrange(3) if who is reborn and not reborn.subscribed else 0
        words: tuple[Callable[[], bool], ...] = (
            lambda: who.connected,
            lambda: reborn.subscribed,
            lambda: reborn.left,
        )
        patience = Patience(DEADLINE)
        while not words[word]():
            if who.sock is None:  # a broker whose loop is late refuses who comes
                who.connect(self.port)
            for publisher in self.publishers:
                publisher.publish(self.dice)
            self.turn(words[word])
            assert patience.left(), self._told()

    def settle(self) -> None:
        """Wait until everything that was published has its answer."""
        for member in self.publishers:
            if member.sock is None:
                member.connect(self.port)
        self.until(lambda: not any(member.unacknowledged for member in self.publishers))

    def finish(self) -> list[str]:
        """Everybody is there, and what is under way comes to its end; returns what is wrong."""
        self._enter([*self.subscribers, *self.pair])
        self.settle()
        patience = Patience(DEADLINE)
        while not self._everything() and patience.left():
            self.turn()
        return self.faults()

    def _everything(self) -> bool:
        """Whether the last of all that is to come has come."""
        last = {}
        for member in self.publishers:
            for qos in (1, 2):
                last[member.name, qos] = member.last(qos)
        for member in self.willed:
            last[f"{member.name}:will", 2] = max(member.wills - {member.will}, default=0)
        if self.reborn.missing() or not all(
            not number or number in member.received.get(key, ())
            for member in self.subscribers
            for key, number in last.items()
        ):
            return False
        return not any(self._missing_to_pair())

    def _missing_to_pair(self) -> Iterator[str]:
        """What the shared group was to get, and neither of the two has, or QoS 2 more than once."""
        one, other = self.pair
        for publisher in self.publishers:
            for qos in (1, 2):
                key = publisher.name, qos
                came = [*one.received.get(key, ()), *other.received.get(key, ())]
                what = f"{publisher.name} to the shared group at QoS {qos}"
                if missing := publisher.acknowledged[qos] - set(came):
                    yield f"{what}: {len(missing)} lost, {sorted(missing)[:5]}"
                if qos == 2 and len(came) != len(set(came)):
                    yield f"{what}: twice, {sorted({n for n in came if came.count(n) > 1})[:5]}"

    def faults(self) -> list[str]:
        """What the ledgers say."""
        found = [fault for member in self.everybody for fault in member.faults]
        if lost := sorted(self.reborn.missing()):
            found.append(f"{self.reborn.name}: {len(lost)} lost, {lost[:5]}")
        found.extend(self._missing_to_pair())
        for subscriber in self.subscribers:
            for member in self.willed:
                what = f"{member.name}'s will to {subscriber.name}"
                came = subscriber.received.get((f"{member.name}:will", 2), [])
                missing = member.wills - {member.will} - set(came)
                if missing:
                    found.append(f"{what}: {len(missing)} lost, {sorted(missing)[:5]}")
                if came != sorted(set(came)):
                    found.append(f"{what}: twice or out of order, {came[-5:]}")
        for publisher in self.publishers:
            for subscriber in (*self.subscribers, *self.pair):
                # What is sent again at QoS 1 may come to the other of the pair, behind later ones.
                for qos in (2,) if subscriber in self.pair else (1, 2):
                    what = f"{publisher.name} to {subscriber.name} at QoS {qos}"
                    came = subscriber.received.get((publisher.name, qos), [])
                    missing = publisher.acknowledged[qos] - set(came)
                    if missing and subscriber not in self.pair:
                        found.append(f"{what}: {len(missing)} lost, {sorted(missing)[:5]}")
                    if qos == 2 and len(came) != len(set(came)):
                        twice = sorted({n for n in came if came.count(n) > 1})
                        found.append(f"{what}: {len(twice)} twice, {twice[:5]}")
                    first = list(dict.fromkeys(came))
                    if first != sorted(first):
                        at = next(i for i in range(1, len(first)) if first[i] < first[i - 1])
                        found.append(f"{what}: out of order, {first[max(0, at - 3) : at + 3]}")
        return found

    def subscriptions(self) -> set[tuple[str, str]]:
        """Client ids, and what each has subscribed to and been told so."""
        found = {(one.name, topic) for one in self.subscribers for topic in ("c/#", "w/#")}
        found |= {(one.name, "$share/pair/c/#") for one in self.pair}
        if self.reborn.subscribed:
            found.add((self.reborn.name, f"l/{self.reborn.life}"))
        return found

    def retained_faults(self, values: dict[str, int]) -> list[str]:
        """Compare with what a new subscriber of r/# got."""
        found = []
        for publisher in self.publishers:
            value = values.get(f"r/{publisher.name}", 0)
            if not publisher.retained_acknowledged <= value <= publisher.retained:
                found.append(
                    f"r/{publisher.name} is {value}, acknowledged {publisher.retained_acknowledged}"
                )
        return found

    def turn(self, done: Callable[[], bool] = lambda: False) -> int:
        """Read what has come to anybody, until `done`; how many acknowledgements that were."""
        members = {member.sock: member for member in self.everybody if member.sock is not None}
        readable, _, _ = select.select(list(members), [], [], 0.01)
        count = 0
        for sock in readable:
            count += max(members[sock].read(), 0)
            if done():
                break
        return count

    def until(self, done: Callable[[], bool]) -> None:
        """Read until something is so."""
        patience = Patience(DEADLINE)
        while not done():
            self.turn()
            assert patience.left(), self._told()

    def _told(self) -> str:
        """Where everybody is, while nothing happens."""
        return ", ".join(
            f"{one.name} {'is there' if one.connected else 'waits' if one.sock else 'is not there'}"
            f" ({len(one.unacknowledged)} open, {'; '.join(one.faults)})"
            for one in self.everybody
        )

    def gone(self) -> None:
        """The broker is dead: take what it has said before, then nothing is connected."""
        for member in self.everybody:
            while member.sock is not None:
                if member.read() < 0:
                    break
            member.close()
