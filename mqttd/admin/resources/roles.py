"""Roles with rules, groups of them, and which users have them: changed while the broker runs."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import asdict
from twisted.internet.defer import Deferred

from mqttd.admin.http.parts import Parts
from mqttd.admin.http.requests import ADMINISTRATOR, ApiError
from mqttd.admin.http.route import Ask, delete, get, post
from mqttd.admin.resources.telling import once_told
from mqttd.broker.ground.roles import Change, Group, Member, Role, RoleError
from mqttd.readmodel.pages import DEFAULT_LIMIT, Limit, read_cursor, write_cursor
from mqttd.types import StoreFull

__all__ = ["RolesResource"]


class RoleList(Struct):
    """All roles."""

    roles: list[Role]


class GroupList(Struct):
    """All groups."""

    groups: list[Group]


class MemberPage(Struct):
    """Users with roles or groups, by name; with `cursor` the next are asked for."""

    members: list[Member]
    cursor: str | None


class Wish(Struct, forbid_unknown_fields=True):
    """A page of users."""

    prefix: Annotated[str, Meta(description="of the user name")] = ""
    limit: Limit = DEFAULT_LIMIT
    cursor: str | None = None


class PutRole(Role):
    """The role as it was put; untold: why other nodes have not heard of it yet."""

    untold: str | None = None


class PutGroup(Group):
    """The group as it was put; untold: why other nodes have not heard of it yet."""

    untold: str | None = None


class PutMember(Member):
    """The user as it was put; untold: why other nodes have not heard of it yet."""

    untold: str | None = None


class Deleted(Struct):
    """What was deleted; untold: why other nodes have not heard of that yet."""

    deleted: str
    untold: str | None = None


class Done(Struct):
    """How many were put; untold: why other nodes have not heard of them yet."""

    roles: int
    groups: int
    members: int
    untold: str | None = None


class RolesResource:
    """The roles of the broker."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    # -- roles

    @get("/roles", answer=RoleList)
    def list(self, ask: Ask) -> RoleList:
        """All roles, with their rules."""
        return RoleList(sorted(self._roles().roles.values(), key=lambda role: role.name))

    @get("/roles/{role}", answer=Role)
    def show(self, ask: Ask) -> Role:
        """One role."""
        found: Role = self._one(self._roles().roles, ask.path["role"], "role")
        return found

    @post("/roles", role=ADMINISTRATOR, body=Role, answer=PutRole, errors=(422, 507))
    def put(self, ask: Ask) -> Deferred[PutRole]:
        """Put a role, in the place of one with its name; clients are judged by it at once."""
        role = ask.body
        before = self._roles().roles.get(role.name)
        return self._change(ask, Change(roles=[role]), before, role, PutRole(**asdict(role)))

    @delete("/roles/{role}", role=ADMINISTRATOR, answer=Deleted, errors=(422, 507))
    def remove(self, ask: Ask) -> Deferred[Deleted]:
        """Delete a role; groups and users lose it."""
        return self._delete(ask, "role", self._roles().delete_role)

    # -- groups

    @get("/groups", answer=GroupList)
    def groups(self, ask: Ask) -> GroupList:
        """All groups, with their roles."""
        return GroupList(sorted(self._roles().groups.values(), key=lambda group: group.name))

    @post("/groups", role=ADMINISTRATOR, body=Group, answer=PutGroup, errors=(422, 507))
    def put_group(self, ask: Ask) -> Deferred[PutGroup]:
        """Put a group, in the place of one with its name."""
        group = ask.body
        before = self._roles().groups.get(group.name)
        return self._change(ask, Change(groups=[group]), before, group, PutGroup(**asdict(group)))

    @delete("/groups/{group}", role=ADMINISTRATOR, answer=Deleted, errors=(422, 507))
    def delete_group(self, ask: Ask) -> Deferred[Deleted]:
        """Delete a group, which its users lose."""
        return self._delete(ask, "group", self._roles().delete_group)

    # -- users

    @get("/members", query=Wish, answer=MemberPage)
    def members(self, ask: Ask) -> MemberPage:
        """Users that have roles or groups, or are disabled, by name."""
        roles, wish = self._roles(), ask.query
        names = roles.names
        at = bisect.bisect_left(names, wish.prefix)
        place = read_cursor(wish.cursor)
        if place is not None:
            at = max(at, bisect.bisect_right(names, place[1]))
        page = [name for name in names[at : at + wish.limit] if name.startswith(wish.prefix)]
        more = names[at + len(page) : at + len(page) + 1]
        ends = len(page) < wish.limit or not more or not more[0].startswith(wish.prefix)
        cursor = None if ends else write_cursor(page[-1], page[-1])
        return MemberPage([roles.members[name] for name in page], cursor)

    @get("/members/{username}", answer=Member)
    def member(self, ask: Ask) -> Member:
        """The roles and groups of one user."""
        found: Member = self._one(self._roles().members, ask.path["username"], "user with roles")
        return found

    @post("/members", role=ADMINISTRATOR, body=Member, answer=PutMember, errors=(422, 507))
    def put_member(self, ask: Ask) -> Deferred[PutMember]:
        """Give a user these roles and groups and no others; one that is disabled is kept out."""
        member = ask.body
        before = self._roles().members.get(member.username)
        answer = PutMember(**asdict(member))
        return self._change(ask, Change(members=[member]), before, member, answer)

    @delete("/members/{username}", role=ADMINISTRATOR, answer=Deleted, errors=(422, 507))
    def delete_member(self, ask: Ask) -> Deferred[Deleted]:
        """Take all roles and groups from a user."""
        return self._delete(ask, "username", self._roles().delete_member)

    @post("/roles/import", role=ADMINISTRATOR, body=Change, answer=Done, errors=(422, 507))
    def put_all(self, ask: Ask) -> Deferred[Done]:
        """Put many roles, groups and users at once: all or nothing."""
        change = ask.body
        done = Done(len(change.roles), len(change.groups), len(change.members))
        return self._change(ask, change, None, done, done)

    # -- inside

    def _roles(self) -> Any:
        return self.parts.need(self.parts.roles, "there are no roles")

    def _one(self, found: Any, name: str, kind: str) -> Any:
        one = found.get(name)
        if one is None:
            raise ApiError(404, "not_found", f"there is no {kind} {name[:80]!r}")
        return one

    def _change(
        self, ask: Ask, change: Change, before: Any, after: Any, answer: Any
    ) -> Deferred[Any]:
        self._kept_or(lambda: self._roles().put(change))
        ask.changed(before, after)
        return self._when_kept(answer)

    def _delete(self, ask: Ask, kind: str, remove: Callable[[str], Any]) -> Deferred[Deleted]:
        name = ask.path[kind]
        before = self._kept_or(lambda: remove(name))
        if before is None:
            what = "user with roles" if kind == "username" else kind
            raise ApiError(404, "not_found", f"there is no {what} {name[:80]!r}")
        ask.changed(before)
        return self._when_kept(Deleted(name))

    def _kept_or(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except RoleError as error:
            raise ApiError(422, "not_done", str(error)) from None
        except (StoreFull, OSError) as error:
            raise ApiError(507, "not_stored", f"the roles cannot be kept: {error}") from None

    def _when_kept(self, answer: Any) -> Deferred[Any]:
        """The answer; 507 where what was changed does not outlast the process yet."""
        done = once_told(self._roles(), answer, _not_stored_yet)
        self.parts.broker.perform_later()  # what this turn has told the journal is written now
        return done


def _not_stored_yet(why: str) -> None:
    text = "this holds, but is not stored yet, and lost if the broker is killed"
    raise ApiError(507, "not_stored_yet", f"{text}: {why}")
