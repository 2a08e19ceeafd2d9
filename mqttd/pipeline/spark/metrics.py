"""A query's progress, with what Spark's Kafka source would say in the same places.

    query.lastProgress --progress--> sources[i].description   mqttd[/srv/events]
                                     sources[i].metrics       offsetsBehindLatest, rows, bytes

Spark 4.3 takes neither from a Python source: it shows the name of a class, and no metrics. The
stream tells them in `latestOffset`, which Spark passes on as it is; Spark Connect has a text there,
as of all offsets, which is read. A micro-batch that is run again
after a restart has none: then the rows are all there is to tell.
"""

from __future__ import annotations

import json
from typing import Any, Final

__all__ = ["progress"]

OFFSETS: Final = ("startOffset", "endOffset", "latestOffset")
#: What `latestOffset` has beside the offsets, and `metrics` then.
TOLD: Final = ("offsetsBehindLatest", "bytes", "brokerAwaySeconds", "archiveAwaySeconds")


def progress(query: Any) -> dict[str, Any] | None:
    """The progress of a streaming query, or of a listener's event, as a dictionary.

    :param query: a StreamingQuery, or a StreamingQueryProgress.
    :return: what Spark's own JSON has, description and metrics of sources `mqttd` filled in; None
        before there is any.
    """
    last = getattr(query, "lastProgress", query)
    if last is None:
        return None
    found: dict[str, Any] = json.loads(last.json)
    for source in found["sources"]:
        offsets = {name: _read(source[name]) for name in OFFSETS if name in source}
        if not any(_ours(one) for one in offsets.values()):
            continue
        source.update(offsets)
        latest = source.get("latestOffset") or {}
        source["description"] = latest.pop("source", "mqttd")
        metrics = {name: str(latest.pop(name)) for name in TOLD if name in latest}
        source["metrics"] = {**metrics, "rows": str(source.get("numInputRows", 0))}
    return found


def _read(offset: Any) -> Any:
    """An offset, if it is JSON that of its text."""
    try:
        return json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:
        return offset


def _ours(offset: Any) -> bool:
    """Whether this is an offset of a source `mqttd`."""
    return isinstance(offset, dict) and {"log", "nodes"} <= offset.keys()
