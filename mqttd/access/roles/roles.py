"""Roles with rules, groups of them, and who has which: changed while the broker runs.

    user --> its roles, in their order --> those of its groups, in theirs --> the rules of each
    all who have the same roles share their rules, compiled when one of them is asked first

They stand in the access-control chain before acl.conf or behind it (`acl.order`); where none of
their rules matches the next module is asked. A disabled role or group gives nothing, a disabled
user is kept out as a banned one is. They are kept in a drawer of the store, or without one in a
file.

Promise: a change is all or nothing, and holds for clients that are there at once (`on_change`); a
decision costs what its user's own rules cost, the first after one of its roles was changed 12 us
for each of them more. Source: mosquitto's dynamic security, without
numbers: what stands first is asked first.
"""

from __future__ import annotations

import bisect
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct
from zope.interface import implementer

from mqttd.access.acl.conf import parse_acl
from mqttd.access.acl.rules import AclRules
from mqttd.access.acl.terms import Rule
from mqttd.broker.ground.drawers import Drawer
from mqttd.broker.ground.roles import ANONYMOUS, Change, Group, Member, Role, RoleError
from mqttd.interfaces import IAccessExplainer
from mqttd.secrets.files import replace_file
from mqttd.types import Action, ClientInfo, Decision, StoreFull, Verdict

__all__ = ["DRAWER", "Roles", "fits"]

#: The name of their drawer, which no plugin can have.
DRAWER: Final = "$roles"
#: Roles and groups at most, members, names in one list, characters of the rules of a role.
MOST: Final = 10_000
MOST_MEMBERS: Final = 200_000
MOST_NAMES: Final = 100
MOST_RULES: Final = 16 << 10
#: Sets of roles whose rules are remembered compiled, and such rules in all.
_COMPILED: Final = 4096
_RULES: Final = 200_000

_NOTHING: Final = Decision(Verdict.IGNORE, "no rule of a role matched", "roles")


class _Kept(Struct):
    """All of it, as a file has it."""

    roles: list[Role] = []
    groups: list[Group] = []
    members: list[Member] = []


