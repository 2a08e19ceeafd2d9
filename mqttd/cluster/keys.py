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
    will/<node>/<epoch>/<client id>       its will (`mqttd.cluster.heirs`)             none
    export/<node>                         the URL of its event log, for readers        none

Every node watches `all/`, in one order; `own/` is asked for one by one. What is under a node's
lease goes with it, and what is under its *home* `cluster.keep_sessions` later. An *epoch* is a
revision of etcd, so it grows: of a node that in which its key was created, of a client id that in
which its owner was written.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any, Final, NamedTuple

__all__ = [
    "Heir",
    "Keys",
    "Member",
    "Owner",
    "claimed",
    "heir_of",
    "member_of",
    "owner_of",
    "user_of",
]

#: Bytes of the hash of a user name.
_HASH: Final = 16


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

    def dump(self) -> bytes:
        """As the value of its key; the epoch is what etcd knows."""
        said = asdict(self)
        del said["name"], said["epoch"]
        return json.dumps(said).encode()


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
        self._home = base + "all/home/"
        self._taken = base + "all/taken/"
        self._own = (base + "own/").encode()
        self._will = base + "will/"
        self.exports = (base + "export/").encode()
        self.wills = self._will.encode()

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

    def export(self, node: str) -> bytes:
        """Where a node's event log is read, for who reads all of them."""
        return self.exports + node.encode()

    def wills_of(self, node: str, epoch: int) -> bytes:
        """The beginning of all wills of a node."""
        return f"{self._will}{node}/{epoch:016x}/".encode()

    def will(self, node: str, epoch: int, client_id: str) -> bytes:
        """The will of a client that a node has."""
        return self.wills_of(node, epoch) + client_id.encode()

    def parts_of_will(self, key: bytes) -> tuple[str, int, str]:
        """Node, epoch and client id of a will's key."""
        node, epoch, client_id = key[len(self.wills) :].decode().split("/", 2)
        return node, int(epoch, 16), client_id

    def parts(self, key: bytes) -> tuple[str, str, str]:
        """A key below `all/`: what it is, whose, and the rest."""
        kind, _, rest = key[len(self.all) :].decode().partition("/")
        node, _, rest = rest.partition("/")
        return kind, node, rest


def claimed(node: str, origin: str = "", user: str = "") -> bytes:
    """The value of a client id that `node` has; see `Owner`."""
    return "\0".join((node, origin, user)).rstrip("\0").encode()


def owner_of(value: bytes) -> Owner:
    """Who has a client id, as it stands in etcd."""
    return Owner(*value.decode().split("\0", 2))


def user_of(client_id: str, username: str | None) -> str:
    """A user's hash, another one for each client id: user names are not to be read in etcd."""
    name = b"" if username is None else b"=" + username.encode()
    key = blake2b(client_id.encode()).digest()
    return blake2b(name, digest_size=_HASH, key=key).hexdigest()


def heir_of(value: bytes, created: int, changed: int) -> Heir:
    """As it stands in etcd; raises ValueError or TypeError."""
    return Heir(**json.loads(value), created=created, changed=changed)


def member_of(node: str, value: bytes, epoch: int) -> Member:
    """What a node says of itself; raises ValueError, KeyError or TypeError."""
    said: dict[str, Any] = json.loads(value)
    least, most = said["speaks"]
    return Member(
        node,
        str(said["id"]),
        str(said["address"]),
        str(said["version"]),
        (int(least), int(most)),
        bool(said.get("ready", False)),
        epoch,
    )
