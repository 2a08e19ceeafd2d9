"""Addresses as text: how they are shown, and which of them are this machine."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, ip_address

__all__ = ["address_text", "is_local", "is_loopback", "is_unix_peer"]


def address_text(host: str, port: int) -> str:
    """`host:port`, IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host or '*'}:{port}"


def is_unix_peer(peerhost: str) -> bool:
    """True for a peer of a Unix socket: ``unix``, ``unix:...`` or a path."""
    return peerhost == "unix" or peerhost.startswith(("unix:", "/"))


@lru_cache(maxsize=4096)
def is_loopback(peerhost: str) -> bool:
    """True for a peer on this machine."""
    if is_unix_peer(peerhost):
        return True
    try:
        address = ip_address(peerhost)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def is_local(host: str) -> bool:
    """Whether a server's host is this machine: loopback, localhost, the path of a socket."""
    if not host or host == "localhost" or host.startswith("/"):
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
