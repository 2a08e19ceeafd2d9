"""What stands in etcd, below ``/mqttd/<cluster>/v1/``.

    all/node/<node>                       who is there, and where it is reached        lease
    all/route/<node>/<epoch>/<chunk>      filters, as frames (`mqttd.mesh.frames`)     lease
    all/home/<node>                       its sessions wait for it                     home
    all/taken/<node>/<client id>          another node has this client id now          lease
    all/ban/<kind>/<value>                a ban; empty: lifted                         none
    all/role/<role|group|user>/<name>     a role, a group or a user's; empty: deleted  none
    all/ask/<node>                        what it is to do (`mqttd.cluster.commons`)   none
    all/out/<node>                        it was put out                               none
    all/copy/<node>                       the stream that has its store, too           none
    all/heir/<node>                       who takes that over, and how far that is     none
    own/<client id>                       who has it: the node, from whom it was       lease,
                                          claimed, whose it is (a hash of the user     home
                                          name); home for a session that stays
    will/<node>/<epoch>/<client id>       its will (`mqttd.cluster.wills.heirs`)             none
    sent/<node>                           what it asked before this does not come      lease
                                          any more (`mqttd.cluster.etcd.ordered`)
    export/<node>                         the URL of its event log, for readers        none

Every node watches `all/`, in one order; `own/` is asked for one by one. What is under a node's
lease goes with it, and what is under its *home* `cluster.keep_sessions` later. An *epoch* is a
revision of etcd, so it grows: of a node that in which its key was created, of a client id that in
which its owner was written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from typing import Final, NamedTuple, TypeVar

import msgspec

from mqttd.cluster.etcd.client import Kv
from mqttd.cluster.etcd.unreadable import Unreadable
from mqttd.config.schema.node import NODE_NAME

__all__ = [
    "Copy",
    "Heir",
    "Keys",
    "Member",
    "Owner",
    "claimed",
    "copy_of",
    "decoded",
    "heir_of",
    "is_node",
    "member_of",
    "owner_of",
    "user_of",
]

T = TypeVar("T")

#: Bytes of the hash of a user name.
_HASH: Final = 16
_NODE: Final = re.compile(NODE_NAME)
#: Characters of what a node says that it does.
_MOST: Final = 32
#: Where a node is reached: host and port.
_ADDRESS: Final = re.compile(r"[^\s/]{1,255}:[0-9]{1,5}\Z")
#: A stream of JetStream and its subject, as nodes name them.
_STREAM: Final = re.compile(r"[A-Za-z0-9._-]{1,1000}\Z")


@dataclass(frozen=True, slots=True)
class Member:
    """A node that is there."""

    name: str
    #: Of its data directory: the same after a restart, and no two nodes have the same.
    id: str
    #: Where others reach it, `host:port`.
    address: str
    #: Of mqttd; and of what it says to other nodes, the least and the most that it can.
    version: str
    speaks: tuple[int, int]
    #: It has let clients in.
    ready: bool = False
    epoch: int = 0
    lease: int = 0
    #: Its `session.replicate`; empty: it does not say.
    replicate: str = ""
    #: It speaks TLS with other nodes; None: it does not say.
    tls: bool | None = None

    def dump(self) -> bytes:
        """As the value of its key; the epoch and the lease are what etcd knows."""
        said = asdict(self)
        del said["name"], said["epoch"], said["lease"]
        return json.dumps(said).encode()


class _Said(msgspec.Struct):
    """The value of a member's key; one of a later version may say more."""

    id: str
    address: str
    version: str
    speaks: tuple[int, int]
    ready: bool = False
    replicate: str = ""
    tls: bool | None = None


@dataclass(frozen=True, slots=True)
class Heir:
    """Who takes over what a node has left in its stream; `stage`: read, marks, done."""

    stream: str
    subject: str
    by: str
    epoch: int
    stage: str
    created: int = 0
    changed: int = 0

    def dump(self) -> bytes:
        """As the value of its key; the revisions are what etcd knows."""
        said = asdict(self)
        del said["created"], said["changed"]
        return json.dumps(said).encode()


