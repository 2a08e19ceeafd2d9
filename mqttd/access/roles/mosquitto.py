"""mosquitto's dynamic-security.json: its roles, groups and users as `mqttd.access.roles` has them.

    clients     user names with their roles and groups, passwords as lines of a password file
    groups      with their roles; those with a higher priority first
    roles       publishClientSend --> publish     subscribePattern --> subscribe, as a filter
                                                  subscribeLiteral --> subscribe, {eq, FILTER}
    left        what has no place here: publishClientReceive, unsubscribe..., a client's clientid

Source: mosquitto's documentation of the dynamic security plugin, 2.0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mqttd.broker.ground.roles import ANONYMOUS, Change, Group, Member, Role
from mqttd.codec.reasons import MqttError
from mqttd.codec.topic import validate_topic_filter

__all__ = ["Imported", "import_roles", "is_dynamic_security"]

#: ACL type -> kind and whether the topic is compared as it is.
_KINDS: Final = {
    "publishClientSend": ("publish", False),
    "subscribePattern": ("subscribe", False),
    "subscribeLiteral": ("subscribe", True),
}


@dataclass
class Imported:
    """What was made, and what could not be taken over, a line each."""

    change: Change
    #: User name -> what stands for its password in a password file.
    passwords: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)


def is_dynamic_security(text: str) -> bool:
    """Whether this is such a file, by its first names."""
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return isinstance(found, dict) and "roles" in found and "clients" in found


def import_roles(text: str) -> Imported:
    """What the file says; raises ValueError for one that is none."""
    found: Any = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("no dynamic-security.json: expected an object")
    made = Imported(Change())
    try:
        for role in found.get("roles", []):
            made.change.roles.append(_role(role, made.left))
        for group in found.get("groups", []):
            made.change.groups.append(
                Group(name=group["groupname"], roles=_ordered(group, "roles", "rolename"),
                      text=group.get("textname", ""))
            )  # fmt: skip
        for client in found.get("clients", []):
            _client(client, made)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no dynamic-security.json: {error!r}") from None
    anonymous = found.get("anonymousGroup")
    if anonymous:
        name = anonymous if isinstance(anonymous, str) else anonymous["groupname"]
        made.change.members.append(Member(username=ANONYMOUS, groups=[name]))
    _defaults(found.get("defaultACLAccess", {}), made.left)
    return made


def _ordered(where: Mapping[str, Any], key: str, name: str) -> list[str]:
    """Names with the higher priorities first, as they are asked."""
    listed = sorted(where.get(key, []), key=lambda one: -int(one.get("priority", -1)))
    return list(dict.fromkeys(one[name] for one in listed))


def _role(role: Mapping[str, Any], left: list[str]) -> Role:
    lines: list[str] = []
    acls = sorted(role.get("acls", []), key=lambda one: -int(one.get("priority", 0)))
    for acl in acls:
        kind, topic = acl["acltype"], acl["topic"]
        if kind not in _KINDS:
            left.append(f"role {role['rolename']}: {kind} {topic} (there is no such right here)")
            continue
        try:
            validate_topic_filter(topic)
        except MqttError:
            left.append(f"role {role['rolename']}: {kind} {topic} (no topic filter)")
            continue
        verb, exact = _KINDS[kind]
        text = topic.replace("\\", "\\\\").replace('"', '\\"')
        what = f'{{eq, "{text}"}}' if exact else f'"{text}"'
        lines.append(f"{{{'allow' if acl.get('allow') else 'deny'}, all, {verb}, [{what}]}}.")
    return Role(
        name=role["rolename"], rules="".join(line + "\n" for line in lines),
        text=role.get("textname", ""),
    )  # fmt: skip


def _client(client: Mapping[str, Any], made: Imported) -> None:
    name = client["username"]
    made.change.members.append(
        Member(
            username=name,
            roles=_ordered(client, "roles", "rolename"),
            groups=_ordered(client, "groups", "groupname"),
            enabled=not client.get("disabled", False),
            text=client.get("textname", ""),
        )
    )
    if client.get("clientid"):
        made.left.append(f"client {name}: clientid {client['clientid']} (any may be used here)")
    if client.get("password") and client.get("salt"):
        rounds = int(client.get("iterations", 101))
        made.passwords[name] = f"$7${rounds}${client['salt']}${client['password']}"
    else:
        made.left.append(f"client {name}: it has no password")


def _defaults(found: Mapping[str, Any], left: list[str]) -> None:
    publish = found.get("publishClientSend", False)
    subscribe = found.get("subscribe", False)
    wanted = "allow" if publish else "deny"
    if publish != subscribe:
        left.append(
            f"defaultACLAccess: publish is {'allowed' if publish else 'denied'}, subscribe"
            f" {'allowed' if subscribe else 'denied'}; put that into acl.conf, which is asked last"
        )
    else:
        left.append(f'defaultACLAccess: set acl.nomatch = "{wanted}"')
    if not found.get("publishClientReceive", True):
        left.append("defaultACLAccess: publishClientReceive is denied (there is no such right)")
