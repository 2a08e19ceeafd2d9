"""How much may wait, for a slow reader and for a broker that has too much to do: ``[output]``,
``[overload]``.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from mqttd.config.schema import keys
from mqttd.config.schema.keys import DAY, GIB, HOUR, KIB, MIB

__all__ = ["Output", "Overload"]


class Output(Struct, frozen=True, kw_only=True):
    """Bytes written for clients that read slower than the broker writes."""

    high_watermark: Annotated[
        int,
        keys.size(
            "Unsent bytes from which a connection is slow: QoS 0 is dropped and counted, QoS 1 and"
            " 2 wait in the session.",
            "connection",
            4 * KIB,
            GIB,
        ),
    ] = MIB
    low_watermark: Annotated[
        int,
        keys.size(
            "Unsent bytes at which a slow connection is written to again.", "connection", 0, GIB
        ),
    ] = 256 * KIB
    send_timeout: Annotated[
        float,
        keys.duration(
            "Time after which a client that reads nothing while output waits for it is"
            " disconnected (0x97); reading slowly is allowed; 0 waits for ever.",
            "connection",
            0,
            DAY,
        ),
    ] = 60.0
    backlog: Annotated[
        int,
        keys.size(
            "Unsent bytes of all connections together; while it is reached, publishers are not"
            " read from.",
            "broker",
            MIB,
            1024 * GIB,
        ),
    ] = 256 * MIB
    gather: Annotated[
        float,
        keys.duration(
            "Rest of the engine after a turn while small packets come densely, a few with each"
            " read: the kernel gathers them meanwhile, which costs less CPU and delays them by up"
            " to a tenth of a millisecond; 0 never rests.",
            "broker",
            0,
            0.001,
        ),
    ] = 20e-6


class Overload(Struct, frozen=True, kw_only=True):
    """When the broker has more to do than it can, and new clients have to wait."""

    lag: Annotated[
        float,
        keys.duration(
            "Lateness of the event loop, a whole second long, from which new clients are refused"
            " (0x89 server busy) until it has recovered; 0 refuses nobody.",
            "broker",
            0,
            HOUR,
        ),
    ] = 0.5
