"""What the resources of the HTTP interface are about: the broker, its read model, the parts around.

    Desk     who may ask, and what is noted of it: also without a broker (`mqttd.workers.front`)
    Parts    a desk with a broker and what is around it

A part that a program does not have (an embedding one has no configuration file) is None, and its
resource answers 404.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.threads import deferToThread
from twisted.logger import Logger

from mqttd.admin.http.audit import Audit
from mqttd.admin.http.first import FirstUser
from mqttd.admin.http.logins import Logins
from mqttd.admin.http.requests import ApiError
from mqttd.broker.broker import Broker
from mqttd.broker.ground.seams import ManagedAccess, ManagedHooks
from mqttd.readmodel.feed import Feed
from mqttd.readmodel.model import Model

__all__ = ["WAITING", "Desk", "Json", "Parts"]

Json = dict[str, Any]

#: Who waits for the one that has its turn in a thread.
WAITING: Final = 16


class Desk:
    """Who may use the HTTP interface, and what is noted of it; `in_thread` calls in a thread."""

    def __init__(self, in_thread: Callable[..., Deferred[Any]] = deferToThread) -> None:
        self.in_thread = in_thread
        self._alone = DeferredLock()
        self.audit = Audit()
        #: A supervisor asks for somebody else: it hears of each change, and notes it.
        self.behind = False
        #: Who may log in at the page.
        self.logins: Logins | None = None
        #: By whom the first of these is made.
        self.first: FirstUser | None = None
        #: A `mqttd.monitor.log.service.Log`, where the log is the broker's own.
        self.logging: Any = None
        self.log = Logger(namespace="mqttd.admin")

    def in_turn(self, work: Callable[..., Any], *given: Any) -> Deferred[Any]:
        """Call in a thread, one after the other: what takes long of what somebody has sent.

        Raises ApiError where `WAITING` wait already.
        """
        return self.alone(self.in_thread, work, *given)

    def alone(self, work: Callable[..., Deferred[Any]], *given: Any) -> Deferred[Any]:
        """Begin when what others have sent is looked at, as `in_turn`."""
        if len(self._alone.waiting) >= WAITING:
            raise ApiError(503, "busy", "others have sent texts to look at", {"retry-after": "5"})
        return self._alone.run(work, *given)

    def need(self, part: Any, what: str) -> Any:
        """A part that may be missing; raises ApiError."""
        if part is None:
            raise ApiError(404, "not_found", f"{what} here")
        return part


class Parts(Desk):
    """What resources are given.

    Arguments: the broker; `model` (made, if it is not given); `listeners()` gives one dictionary
    per listener; `who()` says in a sentence who may connect; `in_thread` calls in a thread.
    """

    def __init__(
        self,
        broker: Broker,
        model: Model | None = None,
        listeners: Callable[[], list[Json]] = list,
        who: Callable[[], str] = str,
        in_thread: Callable[..., Deferred[Any]] = deferToThread,
    ) -> None:
        super().__init__(in_thread)
        self.broker = broker
        self.model = Model(broker) if model is None else model
        self.listeners = listeners
        self.who = who
        #: Whether the start is over: clients are let in, unless something else is against it.
        self.is_ready: Callable[[], bool] = lambda: True
        #: A `mqttd.plugins.plugins.Plugins`.
        self.plugins: Any = None
        #: A `mqttd.transports.listeners.Listeners`.
        self.doors: Any = None
        #: A `mqttd.reload.Reload`.
        self.reload: Any = None
        #: A `mqttd.storage.store.Store`, None where nothing is kept; `has_store`: it is known.
        self.store: Any = None
        self.has_store = False
        self.feed: Feed | None = None
        #: A `mqttd.broker.drain.Drain`; the process is to end when it is done.
        self.drain: Any = None
        self.exit_when_drained = False
        #: A `mqttd.cluster.cluster.Cluster`, None where there is none.
        self.cluster: Any = None
        #: Its `mqttd.cluster.apart.Apart`.
        self.apart: Any = None
        #: A `mqttd.readmodel.topic_rates.TopicFigures`.
        self.topic_figures: Any = None
        #: A `mqttd.access.roles.roles.Roles`.
        self.roles: Any = None
        #: A `mqttd.monitor.trail.Trail`, None where nothing is kept of messages.
        self.trail: Any = None
        #: Where the users of auth.username are kept, "" for nowhere.
        self.user_file: Callable[[], str] = str

    def files_taken(self) -> None:
        """Files that a reload reads were read: one that was refused may have nothing left to do."""
        if self.reload is not None:
            self.reload.files_taken()

    @property
    def access(self) -> ManagedAccess:
        """Access control as the broker has it."""
        return cast(ManagedAccess, self.broker.access)

    @property
    def hooks(self) -> ManagedHooks:
        """The chains of callbacks as the broker has them."""
        return cast(ManagedHooks, self.broker.hooks)
