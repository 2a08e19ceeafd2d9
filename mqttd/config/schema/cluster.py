"""Several brokers as one: ``[cluster]``."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_address
from typing import Annotated, Literal

from msgspec import Meta, Struct

from mqttd.config.schema import keys
from mqttd.config.schema.keys import GIB, HOUR, MIB, MINUTE

__all__ = ["Cluster"]


def _file(text: str) -> Meta:
    return keys.path(text, pattern=r"^[^\0]*$")


class Cluster(Struct, frozen=True, kw_only=True):
    """Several brokers as one; docs/design/cluster.md says what it was held to."""

    kind: Annotated[
        Literal["none", "etcd"],
        keys.plain(
            "`none`: this broker is alone; `etcd`: it is a node of a cluster, whose members,"
            " routes and owners of client ids are kept in etcd.",
            reload=False,
        ),
    ] = "none"
    name: Annotated[
        str,
        keys.plain(
            "Name of the cluster, the same in all of its nodes; each needs a `node.name` of its"
            " own.",
            reload=False,
            pattern=r"^[A-Za-z0-9_.@-]{1,64}\Z",
            expects="a name of 1 to 64 letters, digits and _ . @ -",
        ),
    ] = "mqttd"
    endpoints: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^https?://[^\s/]+$")], ...],
        keys.plain(
            "URLs of the members of etcd; one that does not answer is followed by the next.",
            reload=False,
            expects="a list of URLs with nothing behind the port, such as"
            ' ["https://etcd-1:2379", "https://etcd-2:2379"]',
        ),
    ] = ("http://127.0.0.1:2379",)
    etcd_ca_file: Annotated[
        str, _file("PEM file with those who vouch for etcd; empty: those the system knows.")
    ] = ""
    etcd_certificate: Annotated[
        str, _file("PEM file with the certificate by which etcd knows this node; empty: none.")
    ] = ""
    etcd_private_key: Annotated[
        str, _file("PEM file with the private key of `etcd_certificate`.")
    ] = ""
    etcd_user: Annotated[
        str,
        keys.plain("Name by which etcd knows this node, where it has users.", reload=False),
    ] = ""
    etcd_password_file: Annotated[
        str, _file("File with the password of `etcd_user`; a line end behind it does not count.")
    ] = ""
    compact: Annotated[
        bool,
        keys.plain(
            "Whether nodes compact etcd's history, all of it but the last seconds; `false` where"
            " etcd does that itself (`--auto-compaction-mode`), or others who use it need more of"
            " it.",
            reload=False,
        ),
    ] = True
    bind: Annotated[
        str,
        keys.about(
            "Address and port where other nodes reach this one: `host:port`, `[ipv6]:port`, or"
            " `:port` for all addresses; port 0 takes a free port.",
            "bind",
            "broker",
            False,
        ),
    ] = "127.0.0.1:4370"
    advertise: Annotated[
        str,
        keys.plain(
            "The `host:port` that other nodes are told; empty: `bind`, with `node.name` for a host"
            " where that is all addresses.",
            reload=False,
            pattern=r"^([^\s/]+:[0-9]{1,5})?\Z",
            expects='host and port, such as "node-1.example:4370"',
        ),
    ] = ""
    certificate: Annotated[
        str,
        _file(
            "PEM file with this node's certificate, then those that lead to `ca_file`; one of its"
            " DNS names, or its common name, is `node.name`; empty speaks plain TCP with the"
            " other nodes, which only a loopback address may."
        ),
    ] = ""
    private_key: Annotated[str, _file("PEM file with the private key of `certificate`.")] = ""
    ca_file: Annotated[
        str,
        _file(
            "PEM file with who vouches for nodes: whoever shows a certificate of theirs may be the"
            " node that it names, so that is no authority that others use."
        ),
    ] = ""
    export: Annotated[
        str,
        keys.plain(
            "The URL at which readers of all nodes' event logs are told to find this one's; empty:"
            " that of `admin.tcp`, with the host of `advertise` where that is all addresses.",
            reload=False,
            pattern=r"^(https?://[^\s/]+)?\Z",
            expects='a URL, such as "https://node-1.example:8081"',
        ),
    ] = ""
    lease: Annotated[
        int,
        keys.duration(
            "Time after which a node that is not heard of is out of the cluster, with its routes.",
            "broker",
            2,
            MINUTE,
            False,
        ),
    ] = 5
    keep_sessions: Annotated[
        int,
        keys.duration(
            "Time for which the sessions of a node that is gone wait for it, beyond `lease`:"
            " their clients are told 0x88 elsewhere, instead of being given empty sessions; `0s`"
            " gives them up with the lease.",
            "broker",
            0,
            HOUR,
            False,
        ),
    ] = 30
    moves_rate: Annotated[
        int,
        keys.size(
            "Bytes a second of a client's session that comes to this node from others, and of what"
            " those of one user weigh beyond 64 KiB each, 16 MiB and 32 sessions at once; above it"
            " clients are told 0x88 and their sessions stay where they are; a filter weighs a"
            " kilobyte or two; 0 has no limit.",
            "session",
            0,
            1024 * GIB,
            False,
        ),
    ] = MIB
    minority: Annotated[
        Literal["serve", "refuse"],
        keys.plain(
            "What a node does that etcd does not answer: `serve` keeps its clients, and lets those"
            " in whose session it has; `refuse` sends all away.",
            reload=False,
        ),
    ] = "serve"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of `bind`; the host is empty for all addresses."""
        host, _, port = self.bind.rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)

    def reached(self, name: str, port: int) -> str:
        """What other nodes are told of the node `name`, which listens at this port."""
        host = self.address[0]
        with suppress(ValueError):  # it is a name
            if ip_address(host).is_unspecified:
                host = ""
        shown = f"[{host}]" if ":" in host else host or name
        return self.advertise or f"{shown}:{port}"
