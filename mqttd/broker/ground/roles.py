"""Roles as values: what a role, a group of roles and a user with them are.

`mqttd.access.roles.roles` decides by them, the HTTP interface changes them.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

__all__ = ["ANONYMOUS", "Change", "Group", "Member", "Role", "RoleError"]

#: Stands for clients without a user name.
ANONYMOUS: Final = "$anonymous"


class RoleError(ValueError):
    """A change that cannot be; the text says why."""


class Role(Struct, kw_only=True, forbid_unknown_fields=True):
    """Rules in the words of acl.conf; most are about `all`, that is, all who have the role."""

    name: str
    rules: str = ""
    enabled: bool = True
    text: str = ""


class Group(Struct, kw_only=True, forbid_unknown_fields=True):
    """Roles, in the order in which they are asked."""

    name: str
    roles: list[str] = []
    enabled: bool = True
    text: str = ""


class Member(Struct, kw_only=True, forbid_unknown_fields=True):
    """A user name with its own roles, then its groups, each in the order they are asked."""

    username: str
    roles: list[str] = []
    groups: list[str] = []
    enabled: bool = True
    text: str = ""


class Change(Struct, kw_only=True, forbid_unknown_fields=True):
    """Roles, groups and members that are put, in the place of those with the same names."""

    roles: list[Role] = []
    groups: list[Group] = []
    members: list[Member] = []
