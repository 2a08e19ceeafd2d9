"""What sequences are about: each profile makes some things frequent that are rare elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

__all__ = ["PROFILES", "Profile"]


@dataclass(frozen=True)
class Profile:
    """How often what is done, as weights of kinds of steps and as shares from 0 to 1."""

    publish: int = 10
    subscribe: int = 4
    unsubscribe: int = 1
    connect: int = 5
    close: int = 3
    disconnect: int = 2
    answer: int = 0
    automatic: int = 0
    stray: int = 0  # an acknowledgement of what was not sent
    mutate: int = 0
    raw: int = 0
    pause: int = 0
    together: int = 0  # packets in one write
    burst: int = 0  # many PUBLISH in one write

    steps: tuple[int, int] = (8, 24)
    #: Connections of 5.0, with properties, with a will; messages that are retained.
    newer: float = 0.67
    properties: float = 0.1
    wills: float = 0.15
    retained: float = 0.12
    #: Subscriptions: overlapping filters, with an identifier, shared.
    overlapping: float = 0.6
    identified: float = 0.2
    shared: float = 0.03
    aliases: float = 0.06
    #: CONNECT with another's client identifier; connections acknowledged by steps.
    borrowed: float = 0.1
    by_hand: float = 0.0
    #: Acknowledgements by the wrong packet, or with a reason code.
    wrong: float = 0.0
    refused: float = 0.08
    #: Packets behind CONNECT in its write.
    eager: float = 0.0
    #: Small windows, and messages that fill them.
    narrow: bool = False
    #: Payloads and Maximum Packet Size at the borders of lengths; few packet ids, PUBLISH with DUP;
    #: intervals that end within a sequence.
    borders: bool = False
    few_ids: bool = False
    short_time: bool = False
    weights: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        kinds = list(Profile.__dataclass_fields__)
        weights = {kind: getattr(self, kind) for kind in kinds[: kinds.index("steps")]}
        object.__setattr__(self, "weights", weights)


PROFILES: Final[Mapping[str, Profile]] = {
    "core": Profile(subscribe=5, unsubscribe=2, connect=4, close=2, overlapping=0.4),
    "by-hand": Profile(subscribe=3, disconnect=1, answer=10, automatic=1, by_hand=0.65),
    "bad-acks": Profile(
        subscribe=3, close=2, disconnect=1, answer=8, automatic=1, stray=4, by_hand=0.65,
        wrong=0.15, refused=0.3,
    ),
    "retained": Profile(
        subscribe=8, unsubscribe=3, connect=2, close=1, disconnect=1, newer=0.75, retained=0.5,
        identified=0.5,
    ),
    "replays": Profile(
        subscribe=10, connect=3, close=2, disconnect=1, answer=5, newer=0.9, by_hand=0.9,
        retained=0.7, overlapping=0.2, narrow=True,
    ),
    "properties": Profile(
        connect=3, close=2, disconnect=1, answer=1, automatic=1, newer=0.75, properties=0.5,
        identified=0.5, aliases=0.3, by_hand=0.65,
    ),
    "wills": Profile(
        publish=3, connect=8, close=4, disconnect=4, raw=1, wills=0.7, retained=0.5, borrowed=0.25,
    ),
    "shared": Profile(subscribe=6, unsubscribe=2, connect=4, close=2, disconnect=1, shared=0.5),
    "released": Profile(
        publish=12, subscribe=2, unsubscribe=0, connect=4, disconnect=1, answer=1, stray=6,
        by_hand=0.65, few_ids=True,
    ),
    "invalid": Profile(
        publish=6, subscribe=3, connect=6, close=1, disconnect=1, answer=1, automatic=1, stray=1,
        mutate=6, raw=4, by_hand=0.65,
    ),
    "time": Profile(
        publish=6, connect=6, close=4, disconnect=3, answer=1, pause=2, wills=0.5, short_time=True,
    ),
    "deep": Profile(
        publish=30, subscribe=2, connect=6, close=5, answer=14, automatic=1, steps=(40, 90),
        by_hand=0.65,
    ),
    "bursts": Profile(
        publish=6, connect=6, close=4, answer=6, automatic=2, burst=14, by_hand=0.65,
    ),
    "sizes": Profile(
        publish=16, connect=6, close=4, answer=6, automatic=2, together=4, by_hand=0.65,
        borders=True,
    ),
    "together": Profile(
        publish=8, subscribe=5, unsubscribe=2, close=2, disconnect=1, answer=2, automatic=1,
        stray=1, together=8, by_hand=0.65, eager=0.4,
    ),
}  # fmt: skip
