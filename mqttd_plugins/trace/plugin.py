"""Writes what one client, topic or address does to a file of its own, while it happens.

    mqttd-ctl plugins run trace start NAME client=alice           what alice does, and what she gets
    mqttd-ctl plugins run trace start NAME topic=sensors/#        messages of these topics
    mqttd-ctl plugins run trace start NAME address=192.0.2.7      clients from there
    mqttd-ctl plugins run trace list | show NAME [LINES] | stop NAME

    hook points --> one of the traces? --> lines --every 0.2 s, in a thread--> DATA/NAME.log

The hooks are there only while a trace runs: without one nothing is slower. A trace ends by itself
after `minutes`, or when its file has `max_bytes`. Passwords are never written, of payloads the
first `payload_bytes`.

Promise: the reactor writes no file; at most `max_traces` run, with `max_waiting` lines, and of each
trace 4 MiB, that wait for the disk; lines that do not fit are counted, and the file says how many
are missing. Of a topic the first 1,000 characters are written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Annotated, Any, Final

from msgspec import Meta, Struct
from twisted.internet.defer import Deferred, DeferredList
from zope.interface import implementer

from mqttd.codec.reasons import MqttError
from mqttd.codec.topic import match, validate_topic_filter
from mqttd.interfaces import IPlugin, IPluginHandle
from mqttd.types import Action, ClientInfo, PluginError

__all__ = ["Settings", "Trace", "TraceError"]

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: Sees what all others have made of a message.
LAST: Final = -950_000
#: Characters of a topic that are written: it may have 65,535, and an alias names it in a byte.
_TOPIC: Final = 1000
#: Bytes of one trace that may wait for the disk.
_WAITING: Final = 4 << 20
#: Seconds between two writes.
FLUSH: Final = 0.2

_USAGE: Final = (
    "start NAME client=ID | topic=FILTER | address=IP; several of them: all must be true"
)


class TraceError(PluginError):
    """The operator asked for something that cannot be; the text says what can."""


class Settings(Struct, frozen=True, kw_only=True):
    """What ``etc/plugins/trace.conf`` may say."""

    #: A trace ends after so many minutes.
    minutes: Annotated[float, Meta(gt=0, le=10_080)] = 30.0
    #: A trace ends when its file has so many bytes.
    max_bytes: Annotated[int, Meta(ge=4096)] = 100 << 20
    #: Traces that may run at once.
    max_traces: Annotated[int, Meta(ge=1, le=100)] = 10
    #: Lines of one trace that may wait for the disk.
    max_waiting: Annotated[int, Meta(ge=10)] = 10_000
    #: Bytes of a payload that are written.
    payload_bytes: Annotated[int, Meta(ge=0, le=65536)] = 64


class _Running:
    """One trace: what it looks for, and its lines that wait."""

    def __init__(self, name: str, path: str, wanted: dict[str, str], ends_at: float) -> None:
        self.name = name
        self.path = path
        self.client = wanted.get("client")
        self.topic = wanted.get("topic")
        self.address = wanted.get("address")
        self.wanted = " ".join(f"{key}={value}" for key, value in wanted.items())
        self.ends_at = ends_at
        self.lines: list[bytes] = []
        self.count = 0
        self.missing = 0
        self.bytes = 0
        #: Of these, those that wait.
        self.waiting = 0
        self.writing: Deferred[Any] | None = None

    def wants_client(self, client: ClientInfo | None) -> bool:
        """Whether an event of this client without a topic belongs here."""
        if client is None or self.topic is not None:
            return False
        return self._is(client)

    def wants_topic(self, client: ClientInfo | None, source: str, topic: str) -> bool:
        """Whether a topic that this client (or a publisher called `source`) uses belongs here."""
        if self.topic is not None and not match(topic, self.topic):
            return False
        if self.client is None and self.address is None:
            return True
        if client is not None and self._is(client):
            return True
        return self.address is None and bool(source) and source == self.client

    def _is(self, client: ClientInfo) -> bool:
        if self.client is not None and client.client_id != self.client:
            return False
        return self.address is None or client.peerhost == self.address


@implementer(IPlugin)
class Trace:
    """The running part."""

    def load(self, handle: IPluginHandle, config: Settings) -> None:
        """Offer the commands; nothing is hooked before the first trace."""
        self.handle = handle
        self.config = config
        self.running: dict[str, _Running] = {}
        self._hooked: list[tuple[str, Callable[..., None]]] = []
        self._flushing: Any = None
        handle.add_command("start", self.start, _USAGE)
        handle.add_command("stop", self.stop, "NAME: end a trace; its file stays")
        handle.add_command("list", self.show_all, "the traces that run, and the files")
        handle.add_command("show", self.show, "NAME [LINES]: the last lines of a trace")
        handle.add_metric("running", "Traces that run.", lambda: len(self.running))

    def unload(self) -> Deferred[None] | None:
        """End all traces, and write what waits."""
        traces = list(getattr(self, "running", {}).values())
        ended = [self._end(trace, "the plugin was unloaded") for trace in traces]
        return DeferredList(ended).addCallback(lambda _: None)

    # -- commands ------------------------------------------------------------------------------

    def start(self, argv: list[str]) -> str:
        """`mqttd-ctl plugins run trace start NAME client=ID`"""
        if len(argv) < 2:
            raise TraceError(f"usage: {_USAGE}")
        name, *wishes = argv
        path = self._path(name)
        if name in self.running:
            raise TraceError(f"trace {name} runs already: stop it first, or take another name")
        if len(self.running) >= self.config.max_traces:
            raise TraceError(f"{len(self.running)} traces run, as many as max_traces allows")
        wanted = _wanted(wishes)
        ends_at = self.handle.clock.seconds() + self.config.minutes * 60
        trace = _Running(name, path, wanted, ends_at)
        _create(path)
        self.running[name] = trace
        self._line(trace, f"trace {name} starts: {trace.wanted}")
        self._hook()
        return f"{path}: {trace.wanted}, for {self.config.minutes:g} minutes"

    def stop(self, argv: list[str]) -> Deferred[str]:
        """`mqttd-ctl plugins run trace stop NAME`"""
        if len(argv) != 1 or argv[0] not in self.running:
            raise TraceError(f"there run: {', '.join(self.running) or 'none'}")
        trace = self.running[argv[0]]
        return self._end(trace, "stopped").addCallback(
            lambda _: f"{trace.path}: {trace.count} lines, {trace.missing} missing"
        )

    def show_all(self, argv: list[str]) -> str:
        """`mqttd-ctl plugins run trace list`"""
        now = self.handle.clock.seconds()
        lines = [
            f"{trace.name}  {trace.wanted}  {trace.count} lines, {trace.missing} missing,"
            f" {max(trace.ends_at - now, 0) / 60:.0f} minutes left  {trace.path}"
            for trace in self.running.values()
        ]
        for entry in sorted(os.listdir(self.handle.data_dir)):
            name, dot, ending = entry.rpartition(".")
            if ending == "log" and name not in self.running:
                lines.append(f"{name}  ended  {os.path.join(self.handle.data_dir, entry)}")
        return "\n".join(lines) or "no traces"

    def show(self, argv: list[str]) -> Deferred[str]:
        """`mqttd-ctl plugins run trace show NAME [LINES]`"""
        if not argv or not (argv[1:] in ([], argv[1:2]) and all(n.isdigit() for n in argv[1:])):
            raise TraceError("usage: show NAME [LINES]")
        lines = min(int(argv[1]) if argv[1:] else 20, 10_000)
        path = self._path(argv[0])
        trace = self.running.get(argv[0])
        if trace is not None:
            self._write(trace)
        shown: Deferred[str] = self.handle.in_thread(_tail, path, lines)
        return shown

    def _path(self, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise TraceError(f"{name!r} is no name: up to 64 letters, digits, _ and -")
        return os.path.join(self.handle.data_dir, f"{name}.log")

    # -- hooks ---------------------------------------------------------------------------------

    def _hook(self) -> None:
        if self._hooked:
            return
        self._hooked = [
            ("client.connect", self._connect),
            ("client.connack", self._connack),
            ("client.connected", self._connected),
            ("client.disconnected", self._disconnected),
            ("client.authorize", self._authorize),
            ("session.created", self._created),
            ("session.resumed", self._resumed),
            ("session.subscribed", self._subscribed),
            ("session.unsubscribed", self._unsubscribed),
            ("session.takenover", self._takenover),
            ("session.discarded", self._discarded),
            ("session.terminated", self._terminated),
            ("message.publish", self._publish),
            ("message.delivered", self._delivered),
            ("message.acked", self._acked),
            ("message.dropped", self._dropped),
            ("delivery.dropped", self._undelivered),
        ]
        for point, callback in self._hooked:
            self.handle.hook(point, callback, priority=LAST)
        self._flushing = self.handle.call_every(FLUSH, self._flush)

    def _unhook(self) -> None:
        for point, callback in self._hooked:
            self.handle.unhook(point, callback)
        self._hooked = []
        if self._flushing is not None:
            self._flushing.stop()
            self._flushing = None

    def _client(self, client: ClientInfo | None, text: str) -> None:
        for trace in self.running.values():
            if trace.wants_client(client):
                assert client is not None
                self._line(trace, f"{_who(client)} {text}")

    def _topic(self, client: ClientInfo | None, source: str, topic: str, text: str) -> None:
        for trace in self.running.values():
            if trace.wants_topic(client, source, topic):
                self._line(trace, text)

    def _connect(self, client: ClientInfo, properties: Any) -> None:
        self._client(
            client,
            f"CONNECT from {client.peerhost}:{client.peerport} at {client.listener},"
            f" version {client.protocol_version}, user {client.username!r},"
            f" clean start {client.clean_start}, keep alive {client.keep_alive}",
        )

    def _connack(self, client: ClientInfo, reason_code: int, properties: Any) -> None:
        self._client(client, f"CONNACK {reason_code:#04x}")

    def _connected(self, client: ClientInfo, acc: None) -> None:
        self._client(client, "is connected")

    def _disconnected(self, client: ClientInfo, reason: str, acc: None) -> None:
        self._client(client, f"is disconnected: {reason}")

    def _created(self, client: ClientInfo, acc: None) -> None:
        self._client(client, "has a new session")

    def _resumed(self, client: ClientInfo, acc: None) -> None:
        self._client(client, "resumes its session")

    def _takenover(self, client: ClientInfo, acc: None) -> None:
        self._client(client, "is taken over by another connection")

    def _discarded(self, client: ClientInfo, acc: None) -> None:
        self._client(client, "throws its old session away")

    def _terminated(self, client: ClientInfo, reason: str, acc: None) -> None:
        self._client(client, f"has no session any more: {reason}")

    def _authorize(self, client: ClientInfo, action: Action, topic: str, verdict: Any) -> None:
        text = f"{_who(client)} asks to {action.kind} {_shown(topic)}, QoS {action.qos}"
        self._topic(client, "", topic, text)

    def _subscribed(self, client: ClientInfo, subscription: Any, acc: None) -> None:
        topic = subscription.topic_filter
        text = f"{_who(client)} subscribed to {_shown(topic)}, QoS {subscription.qos}"
        self._topic(client, "", topic, text)

    def _unsubscribed(self, client: ClientInfo, topic_filter: str, acc: None) -> None:
        text = f"{_who(client)} unsubscribed from {_shown(topic_filter)}"
        self._topic(client, "", topic_filter, text)

    def _publish(self, message: Any) -> None:
        if message is None:
            return
        client = None
        if message.client_id and any(trace.address is not None for trace in self.running.values()):
            client = self.handle.client(message.client_id)
        source = message.client_id
        text = f"{source or 'the broker'!r} publishes {self._of(message)}"
        self._topic(client, source, message.topic, text)

    def _delivered(self, client: ClientInfo, message: Any) -> None:
        self._message(client, message, f"{_who(client)} is sent {self._of(message)}")

    def _acked(self, client: ClientInfo, message: Any) -> None:
        self._message(client, message, f"{_who(client)} acknowledges {message.id:032x}")

    def _dropped(self, client: ClientInfo | None, reason: str, message: Any) -> None:
        self._message(client, message, f"{message.id:032x} reaches nobody: {reason}")

    def _undelivered(self, client: ClientInfo, reason: str, message: Any) -> None:
        text = f"{_who(client)} does not get {message.id:032x}: {reason}"
        self._message(client, message, text)

    def _message(self, client: ClientInfo | None, message: Any, text: str) -> None:
        self._topic(client, message.client_id, message.topic, text)

    def _of(self, message: Any) -> str:
        payload = message.payload[: self.config.payload_bytes]
        more = "..." if len(message.payload) > len(payload) else ""
        return (
            f"{message.id:032x} {_shown(message.topic)}, QoS {message.qos}"
            f"{', retain' if message.retain else ''}, {len(message.payload)} bytes:"
            f" {ascii(payload)[1:]}{more}"
        )

    # -- lines and files -----------------------------------------------------------------------

    def _line(self, trace: _Running, text: str) -> None:
        if len(trace.lines) >= self.config.max_waiting or trace.waiting >= _WAITING:
            trace.missing += 1
            return
        time = datetime.fromtimestamp(self.handle.time(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
        line = f"{time}Z {text}\n".encode("utf-8", "backslashreplace")
        trace.lines.append(line)
        trace.count += 1
        trace.bytes += len(line)
        trace.waiting += len(line)

    def _flush(self) -> None:
        now = self.handle.clock.seconds()
        for trace in list(self.running.values()):
            if now >= trace.ends_at:
                self._end(trace, "its time is over")
            elif trace.bytes >= self.config.max_bytes:
                self._end(trace, f"its file has {trace.bytes} bytes")
            else:
                self._write(trace)

    def _write(self, trace: _Running) -> Deferred[Any] | None:
        """Have what waits written, one thread at a time."""
        if trace.writing is not None or not trace.lines:
            return trace.writing
        lines, trace.lines = trace.lines, []
        trace.waiting = 0
        if trace.missing:
            lines.append(b"(%d lines are missing up to here)\n" % trace.missing)
        trace.writing = self.handle.in_thread(_append, trace.path, b"".join(lines))
        trace.writing.addErrback(self._cannot_write, trace)
        trace.writing.addCallback(self._written, trace)
        return trace.writing

    def _written(self, result: Any, trace: _Running) -> None:
        trace.writing = None

    def _cannot_write(self, failure: Any, trace: _Running) -> None:
        self.handle.log.error(
            "trace {name} ends: {path} cannot be written: {why}",
            name=trace.name,
            path=trace.path,
            why=failure.getErrorMessage(),
        )
        self.running.pop(trace.name, None)
        if not self.running:
            self._unhook()

    def _end(self, trace: _Running, why: str) -> Deferred[Any]:
        """No more lines; fires when all are written."""
        self._line(trace, f"trace {trace.name} ends: {why}")
        self.running.pop(trace.name, None)
        if not self.running:
            self._unhook()
        done: Deferred[Any] = Deferred()
        before = trace.writing

        def rest(result: Any) -> Any:
            trace.writing = None
            last = self._write(trace)
            if last is None:
                done.callback(None)
            else:
                last.addCallback(done.callback)
            return result

        if before is not None:
            before.addCallback(rest)
        else:
            rest(None)
        return done


def _who(client: ClientInfo) -> str:
    return repr(client.client_id)


def _shown(topic: str) -> str:
    return repr(topic) if len(topic) <= _TOPIC else f"{topic[:_TOPIC]!r}... ({len(topic)})"


def _wanted(wishes: list[str]) -> dict[str, str]:
    wanted: dict[str, str] = {}
    for wish in wishes:
        key, _, value = wish.partition("=")
        if key not in ("client", "topic", "address") or not value or key in wanted:
            raise TraceError(f"{wish!r}: usage: {_USAGE}")
        if key == "topic":
            try:
                validate_topic_filter(value)
            except MqttError as error:
                raise TraceError(f"topic={value}: {error.detail}") from None
        if key == "address" and value != "unix":
            try:
                value = str(ip_address(value))
            except ValueError as error:
                raise TraceError(f"address={value}: {error}") from None
        wanted[key] = value
    return wanted


def _create(path: str) -> None:
    """A new file, only for us; never through a link that somebody laid there."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    os.close(os.open(path, flags, 0o600))


def _append(path: str, text: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags), "wb") as file:
        file.write(text)


def _tail(path: str, lines: int) -> str:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - lines * 400 - 4096, 0))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        raise TraceError(f"{path}: there is no such trace") from None
    return "\n".join(text.splitlines()[-lines:])