@implementer(IAccessExplainer)
class Roles:
    """The roles of one broker; `path`: their file where there is no `drawer`.

    Raises RoleError for a file that cannot be used.
    """

    def __init__(self, path: str = "", drawer: Drawer | None = None) -> None:
        self.path = path
        self.drawer = drawer
        self.roles: dict[str, Role] = {}
        self.groups: dict[str, Group] = {}
        self.members: dict[str, Member] = {}
        #: The members' names, sorted.
        self.names: list[str] = []
        #: User names that are kept out.
        self.disabled: set[str] = set()
        #: Called after each change; the argument: somebody was disabled.
        self.on_change: Callable[[bool], None] = lambda disabled: None
        #: Is told what is put, by `KIND NAME`, and deleted (None), when it is kept.
        self.told: Callable[[Sequence[tuple[str, Struct | None]]], object] = lambda kept: None
        #: Calls this with "" when other nodes can hear of every change so far, or with why not.
        self.when_told: Callable[[Callable[[str], None]], object] = lambda heard: heard("")
        self._rules: dict[str, list[Rule]] = {}
        self._compiled: dict[tuple[str, ...], AclRules] = {}
        self._known: dict[str, AclRules | None] = {}
        #: Of these, in all.
        self._count = 0
        #: Roles with rules that look at QoS or RETAIN.
        self._flagged: set[str] = set()
        if path and drawer is None and os.path.exists(path):
            self._load()

    # -- asked by the chain --------------------------------------------------------------------

    def init(self, opts: Mapping[str, object]) -> None:
        """There are no options."""

    def rules_of(self, username: str | None) -> AclRules | None:
        """The rules of a user's roles; None for one who has none."""
        name = ANONYMOUS if username is None else username
        if name in self._known:
            return self._known[name]
        member = self.members.get(name)
        if member is None:
            return None  # not remembered: there may be any number of names
        roles = tuple(self._roles_of(member))
        found: AclRules | None = None
        if roles:
            found = self._compiled.get(roles)
            if found is None:
                if len(self._compiled) >= _COMPILED or self._count >= _RULES:
                    self._forget(None)
                found = AclRules(rule for role in roles for rule in self._rules[role])
                self._compiled[roles] = found
                self._count += len(found.rules)
        self._known[name] = found
        return found

    def decide(self, client: ClientInfo, action: Action, topic: str) -> Decision:
        """See `IAccessExplainer.decide`."""
        rules = self.rules_of(client.username)
        return _NOTHING if rules is None else rules.decide(client, action, topic)

    def check_acl(self, client: ClientInfo, action: Action, topic: str) -> Verdict:
        """See `IAccessControl.check_acl`."""
        return self.decide(client, action, topic).verdict

    def reload_acl(self) -> None:
        """There is nothing to read again."""

    @property
    def depends_on_qos_retain(self) -> bool:
        """True if any rule looks at QoS or retain."""
        return bool(self._flagged)

    def description(self) -> str:
        """How many there are."""
        return (
            f"roles: {len(self.roles)} roles, {len(self.groups)} groups,"
            f" {len(self.members)} members"
        )

    # -- changes -------------------------------------------------------------------------------

    def put(self, change: Change) -> None:
        """Put roles, groups and members; raises RoleError, and StoreFull where they are kept."""
        parsed = {role.name: rules_of(role) for role in change.roles}
        roles = self.roles.keys() | parsed.keys()
        groups = self.groups.keys() | {group.name for group in change.groups}
        for group in change.groups:
            _check_name(group.name, "group")
            _check_names(f"group {group.name}", "role", group.roles, roles)
        for member in change.members:
            _check_name(member.username, "user")
            _check_names(f"user {member.username}", "role", member.roles, roles)
            _check_names(f"user {member.username}", "group", member.groups, groups)
        members = self.members.keys() | {member.username for member in change.members}
        if len(roles) > MOST or len(groups) > MOST or len(members) > MOST_MEMBERS:
            raise RoleError(
                f"at most {MOST} roles, {MOST} groups and {MOST_MEMBERS} users with roles"
            )
        before = set(self.disabled)
        kept: list[tuple[str, Struct | None]] = []
        for role in change.roles:
            kept.append((f"role {role.name}", role))
        for group in change.groups:
            kept.append((f"group {group.name}", group))
        for member in change.members:
            kept.append((f"user {member.username}", member))
        self._keep(kept, change)
        self._set_rules(parsed)
        for role in change.roles:
            self.roles[role.name] = role
        for group in change.groups:
            self.groups[group.name] = group
        for member in change.members:
            self._put_member(member)
        self._changed(bool(self.disabled - before))

    def delete_role(self, name: str) -> Role | None:
        """Delete a role, and take it from who has it; None if there is none."""
        role = self.roles.get(name)
        if role is None:
            return None
        change = self._without("roles", name)
        self._keep([(f"role {name}", None), *_keys(change)], change, gone=("role", name))
        del self.roles[name]
        self._forget({name})
        self._rules.pop(name, None)
        self._flagged.discard(name)
        self._take_over(change)
        return role

    def delete_group(self, name: str) -> Group | None:
        """Delete a group, which its members lose; None if there is none."""
        group = self.groups.get(name)
        if group is None:
            return None
        change = self._without("groups", name)
        self._keep([(f"group {name}", None), *_keys(change)], change, gone=("group", name))
        del self.groups[name]
        self._take_over(change)
        return group

    def delete_member(self, username: str) -> Member | None:
        """A user has no roles any more, and is not disabled; None if it had none."""
        member = self.members.get(username)
        if member is None:
            return None
        self._keep([(f"user {username}", None)], Change(), gone=("user", username))
        del self.members[username]
        del self.names[bisect.bisect_left(self.names, username)]
        self.disabled.discard(username)
        self._changed(False)
        return member

    def take_in(self) -> list[str]:
        """What the drawer has kept; what a file has beside it moves there.

        Returns the keys of what could not be read.
        """
        drawer = self.drawer
        assert drawer is not None
        before = self.roles, self.groups, self.members
        self.roles, self.groups, self.members = {}, {}, {}
        self.disabled.clear()
        bad: list[str] = []
        change = Change()
        for key in drawer.keys():
            kind, _, _ = key.partition(" ")
            try:
                data = drawer.get(key) or b""
                if kind == "role":
                    change.roles.append(msgspec.json.decode(data, type=Role))
                elif kind == "group":
                    change.groups.append(msgspec.json.decode(data, type=Group))
                elif kind == "user":
                    change.members.append(msgspec.json.decode(data, type=Member))
            except (msgspec.DecodeError, ValueError):
                bad.append(key)
        bad += self._restore(change)
        if self.path and os.path.exists(self.path):
            roles, groups, members = before
            more = Change(
                roles=[one for name, one in roles.items() if name not in self.roles],
                groups=[one for name, one in groups.items() if name not in self.groups],
                members=[one for name, one in members.items() if name not in self.members],
            )
            self.put(more)
            drawer.when_kept(lambda: os.replace(self.path, f"{self.path}.moved"))
        return bad

    def when_kept(self, told: Callable[[str], None]) -> None:
        """Call `told("")` when every change so far outlasts the process, as far as one does; or
        with the reason when that has to wait: the store cannot be written.
        """
        if self.drawer is None:
            told("")
        else:
            self.drawer.when_sure(told)

    # -- inside --------------------------------------------------------------------------------

    def _roles_of(self, member: Member) -> list[str]:
        """The roles of a member that give something, in the order they are asked."""
        found: dict[str, None] = {}
        for name in member.roles:
            found[name] = None
        for group_name in member.groups:
            group = self.groups.get(group_name)
            if group is not None and group.enabled:
                for name in group.roles:
                    found[name] = None
        return [name for name in found if name in self.roles and self.roles[name].enabled]

    def _without(self, kind: str, name: str) -> Change:
        """Who refers to a role or group, without it."""
        groups: list[Group] = []
        if kind == "roles":
            groups = [
                msgspec.structs.replace(group, roles=[one for one in group.roles if one != name])
                for group in self.groups.values()
                if name in group.roles
            ]
        members = [
            msgspec.structs.replace(
                member, **{kind: [one for one in getattr(member, kind) if one != name]}
            )
            for member in self.members.values()
            if name in getattr(member, kind)
        ]
        return Change(groups=groups, members=members)

    def _take_over(self, change: Change) -> None:
        for group in change.groups:
            self.groups[group.name] = group
        for member in change.members:
            self._put_member(member)
        self._changed(False)

    def _put_member(self, member: Member) -> None:
        if member.username not in self.members:
            bisect.insort(self.names, member.username)
        self.members[member.username] = member
        if member.enabled:
            self.disabled.discard(member.username)
        else:
            self.disabled.add(member.username)

    def _changed(self, disabled: bool) -> None:
        self._known.clear()
        self.on_change(disabled)

    def _set_rules(self, parsed: Mapping[str, list[Rule]]) -> None:
        """Roles have these rules from now on."""
        changed = {name for name, rules in parsed.items() if self._rules.get(name) != rules}
        self._forget(changed)
        for name in changed:
            self._rules[name] = parsed[name]
            if any(rule.qos is not None or rule.retain is not None for rule in parsed[name]):
                self._flagged.add(name)
            else:
                self._flagged.discard(name)

    def _forget(self, names: set[str] | None) -> None:
        """Compile again what has any of these roles (None: everything), when it is asked for."""
        self._known.clear()
        for roles in [one for one in self._compiled if names is None or not names.isdisjoint(one)]:
            self._count -= len(self._compiled.pop(roles).rules)

    def _keep(
        self,
        kept: Sequence[tuple[str, Struct | None]],
        change: Change,
        gone: tuple[str, str] = ("", ""),
    ) -> None:
        """Have this outlast the process; raises StoreFull, OSError."""
        drawer = self.drawer
        if drawer is None:
            if self.path:
                replace_file(self.path, self._text(change, gone))
            self.told(kept)
            return
        rows = [(key, None if one is None else msgspec.json.encode(one)) for key, one in kept]
        need = sum(len(key) + len(row) + 200 for key, row in rows if row is not None)
        if drawer.bytes + need > drawer.most:
            raise StoreFull(f"{drawer.bytes} bytes of {drawer.most} are taken: no room for {need}")
        for key, row in rows:
            if row is None:
                drawer.delete(key)
            else:
                drawer.put(key, row)
        self.told(kept)

    def _text(self, change: Change, gone: tuple[str, str]) -> str:
        """The file with this change."""
        kind, name = gone
        roles = {**self.roles, **{one.name: one for one in change.roles}}
        groups = {**self.groups, **{one.name: one for one in change.groups}}
        members = {**self.members, **{one.username: one for one in change.members}}
        for which, found in (("role", roles), ("group", groups), ("user", members)):
            if kind == which:
                found.pop(name, None)
        all_of_it = _Kept(list(roles.values()), list(groups.values()), list(members.values()))
        return json.dumps(msgspec.to_builtins(all_of_it), indent=1)

    def _load(self) -> None:
        try:
            with open(self.path, "rb") as file:
                found = msgspec.json.decode(file.read(), type=_Kept)
        except OSError as error:
            raise RoleError(f"{self.path}: {error.strerror}") from None
        except msgspec.DecodeError as error:
            raise RoleError(
                f"{self.path}: no list of roles ({error}); repair it, or move it away to start"
                " without roles"
            ) from None
        bad = self._restore(Change(roles=found.roles, groups=found.groups, members=found.members))
        if bad:
            raise RoleError(f"{self.path}: {bad[0]} cannot be used; repair it, or move it away")

    def _restore(self, change: Change) -> list[str]:
        """Take in what was kept; returns what of it cannot be used."""
        bad: list[str] = []
        for role in change.roles:
            try:
                self._set_rules({role.name: rules_of(role)})
                self.roles[role.name] = role
            except RoleError:
                bad.append(f"role {role.name}")
        for group in change.groups:
            self.groups[group.name] = group
        for member in change.members:
            self.members[member.username] = member
            if not member.enabled:
                self.disabled.add(member.username)
        self.names = sorted(self.members)
        self._changed(False)
        return bad


