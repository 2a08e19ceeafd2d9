"""Clients that no rule tells apart, and what all of them may publish.

::

    client --> sides of its tables (publish), conditions that are true of it --> class number
    class, topic --> a rule that allows it to all of them, or: ask for each

So that a topic is decided once for all clients that it is the same for, not once for each.  A user
with rules of its own is a class of its own; rules about subscribing, and placeholders, make no
classes: a topic that a placeholder of a deny rule may reach is asked for by each client.

Promise: `Classes.judge` finds a rule only if it is right for every client of the class (tests hold
that against `AclRules.decide` on random rules).  At most `MAX_CLASSES` are told apart;
further clients, and those that more than `MAX_CONDITIONS` conditions may be true of, are asked for
by themselves.
"""

from __future__ import annotations

from typing import Final

from mqttd.access.acl.asked import Asked, Condition, OfAll
from mqttd.access.acl.topics import Side
from mqttd.types import ClientInfo

__all__ = ["ASK", "MAX_CLASSES", "MAX_CONDITIONS", "NO_RULE", "Classes"]

MAX_CLASSES: Final = 16_384
MAX_CONDITIONS: Final = 32

#: No rule denies it to any client of the class: what comes behind the rules decides.
NO_RULE: Final = -1
#: Not all clients of the class may do it, or nobody knows: each is to be asked for.
ASK: Final = -2


class _Class:
    """The sides that its clients find, the conditions that are true of them."""

    __slots__ = ("everything", "held", "sides")

    def __init__(self, sides: list[Side], held: frozenset[Condition], everything: int) -> None:
        self.sides = sides
        self.held = held
        self.everything = everything


class Classes:
    """The classes of the clients that came by.

    By the number of a rule: `allows`, whether it allows, and `conditions`, its condition.
    """

    def __init__(self, allows: list[bool], conditions: list[Condition | None]) -> None:
        self._allows = allows
        self._conditions = conditions
        self._classes: list[_Class] = []
        self._numbers: dict[tuple[object, ...], int] = {}

    def number(self, sides: list[Side], client: ClientInfo) -> int:
        """The number of the class of a client that finds these sides; -1 if there is none."""
        key: list[object] = list(sides)
        held: list[Condition] = []
        conditions = 0
        for side in sides:
            conditions += len(side.narrow)
        if conditions > MAX_CONDITIONS:
            return -1
        if conditions:
            asked = Asked(self._conditions, client, True, 0, False, "")
            for side in sides:
                held += [condition for condition in side.narrow if asked.concerns(condition)]
            key += held
        known = self._numbers.get(tuple(key))
        if known is not None:
            return known
        number = len(self._classes)
        if number >= MAX_CLASSES:
            return -1
        true_of_all = frozenset(held)
        everything = self._everything(sides, true_of_all)
        self._classes.append(_Class(sides, true_of_all, everything))
        self._numbers[tuple(key)] = number
        return number

    def judge(self, number: int, qos: int, retain: bool, topic: str) -> int:
        """The rule that lets all of a class publish to a topic name; else `NO_RULE` or `ASK`."""
        if not 0 <= number < len(self._classes):
            return ASK
        one = self._classes[number]
        asked = OfAll(self._conditions, one.held, qos, retain, topic)
        for side in one.sides:
            side.search(asked)
        if asked.best >= len(self._allows):
            return NO_RULE
        return asked.best if self._allows[asked.best] else ASK

    def everything(self, number: int) -> int:
        """The rule that lets all of a class publish whatever they like; as `judge`.

        It says nothing of topics that begin with ``$``.
        """
        return self._classes[number].everything if 0 <= number < len(self._classes) else ASK

    def _everything(self, sides: list[Side], held: frozenset[Condition]) -> int:
        denied = len(self._conditions)
        for side in sides:
            for number in side.denials:
                condition = self._conditions[number]
                if condition is None or not condition.narrow or condition in held:
                    denied = min(denied, number)
                    break
        allowed = denied
        for side in sides:
            for number in side.anywhere:
                if number >= allowed:
                    break
                condition = self._conditions[number]
                if condition is None or (
                    condition.qos is None
                    and condition.retain is None
                    and (not condition.narrow or condition in held)
                ):
                    allowed = number
                    break
        if allowed < denied:
            return allowed
        return NO_RULE if denied == len(self._conditions) else ASK
