"""What a client may do: ``[acl]``."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from mqttd.config.schema import keys

__all__ = ["Acl", "AclShadow"]


class AclShadow(Struct, frozen=True, kw_only=True):
    """A candidate for the access rules that runs beside them and is never enforced."""

    file: Annotated[
        str,
        keys.path(
            "File with the candidate, empty for none; what it would decide otherwise is counted"
            " and sampled in the log (`mqttd-ctl acl shadow`, `acl promote`).",
            reload=True,
            pattern=r"^[^\0]*$",
        ),
    ] = ""


class Acl(Struct, frozen=True, kw_only=True):
    """What a connected client may publish and subscribe to."""

    file: Annotated[str, keys.path("File with the access rules.", reload=True)] = "acl.conf"
    nomatch: Annotated[
        Literal["allow", "deny"],
        keys.plain("The answer where no rule matches."),
    ] = "deny"
    order: Annotated[
        Literal["first", "last"],
        keys.plain(
            "Whether this file is asked before the roles of users (`mqttd-ctl roles`), or behind"
            " them: the first rule that matches decides.",
        ),
    ] = "last"
    deny_action: Annotated[
        Literal["ignore", "disconnect"],
        keys.plain(
            "What a refused publish gets: `ignore` drops it (5.0 clients see reason 0x87),"
            " `disconnect` ends the connection.",
        ),
    ] = "ignore"
    on_revoke: Annotated[
        Literal["unsubscribe", "disconnect"],
        keys.plain(
            "What ends when new rules no longer allow a subscription: the subscription alone, or"
            " the connection too (5.0 clients see reason 0x87).",
        ),
    ] = "unsubscribe"
    cache: Annotated[
        bool,
        keys.plain("Remember each connection's answers per topic until the rules change."),
    ] = True
    shadow: AclShadow = AclShadow()
