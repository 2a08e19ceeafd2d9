"""Whose sessions go when the budget is spent: the largest of those who hold most.

    session --> of a user, where it is not small     the holder with the most gives its largest,
            --> else of a house (its address)        again and again; small ones come last, unless
                                                     they are a crowd that is away

Promise: one walk over all sessions, whatever is shed; a small session of somebody who is connected
goes only when nothing larger is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Final

from mqttd.net.fair import house_of
from mqttd.session.channel.channel import OPEN, Channel
from mqttd.session.ground.account import SESSION
from mqttd.session.session import Session

__all__ = ["connections", "house_of_session", "offenders", "weight_of"]

#: A session that holds less is not shed by itself: it can hardly have grown, and none begins.
_WORTH: Final = 4 * SESSION
#: Bytes from which on the unfinished packet and the output of a connection are worth its end.
_LARGE: Final = 64 << 10
#: Small sessions of one house that are away are a crowd, and shed like anybody, where they hold so
#: many times what a small one may: an eighth of the budget.
_CROWD: Final = 9


def weight_of(session: Session) -> int:
    """What a session and its connection hold."""
    weight = session.weight + session.flying()
    channel = session.channel
    if channel is not None:
        weight += channel.out_bytes + channel.held()
    return weight


def house_of_session(session: Session) -> str:
    """From where its client is connected, or was last; "" where nobody knows."""
    channel = session.channel
    return session.house if channel is None else house_of(channel.edge.peer(channel)[0])


def offenders(
    sessions: Iterable[Session], most: int, middle: int
) -> tuple[int, list[tuple[int, Session]]]:
    """What all hold who may have to go, and the first so many, with their weights.

    Each time the largest session of whoever holds most by then: of a user or, where it is nobody's,
    a house with all sessions of `middle` bytes or more; a house with smaller ones that are away,
    where these are a crowd. Then smaller ones, by their houses.
    """
    users: dict[str, list[tuple[int, int, Session]]] = {}
    houses: dict[str, list[tuple[int, int, Session]]] = {}
    small: dict[str, list[tuple[int, int, Session]]] = {}
    crowds: dict[str, list[tuple[int, int, Session]]] = {}
    number = 0
    total = 0
    for session in sessions:
        weight = weight_of(session)
        away = weight < middle and session.channel is None
        if weight < _WORTH and not away:
            continue
        number += 1
        if weight >= middle and session.username is not None:
            groups, name = users, session.username
        else:
            groups = houses if weight >= middle else crowds if away else small
            name = house_of_session(session)
        if not away:
            total += weight
        groups.setdefault(name, []).append((weight, number, session))
    great: list[list[tuple[int, int, Session]]] = []
    for name, held in crowds.items():
        weight = sum([one[0] for one in held])
        if weight >= middle << _CROWD:
            total += weight
            great.append(held)
            continue
        for one in held:
            if one[0] >= _WORTH:
                total += one[0]
                small.setdefault(name, []).append(one)
    found = _largest([*users.values(), *houses.values(), *great], most)
    if len(found) < most:
        found += _largest(list(small.values()), most - len(found))
    return total, found


def connections(
    sessions: Iterable[Session], channel_of: Callable[[Session], Channel | None]
) -> list[tuple[int, int, Channel]]:
    """Those whose unfinished packets and unread answers are worth their end, the largest first.

    Each with minus its weight, and a number.
    """
    found: list[tuple[int, int, Channel]] = []
    for session in sessions:
        channel = channel_of(session)
        if channel is not None and channel.state == OPEN:
            weight = channel.out_bytes + channel.held()
            if weight > _LARGE:
                found.append((-weight, len(found), channel))
    found.sort()
    return found


def _largest(groups: list[list[tuple[int, int, Session]]], most: int) -> list[tuple[int, Session]]:
    """The largest session of the group that holds most by then, so many times."""
    heap: list[tuple[int, int, list[tuple[int, int, Session]]]] = []
    for held in groups:
        held.sort()
        total = 0
        for one in held:
            total += one[0]
        heap.append((-total, held[0][1], held))
    heapify(heap)
    found: list[tuple[int, Session]] = []
    while heap and len(found) < most:
        minus, number, held = heappop(heap)
        weight, _, session = held.pop()
        found.append((weight, session))
        if held:
            heappush(heap, (minus + weight, number, held))
    return found
