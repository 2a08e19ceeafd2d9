"""A plugin in a process of its own, behind the same interfaces: ``isolation = "process"``.

    the broker                                   python -m mqttd.plugins.child
      Hooks --> _Callback --+                      +--> the plugin's callback
                            |== Pipe (sockets) ====|
      PluginHandle <--------+                      +--- ChildHandle <-- the plugin

`IsolatedPlugin` is an `IPlugin` like any other, whose callbacks ask the child. Points with a
verdict or a message to change wait for the answer, nearly as long as the budget allows; those that
wait anyway get a Deferred; the others are told and not waited for. So code that is stuck in C, that
crashes, or that eats memory costs the broker one late answer: while the child is busy with it,
further calls fail at once.

Promise: the broker never waits longer than one call's budget. A child that answers nothing for
`PATIENCE` seconds is killed; one that has ended is started again, after 1 second, then 2, 4, up to
`MOST_PAUSE`. Meanwhile its hooks stay, and fail: a plugin with the policy ``deny`` stays closed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from time import monotonic
from typing import Any, Final

import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReadDescriptor
from twisted.logger import LogLevel
from zope.interface import implementer

import mqttd_plugins
from mqttd.broker.hooks.points import POINTS
from mqttd.interfaces import IPlugin, IPluginHandle
from mqttd.plugins.pipe import Pipe
from mqttd.types import StoreFull

__all__ = ["MOST_PAUSE", "PATIENCE", "PER_CALL", "IsolatedPlugin"]

#: Seconds a callback in another process may take.
PER_CALL: Final = 0.05
#: Seconds after which a child that does not answer is killed.
PATIENCE: Final = 5.0
#: Most seconds between the end of a child and the next one.
MOST_PAUSE: Final = 60.0
#: Seconds the plugin in the child may take to unload.
_GRACE: Final = 9.0

#: What a child may call of its handle, by the names of `IPluginHandle`.
_CALLS: Final = frozenset(
    {"publish", "client", "clients", "subscribe_client", "disconnect", "send_info", "alarm",
     "arrived", "clear_alarm", "authorize", "beyond", "figures", "counter", "plugin_metrics",
     "budgets", "republish", "room", "dump_message", "load_message", "ready", "holds"}
)  # fmt: skip

#: What of its store.
_STORE: Final = frozenset({"delete", "get", "keys", "most", "put", "used", "written"})

#: Points where nobody looks at the accumulator that comes out.
_TOLD: Final = frozenset(
    name
    for name, point in POINTS.items()
    if point.acc in ("None", "Message") or name == "client.subscribe.after"
)


def _sent(config: Any) -> tuple[str, Any]:
    """A plugin's settings as they cross: the name of their class ("" for a dict), and data."""
    if isinstance(config, msgspec.Struct):
        kind = type(config)
        return f"{kind.__module__}:{kind.__qualname__}", msgspec.to_builtins(config)
    return "", config


class _Callback:
    """A hooked callback of the child, as the broker calls it."""

    def __init__(self, plugin: IsolatedPlugin, point: str, key: int, wanted: list[Any]) -> None:
        self.plugin = plugin
        self.point = point
        self.key = key
        #: Its priority and filters.
        self.wanted = wanted
        self.__qualname__ = f"child {key}"

    def __call__(self, *args: Any) -> Any:
        pipe = self.plugin.pipe
        if self.point in _TOLD:
            return pipe.tell("call", self.key, args)
        if POINTS[self.point].waits:
            return pipe.ask("call", self.key, args)
        return pipe.call("call", self.key, args, seconds=self.plugin.seconds())


