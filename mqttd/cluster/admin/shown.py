"""What an operator sees of a cluster from one of its nodes: that, the others, their filters.

others --every other second--> Figures --.
       <--what is asked of them--> Asking '--> the HTTP interface, the metrics
       nothing comes from one  --> Mute
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from mqttd.cluster.admin.alike import Alike
from mqttd.cluster.admin.asking import Asking
from mqttd.cluster.admin.figures import Figures
from mqttd.cluster.admin.mute import Mute
from mqttd.cluster.etcd.client import Etcd
from mqttd.cluster.etcd.keys import Member
from mqttd.cluster.links.nodes import Node
from mqttd.cluster.links.stream import Streams
from mqttd.cluster.links.unlinked import Unlinked
from mqttd.cluster.routes.routes import Routes
from mqttd.cluster.routes.view import View
from mqttd.cluster.sessions.owners import Owners
from mqttd.config.schema import Cluster as Settings
from mqttd.mesh.frames import FIGURES

__all__ = ["Shown"]


class Shown:
    """The node `name` of the cluster of `settings`, for the HTTP interface and the metrics."""

    def __init__(
        self, settings: Settings, name: str, etcd: Etcd, routes: Routes, owners: Owners,
        view: View, reactor: Any, unlinked: Unlinked, streams: Streams,
        hinders: Callable[[], str],
    ) -> None:  # fmt: skip
        self.cluster = settings.name
        #: Seconds that the sessions of a node that is gone wait for it.
        self.waits = settings.keep_sessions
        self.name = name
        self.etcd = etcd
        self.routes = routes
        self.owners = owners
        self.view = view
        self.unlinked = unlinked
        self.hinders = hinders
        self.mesh = view.mesh
        self.figures = Figures(view.mesh)
        self.mute = Mute(streams, view.mesh, self.figures)
        self.alike = Alike(view)
        self.asking = Asking(view.mesh, reactor)
        #: More counters.
        self.more: Callable[[], dict[str, float]] = dict

    def tick(self) -> None:
        """A few times a second."""
        self.figures.tick()
        self.mute.tick()
        self.alike.tick()

    def told(self, node: Node, kind: int, body: bytes) -> None:
        """A frame of another node that is for operators."""
        if kind == FIGURES:
            self.figures.take(node, body)
        else:
            self.asking.told(node, kind, body)

    def describe(
        self, state: str, epoch: int, proved_ago: float | None, stays: int
    ) -> dict[str, Any]:
        """The node and the others; nobody takes so many sessions (`stays`) as it leaves."""
        silent, errors = self.etcd.silence()
        return {
            "cluster": self.cluster,
            "node": self.name,
            "state": state,
            "epoch": epoch,
            "etcd": self.etcd.endpoints[self.etcd.at],
            "proved_ago": proved_ago and round(proved_ago, 3),
            "etcd_silent": None if silent is None else round(silent, 3),
            "etcd_errors": [{"endpoint": at, "reason": why} for at, why in sorted(errors.items())],
            "filters": len(self.mesh.filters),
            "unsettled": len(self.mesh.unsettled),
            "refused": self.routes.refused,
            "client_ids": len(self.owners.owned),
            "sessions_came": self.owners.came,
            "sessions_went": self.owners.went,
            "sessions_missed": self.owners.without,
            "stays": stays,
            "nodes": [self._describe(member) for _, member in sorted(self.view.members.items())],
            "away": self._away(),
        }

    def counters(self) -> dict[str, float]:
        """The same in numbers, for the metrics."""
        return {
            "cluster_nodes": len(self.view.members),
            "cluster_nodes_linked": sum(1 for each in self.mesh.nodes.values() if each.link),
            "cluster_filters_refused": self.routes.refused,
            "cluster_filters_paced": self.routes.pacer.pace.refused,
            "cluster_filters_unseen": self.routes.unseen,
            "cluster_sessions_came": self.owners.came,
            "cluster_sessions_went": self.owners.went,
            "cluster_sessions_missed": self.owners.without,
            "cluster_sessions_paced": self.owners.moving.pace.refused,
            "cluster_unanswered": self.asking.unanswered,
            "cluster_etcd_hangs": self.etcd.hangs,
            **self.view.keys.unreadable.counters(),
            **self.more(),
        }

    def _describe(self, member: Member) -> dict[str, Any]:
        node = self.mesh.nodes.get(member.name)
        told = self.figures.here() if node is None else self.figures.of(node)
        return {
            "node": member.name,
            "here": node is None,
            "address": member.address,
            "version": member.version,
            "epoch": member.epoch,
            "ready": member.ready and not (node is None and self.hinders()),
            "linked": node is not None and node.link is not None,
            "reason": "" if node is None else self.unlinked.reason(node),
            "filters": len(self.mesh.filters if node is None else node.peer.filters),
            "seen": self.mesh.applied if node is None else node.seen,
            "kept": 0 if node is None else len(node.ferry.kept) + len(node.once.kept),
            "kept_bytes": 0 if node is None else node.ferry.kept_bytes + node.once.kept_bytes,
            "uptime": None if told is None else told.uptime,
            "connections": None if told is None else told.connections,
            "sessions": None if told is None else told.sessions,
        }

    def _away(self) -> list[dict[str, Any]]:
        """Nodes that are not there: awaited, taken over, put out."""
        view = self.view
        absent = view.absent
        names = {*view.homes, *absent.nodes, *view.outs, *filter(view.is_taken_over, view.heirs)}
        found = []
        for name in sorted(names - view.members.keys()):
            kept = absent.nodes[name].ferry if name in absent.nodes else None
            began = absent.began.get(name) if kept is not None else None
            seconds = None if began is None else (self.mesh.broker.now - began) // 1000
            waits = None if seconds is None else max(0, self.waits - seconds)
            by = view.heirs[name].by if view.is_taken_over(name) else ""
            state = "put_out" if name in view.outs else "taken_over" if by else "away"
            found.append({
                "node": name,
                "state": state,
                "by": by,
                "away": seconds,
                "waits": waits if state == "away" else None,
                "kept": 0 if kept is None else len(kept.kept),
                "kept_bytes": 0 if kept is None else kept.kept_bytes,
            })  # fmt: skip
        return found

    def routes_of(self, name: str, limit: int) -> dict[str, Any] | None:
        """The filters that nodes want, or one of them; None: there is no such node."""
        if name and name not in self.view.members:
            return None
        found: list[dict[str, str]] = []
        count = 0
        for each in [name] if name else sorted(self.view.members):
            node = self.mesh.nodes.get(each)
            filters: Any = self.mesh.filters if node is None else node.peer.filters
            count += len(filters)
            for full_filter in itertools.islice(filters, limit - len(found)):
                found.append({"topic_filter": full_filter, "node": each})
        return {"routes": found, "count": count}
