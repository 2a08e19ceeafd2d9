"""Reads what stands below `all/` in etcd, so that nothing which stands there can stop a node.

    Kv --name, value--> Said               what it says, in types: nobody behind this parses
                   '--> Said, unreadable   noted (`mqttd.cluster.etcd.unreadable`); as if it were
                   gone, '--> None               but that a ban or a role that is known stays

What is not as it is expected to be is not read at all: half of it is nothing that any node has
said. A kind that is not known is one of a later version, or of nobody.

Promise: no exception, whatever the bytes; one pass over them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from mqttd.broker.ground.roles import Group, Member, Role
from mqttd.broker.rights.bans import KINDS, load_ban
from mqttd.cluster.etcd.client import Kv
from mqttd.cluster.etcd.keys import Keys, copy_of, decoded, heir_of, is_node, member_of
from mqttd.codec.reasons import TopicFilterInvalid
from mqttd.codec.topic import validate_topic_filter
from mqttd.mesh.frames import ADD, BEGIN, END, REMOVE, split, unpacked

__all__ = ["Chunk", "Reading", "Said", "chunk_of"]

#: What a chunk of routes says, in its order: a kind of frame, and filters.
Chunk = list[tuple[int, list[str]]]


class Said(NamedTuple):
    """A key below `all/`: what it is, whose (of bans and roles: their kind), the rest of its name.

    what: what it says; None: nothing, since it is gone, lifted or deleted, or unreadable.
    """

    kind: str
    node: str
    rest: str
    kv: Kv
    what: Any = None
    readable: bool = True


class Reading:
    """Of the keys of one cluster."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys

    def again(self) -> None:
        """All that there is comes next."""
        self.keys.unreadable.again(self.keys.all)

    def read(self, kv: Kv, gone: bool = False) -> Said | None:
        """What a key says, or, where it is `gone`, whose it was; None: it cannot be told."""
        unreadable = self.keys.unreadable
        if gone:
            unreadable.forget(kv.key)
        said = None
        expected = f"a kind of key that this version knows ({', '.join(_KINDS)})"
        try:
            kind, node, rest = self.keys.parts(kv.key)
            expected, whose, reader = _KINDS[kind]
            if whose and not is_node(node):
                raise ValueError(f"{node[:80]!r} is no name of a node")
            if whose is _ALONE and rest:
                raise ValueError("there is more behind the node's name")
            said = Said(kind, node, rest, kv, None, gone)
            if not gone:
                said = said._replace(what=reader(said), readable=True)
                unreadable.forget(kv.key)
        except Exception as error:  # of whatever it has in it; RecursionError, OverflowError ...
            if not gone:
                unreadable.note(kv, f"expected {expected} ({_why(error)})")
        return said


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:120]


def chunk_of(value: bytes) -> Chunk:
    """What a chunk of routes says; raises ValueError."""
    found: Chunk = []
    pos = 0
    while pos < len(value):
        body, end = split(value, pos)
        if not end:
            raise ValueError("a frame is cut off")
        kind = value[pos]
        if kind in (ADD, REMOVE):
            filters = [each.decode() for each in unpacked(value[body:end])]
            for full_filter in filters:
                _check(full_filter)
            found.append((kind, filters))
        elif kind in (BEGIN, END):
            found.append((kind, []))
        pos = end
    return found


def _check(full_filter: str) -> None:
    """The tables take filters as valid. Raises ValueError."""
    try:
        # With a mountpoint it may be longer and deeper than a SUBSCRIBE may say.
        validate_topic_filter(full_filter, 0, True)
    except TopicFilterInvalid as error:
        raise ValueError(str(error)) from None


# -- readers of each kind ------------------------------------------------------------------------


def _node(said: Said) -> object:
    return member_of(said.node, said.kv.value, said.kv.created, said.kv.lease)


def _route(said: Said) -> object:
    epoch, _, chunk = said.rest.partition("/")
    int(chunk, 16)
    return int(epoch, 16), chunk_of(said.kv.value)


def _home(said: Said) -> object:
    if not said.kv.lease:
        raise ValueError("it is under no lease")
    return said.kv.lease


def _taken(said: Said) -> object:
    by = said.kv.value.decode()
    if not said.rest or not is_node(by) or by == said.node:
        raise ValueError(f"{by[:80]!r} is no other node's name")
    return by


def _ban(said: Said) -> object:
    if said.node not in KINDS or not said.rest:
        raise ValueError("nobody that could be banned")
    if not said.kv.value:
        return None
    ban = load_ban(said.kv.value)
    if (ban.kind, ban.value) != (said.node, said.rest):
        raise ValueError("it is a ban of somebody else")
    return ban


_TYPES: Final[dict[str, Any]] = {"role": Role, "group": Group, "user": Member}


def _role(said: Said) -> object:
    kind = _TYPES[said.node]
    if not said.kv.value:
        return None
    one = decoded(said.kv.value, kind)
    if said.rest != (one.username if isinstance(one, Member) else one.name):
        raise ValueError("it has another name")
    return one


def _ask(said: Said) -> object:
    if not said.kv.value:
        return None
    what = decoded(said.kv.value, dict[str, Any])
    if what["what"] == "drain":
        rate = what["rate"] = float(what["rate"])
        if not (math.isfinite(rate) and rate >= 0 and isinstance(what["to"], str)):
            raise ValueError("no rate, or no text")
    elif what["what"] != "named":
        raise ValueError("nothing that this version can do")
    return what


def _out(said: Said) -> object:
    return True


def _copy(said: Said) -> object:
    return copy_of(said.kv.value)


def _heir(said: Said) -> object:
    return heir_of(said.kv.value, said.kv.created, said.kv.changed)


#: What the second part of a name is: a node's with nothing behind it, one with more, another's.
_ALONE: Final = "alone"
_MORE: Final = "more"
_OTHER: Final = ""
#: Kind of a key -> what is expected of it, whose it is, its reader.
_KINDS: Final[dict[str, tuple[str, str, Callable[[Said], object]]]] = {
    "node": ("a node's name; id, address, version and what it speaks, as JSON", _ALONE, _node),
    "route": ("a node's name, epoch and chunk; filters, as frames", _MORE, _route),
    "home": ("a node's name; a lease", _ALONE, _home),
    "taken": ("a node's name and a client id; another node's name", _MORE, _taken),
    "ban": ("kind and value of a ban; that ban as JSON, or nothing", _OTHER, _ban),
    "role": ("role, group or user, and a name; what that is as JSON, or nothing", _OTHER, _role),
    "ask": ("a node's name; what it is to do, as JSON", _ALONE, _ask),
    "out": ("a node's name", _ALONE, _out),
    "copy": ("a node's name; a stream and its subject, as JSON", _ALONE, _copy),
    "heir": ("a node's name; who takes over what, and how far that is, as JSON", _ALONE, _heir),
}
