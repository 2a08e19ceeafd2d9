"""What requests of a node answer that are about the whole cluster: as one broker's, and of whom.

These are for the document (`mqttd.admin.http.openapi`); what makes them is `mqttd.admin.lists`.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from mqttd.admin.resources.clients import Ended, Kicked
from mqttd.admin.resources.status import NodeView, StatusView
from mqttd.admin.resources.subscriptions import One, Wanted
from mqttd.readmodel.clients import ClientView
from mqttd.readmodel.routes import RouteView
from mqttd.readmodel.subscriptions import FilterView, SubscriptionView
from mqttd.readmodel.why import Life, Lives

__all__ = ["ANSWERS"]


class Missing(Struct):
    """A node that has not told what it has, and why."""

    node: str
    reason: str


class NodeClient(ClientView, kw_only=True):
    """A client and its node."""

    node: str


class NodeClients(Struct):
    """A page of the clients of all nodes; with `cursor` the next one is asked for."""

    clients: list[NodeClient]
    cursor: str | None
    missing: list[Missing]


class NodeSubscription(SubscriptionView, kw_only=True):
    """A subscription and its client's node."""

    node: str


class NodeSubscriptions(Struct):
    """A page of subscriptions by client id; `missing` without the parameter `client_id`."""

    subscriptions: list[NodeSubscription]
    cursor: str | None
    missing: list[Missing] = []


class NodeFilter(FilterView, kw_only=True):
    """A filter and the nodes where it is subscribed to."""

    nodes: list[str]


class NodeFilters(Struct):
    """A page of the filters of all nodes, in order."""

    topics: list[NodeFilter]
    cursor: str | None
    missing: list[Missing]


class NodeRoute(RouteView, kw_only=True):
    """A filter that matches at a node."""

    node: str


class NodeRoutes(Struct):
    """All filters that match a topic, at all nodes."""

    topic: str
    routes: list[NodeRoute]
    missing: list[Missing]


class NodeLives(Lives, kw_only=True):
    """What became of messages at all nodes."""

    missing: list[Missing]


class NodeLife(Life, kw_only=True):
    """What became of a message at all nodes; each step has its `node`."""

    missing: list[Missing]


class NodeKicked(Kicked, kw_only=True):
    """What was ended, and where."""

    node: str


class NodeEnded(Ended, kw_only=True):
    """Whose session was ended, and where."""

    node: str


class NodeWanted(Wanted, kw_only=True):
    """A subscription on a client's behalf, and where."""

    node: str


class NodeOne(One, kw_only=True):
    """A subscription that was ended, and where."""

    node: str


class NodeStatus(StatusView, kw_only=True):
    """Who and where a broker is, and the nodes of its cluster, unless one was named."""

    nodes: list[NodeView] = []


#: By method and path, where it is not what a broker alone answers.
ANSWERS: Final[dict[str, type[Struct]]] = {
    "GET /clients": NodeClients,
    "GET /clients/{client_id}": NodeClient,
    "DELETE /clients/{client_id}": NodeKicked,
    "GET /sessions": NodeClients,
    "GET /sessions/{client_id}": NodeClient,
    "DELETE /sessions/{client_id}": NodeEnded,
    "GET /subscriptions": NodeSubscriptions,
    "POST /subscriptions": NodeWanted,
    "DELETE /subscriptions": NodeOne,
    "GET /topics": NodeFilters,
    "GET /routes": NodeRoutes,
    "GET /why": NodeLives,
    "GET /why/{message_id}": NodeLife,
    "GET /status": NodeStatus,
}
