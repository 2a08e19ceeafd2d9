"""The running part of the plugin: the log is opened at load and closed at unload.

load     Writer (cuts a torn tail) --> Appender (thread) --> hooks, metrics, alarms, routes
unload   hooks go --> what is left is written --> the thread ends
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from zope.interface import implementer

from mqttd.interfaces import IPlugin
from mqttd.pipeline.endpoint import LogResource
from mqttd.pipeline.feed import Feed
from mqttd.pipeline.log.appender import Appender, Overflow
from mqttd.pipeline.log.archive import Archive
from mqttd.pipeline.log.background import Background, Parts
from mqttd.pipeline.log.files import nodes_in
from mqttd.pipeline.log.pace import Pace
from mqttd.pipeline.log.retention import Retention
from mqttd.pipeline.log.writer import Writer
from mqttd.pipeline.log.zstd import QUICK, Codec, zstd
from mqttd.pipeline.spark.sessions import write_package
from mqttd.pipeline.staging import Staging
from mqttd.types import STOP, HookResult, PluginError
from mqttd_plugins.spark.config import SparkConfig
from mqttd_plugins.spark.exporter import LAST, Exporter

__all__ = ["SparkPlugin", "left_nodes", "log_node", "log_path", "stage_folder"]

#: Seconds that the last blocks have to reach the disk at unload.
STOP_DEADLINE: Final = 8.0

#: Seconds that an acknowledgement of which was asked alone lets others come into its block.
FLUSH_HELD: Final = 0.002

#: Seconds between two lines about files in `groups/` that are no group's.
SKIPPED_EVERY: Final = 60.0

#: Seconds between two texts of the alarm that says how many events were lost so far.
LOST_EVERY: Final = 1.0

#: Clients remembered before it is looked whose acknowledgements are held still.
MOST_CLIENTS: Final = 10_000

_QUOTA_EXCEEDED: Final = 0x97


def log_path(config: SparkConfig, config_dir: str, data_dir: str, worker: int) -> str:
    """Where the log is: `path` beside the configuration, or `events` in the broker's data.

    It is one for all workers, whose plugins have their data in `worker-N` of the broker's.
    """
    if config.path:
        return os.path.abspath(os.path.join(config_dir, config.path))
    up = [".."] * (3 if worker else 2)
    return os.path.abspath(os.path.join(data_dir, *up, "events"))


def stage_folder(data_dir: str, worker: int) -> str:
    """Where rows are staged: one for all workers, and the same when there is one process."""
    up = [os.pardir] * 3 if worker else []
    own = os.path.join(*data_dir.split(os.sep)[-2:]) if worker else ""
    return os.path.abspath(os.path.join(data_dir, *up, own))


def log_node(config: SparkConfig, node: str, worker: int) -> str:
    """What this process is called in the log: the node, and which worker of it."""
    name = config.node or node
    return f"{name}-worker-{worker}" if worker else name


def left_nodes(nodes: Iterable[str], name: str, workers: int) -> list[str]:
    """Those of `nodes` that were workers of the node `name`, or it, when there were others."""
    now = {f"{name}-worker-{number}" for number in range(1, workers + 1)}
    now = now if workers > 1 else {name}
    before = re.compile(rf"{re.escape(name)}(-worker-[1-9]\d*)?")
    return [node for node in nodes if before.fullmatch(node) and node not in now]


def _soon(clock: Any) -> Callable[[Callable[[], None]], object]:
    """How the writing thread calls into the reactor's; a test's clock has no such thing."""
    found: Callable[[Callable[[], None]], object] | None
    found = getattr(clock, "callFromThread", None)
    return found or (lambda f: clock.callLater(0, f))


def _codec(compression: str) -> Codec | None:
    if compression == "none":
        return None
    try:
        return zstd()
    except ImportError as error:
        if compression == "zstd":
            raise ValueError(f"compression = zstd: {error}") from None
        return None


@implementer(IPlugin)
class SparkPlugin:
    """Exports events while it is loaded."""

    def __init__(self) -> None:
        self.log: Appender | None = None
        self.path = ""
        self.staging: Staging | None = None
        self._handle: Any = None
        self._paused = False
        #: Messages are refused that cannot be logged; and whether they are now.
        self._careful = False
        self._refusing = False
        #: Whose messages were refused in this turn; and whether that has begun in it.
        self._refused: set[str] = set()
        self._just_full = False
        #: Somebody waits: the batch goes sooner than `flush_after`.
        self._flushing: Any = None
        #: The log's end when acknowledgements of a client were last held.
        self._held: dict[str, int] = {}
        self._prune_at = MOST_CLIENTS
        self._hooked: list[tuple[str, Callable[..., Any]]] = []
        #: Events are being lost, which the alarm says; when its text may be another.
        self._overflows = False
        self._lost_next = 0.0
        #: Files that are no group's, as they were told last; and when they may be again.
        self._skipped: list[str] = []
        self._skipped_at = 0.0

    def load(self, handle: Any, config: SparkConfig) -> Any:
        """Open the log and hook the points; raises ValueError or PluginError, which say why not.

        With an archive a Deferred: what reaches it is imported and asked in a thread, a third of a
        second in which the loop goes on.
        """
        if not config.archive:
            return self._open(handle, config)
        reached = handle.in_thread(Archive, config.archive, "")  # a URL that is none is told now
        return reached.addCallback(lambda _: self._open(handle, config))

    def _open(self, handle: Any, config: SparkConfig) -> None:
        self._handle = handle
        self._config = config
        self.path = log_path(config, handle.config_dir, handle.data_dir, handle.worker)
        retention = Retention(
            config.retention_bytes,
            config.retention_seconds,
            config.held_bytes,
            config.group_seconds,
        )
        try:
            writer = Writer(
                self.path,
                log_node(config, handle.node, handle.worker),
                config.segment_bytes,
                config.segment_seconds,
                config.sync == "fsync",
                retention,
            )
        except OSError as error:
            name = error.filename or self.path
            raise PluginError(f"the event log: {error.strerror or error}: {name}") from error
        except ValueError as error:  # of another format: nothing is wrong with the program
            raise PluginError(f"the event log: {error}") from error
        if writer.cut:
            handle.log.warn(
                "event log {path}: cut a torn tail of {cut} bytes", path=self.path, cut=writer.cut
            )
        clock = handle.clock
        soon = _soon(clock)
        codec = _codec(config.compression)

        def tell(text: str) -> None:
            soon(lambda: self._tell_background(text))

        how = "none" if codec is None else "zstd"
        own = Background(writer.folder, how, tell, config.archive, writer.log)
        writer.may_go = own.may_go
        writer.closed = own.closed
        left = []
        if handle.worker < 2:  # the first one cleans up behind those that there are no longer
            for node in left_nodes(nodes_in(self.path), config.node or handle.node, handle.workers):
                folder = os.path.join(self.path, node)
                part = Background(folder, how, tell, config.archive, writer.log, written=False)
                writer.left[node] = part.may_go
                left.append(part)
        background = Parts(own, left)
        # An event that may be dropped cannot be waited for.
        overflow: Overflow = "block" if config.acked_means_logged else config.overflow
        self.log = log = Appender(
            writer,
            clock.callLater,
            soon,
            config.block_events,
            config.flush_after,
            config.queue_bytes,
            overflow,
            self._changed,
            codec=codec,
            quick=None if codec is None else zstd(QUICK),
            background=background,
            loose=config.compression == "auto",
        )
        self._exporter = exporter = Exporter(config, log)
        for point, callback in exporter.callbacks():
            handle.hook(point, callback, priority=LAST)
            self._hooked.append((point, callback))
        exporter.choose(log.columns)
        if "message.publish" in exporter.events:
            self._careful = overflow == "block"
            handle.keep_messages(log.columns, self._topics())
        told = [f"message.{name}" in exporter.events for name in ("delivered", "acked")]
        lost = [f"{what}.dropped" in exporter.events for what in ("delivery", "message")]
        if any(told) or any(lost):
            handle.keep_deliveries(log.columns, *told, self._topics(), *lost)
        if "client.authorize" in exporter.events:
            handle.keep_denials(log.columns)
        if config.acked_means_logged:
            gathering = handle.hold_acknowledgements(self._hold, None, True, self._brought)
            log.pace = pace = Pace(gathering, log.idle, log.flush)
            pace.pause = handle.pause(pace.over)
            log.wake = handle.bell(log.progress)
        handle.add_command("package", self._package, "Makes the zip for spark-submit --py-files.")
        self._show(handle, log, background)
        self._tell_damage(writer)
        if config.stage:
            self.staging = Staging(
                handle,
                stage_folder(handle.data_dir, handle.worker),
                config.stage_bytes,
                config.stage_seconds,
                self._place,
                self._when_logged,
            )
            self.staging.start()
        Feed(handle).start()

    def _topics(self) -> tuple[str, ...] | None:
        """The topics whose messages are exported, None for all."""
        return None if "#" in self._config.topics else self._config.topics

    def _package(self, argv: list[str]) -> Any:
        folder = str(self._handle.data_dir)
        os.makedirs(folder, exist_ok=True)
        path = os.path.abspath(os.path.join(folder, "mqttd-spark.zip"))
        return self._handle.in_thread(lambda: write_package(path))

    def _place(self) -> tuple[str, str, int] | None:
        log = self.log
        return None if log is None else (self.path, log.writer.node, log.next)

    def _when_logged(self, then: Callable[[], None]) -> None:
        log = self.log
        if log is None:
            then()
        else:
            log.flush()
            log.when_written(log.next, then)

    def unload(self) -> Any:
        """Write what is left; a Deferred that fires when it is on its way."""
        if self.staging is not None:
            self.staging.stop()
            self.staging = None
        log, self.log = self.log, None
        if log is None:
            return None
        for point, callback in self._hooked:
            self._handle.unhook(point, callback)
        self._hooked.clear()
        flushing, self._flushing = self._flushing, None
        if flushing is not None:
            flushing.cancel()
        # What is held is released when it is written: its connections need not end for it.
        self._handle.hold_acknowledgements(None)
        self._handle.keep_messages(None)
        self._handle.keep_deliveries(None)
        self._handle.keep_denials(None)
        self._refuse(False)
        log.stop()
        if log.losing:
            self._lost_next = 0.0
            self._tell_lost(log)
        ended = self._handle.in_thread(log.join, STOP_DEADLINE)
        return ended.addCallback(lambda _: self._tell_unwritten(log))

    def _tell_unwritten(self, log: Appender) -> None:
        if log.unwritten:
            self._handle.log.critical(
                "event log {path}: {count} events were not written before the stop: {why}; a"
                " log.gap will stand for what is lost when it is opened again",
                path=self.path,
                count=log.unwritten,
                why=log.trouble or f"the disk took longer than {STOP_DEADLINE:g} s",
            )

    def _show(self, handle: Any, log: Appender, background: Parts) -> None:
        resource = LogResource(self.path, handle.in_thread)
        handle.add_route("log", resource, alike=True)  # it reads the files of all workers
        for name, text, read in (
            ("events_total", "Events handed to the event log.", lambda: log.appended),
            ("written_total", "Events written to the event log.", lambda: log.written_events),
            ("written_bytes_total", "Bytes written to it.", lambda: log.written_bytes),
            ("dropped_total", "Events lost because the disk did not follow.", lambda: log.dropped),
            ("failures_total", "Writes that failed.", lambda: log.failures),
            ("queue_bytes", "Bytes that wait for the disk.", lambda: log.queued_bytes),
            ("acks_waiting", "Acknowledgements that wait for it.", lambda: log.waiters),
            ("pulled_bytes_total", "Bytes read by the pull endpoint.", lambda: resource.bytes),
            ("deleted_segments_total", "Segments deleted by retention.",
             lambda: log.writer.deleted_segments),
            ("damaged_files", "Damaged files of the log that are kept.",
             lambda: log.writer.set_aside),
            ("skipped_group_files", "Files in groups/ that are no group's and keep nothing.",
             lambda: len(log.writer.skipped)),
            ("merged_segments_total", "Segments that were written again, smaller.",
             lambda: background.merged),
            ("waiting_segments", "Finished segments that wait for it.",
             lambda: background.waiting),
            ("archived_segments_total", "Segments copied to the archive.",
             lambda: background.archived),
        ):  # fmt: skip
            handle.add_metric(name, text, read)

    # -- when the disk does not follow

    def _changed(self) -> None:
        """The log fails, is full, or is well again: tell the operator."""
        log, handle = self.log, self._handle
        if log is None:
            return
        if self._paused is not log.congested:
            self._paused = log.congested
            handle.pause_publishers(self._paused)
        self._refuse(self._careful and bool(log.failing or log.full))
        if log.failing:
            handle.alarm("disk", f"the event log {self.path} cannot be written: {log.failing}")
        else:
            handle.clear_alarm("disk")
        self._tell_lost(log)
        self._tell_damage(log.writer)
        self._tell_skipped(log.writer.skipped)

    def _tell_lost(self, log: Appender) -> None:
        """How many events were lost so far; when it is over the number is the whole one."""
        handle = self._handle
        now = handle.clock.seconds()
        if log.losing and self._overflows and now < self._lost_next:
            return
        if log.losing or self._overflows:
            text = f"the disk does not follow: {log.lost} events were lost"
            if log.dropped > log.lost:
                text += f", {log.dropped} since the start"
            handle.alarm("overflow", text)
            self._lost_next = now + LOST_EVERY
        self._overflows = log.losing
        if not log.losing:
            handle.clear_alarm("overflow")

    def _tell_background(self, text: str) -> None:
        """Something could not be done to a finished segment, or can be again (empty)."""
        if self.log is None:
            return
        if text:
            self._handle.alarm("archive" if self._config.archive else "merge", text)
        else:
            self._handle.clear_alarm("archive")
            self._handle.clear_alarm("merge")

    def _tell_damage(self, writer: Writer) -> None:
        if writer.damage or writer.set_aside:
            kept = f"; {writer.set_aside} damaged files are kept in it" if writer.set_aside else ""
            text = f"the event log {writer.folder}: {writer.damage or 'was damaged'}{kept}"
            self._handle.alarm("damage", f"{text}. See mqttd-ctl events verify")
        else:
            self._handle.clear_alarm("damage")

    def _tell_skipped(self, skipped: list[str]) -> None:
        """Whoever may register groups may put anything there: it is named, not too often."""
        now = self._handle.clock.seconds()
        if skipped == self._skipped or (skipped and now < self._skipped_at):
            return
        self._skipped = skipped
        if skipped:
            self._skipped_at = now + SKIPPED_EVERY
            self._handle.log.warn(
                "event log {path}: {count} files in groups/ are no group's, they keep nothing:"
                " {what}",
                path=self.path,
                count=len(skipped),
                what="; ".join(skipped[:3]),
            )

    def _refuse(self, now: bool) -> None:
        """QoS 1 and 2 are promises: no promise while the log cannot take their events."""
        if now is self._refusing:
            return
        self._refusing = now
        self._refused.clear()
        if self.log is not None and self.log.pace is not None:
            self.log.pace.gathering.careful = now
        if now:
            self._just_full = True
            self._handle.call_later(0, self._turn_ends)
            self._handle.hook(
                "message.publish", self._publish, priority=LAST, topic_filter=self._topics()
            )
        else:
            self._handle.unhook("message.publish", self._publish)

    def _turn_ends(self) -> None:
        self._just_full = False

    def _publish(self, message: Any) -> HookResult | None:
        log = self.log
        if message.qos and log is not None and (log.failing or log.full):
            self._refused.add(message.client_id)
            return STOP(_QUOTA_EXCEEDED)
        return None

    def _hold(self, release: Callable[[], None], client_id: str) -> None:
        """While some is refused: what a client has sent in a turn, when its events are written."""
        log = self.log
        if log is None:
            release()
        else:
            self._wait(log, release, client_id)

    def _wait(self, log: Appender, release: Callable[[], None], client: str) -> None:
        held = self._held
        if client in self._refused:
            # No event to wait for, only its client's own acknowledgements before; unless the
            # queue became full in this turn, and some of it was taken before that.
            self._refused.discard(client)
            if not self._just_full and held.get(client, 0) <= log.written:
                release()
                return
        offset = log.next
        held[client] = offset
        if len(held) > self._prune_at:
            self._held = {name: end for name, end in held.items() if end > log.written}
            self._prune_at = max(MOST_CLIENTS, 2 * len(self._held))
        log.when_written(offset, release)
        if self._flushing is None:
            # As the log's own timer on nobody's budget: a block is handed over, and who waits for
            # it must not be refused because the machine was slow.
            self._flushing = self._handle.clock.callLater(FLUSH_HELD, self._flush)

    def _flush(self) -> None:
        self._flushing = None
        if self.log is not None:
            self.log.flush()

    def _brought(self) -> None:
        """What a turn has brought is acknowledged when its events are written."""
        if self.log is not None and self.log.pace is not None:
            self.log.pace.brought()
