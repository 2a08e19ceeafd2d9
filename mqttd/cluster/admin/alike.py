"""Nodes that do not do the same with sessions: what one leaves, the others may not take over.

Promise: one alarm, whose text changes with who does what alone; of a node that does not say it
(one of before) nothing is known.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from mqttd.cluster.routes.view import View

__all__ = ["ALARM", "Alike"]

ALARM: Final = "cluster_replicate"


class Alike:
    """The members that `view` has."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._text = ""

    def tick(self) -> None:
        """A few times a second."""
        by_kind: dict[str, list[str]] = defaultdict(list)
        for name, member in self.view.members.items():
            if member.replicate:
                by_kind[member.replicate].append(name)
        text = ""
        if len(by_kind) > 1:
            said = "; ".join(
                f'"{kind}" at {", ".join(sorted(names))}' for kind, names in sorted(by_kind.items())
            )
            text = (
                f"session.replicate is not the same at all nodes: {said}; who does not replicate"
                " takes over nothing that others leave, and leaves nothing to be taken over: give"
                " all nodes the same"
            )
        if text == self._text:
            return
        self._text = text
        alarms = self.view.mesh.broker.alarms
        if text:
            alarms.activate(ALARM, text)
        else:
            alarms.clear(ALARM)
