"""The cluster that this broker is a node of: itself, the other nodes, and what they want."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from msgspec import Meta, Struct
from twisted.internet.defer import Deferred

from mqttd.admin.http.parts import Parts
from mqttd.admin.http.requests import ADMINISTRATOR, ApiError
from mqttd.admin.http.route import Ask, get, post
from mqttd.admin.resources.drain import check_reference
from mqttd.config.schema.node import NODE_NAME

__all__ = ["ClusterResource"]

#: Names of nodes in a refusal.
_NAMES: Final = 20


class NodeView(Struct, kw_only=True):
    """A node as this one sees it."""

    node: str
    #: This one.
    here: bool
    address: str
    version: str
    epoch: int
    #: It lets clients in; there is a stream to it.
    ready: bool
    linked: bool
    #: Why there is no stream to it.
    reason: str
    #: Filters it wants; the revision of etcd up to which it has all of them in its tables.
    filters: int
    seen: int
    #: Messages of QoS 1 and 2 that it has not taken yet.
    kept: int
    kept_bytes: int
    #: As it says every other second: seconds, and how many there are. None without a stream to it.
    uptime: int | None
    connections: int | None
    sessions: int | None


class AwayView(Struct, kw_only=True):
    """A node that is not there, and that this one knows of."""

    node: str
    #: `away`: its sessions wait for it; `taken_over`: another is about to have them; `put_out`.
    state: str
    #: Who takes them over.
    by: str
    #: Seconds that it is gone, and that are left of `cluster.keep_sessions`. None: not known here.
    away: int | None
    waits: int | None
    #: Messages of QoS 1 and 2 that this node keeps for its sessions.
    kept: int
    kept_bytes: int


class EtcdMember(Struct, kw_only=True):
    """A member of etcd that has not answered, and why."""

    endpoint: str
    reason: str


class ClusterView(Struct, kw_only=True):
    """A node's share in its cluster."""

    cluster: str
    node: str
    #: `starting`, `member`, `draining`, `minority`, `put_out`, `etcd_older`.
    state: str
    epoch: int
    #: The member of etcd that is asked, and seconds since it has last proved that we are one; None:
    #: it has not since the start.
    etcd: str
    proved_ago: float | None
    #: Seconds for which none has answered, and why those that were asked have not; None: one has.
    etcd_silent: float | None
    etcd_errors: list[EtcdMember]
    #: Why etcd takes no writes, or does not let this node begin; empty: it does.
    etcd_refuses: str
    #: Filters wanted here, those that the others do not have yet, those refused for that.
    filters: int
    unsettled: int
    refused: int
    #: Client ids that are this node's; sessions that came from others, went there, did not come.
    client_ids: int
    sessions_came: int
    sessions_went: int
    sessions_missed: int
    #: Sessions that no other node takes of one that leaves, before it ends.
    stays: int
    nodes: list[NodeView]
    away: list[AwayView]


class Going(Struct, forbid_unknown_fields=True):
    """How clients are sent away: so many a second; `to` is the Server Reference."""

    rate: Annotated[float, Meta(gt=0, le=1_000_000)] = 100.0
    to: Annotated[str, Meta(max_length=1000)] = ""


class Out(Struct, forbid_unknown_fields=True):
    """Whom to put out: with `anyway` also one of a name that no node is known by.

    With `undo` nobody is: who was may be a member again, and a name that is no node's is forgotten.
    """

    anyway: bool = False
    undo: bool = False


class Done(Struct, kw_only=True):
    """Whether there was something to do."""

    done: bool


class RoutesOf(Struct, forbid_unknown_fields=True):
    """Of which node, and how many."""

    node: str = ""
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000


class RouteView(Struct, kw_only=True):
    """A filter that a node wants."""

    topic_filter: str
    node: str


class RoutesView(Struct, kw_only=True):
    """Routes, and how many there are."""

    routes: list[RouteView]
    count: int