@dataclass(frozen=True, slots=True)
class Copy:
    """The stream that has the store of a node, too."""

    stream: str
    subject: str

    def dump(self) -> bytes:
        """As the value of its key."""
        return json.dumps(asdict(self)).encode()


class Owner(NamedTuple):
    """Who has a client id, from whom it was claimed, and whose it is: `user_of` the session's user.

    Empty: nobody; it was nobody's; that is not said, as by nodes before this was.
    """

    node: str
    origin: str = ""
    user: str = ""

    def is_other(self, user: str) -> bool:
        """Whether it is known to be another's than this user's."""
        return bool(user and self.user and user != self.user)


class Keys:
    """The keys of the cluster `name`."""

    def __init__(self, name: str) -> None:
        base = f"/mqttd/{name}/v1/"
        self.all = (base + "all/").encode()
        self._node = base + "all/node/"
        self._route = base + "all/route/"
        self.routes = self._route.encode()
        self._home = base + "all/home/"
        self._taken = base + "all/taken/"
        self._own = (base + "own/").encode()
        self._will = base + "will/"
        self._sent = base + "sent/"
        self.exports = (base + "export/").encode()
        self.wills = self._will.encode()
        #: Those that this node has found and cannot read.
        self.unreadable = Unreadable()

    def node(self, node: str) -> bytes:
        """Who is there."""
        return (self._node + node).encode()

    def home(self, node: str) -> bytes:
        """The lease under which its sessions wait for a node."""
        return (self._home + node).encode()

    def route(self, node: str, epoch: int, chunk: int) -> bytes:
        """Filters, in the order of their chunks."""
        return f"{self._route}{node}/{epoch:016x}/{chunk:010x}".encode()

    def taken(self, node: str, client_id: str) -> bytes:
        """Tells a node that it has lost a client id."""
        return f"{self._taken}{node}/{client_id}".encode()

    def own(self, client_id: str) -> bytes:
        """Who has a client id."""
        return self._own + client_id.encode()

    def ban(self, kind: str, value: str) -> bytes:
        """A ban."""
        return self.all + f"ban/{kind}/{value}".encode()

    def role(self, kind: str, name: str) -> bytes:
        """A role, a group of roles, or what a user has of both."""
        return self.all + f"role/{kind}/{name}".encode()

    def ask(self, node: str) -> bytes:
        """What a node is to do."""
        return self.all + f"ask/{node}".encode()

    def out(self, node: str) -> bytes:
        """A node that was put out."""
        return self.all + f"out/{node}".encode()

    def copy(self, node: str) -> bytes:
        """The stream that has the store of a node, too."""
        return self.all + f"copy/{node}".encode()

    def heir(self, node: str) -> bytes:
        """Who takes over what it has left there."""
        return self.all + f"heir/{node}".encode()

    def sent(self, node: str) -> bytes:
        """Written anew when something had no answer that is not to come any more."""
        return (self._sent + node).encode()

    def export(self, node: str) -> bytes:
        """Where a node's event log is read, for who reads all of them."""
        return self.exports + node.encode()

    def wills_ever(self, node: str) -> bytes:
        """The beginning of all wills of a node, of all its epochs."""
        return f"{self._will}{node}/".encode()

    def wills_of(self, node: str, epoch: int) -> bytes:
        """The beginning of all wills of a node in this epoch."""
        return f"{self._will}{node}/{epoch:016x}/".encode()

    def will(self, node: str, epoch: int, client_id: str) -> bytes:
        """The will of a client that a node has."""
        return self.wills_of(node, epoch) + client_id.encode()

    def parts_of_will(self, key: bytes) -> tuple[str, int, str]:
        """Node, epoch and client id of a will's key; raises ValueError."""
        node, epoch, client_id = key[len(self.wills) :].decode().split("/", 2)
        if not is_node(node):
            raise ValueError(f"{node[:80]!r} is no name of a node")
        return node, int(epoch, 16), client_id

    def owner(self, kv: Kv) -> Owner:
        """Who has a client id; nobody where that cannot be read: who claims it writes it anew."""
        try:
            owner = owner_of(kv.value)
            if is_node(owner.node) and (not owner.origin or is_node(owner.origin)):
                return owner
        except ValueError:
            pass
        self.unreadable.note(kv, "expected the name of the node that has it", False)
        return Owner("")

    def owned(self, found: Iterable[Kv]) -> dict[str, Kv]:
        """Of the keys that say who has which client id: these by their client ids."""
        owned: dict[str, Kv] = {}
        for kv in found:
            try:
                owned[kv.key[len(self._own) :].decode()] = kv
            except ValueError:
                self.unreadable.note(kv, "expected a client id", False)
        return owned

    def heir_in(self, kv: Kv | None) -> Heir | None:
        """Who takes over, as this key says; None also where that cannot be read."""
        with suppress(ValueError):
            return None if kv is None else heir_of(kv.value, kv.created, kv.changed)
        return None

    def copy_in(self, kv: Kv | None) -> Copy | None:
        """The stream, as this key says; None also where that cannot be read."""
        with suppress(ValueError):
            return None if kv is None else copy_of(kv.value)
        return None

    def parts(self, key: bytes) -> tuple[str, str, str]:
        """A key below `all/`: what it is, whose, and the rest; raises ValueError."""
        kind, _, rest = key[len(self.all) :].decode().partition("/")
        node, _, rest = rest.partition("/")
        return kind, node, rest


