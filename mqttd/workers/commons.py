"""What all workers know, and each keeps: bans, roles, whose messages are followed.

    a ban at one     --call--> the others
    a worker begins  <--calls-- the worker that it takes all from: one that serves, else worker 1

Roles and traces are changed at worker 1, then at the others, by the supervisor
(`mqttd.workers.rules`).

Promise: what was lifted while a worker was away does not hold there when it is back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

import msgspec

from mqttd.broker.broker import Broker
from mqttd.broker.ground.roles import Change, Group, Member, Role
from mqttd.broker.rights.bans import Ban

__all__ = ["Commons"]

#: Has the others do something: its name, what about.
Call = Callable[[str, dict[str, Any]], object]
#: Users of one call.
_MEMBERS: Final = 1000


class Commons:
    """What the worker of `broker` has in common with others; `call` tells all of them."""

    def __init__(self, broker: Broker, call: Call) -> None:
        self.broker = broker
        self.call = call
        #: A `mqttd.access.roles.roles.Roles`.
        self.roles: Any = None
        #: Names of roles, groups and users, while another worker tells all of its own.
        self._told: tuple[set[str], set[str], set[str]] = (set(), set(), set())
        self.calls: dict[str, Callable[[dict[str, Any]], object]] = {
            "ban": self._ban,
            "unban": self._unban,
            "bans": self._bans,
            "traced": self._traced,
            "roles": self._roles,
            "no other roles": self._no_others,
        }
        broker.bans.told = self._tell_ban

    def all(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """What a worker is told that begins."""
        yield "bans", {"bans": [_said(ban) for ban in self.broker.bans.list()]}
        trail: Any = self.broker.trail
        if trail is not None:
            found = [one for one in trail.traced.values() if not one.configured]
            yield "traced", {"traced": [[one.kind, one.value, one.until] for one in found]}
        if self.roles is not None:
            yield from self._all_roles()

    # -- bans ----------------------------------------------------------------------------------

    def _bans(self, what: dict[str, Any]) -> None:
        """Those that hold; others have been lifted while this worker was away."""
        wanted = {(said["kind"], said["value"]): said for said in what["bans"]}
        known = {(ban.kind, ban.value): _said(ban) for ban in self.broker.bans.list()}
        for key, said in known.items():
            if key not in wanted:
                self._unban(said)
        for key, said in wanted.items():
            if known.get(key) != said:
                self._ban(said)

    def _tell_ban(self, ban: Ban, holds: bool) -> None:
        self.call("ban" if holds else "unban", _said(ban))

    def _ban(self, what: dict[str, Any]) -> None:
        bans = self.broker.bans
        bans.told, told = None, bans.told
        try:
            bans.add(**what)
        finally:
            bans.told = told
        self.broker.enforce_bans()

    def _unban(self, what: dict[str, Any]) -> None:
        bans = self.broker.bans
        bans.told, told = None, bans.told
        try:
            bans.remove(what["kind"], what["value"])
        finally:
            bans.told = told

    # -- whose messages are followed -----------------------------------------------------------

    def _traced(self, what: dict[str, Any]) -> None:
        trail: Any = self.broker.trail
        for kind, value, until in what["traced"] if trail is not None else ():
            left = None if until is None else until - time.time()
            if (kind, value) not in trail.traced and (left is None or left > 0):
                trail.trace(kind, value, left)

    # -- roles ---------------------------------------------------------------------------------

    def _all_roles(self) -> Iterator[tuple[str, dict[str, Any]]]:
        roles = self.roles
        yield "roles", _change(list(roles.roles.values()), list(roles.groups.values()), ())
        members = list(roles.members.values())
        for at in range(0, len(members), _MEMBERS):
            yield "roles", _change((), (), members[at : at + _MEMBERS])
        yield "no other roles", {}

    def _roles(self, what: dict[str, Any]) -> None:
        """Some that another worker has."""
        roles = self.roles
        change = msgspec.convert(what["change"], Change)
        names = self._told
        names[0].update(one.name for one in change.roles)
        names[1].update(one.name for one in change.groups)
        names[2].update(one.username for one in change.members)
        change = Change(
            roles=[one for one in change.roles if roles.roles.get(one.name) != one],
            groups=[one for one in change.groups if roles.groups.get(one.name) != one],
            members=[one for one in change.members if roles.members.get(one.username) != one],
        )
        if change.roles or change.groups or change.members:
            roles.put(change)

    def _no_others(self, what: dict[str, Any]) -> None:
        """Those were all."""
        roles = self.roles
        named, groups, members = self._told
        self._told = set(), set(), set()
        for name in [name for name in roles.members if name not in members]:
            roles.delete_member(name)
        for name in [name for name in roles.groups if name not in groups]:
            roles.delete_group(name)
        for name in [name for name in roles.roles if name not in named]:
            roles.delete_role(name)


def _change(
    roles: Sequence[Role], groups: Sequence[Group], members: Sequence[Member]
) -> dict[str, Any]:
    change = Change(roles=list(roles), groups=list(groups), members=list(members))
    return {"change": msgspec.to_builtins(change)}


def _said(ban: Ban) -> dict[str, Any]:
    """A ban as workers tell each other of it."""
    return asdict(ban)
