"""The broker inside another program: any Twisted program, or any asyncio one.

    async with Broker(listeners={"default": "127.0.0.1:1883"}) as broker:
        await broker.publish("hello", b"world")
        async for message in broker.subscribe("a/#", qos=1):
            print(message.topic, message.payload)

    the program -- publish, subscribe, hook --> Broker --> MqttdService   (the same as under twistd)
                                                  |
                                    Twisted's reactor | asyncio's loop, with asyncioreactor on it

Listeners are optional: without one the broker serves this process alone. `@broker.hook(point)`
makes a function a hook.

Back-pressure: a subscription takes messages as fast as its reader asks for them. Meanwhile up to
`queue` messages wait; when that is full the oldest QoS 0 message is dropped, without any the oldest
of all, counted in `Subscription.dropped` and in the metric ``dropped_queue_full``, and told to the
hook ``delivery.dropped``. `await publish` lets readers have their turn after every `YIELD_EVERY`
messages, waits for a subscription that is more than half full as long as its reader takes at least
one message in `PATIENCE` seconds, and while the output of all connections is over
``output.backlog``. So a program that awaits its own publishing overruns nobody who reads.

Promise: everything is called and runs in one thread, the reactor's. Importing this installs no
reactor; `start` in an asyncio program without one installs Twisted's asyncioreactor on the running
loop, which then has to be the only loop of the process. Signals (SIGALRM and its timer too), the
garbage collector and the limit of open files stay as the program has them; the reactor does not
rest to gather packets unless ``output.gather`` is given.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python.failure import Failure

from mqttd.broker.publish import local
from mqttd.codec.properties import Properties
from mqttd.codec.reasons import ADMINISTRATIVE_ACTION
from mqttd.config.load import from_tables, load
from mqttd.config.schema import Config
from mqttd.plugins.calls.budget import UNBOUNDED, Budget
from mqttd.plugins.calls.callback import HookCallable
from mqttd.plugins.calls.filters import Patterns
from mqttd.plugins.calls.signatures import verify_callback
from mqttd.session.ground.message import Message
from mqttd.types import ClientInfo

if TYPE_CHECKING:
    from mqttd.service import MqttdService

__all__ = ["Broker", "Message", "NotRunning", "Subscription"]

#: Messages that `publish` takes before it lets others have their turn.
YIELD_EVERY: Final = 64
#: Messages taken out of a subscription's queue ahead of its reader.
AHEAD: Final = 64
#: Seconds for which `publish` waits for a reader that reads nothing.
PATIENCE: Final = 1.0
#: Seconds between two looks at a full backlog.
BACKLOG_POLL: Final = 0.02

HookFunction = TypeVar("HookFunction", bound=HookCallable)


class NotRunning(RuntimeError):
    """The broker was not started, or is stopped."""


class Broker:
    """An MQTT broker in this program.

    config: path of an mqttd.conf, its tables as a mapping (``{"mqtt": {"max_qos": 1}}``), or None.
    listeners: names and addresses (``{"default": "127.0.0.1:1883"}``) that replace those of the
    configuration; a port 0 takes a free one, see `ports`. reactor: Twisted's, if it is not the
    one that is installed.

    Without a path nothing outside is read or kept: no listener is opened but those named here, the
    data directory is a temporary one and the store in memory unless the tables name them, and
    unless they have an ``acl`` every client that may connect may do everything. Who may connect is
    ``auth.anonymous``: by default only clients on this machine need no password.

    Raises `mqttd.config.load.ConfigError`, naming the mistakes.
    """

    def __init__(
        self,
        config: str | Path | Mapping[str, Any] | None = None,
        *,
        listeners: Mapping[str, str] | None = None,
        reactor: Any = None,
    ) -> None:
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._source = config
        self._listeners = listeners
        self.config = self._configure()
        self._reactor = reactor
        self._service: MqttdService | None = None
        #: What `Hooks.hook` is called with at the start.
        self._hooks: list[tuple[str, HookCallable, tuple[Any, ...], int, Patterns, Patterns]] = []
        self._subscriptions: set[Subscription] = set()
        self._burst = 0
        #: Hooks of the program itself are not interrupted and never quarantined.
        self._budget = Budget("embed", per_call=3600.0, per_second=3600.0, error_limit=UNBOUNDED)

    def _configure(self) -> Config:
        source = self._source
        if source is None or isinstance(source, Mapping):
            tables: dict[str, Any] = dict(source or {})
            tables.setdefault("acl", {"file": os.devnull, "nomatch": "allow"})
            opened = "listener" in tables
            config = from_tables(tables, os.getcwd())
            if not opened:
                config = msgspec.structs.replace(config, listener={"tcp": {}})
        else:
            config = load(os.fspath(source), os.environ)
        if self._listeners is not None:
            named = {name: {"bind": bind} for name, bind in self._listeners.items()}
            made = from_tables({"listener": {"tcp": named}}, os.getcwd()) if named else None
            listener = made.listener if made is not None else {"tcp": {}}
            config = msgspec.structs.replace(config, listener=listener)
        if not config.path and "store.kind" not in config.given:
            store = msgspec.structs.replace(config.store, kind="memory")
            config = msgspec.structs.replace(config, store=store)
        if "output.gather" not in config.given:
            # A rest would hold up the program's own turns.
            output = msgspec.structs.replace(config.output, gather=0.0)
            config = msgspec.structs.replace(config, output=output)
        return config

    # -- life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the listeners and start; raises `mqttd.service.StartError`, naming what is taken."""
        if self._service is not None:
            raise RuntimeError("the broker is running already")
        reactor = self._reactor if self._reactor is not None else _find_reactor()
        # Only now: the HTTP library behind it imports the reactor.
        from mqttd.service import MqttdService

        config = self.config
        if not config.path and "node.data_dir" not in config.given:
            self._temporary = tempfile.TemporaryDirectory(prefix="mqttd-")
            folder = self._temporary.name
            replace = msgspec.structs.replace
            config = replace(
                config,
                node=replace(config.node, data_dir=folder),
                admin=replace(config.admin, socket=os.path.join(folder, "mqttd.sock")),
            )
        opened: Deferred[None] = Deferred()
        service: MqttdService | None = None
        try:
            service = MqttdService(config, reactor, partial(_fire, opened))
            for hooked in self._hooks:
                verify_callback(*hooked[:3])
                service.hooks.hook(*hooked[:4], self._budget, *hooked[4:])
            service.startService()
            await _result(opened)
        except BaseException:
            if service is not None:
                await _result(maybeDeferred(service.stopService))
            self._clean_up()
            raise
        self._service = service

    async def stop(self) -> None:
        """End connections and subscriptions, close everything; twice is no error."""
        service, self._service = self._service, None
        if service is None:
            return
        for subscription in list(self._subscriptions):
            subscription.close()
        try:
            await _result(maybeDeferred(service.stopService))
        finally:
            self._clean_up()
            _release(service.reactor)

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    @property
    def service(self) -> MqttdService:
        """The service, for what this class does not offer; raises NotRunning."""
        if self._service is None:
            raise NotRunning("start the broker first: await broker.start(), or async with broker")
        return self._service

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._service is not None

    @property
    def ports(self) -> dict[str, int]:
        """The port that each listener is bound to."""
        return dict(self.service.ports)

    # -- messages ------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        payload: bytes | str = b"",
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> int:
        """Publish as the broker itself: hooks run, no access rule is asked.

        properties: of PUBLISH, by identifier (`mqttd.codec.properties`). Returns the number of
        receivers in this broker. Raises TopicNameInvalid, ValueError for a QoS that is none.
        """
        broker = self.service.broker
        if isinstance(payload, str):
            payload = payload.encode()
        receivers = local.publish(broker, topic, payload, qos, retain, properties)
        self._burst += 1
        if self._burst >= YIELD_EVERY:
            self._burst = 0
            await self._sleep(0)
        for subscription in tuple(self._subscriptions):
            while subscription._crowded():
                await subscription._room()
        while self._service is not None and broker.awaited() > broker.settings.backlog:
            await self._sleep(BACKLOG_POLL)
        return max(receivers, 0)

    def subscribe(self, topic_filter: str, qos: int = 2, queue: int = 1000) -> Subscription:
        """Subscribe now; iterate over it with ``async for``, close it when done.

        queue: how many messages wait for a reader that is busy, besides up to 64 that are handed
        to it already (see the module for what happens when it is full). Retained messages come
        first. Raises TopicFilterInvalid.
        """
        if queue < 1:
            raise ValueError(f"queue = {queue}: expected at least 1")
        return Subscription(self, topic_filter, qos, queue)

    # -- hooks and clients ---------------------------------------------------------------------

    def hook(
        self,
        point: str,
        *init_args: Any,
        priority: int = 0,
        topic_filter: Patterns = None,
        client: Patterns = None,
    ) -> Callable[[HookFunction], HookFunction]:
        """Decorator: call the function at a hook point, before or after the start.

        It is called as ``function(*args, acc, *init_args)``, with `topic_filter` and `client` for
        those messages and clients only; docs/reference/hooks.md has the points. What it raises is
        logged and counted, and passed over. Raises HookError for an unknown point, a function that
        cannot be called so, or a filter that is none; at `start`, if the broker is not running.
        """

        def decorate(function: HookFunction) -> HookFunction:
            if self._service is not None:
                verify_callback(point, function, init_args)
                self._service.hooks.hook(
                    point, function, init_args, priority, self._budget, topic_filter, client
                )
            self._hooks.append((point, function, init_args, priority, topic_filter, client))
            return function

        return decorate

    def unhook(self, point: str, function: HookCallable) -> None:
        """Call the function at this point no more; raises HookError if it is not hooked there."""
        if self._service is not None:
            self._service.hooks.unhook(point, function)
        self._hooks = [entry for entry in self._hooks if entry[:2] != (point, function)]

    def clients(self) -> list[ClientInfo]:
        """The clients that are connected, in no particular order."""
        broker = self.service.broker
        sessions = list(broker.sessions.values())
        return [broker.client_of(session) for session in sessions if session.channel is not None]

    def disconnect(self, client_id: str, reason_code: int = ADMINISTRATIVE_ACTION) -> bool:
        """End a client's connection; False if it has none."""
        return self.service.broker.kick(client_id, reason_code)

    def _sleep(self, seconds: float) -> Awaitable[None]:
        awake: Deferred[None] = Deferred()
        self.service.reactor.callLater(seconds, awake.callback, None)
        return _result(awake)

    def _clean_up(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None


class Subscription:
    """Messages of one topic filter: an async iterator, and an async context manager.

    ``async for`` ends when it is closed, by `close` or by the broker's stop. One reader at a time.
    """

    def __init__(self, broker: Broker, topic_filter: str, qos: int, queue: int) -> None:
        self.topic_filter = topic_filter
        self._owner = broker
        self._taken: deque[Message] = deque()
        self._reader: Deferred[None] | None = None
        self._ahead = min(AHEAD, queue)
        self._half = max(queue // 2, 1)
        self._read = 0
        #: Its reader reads nothing: publishers do not wait for it.
        self._stuck = False
        self._publishers: list[Deferred[None]] = []
        self._session = local.subscribe(
            broker.service.broker,
            "embed",
            topic_filter,
            self._receive,
            qos,
            queue,
            0,
        )
        broker._subscriptions.add(self)

    @property
    def waiting(self) -> int:
        """How many messages wait for the reader."""
        return len(self._taken) + self._session.waiting_messages()

    @property
    def dropped(self) -> int:
        """How many messages were lost because the queue was full, or too old when read."""
        return self._session.lost

    @property
    def closed(self) -> bool:
        """Whether nothing more will come."""
        return self._session.closed

    def close(self) -> None:
        """Unsubscribe; what waits is lost, the reader's loop ends. Twice is no error."""
        self._session.close()
        self._owner._subscriptions.discard(self)
        self._taken.clear()
        self._wake()
        self._let_publish()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Message:
        if self._reader is not None:
            raise RuntimeError("somebody else is reading from this subscription")
        while not self._taken:
            if self._session.closed:
                raise StopAsyncIteration
            self._reader = Deferred()
            try:
                await _result(self._reader)
            finally:
                self._reader = None
        message = self._taken.popleft()
        self._read += 1
        self._stuck = False
        if self._publishers and self.waiting <= self._half:
            self._let_publish()
        if self._session.paused and not self._taken:
            self._session.resume()
        return message

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()

    def _receive(self, message: Message) -> None:
        self._taken.append(message)
        if len(self._taken) >= self._ahead:
            self._session.pause()
        self._wake()

    def _crowded(self) -> bool:
        return self.waiting > self._half and not self._stuck and not self._session.closed

    async def _room(self) -> None:
        """Wait until half of the queue is free, or the reader has not read for a while."""
        before = self._read
        room: Deferred[None] = Deferred()
        self._publishers.append(room)
        late = self._owner.service.reactor.callLater(PATIENCE, self._let_publish)
        try:
            await _result(room)
        finally:
            if late.active():
                late.cancel()
        self._stuck = self._read == before

    def _let_publish(self) -> None:
        publishers, self._publishers = self._publishers, []
        for room in publishers:
            if not room.called:
                room.callback(None)

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and not reader.called:
            reader.callback(None)


def _fire(opened: Deferred[None], failure: Failure | None) -> None:
    if not opened.called:
        opened.callback(None) if failure is None else opened.errback(failure)


async def _result(waiting: Deferred[Any]) -> Any:
    """Wait for a Deferred, in an asyncio task as well as in a Twisted coroutine."""
    try:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
    except RuntimeError:
        task = None
    if task is None:
        return await waiting
    return await waiting.asFuture(loop)


def _loop_of(reactor: Any) -> Any:
    return getattr(reactor, "_asyncioEventloop", None)


# -- reactor and loop


#: Reactors that were installed here, on a loop that was running.
_installed: list[Any] = []


def _find_reactor() -> Any:
    """The reactor of this program; installs one on asyncio's running loop if there is none."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    installed = sys.modules.get("twisted.internet.reactor")
    if loop is None or (installed is not None and _loop_of(installed) is loop):
        from twisted.internet import reactor

        return reactor
    if installed is not None:
        raise RuntimeError(
            "Twisted's reactor is bound to another event loop, or to none: call "
            "twisted.internet.asyncioreactor.install() before anything imports the reactor, "
            "and use one asyncio loop per process"
        )
    from twisted.internet import asyncioreactor

    asyncioreactor.install(loop)
    from twisted.internet import reactor

    # The loop runs already: tell the reactor, which starts its wake-up and its threads.
    reactor.startRunning(installSignalHandlers=False)  # type: ignore[attr-defined]
    _installed.append(reactor)
    return reactor


def _release(reactor: Any) -> None:
    """Let an asyncio program end: the threads of a reactor that nobody runs would keep it."""
    if reactor in _installed:
        pool, reactor.threadpool = reactor.threadpool, None
        if pool is not None:
            pool.stop()