def claimed(node: str, origin: str = "", user: str = "") -> bytes:
    """The value of a client id that `node` has; see `Owner`."""
    return "\0".join((node, origin, user)).rstrip("\0").encode()


def owner_of(value: bytes) -> Owner:
    """Who has a client id, as it stands in etcd; raises ValueError."""
    return Owner(*value.decode().split("\0", 2))


def user_of(client_id: str, username: str | None) -> str:
    """A user's hash, another one for each client id: user names are not to be read in etcd."""
    name = b"" if username is None else b"=" + username.encode()
    key = blake2b(client_id.encode()).digest()
    return blake2b(name, digest_size=_HASH, key=key).hexdigest()


def decoded(value: bytes, type: type[T]) -> T:
    """JSON of such a type; raises ValueError."""
    try:
        return msgspec.json.decode(value, type=type)
    except RecursionError as error:
        raise ValueError(str(error)) from None


def is_node(name: str) -> bool:
    """Whether a node may be called so."""
    return _NODE.match(name) is not None


def copy_of(value: bytes) -> Copy:
    """As it stands in etcd; raises ValueError."""
    said = decoded(value, Copy)
    _check_stream(said.stream, said.subject)
    return said


def heir_of(value: bytes, created: int, changed: int) -> Heir:
    """As it stands in etcd; raises ValueError."""
    said = decoded(value, Heir)
    _check_stream(said.stream, said.subject)
    if not is_node(said.by):
        raise ValueError(f"by = {said.by[:80]!r}: no name of a node")
    return replace(said, created=created, changed=changed)


def member_of(node: str, value: bytes, epoch: int, lease: int = 0) -> Member:
    """What a node says of itself; raises ValueError."""
    said = decoded(value, _Said)
    port = said.address.rpartition(":")[2]
    if not _ADDRESS.match(said.address) or int(port) > 65535:
        raise ValueError(f"address = {said.address[:80]!r}: expected host and port")
    return Member(
        node, said.id, said.address, said.version, said.speaks, said.ready, epoch, lease,
        said.replicate[:_MOST], said.tls,
    )  # fmt: skip


def _check_stream(stream: str, subject: str) -> None:
    if not (_STREAM.match(stream) and _STREAM.match(subject)):
        raise ValueError(f"{stream[:80]!r}, {subject[:80]!r}: no stream and its subject")
