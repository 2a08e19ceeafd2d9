"""Roles, groups and who has them: the same at every node, by way of etcd.

    a change here --> all/role/<role|group|user>/<name>, empty when deleted --watch--> every node
    a node begins --> takes what is there, adds what nobody has heard of

A change that comes refers to what is there: where a role was deleted at another node at the same
time, who had it is taken in without it, as the node that has deleted it does by itself.

Promise: each node ends with the same; what is made while etcd is away holds here, and is told when
it is back. Nothing that comes is told again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from msgspec import Struct
from twisted.logger import Logger

from mqttd.access.roles.roles import Roles, fits
from mqttd.broker.ground.roles import Change, RoleError
from mqttd.cluster.etcd.client import Kv
from mqttd.cluster.etcd.reading import Said
from mqttd.types import StoreFull

__all__ = ["KIND", "SharedRoles"]

#: The kind of their keys.
KIND: Final = "role"


class SharedRoles:
    """The `roles` of this node; `write(kind, name, value)` has all nodes hear of one of them,
    `when_told` says when they can, and `unusable` is told of a key that says what cannot be."""

    def __init__(
        self,
        roles: Roles,
        write: Callable[[str, str, bytes], object],
        when_told: Callable[[Callable[[str], None]], object],
        unusable: Callable[[Kv, str], object],
    ) -> None:
        self.roles = roles
        self.write = write
        self.when_told = when_told
        self.unusable = unusable
        self.log = Logger(namespace="mqttd.cluster")
        self._applying = False

    def begin(self) -> None:
        """Those of this node are read."""
        self.roles.told = self._told
        self.roles.when_told = self.when_told

    def _told(self, kept: Iterable[tuple[str, Struct | None]]) -> None:
        if self._applying:
            return
        for key, one in kept:
            kind, _, name = key.partition(" ")
            self.write(kind, name, b"" if one is None else msgspec.json.encode(one))

    # -- from etcd -----------------------------------------------------------------------------

    def all(self, found: list[Said], known: set[tuple[str, str]]) -> None:
        """All that there is; what of ours is not among what is `known` (kind, name) is told."""
        self.take(found)
        for kind, names in self._names():
            self._told([(f"{kind} {name}", one) for name, one in names.items()
                        if (kind, name) not in known])  # fmt: skip

    def _names(self) -> list[tuple[str, dict[str, Any]]]:
        roles = self.roles
        return [("role", dict(roles.roles)), ("group", dict(roles.groups)),
                ("user", dict(roles.members))]  # fmt: skip

    def take(self, found: Iterable[Said]) -> None:
        """These say so now."""
        change = Change()
        gone: list[tuple[str, str]] = []
        for said in found:
            if said.what is None:
                gone.append((said.node, said.rest))
            else:
                self._into(change, said)
        before, self._applying = self._applying, True
        try:
            for kind, name in gone:
                self._delete(kind, name)
            self._put(change)
        except (RoleError, StoreFull, OSError) as error:
            self._failed(str(error))
        finally:
            self._applying = before

    def _into(self, change: Change, said: Said) -> None:
        """Put it into a change, unless it is so already, or cannot be."""
        roles, name, one = self.roles, said.rest, said.what
        known: dict[str, dict[str, Any]] = {
            "role": roles.roles, "group": roles.groups, "user": roles.members
        }  # fmt: skip
        if known[said.node].get(name) == one:
            return
        try:
            fits(one)
        except RoleError as error:
            self.unusable(said.kv, f"expected a {said.node} that can be ({error})")
            return
        into: dict[str, list[Any]] = {
            "role": change.roles, "group": change.groups, "user": change.members
        }  # fmt: skip
        into[said.node].append(one)

    def _put(self, change: Change) -> None:
        if not (change.roles or change.groups or change.members):
            return
        named = self.roles.roles.keys() | {one.name for one in change.roles}
        for group in change.groups:
            group.roles = [name for name in group.roles if name in named]
        groups = self.roles.groups.keys() | {one.name for one in change.groups}
        for member in change.members:
            member.roles = [name for name in member.roles if name in named]
            member.groups = [name for name in member.groups if name in groups]
        self.roles.put(change)

    def _delete(self, kind: str, name: str) -> None:
        if kind == "role":
            self.roles.delete_role(name)
        elif kind == "group":
            self.roles.delete_group(name)
        else:
            self.roles.delete_member(name)

    def _failed(self, text: str) -> None:
        self.log.error("roles of another node cannot be kept here: {text}", text=text)
