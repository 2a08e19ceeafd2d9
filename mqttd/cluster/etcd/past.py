"""Whether an etcd that answers has forgotten what it had told: begun anew, or restored from a copy.

No answer is of an earlier revision than what was known when it was asked for. A copy may have been
restored so that its revisions go on behind those of before (`--bump-revision`): by far more than
are written meanwhile, or as another cluster of etcd's.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["forgotten"]

#: Revisions that are not written between two answers: a day of a thousand in a second.
_LEAP: Final = 100_000_000


def forgotten(header: dict[str, Any], since: int, cluster: str) -> str:
    """Why one with this header has; "" if it has not. The revision and the id of its cluster that
    were known when it was asked; 0, "": none.

    >>> forgotten({"revision": "7"}, 9, "")[:46]
    'etcd is older than it was (revision 7, after 9'
    """
    revision, now = int(header["revision"]), str(header.get("cluster_id", ""))
    if revision < since or (since and revision > since + _LEAP):
        why = f"revision {revision}, after {since}"
    elif cluster and now != cluster:
        why = f"cluster {now}, after {cluster}"
    else:
        return ""
    return (
        f"etcd is older than it was ({why}): it was begun anew, or restored from a copy, and has"
        " forgotten who has which session"
    )
