"""What becomes of messages, as operators may ask: ``[trace]``."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from mqttd.config.schema import keys
from mqttd.config.schema.keys import GIB, MIB

__all__ = ["Trace"]


class Trace(Struct, frozen=True, kw_only=True):
    """What `mqttd-ctl why` tells: of lost messages always, of these from hand to hand."""

    ring: Annotated[
        int,
        keys.size(
            "Bytes of `why.jsonl` and its older files in the data directory, where the oldest make"
            " room; 0 keeps nothing.",
            "broker",
            0,
            64 * GIB,
            reload=False,
        ),
    ] = 64 * MIB
    sample: Annotated[
        float,
        keys.count("Share of all messages that are followed from hand to hand.", "broker", 0, 1),
    ] = 0.0
    topics: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=65535)], ...],
        keys.plain("Topic filters whose messages are followed."),
    ] = ()
    clients: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=65535)], ...],
        keys.plain("Client identifiers whose messages are followed."),
    ] = ()
    otlp: Annotated[
        str,
        keys.plain(
            "URL of an OpenTelemetry collector that is sent the messages which are followed, as"
            " spans over OTLP/HTTP, such as `http://127.0.0.1:4318/v1/traces`; it needs the extra"
            " `otel`; empty: none.",
            reload=False,
            pattern=r"^(https?://[^\s]+)?$",
            expects="an http or https URL, such as http://127.0.0.1:4318/v1/traces",
        ),
    ] = ""
    rate: Annotated[
        int,
        keys.count(
            "Lost messages a second that are kept for each reason, and messages that are followed;"
            " of what is beyond it (in a burst, four times it) the number is kept.",
            "broker",
            1,
            100_000,
        ),
    ] = 500