def fits(one: Role | Group | Member) -> None:
    """Whether it could be put, if what it refers to were there; raises RoleError."""
    if isinstance(one, Role):
        rules_of(one)
        return
    kind, name = ("group", one.name) if isinstance(one, Group) else ("user", one.username)
    _check_name(name, kind)
    _check_names(f"{kind} {name}", "role", one.roles, one.roles)
    if isinstance(one, Member):
        _check_names(f"{kind} {name}", "group", one.groups, one.groups)


def rules_of(role: Role) -> list[Rule]:
    """The rules of a role; raises RoleError."""
    _check_name(role.name, "role")
    if len(role.rules) > MOST_RULES:
        raise RoleError(f"role {role.name}: rules of more than {MOST_RULES} characters")
    try:
        return parse_acl(role.rules, f"role {role.name}")
    except ValueError as error:
        raise RoleError(str(error)) from None


def _keys(change: Change) -> list[tuple[str, Struct]]:
    found: list[tuple[str, Struct]] = [(f"group {one.name}", one) for one in change.groups]
    return found + [(f"user {one.username}", one) for one in change.members]


def _check_name(name: str, kind: str) -> None:
    if not name or len(name.encode("utf-8", "replace")) > 1000 or not name.isprintable():
        raise RoleError(f"{kind} {name[:80]!r}: expected a name of 1 to 1000 bytes")


def _check_names(who: str, kind: str, names: Sequence[str], known: Iterable[str]) -> None:
    if len(names) > MOST_NAMES:
        raise RoleError(f"{who}: more than {MOST_NAMES} {kind}s")
    for name in names:
        if name not in known:
            raise RoleError(f"{who}: there is no {kind} {name!r}")
    if len(set(names)) < len(names):
        raise RoleError(f"{who}: a {kind} twice")
