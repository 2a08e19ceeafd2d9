"""What requests answer that are about all workers: as one broker's, and of which worker.

These are for the document (`mqttd.admin.http.openapi`); what makes them is `mqttd.workers.views`.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from mqttd.admin.resources.clients import Ended, Kicked
from mqttd.admin.resources.observing import AlarmView
from mqttd.admin.resources.status import StatusView
from mqttd.admin.resources.subscriptions import One, Wanted
from mqttd.readmodel.clients import ClientView
from mqttd.readmodel.holders import SlowSubscriber
from mqttd.readmodel.routes import RouteView
from mqttd.readmodel.subscriptions import FilterView, SubscriptionView
from mqttd.readmodel.why import Life, Step

__all__ = ["ANSWERS"]


class Missing(Struct):
    """A worker that has not told what it has, and why."""

    worker: int
    reason: str


class WorkerClient(ClientView, kw_only=True):
    """A client and its worker."""

    worker: int


class WorkerClients(Struct):
    """A page of the clients of all workers; with `cursor` the next one is asked for."""

    clients: list[WorkerClient]
    cursor: str | None
    missing: list[Missing]


class WorkerSubscription(SubscriptionView, kw_only=True):
    """A subscription and its client's worker."""

    worker: int


class WorkerSubscriptions(Struct, omit_defaults=True):
    """A page of subscriptions by client id; `worker` with the parameter `client_id`, `missing`
    without it.
    """

    subscriptions: list[WorkerSubscription]
    cursor: str | None
    missing: list[Missing] | None = None
    worker: int | None = None


class WorkerFilters(Struct):
    """A page of the filters of all workers, in order."""

    topics: list[FilterView]
    cursor: str | None
    missing: list[Missing]


class WorkerRoute(RouteView, kw_only=True):
    """A filter that matches at a worker."""

    worker: int


class WorkerRoutes(Struct):
    """All filters that match a topic, at all workers."""

    topic: str
    routes: list[WorkerRoute]
    missing: list[Missing]


class WorkerStep(Step, kw_only=True, omit_defaults=True):
    """One thing that happened to a message, and at which worker."""

    worker: int


class WorkerLife(Life, kw_only=True):
    """One message with all that the workers keep of it."""

    steps: list[WorkerStep]  # type: ignore[assignment]


class WorkerLives(Struct):
    """Messages, the newest first; with `cursor` those before them are asked for."""

    messages: list[WorkerLife]
    #: Reason -> how many more were lost in this time that are not kept one by one.
    unrecorded: dict[str, int]
    cursor: str | None
    missing: list[Missing]


class WorkerWholeLife(WorkerLife, kw_only=True):
    """What became of one message at all workers."""

    missing: list[Missing]


class WorkerSlow(SlowSubscriber, kw_only=True):
    """Who reads slowly, and its worker."""

    worker: int


class WorkerSlowSubscribers(Struct):
    """Who reads slowly at any worker, the longest first."""

    slow: list[WorkerSlow]
    count: int


class WorkerAlarm(AlarmView, kw_only=True):
    """An alarm and the worker that has raised it."""

    worker: int


class WorkerAlarms(Struct):
    """Alarms of all workers that are raised, and the last ones that were."""

    alarms: list[WorkerAlarm]
    past: list[WorkerAlarm]


class WorkerKicked(Kicked, kw_only=True):
    """What was ended, and where."""

    worker: int


class WorkerEnded(Ended, kw_only=True):
    """Whose session was ended, and where."""

    worker: int


class WorkerWanted(Wanted, kw_only=True):
    """A subscription on a client's behalf, and where."""

    worker: int


class WorkerOne(One, kw_only=True):
    """A subscription that was ended, and where."""

    worker: int


class WorkerLine(Struct):
    """One worker in the status; None is what it does not say while it is started again."""

    worker: int
    pid: int | None
    state: str
    uptime: int | None
    connections: int | None
    sessions: int | None
    subscriptions: int | None


class WorkerStatus(StatusView, kw_only=True):
    """Who and where a broker is, and its workers."""

    workers: list[WorkerLine]


#: By method and path, where it is not what one process answers.
ANSWERS: Final[dict[str, type[Struct]]] = {
    "GET /clients": WorkerClients,
    "GET /clients/{client_id}": WorkerClient,
    "DELETE /clients/{client_id}": WorkerKicked,
    "GET /sessions": WorkerClients,
    "GET /sessions/{client_id}": WorkerClient,
    "DELETE /sessions/{client_id}": WorkerEnded,
    "GET /subscriptions": WorkerSubscriptions,
    "POST /subscriptions": WorkerWanted,
    "DELETE /subscriptions": WorkerOne,
    "GET /topics": WorkerFilters,
    "GET /routes": WorkerRoutes,
    "GET /why": WorkerLives,
    "GET /why/{message_id}": WorkerWholeLife,
    "GET /slow": WorkerSlowSubscribers,
    "GET /alarms": WorkerAlarms,
    "GET /status": WorkerStatus,
}
