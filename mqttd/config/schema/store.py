"""What outlasts the process, what an acknowledgement promises: ``[store]``, ``[durability]``."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from mqttd.config.schema import keys
from mqttd.config.schema.keys import GIB, MIB

__all__ = ["Durability", "Store"]


class Store(Struct, frozen=True, kw_only=True):
    """Where sessions, their messages and retained messages are kept."""

    kind: Annotated[
        Literal["sqlite", "memory"],
        keys.plain(
            "`sqlite`: sessions that outlive their connection, their queues, wills and retained"
            " messages are in the file `store.db` in `node.data_dir`, and there again after a"
            " restart, a crash, or a power cut (see `[durability]`); `memory`: nothing outlasts the"
            " process.",
            "broker",
            reload=False,
        ),
    ] = "sqlite"
    max_bytes: Annotated[
        int,
        keys.size(
            "What messages, sessions and subscriptions may take in that file; beyond it those that"
            " would have to be kept are refused (0x97) until a tenth of it is free, and an alarm is"
            " raised; 0: what the disk has.",
            "broker",
            0,
            1024 * 1024 * GIB,
            False,
        ),
    ] = 0
    min_free: Annotated[
        int,
        keys.size(
            "Space on its file system below which the alarm `disk_low` is raised; 0: never.",
            "broker",
            0,
            1024 * GIB,
            False,
        ),
    ] = 256 * MIB


class Durability(Struct, frozen=True, kw_only=True):
    """What is true when a PUBLISH of QoS 1 or 2 is acknowledged, where there is a store."""

    default: Annotated[
        Literal["none", "os", "fsync"],
        keys.plain(
            "What PUBACK and PUBREC promise of a message that goes to a session that outlives its"
            " connection, or is retained: `none` nothing, `os` it survives the end of the process,"
            " `fsync` a power cut too; others are acknowledged at once.",
            "message",
            reload=False,
        ),
    ] = "os"
    topics: Annotated[
        dict[Annotated[str, Meta(min_length=1)], Literal["none", "os", "fsync"]],
        keys.plain(
            "Topic filters whose messages promise something else; of those that match the one that"
            ' promises most counts; such as `{ "alarm/#" = "fsync", "sensor/#" = "none" }`.',
            "message",
            reload=False,
            expects="a table of topic filters and none, os or fsync, such as"
            ' { "alarm/#" = "fsync" }',
        ),
    ] = field(default_factory=dict)
