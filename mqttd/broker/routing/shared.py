"""Shared subscriptions: each message of `$share/group/filter` goes to one member of the group.

    $share/g/t/+  --  Group "g", filter t/+   member A   member B   member C
                                                             ^
                                              choose(publisher, topic)

`$queue/filter` is the group "$queue". The strategy says which member:

    round_robin     the members in turn, a turn of its own for each publisher
    random          any
    sticky          the same one as long as it is online
    hash_clientid   by the publisher's client id
    hash_topic      by the topic name

Promise: a member that is online comes before one that is away; while all are away the chosen one
queues the message. A choice costs a few steps, whatever the number of members, and one more for
each that went since the last: a member that was found away is not looked at again before it says
that it is back. The hashes are the same in every process and at every start.

MQTT 5.0, 4.8.2.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from random import Random
from typing import Final
from zlib import crc32

from mqttd.broker.routing.mounts import wildcard_at
from mqttd.session.routes.receiver import Receiver
from mqttd.session.routes.route import IDENTIFIED, MOUNTED, Target

__all__ = ["STRATEGIES", "Group"]

ROUND_ROBIN: Final = 0
RANDOM: Final = 1
STICKY: Final = 2
HASH_CLIENTID: Final = 3
HASH_TOPIC: Final = 4

#: The strategies by the name that `mqtt.shared_strategy` gives them.
STRATEGIES: Final[dict[str, int]] = {
    "round_robin": ROUND_ROBIN,
    "random": RANDOM,
    "sticky": STICKY,
    "hash_clientid": HASH_CLIENTID,
    "hash_topic": HASH_TOPIC,
}

#: Publishers whose turn a group remembers; the one that was silent longest is forgotten.
MAX_TURNS: Final = 1024


class Group(Target):
    """The members of one shared subscription.

    name: the share name; topic_filter: the filter without `$share/name/`; strategy: a name in
    `STRATEGIES`; random: the source of chance for the strategy "random"; most: publishers whose
    turn it remembers.

    Raises ValueError for an unknown strategy.
    """

    __slots__ = (
        "came",
        "far",
        "here",
        "members",
        "most",
        "mounted",
        "name",
        "numbers",
        "order",
        "publishers",
        "random",
        "strategy",
        "stuck",
        "topic_filter",
        "turns",
        "wildcard",
    )

    def __init__(
        self,
        name: str,
        topic_filter: str,
        strategy: str = "round_robin",
        random: Random | None = None,
        most: int = MAX_TURNS,
    ) -> None:
        if strategy not in STRATEGIES:
            raise ValueError(
                f"unknown shared subscription strategy {strategy!r}, "
                f"expected one of: {', '.join(STRATEGIES)}"
            )
        self.name: str = name
        self.topic_filter: str = topic_filter
        self.strategy: int = STRATEGIES[strategy]
        #: Subscription options, Subscription Identifier (0: none) and number of each member.
        self.members: dict[Receiver, tuple[int, int, int]] = {}
        #: The members in the order they came, and their numbers, which rise: the place of a member
        #: is found by its number.
        self.order: list[Receiver] = []
        self.numbers: list[int] = []
        self.came: int = 0
        #: The numbers of those that were online when they were last looked at, in order, and those
        #: that do not say when they are back.
        self.here: list[int] = []
        self.far: list[Receiver] = []
        self.random: Random | None = random
        self.most: int = most
        #: Publisher -> the place in `order` that is next.
        self.turns: dict[str, int] = {}
        #: Turns begun so far: each publisher begins one member further than the one before.
        self.publishers: int = 0
        #: The member that "sticky" holds on to.
        self.stuck: Receiver | None = None
        #: Members with `MOUNTED`, and where the filter has its first wildcard.
        self.mounted: int = 0
        self.wildcard: int = wildcard_at(topic_filter)

    def __len__(self) -> int:
        """Return how many members the group has."""
        return len(self.order)

    def add(self, member: Receiver, options: int, identifier: int = 0) -> bool:
        """Let `member` in, or change the options of one that is; say whether it is new.

        options: as packed by `mqttd.session.routes.route.options_of`; identifier: its Subscription
        Identifier, 0 for none.
        """
        held = self.members.get(member)
        number = self.came if held is None else held[2]
        if (options ^ self.options(member)) & MOUNTED:
            self.mounted += 1 if options & MOUNTED else -1
        options = options | IDENTIFIED if identifier else options
        self.members[member] = (options, identifier, number)
        if held is not None:
            return False
        self.came += 1
        self.order.append(member)
        self.numbers.append(number)
        if not member.says_when_back():
            self.far.append(member)
        elif member.online():
            self.here.append(number)
        else:
            member.await_back(self)
        return True

    def remove(self, member: Receiver) -> bool:
        """Let `member` go; say whether it was one. Nothing else changes for those who stay."""
        held = self.members.pop(member, None)
        if held is None:
            return False
        if held[0] & MOUNTED:
            self.mounted -= 1
        number = held[2]
        place = self._place_of(number)
        del self.order[place]
        del self.numbers[place]
        if not member.says_when_back():
            self.far.remove(member)
        else:
            at = bisect_left(self.here, number)
            if at < len(self.here) and self.here[at] == number:
                del self.here[at]
            else:
                member.await_no_more(self)
        if self.stuck is member:
            self.stuck = None
        return True

    def options(self, member: Receiver) -> int:
        """Return the subscription options of a member, 0 for one that left; see `Target`."""
        held = self.members.get(member)
        return 0 if held is None else held[0]

    def identifiers(self, member: Receiver) -> list[int] | None:
        """Return the Subscription Identifier of a member's subscription, None without one."""
        held = self.members.get(member)
        return None if held is None or held[1] == 0 else [held[1]]

    def is_back(self, receiver: Receiver) -> None:
        """A member that was found away is online again."""
        held = self.members.get(receiver)
        if held is not None:
            insort(self.here, held[2])

    def is_here(self) -> bool:
        """Whether a member that says so itself is online."""
        return self._here_from(0) >= 0

    def choose(self, source: str, topic: str) -> Receiver | None:
        """Return the member for a message to `topic` by client `source`, None without members."""
        count = len(self.order)
        if count == 0:
            return None
        if self.mounted and self.is_hidden(topic):
            return self._outside()
        if self.strategy == STICKY:
            stuck = self.stuck
            if stuck is None or not stuck.online():
                place = 0 if stuck is None else self._place_of(self.members[stuck][2])
                self.stuck = stuck = self.order[self._online_from(place)]
            return stuck
        if self.strategy == ROUND_ROBIN:
            place = self._turn_of(source, count)
        elif self.strategy == HASH_CLIENTID:
            place = self._online_from(crc32(source.encode()) % count)
        elif self.strategy == HASH_TOPIC:
            place = self._online_from(crc32(topic.encode()) % count)
        else:
            if self.random is None:
                self.random = Random()
            place = self._online_from(self.random.randrange(count))
        return self.order[place]

    def is_hidden(self, topic: str) -> bool:
        """Whether members with `MOUNTED` do not get this topic."""
        return self.mounted != 0 and topic.startswith("$", self.wildcard)

    def _outside(self) -> Receiver | None:
        """The first that is not below a mountpoint; with others in one group that is rare."""
        found: Receiver | None = None
        for member in self.order:
            if not self.members[member][0] & MOUNTED:
                if member.online():
                    return member
                if found is None:
                    found = member
        return found

    def _turn_of(self, source: str, count: int) -> int:
        """Return the place whose turn it is for messages of `source`, and move its turn on."""
        turn = self.turns.get(source, -1)
        if turn >= 0:
            if len(self.turns) * 2 > self.most:
                del self.turns[source]  # put in anew, at the end: see the other branch
        else:
            turn = self.publishers
            self.publishers += 1
            if len(self.turns) >= self.most:
                del self.turns[next(iter(self.turns))]
        place = self._online_from(turn % count)
        self.turns[source] = place + 1
        return place

    def _online_from(self, place: int) -> int:
        """Return the first place from `place` on, in a ring, whose member is online.

        Returns `place` itself when all are away.
        """
        if self.order[place].online():
            return place
        number = self.numbers[place]
        found = self._here_from(number)
        for member in self.far:
            other = self.members[member][2]
            nearer = found < 0 or (other - number) % self.came < (found - number) % self.came
            if nearer and member.online():
                found = other
        return place if found < 0 else self._place_of(found)

    def _here_from(self, number: int) -> int:
        """The first number from `number` on, in a ring, whose member is online, but for `far`.

        Those on the way that have gone are not looked at again until they are back; -1: all have.
        """
        here = self.here
        at = bisect_left(here, number)
        self._let_go(at, len(here))
        if at == len(here):
            self._let_go(0, at)
            at = 0
        return here[at] if at < len(here) else -1

    def _let_go(self, at: int, end: int) -> None:
        """Take those that have gone out of `here`, from `at` on up to the first that has not."""
        here = self.here
        upto = at
        while upto < end:
            member = self.order[self._place_of(here[upto])]
            if member.online():
                break
            member.await_back(self)
            upto += 1
        del here[at:upto]

    def _place_of(self, number: int) -> int:
        return bisect_left(self.numbers, number)
