"""Where sessions are replicated to: ``[jetstream]``."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from mqttd.config.schema import keys

__all__ = ["Jetstream"]


def _file(text: str) -> Meta:
    return keys.path(text, pattern=r"^[^\0]*$")


class Jetstream(Struct, frozen=True, kw_only=True):
    """The NATS servers that replicate sessions, where `session.replicate` says so."""

    servers: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[^\s/,]+:[0-9]{1,5}$")], ...],
        keys.plain(
            "NATS servers with JetStream; one that does not answer is followed by the next, and by"
            " those that they name.",
            reload=False,
            expects='a list of host:port, such as ["nats-1:4222", "nats-2:4222", "nats-3:4222"]',
        ),
    ] = ("127.0.0.1:4222",)
    replicas: Annotated[
        int,
        keys.count(
            "Servers that keep a copy; what is acknowledged is with more than half of them.",
            "broker",
            1,
            5,
            False,
        ),
    ] = 3
    user: Annotated[
        str, keys.plain("Name by which the servers know this broker; empty: none.", reload=False)
    ] = ""
    password_file: Annotated[
        str, _file("File with the password of `user`; a line end behind it does not count.")
    ] = ""
    token_file: Annotated[
        str, _file("File with a token, where the servers want that in place of a user.")
    ] = ""
    tls: Annotated[bool, keys.plain("Whether the servers are spoken to by TLS.", reload=False)] = (
        False
    )
    ca_file: Annotated[
        str,
        _file("PEM file with those who vouch for the servers; empty: those the system knows."),
    ] = ""
    certificate: Annotated[
        str, _file("PEM file with the certificate by which the servers know this broker.")
    ] = ""
    private_key: Annotated[str, _file("PEM file with the private key of `certificate`.")] = ""
