"""Whom a rule is about: a client's address as rules see it, and the conditions of `who`.

Promise: a client's address is what its connection shows, never what it says. One that is connected
and has no address, because it was reset before what it sent is read, may be in any network: a rule
that denies by address is about it, one that allows is not. Any other unknown one is in no network.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final, TypeAlias

from mqttd.access.acl.terms import (
    All,
    And,
    Client,
    IpAddr,
    Match,
    Or,
    User,
    Who,
)
from mqttd.net.addresses import is_unix_peer
from mqttd.types import ClientInfo

__all__ = ["Address", "is_about", "is_anywhere", "parse_address"]

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

#: Addresses that are remembered.
_REMEMBERED: Final = 4096


@lru_cache(_REMEMBERED)
def parse_address(peerhost: str) -> Address | None:
    """The address that ``{ipaddr, ...}`` rules see; None if it is none.

    IPv4-mapped IPv6 is the IPv4 address; a Unix socket peer is on this machine: 127.0.0.1.
    """
    if is_unix_peer(peerhost):
        return ipaddress.IPv4Address("127.0.0.1")
    try:
        address = ipaddress.ip_address(peerhost)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.scope_id is not None:
            return ipaddress.IPv6Address(int(address))
    return address


def is_anywhere(client: ClientInfo) -> bool:
    """Whether the client is connected, from nobody knows where."""
    return not client.peerhost and client.listener != ""


def is_about(client: ClientInfo, address: Address | None, who: Who, anywhere: bool = False) -> bool:
    """True if `who` is true of the client; without an address, `anywhere` is said for networks."""
    match who:
        case All():
            return True
        case User(name):
            return client.username == name
        case Client(client_id):
            return client.client_id == client_id
        case Match(regex, of_client):
            text = client.client_id if of_client else client.username
            return text is not None and regex.search(text)
        case IpAddr(networks):
            if address is None:
                return anywhere
            return any(address in network for network in networks)
        case And(parts):
            return all(is_about(client, address, part, anywhere) for part in parts)
        case Or(parts):
            return any(is_about(client, address, part, anywhere) for part in parts)