class ClusterResource:
    """The cluster, where this broker is a node of one."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    @get("/cluster", answer=ClusterView)
    def show(self, ask: Ask) -> dict[str, Any]:
        """This node, and the others as it sees them."""
        found: dict[str, Any] = self._cluster().describe()
        return found

    @get("/cluster/routes", query=RoutesOf, answer=RoutesView)
    def routes(self, ask: Ask) -> dict[str, Any]:
        """The filters that nodes want, as this one has them in its tables."""
        found: dict[str, Any] | None = self._cluster().routes_of(ask.query.node, ask.query.limit)
        if found is None:
            raise ApiError(404, "not_found", f"{ask.query.node[:80]!r} is no node that is there")
        return found

    @post("/cluster/leave", role=ADMINISTRATOR, body=Going, answer=Done)
    def leave(self, ask: Ask) -> Done:
        """Send clients elsewhere, hand the sessions over, then end the process."""
        check_reference(ask.body.to)
        self._cluster().leaves.begin(ask.body.rate, ask.body.to, True)
        ask.changed(None, ask.body)
        return Done(done=True)

    @post("/cluster/nodes/{node}/drain", role=ADMINISTRATOR, body=Going, answer=Done,
          errors=(404, 503))  # fmt: skip
    def drain(self, ask: Ask) -> Any:
        """Have a node do that, and stay; 503 where etcd, by which it is asked, does not answer."""
        name = self._member(ask.path["node"])
        check_reference(ask.body.to)
        what = {"what": "drain", "rate": ask.body.rate, "to": ask.body.to}
        asked = Deferred.fromCoroutine(self._cluster().leaves.ask(name, what))
        ask.changed(None, ask.body)
        return asked.addCallbacks(lambda _: Done(done=True), _no_etcd)

    @post("/cluster/nodes/{node}/force-leave", role=ADMINISTRATOR, body=Out, answer=Done,
          errors=(404, 409, 503))  # fmt: skip
    def force_leave(self, ask: Ask) -> Any:
        """Put a node out of the cluster: it is no member until it is asked to join.

        Also one that is not there: `done` says whether it was, or was waited for. 404 for a name
        that no node here has or had, unless `anyway`; 409 for the node that is asked, which may
        leave. With `undo` it says whether that was out.
        """
        name = ask.path["node"]
        if not re.match(NODE_NAME, name):
            raise ApiError(404, "not_found", f"{name[:80]!r} is no name of a node")
        cluster = self._cluster()
        if ask.body.undo:
            undone = Deferred.fromCoroutine(cluster.leaves.let_in(name))
            return undone.addCallbacks(lambda done: Done(done=done), _no_etcd)

        if name == cluster.name:
            text = f"{name} is this node: `leave` hands its sessions over, others may put it out"
            raise ApiError(409, "refused", text)

        def out(done: bool | None) -> Done:
            if done is None:
                known = _listed(cluster.view.names())
                text = f"no node here is or was called {name!r}: known are {known}"
                raise ApiError(404, "not_found", text)
            return Done(done=done)

        done = Deferred.fromCoroutine(cluster.leaves.put_out(name, ask.body.anyway))
        return done.addCallbacks(out, _no_etcd)

    @post("/cluster/join", role=ADMINISTRATOR, answer=Done, errors=(503,))
    def join(self, ask: Ask) -> Any:
        """Let this node be a member again that was put out."""
        cluster = self._cluster()
        done = Deferred.fromCoroutine(cluster.leaves.let_in(cluster.name))
        return done.addCallbacks(lambda done: Done(done=done), _no_etcd)

    def _member(self, name: str) -> str:
        """The name of a node that is there."""
        if name not in self._cluster().view.members:
            raise ApiError(404, "not_found", f"{name[:80]!r} is no node that is there")
        return name

    def _cluster(self) -> Any:
        if self.parts.cluster is None:
            text = "`mqttd-ctl cluster join URL` makes a node of it"
            if self.parts.behind:
                text += ", and of each of its workers"
            raise ApiError(404, "not_found", f'cluster.kind is "none" here: {text}')
        return self.parts.cluster


def _listed(names: set[str]) -> str:
    """Names as people read them, however many there are."""
    shown = sorted(names)[:_NAMES]
    return ", ".join(shown) + (", ..." if len(names) > len(shown) else "")


def _no_etcd(failure: Any) -> None:
    said = f"etcd has not taken it: {failure.getErrorMessage()}"
    raise ApiError(503, "unavailable", said[:200])