@implementer(IPlugin, IReadDescriptor)
class IsolatedPlugin:
    """Runs the plugin that `factory` (a dotted name) makes."""

    def __init__(self, factory: str) -> None:
        self.factory = factory
        self.config: Any = None
        self.pipe: Any = None
        self.handle: Any = None
        self.process: subprocess.Popen[bytes] | None = None
        #: How often it was started again.
        self.restarts = 0
        self._callbacks: dict[tuple[str, int], _Callback] = {}
        self._subscriptions: dict[int, Any] = {}
        #: (add_command, name) -> key of the function in the child there is now.
        self._keys: dict[tuple[str, str], int] = {}
        self._pause = 1.0
        self._unloading = False
        self._late_since = 0.0

    # -- IPlugin ---------------------------------------------------------------------------------

    def load(self, handle: IPluginHandle, config: Any) -> Deferred[None]:
        """Start the child; fires when the plugin in it is loaded."""
        self.handle = handle
        self.config = config
        handle.call_every(1.0, self._look)
        return self._spawn()

    def seconds(self) -> float:
        """How long the broker waits for an answer: a little less than a call may take."""
        return 0.9 * float(self.handle.budget.per_call)

    def _spawn(self) -> Deferred[Any]:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "mqttd.plugins.child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self.pipe = Pipe(ours, self._serve)
        self.handle.clock.addReader(self)
        loading: Deferred[Any] = self.pipe.ask(
            "load",
            list(mqttd_plugins.__path__),
            self.factory,
            self.handle.name,
            self.handle.node,
            self.handle.worker,
            self.handle.workers,
            self.handle.data_dir,
            self.handle.config_dir,
            *_sent(self.config),
        )
        return loading

    def unload(self) -> Deferred[Any] | None:
        """Have the plugin in the child unloaded, and the child end."""
        self._unloading = True
        if self.process is None:
            return None
        if self.pipe.closed or self.pipe.late:
            self._end()
            return None
        done: Deferred[Any] = self.pipe.ask("unload")
        late = self.handle.clock.callLater(_GRACE, done.cancel)

        def ended(result: Any) -> None:
            if late.active():
                late.cancel()
            self._end()

        return done.addBoth(ended)

    # -- IReadDescriptor -------------------------------------------------------------------------

    def fileno(self) -> int:
        """The socket."""
        fd: int = self.pipe.sock.fileno()
        return fd

    def logPrefix(self) -> str:
        """For Twisted's log."""
        return f"plugin {self.handle.name}"

    def doRead(self) -> None:
        """The child has said something."""
        try:
            self.pipe.pump()
        except Exception:
            self.handle.log.failure("its process speaks nonsense")
            self.pipe.close()
        if self.pipe.closed:
            self._end()
            if not self._unloading:
                self._ended()

    def _ended(self) -> None:
        """The child is gone though nobody asked for it: start it again after a while."""
        assert self.process is not None
        text = f"its process has ended with status {self.process.returncode}"
        self.handle.budget.failed("died", text, monotonic())
        self.handle.alarm("process", f"{text}; started again in {self._pause:g} s")
        self.handle.log.error("{text}", text=text)
        self.handle.call_later(self._pause, self._start_again)
        self._pause = min(2 * self._pause, MOST_PAUSE)

    def _start_again(self) -> None:
        self.restarts += 1
        self._late_since = 0.0

        def loaded(result: Any) -> None:
            self.handle.clear_alarm("process")
            self.handle.log.info("its process was started again")

        def failed(failure: Any) -> None:
            self.handle.log.error("not started again: {error}", error=failure.value)
            if not self.pipe.closed:
                self.pipe.sock.shutdown(socket.SHUT_RDWR)  # what follows is as after any end

        self._spawn().addCallbacks(loaded, failed)

    def connectionLost(self, reason: Any) -> None:
        """The reactor has given the socket up."""
        self.pipe.close()

    # -- what the child asks for -----------------------------------------------------------------

    def _serve(self, what: str, args: tuple[Any, ...]) -> Any:
        handle = self.handle
        if what in _CALLS:
            return getattr(handle, what)(*args)
        if what.startswith("add_"):
            return self._add(what, *args)
        if what == "store":
            return self._stored(*args)
        if what == "hook":
            point, key, *wanted = args
            known = self._callbacks.get((point, key))
            if known is not None and known.wanted != wanted:  # a new child wants it otherwise
                handle.unhook(point, self._callbacks.pop((point, key)))
                known = None
            if known is None:
                callback = _Callback(self, point, key, wanted)
                handle.hook(point, callback, (), *wanted)
                self._callbacks[point, key] = callback
        elif what == "unhook":
            handle.unhook(args[0], self._callbacks.pop((args[0], args[1])))
        elif what == "subscribe":
            topic_filter, key, qos = args
            if key not in self._subscriptions:
                self._subscriptions[key] = handle.subscribe(
                    topic_filter, lambda message: self.pipe.tell("call", key, (message,)), qos
                )
        elif what == "unsubscribe":
            self._subscriptions.pop(args[0]).unsubscribe()
        elif what == "log":
            level, text = args
            handle.log.emit(LogLevel.lookupByName(level), "{text}", text=text)
        elif what == "failed":
            handle.budget.failed("raised", args[0][:500], monotonic())
            handle.log.error("{text}", text=args[0])
        else:
            raise NotImplementedError(f"{what} is not offered to a plugin in another process")
        return None

    def _stored(self, what: str, *args: Any) -> Any:
        """Something asked of the plugin's store; for `put`, why there is no room."""
        if what not in _STORE:
            raise NotImplementedError(f"{what} is not offered by a store")
        found = getattr(self.handle.store, what)
        try:
            return found if what in ("most", "used") else found(*args)
        except StoreFull as error:
            return str(error)

    def _add(self, what: str, name: str, key: int, text: str = "") -> None:
        """A command, metric or topic: after a new start, under the key of the new function."""
        known = (what, name) in self._keys
        self._keys[what, name] = key

        def read() -> Any:
            return self.pipe.call("call", self._keys[what, name], (), seconds=self.seconds())

        def run(argv: list[str]) -> Any:
            return self.pipe.ask("call", self._keys[what, name], (argv,))

        if known:
            return
        if what == "add_command":
            self.handle.add_command(name, run, text)
        elif what == "add_metric":
            self.handle.add_metric(name, text, read)
        elif what == "add_sys_topic":
            self.handle.add_sys_topic(name, read)

    def _look(self) -> None:
        """Each second: write what waits, and do not wait for ever."""
        if self.pipe.closed:
            return
        self.pipe.flush()
        if not self.pipe.late:
            self._late_since = 0.0
        elif not self._late_since:
            self._late_since = monotonic()
        elif monotonic() - self._late_since > PATIENCE and self.process is not None:
            self.handle.log.error("its process does not answer: killed")
            self.process.kill()  # its socket tells the rest

    def _end(self) -> None:
        """The child has nothing more to do here."""
        process = self.process
        if process is None:
            return
        if self.fileno() >= 0:
            self.handle.clock.removeReader(self)
            self.pipe.close()
            self.pipe.sock.close()
        if process.poll() is None:
            # It ends by itself when its socket is closed; a stuck one does not.
            process.send_signal(signal.SIGKILL)
            process.wait()
