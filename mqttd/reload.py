"""Read the whole configuration again, say what that will do, and do it: all of it or nothing.

    mqttd-ctl reload, SIGHUP
       │
       ├─ read      file and environment              a mistake: refused, alarm `configuration`
       ├─ plan      mqttd.config.plan, key by key     --dry-run ends here
       ├─ check     every file a start would read, in a thread
       ├─ weigh     mqttd.foresight: who is cut off   held back until it is confirmed
       ├─ prepare   plugins loaded, addresses bound, chains and rules read     any fault: undone
       └─ apply     in one turn, nothing in it can fail
    what waits for a restart keeps the alarm `configuration differs`

Which keys are applied the schema says (`Option.reload`); users, rules and certificates are read
again whether their keys have changed or not.

Promise: with a mistake in a key or a file, or an address in use, everything stays as it was.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread
from twisted.python.failure import Failure

from mqttd.access.by_listener import AccessByListener, configs_by_listener
from mqttd.access.chain import AccessControl
from mqttd.admin.doors.door import DoorError
from mqttd.admin.doors.tcp import AdminTcpService
from mqttd.broker.ground.settings import settings_of
from mqttd.broker.sessions.login import module_of
from mqttd.codec import reasons
from mqttd.config.load import ConfigError, from_text, load
from mqttd.config.plan import differences, merged, option_of, texts, values
from mqttd.config.schema import Config
from mqttd.foresight import Foresight
from mqttd.options import StartError, check_files, open_secrets, unheard, why
from mqttd.readmodel.slices import Run, in_slices
from mqttd.transports.door import Door
from mqttd.transports.sockets import ListenError
from mqttd.types import ClientInfo, PluginError

__all__ = ["Reload", "ReloadError"]

Json = dict[str, Any]


class ReloadError(Exception):
    """Nothing was changed; the text says why, `code` what kind of reason it is."""

    def __init__(self, text: str, code: str = "reload_failed") -> None:
        super().__init__(text)
        self.code = code


class Reload:
    """Reloads one broker: `service` is its `mqttd.service.MqttdService`, which makes this.

    `in_thread` calls something in a thread, `run` works an iterator off.
    """

    def __init__(
        self,
        service: Any,
        in_thread: Callable[..., Deferred[Any]] = deferToThread,
        run: Run = in_slices,
    ) -> None:
        self.service = service
        self.in_thread = in_thread
        self.in_slices = run
        self._busy = False
        #: SIGHUP has come meanwhile.
        self._again = False

    def run(self, dry_run: bool = False, confirmed: bool = False) -> Deferred[Json]:
        """Reload; the answer has `changes`, `files`, `warnings`, and whether it was `applied`.

        A plan with warnings is applied when it is `confirmed` only. Fails with ReloadError.
        """
        return Deferred.fromCoroutine(self._once(dry_run, confirmed))

    def in_force(self) -> Config:
        """The configuration as it is in force, listeners as they were started last."""
        config: Config = self.service.config
        return msgspec.structs.replace(config, listener=self.service.doors.in_force())

    def describe(self) -> Json:
        """Every key in force, where its value comes from, and whether the file differs now."""
        config = self.in_force()
        try:
            differ = {change.key: change.after for change in differences(config, self._read())}
        except ReloadError:
            differ = {}
        keys = [
            {
                "key": path,
                "value": option_of(path).write(value),
                "source": config.given.get(path, "default"),
                "reload": option_of(path).reload,
                "file": differ.get(path),
            }
            for path, value in values(config)
        ]
        return {"path": config.path or None, "keys": keys}

    def mistakes(self, text: str) -> list[str]:
        """What would be wrong with the configuration, if this stood in its file."""
        try:
            from_text(text, self.service.config.path or "mqttd.conf", os.environ)
        except ConfigError as error:
            return error.mistakes
        return []

    def files_taken(self) -> None:
        """A file of users counts again: a reload that it had refused may have nothing left to do.

        Then its alarm is over, without a reload: what the files say is in force.
        """
        alarms = self.service.broker.alarms
        if self._busy or all(alarm.name != "configuration" for alarm in alarms.active()):
            return
        self.run(dry_run=True).addCallbacks(self._looked, lambda failure: None)

    def _looked(self, told: Json) -> None:
        changes = [change for change in told["changes"] if change["applies"]]
        if not changes and not told["files"] and not told["warnings"]:
            self._alarm("configuration", "")

    # -- the steps -----------------------------------------------------------------------------

    async def _once(self, dry_run: bool, confirmed: bool) -> Json:
        if self._busy:
            raise ReloadError("a reload is under way", "busy")
        self._busy = True
        try:
            return await self._run(dry_run, confirmed)
        except ReloadError as error:
            if not dry_run and error.code == "reload_failed":
                self._alarm("configuration", str(error))
            raise
        finally:
            self._busy = False
            if self._again:
                self._again = False
                self.hang_up()

    async def _run(self, dry_run: bool, confirmed: bool) -> Json:
        before, wanted = self.in_force(), self._read()
        changes = differences(before, wanted)
        after = merged(before, wanted)
        trial = await self._check(after)
        ahead = Foresight(self.service, before, after, trial)
        await ahead.look(self.in_slices)
        self._check_alive()
        warnings = ahead.warnings()
        told: Json = {
            "changes": [change.describe() for change in changes],
            "files": ahead.files,
            "warnings": warnings,
            "applied": False,
            "notes": [],
        }
        dry_run = dry_run or bool(warnings and not confirmed)
        undo: list[Callable[[], Any]] = []
        try:
            if dry_run:
                self._open(before, after, undo)
            else:
                steps = await self._prepare(before, after, undo)
                self._check_alive()
        except (ListenError, DoorError, PluginError, ReloadError, OSError, ValueError) as error:
            for step in reversed(undo):
                await step()
            if isinstance(error, ReloadError):
                raise
            raise ReloadError(f"{why(error, after)}; nothing was changed") from None
        if dry_run:
            for step in reversed(undo):
                await step()
            told["notes"] = self._files_of_plugins()
            return told
        told["notes"] = [*self._apply(before, after, steps), *self._files_of_plugins()]
        told["applied"] = True
        await self._unload(before, after)
        waiting = [change for change in changes if not change.applies]
        self._alarm("configuration", "")
        self._alarm(
            "configuration differs",
            f"these keys differ from the file until a restart: {texts(waiting)}" if waiting else "",
        )
        for text in (*(change.text for change in changes), *(one["text"] for one in told["files"])):
            self.service.log.info("reload: {text}", text=text)
        return told

    def _check_alive(self) -> None:
        """Nothing is opened or begun anew, and nobody judged, by a broker that ends."""
        if self.service.broker.registry.stopping:
            raise ReloadError("the broker ends; nothing was changed", "busy")

    def _read(self) -> Config:
        """The configuration as the file and the environment say now."""
        config: Config = self.service.config
        if self.service.on_start is not None:
            return config  # an embedding program's own
        try:
            return load(config.path or None, os.environ)
        except ConfigError as error:
            text = "; ".join(error.mistakes)
            raise ReloadError(f"the configuration has mistakes: {text}") from None

    async def _check(self, after: Config) -> AccessByListener:
        """Read every file that a start would read; the access control that was made of them."""
        try:
            trial: AccessByListener = await self.in_thread(check_files, after)
        except (StartError, OSError, ValueError) as error:
            text = why(error, after).replace("\n", "; ")
            raise ReloadError(f"{text}; nothing was changed") from None
        return trial

    async def _prepare(
        self, before: Config, after: Config, undo: list[Callable[[], Any]]
    ) -> list[Callable[[], Any]]:
        """Do all that can fail; the result is what puts it in force."""
        service = self.service
        steps: list[Callable[[], Any]] = []
        plugins = service.plugins
        if before.plugins != after.plugins:
            fresh = await plugins.follow(after)
            undo.append(lambda: self._back(before, fresh))
        opened = self._open(before, after, undo)
        if before.auth != after.auth or before.acl != after.acl or before.plugins != after.plugins:
            common = service.gate.access_control(after)
            own = {
                name: service.gate.access_control(config)
                for name, config in configs_by_listener(after).items()
            }
            steps.append(lambda: self._renew_access(common, own))
        else:
            steps += self._access_of_new(before, after)
        return [*steps, *opened]

    def _access_of_new(self, before: Config, after: Config) -> list[Callable[[], Any]]:
        """Have listeners that come asked about as they want it, not as one of their name before."""
        gate = self.service.gate
        own = configs_by_listener(after)
        steps: list[Callable[[], Any]] = []
        for kind, names in after.listener.items():
            for name in names.keys() - before.listener.get(kind, {}).keys():
                config = own.get(f"{kind}:{name}")
                access = None if config is None else gate.access_control(config)
                steps.append(partial(gate.access.put, f"{kind}:{name}", access))
        return steps

    def _open(
        self, before: Config, after: Config, undo: list[Callable[[], Any]]
    ) -> list[Callable[[], Any]]:
        """Take the addresses that are new; also where it is only asked whether they can be had."""
        doors = self.service.doors.added(after.listener)
        undo.append(_later(lambda: _release(doors)))
        steps: list[Callable[[], Any]] = []
        if before.admin.tcp != after.admin.tcp:
            steps.append(self._admin_tcp(after, undo))
        return [*steps, lambda: self.service.doors.open(doors)]

    async def _back(self, before: Config, fresh: list[str]) -> None:
        """Unload what was loaded for a reload that is not to be."""
        plugins = self.service.plugins
        plugins.config = before
        for name in fresh:
            await plugins.unload(name)

    def _admin_tcp(self, after: Config, undo: list[Callable[[], Any]]) -> Callable[[], Any]:
        service = self.service
        before = service.control.tcp
        fresh: AdminTcpService | None = None
        if service.control.has_tcp(after):
            fresh = service.control.new_tcp(after, before)
            undo.append(_later(fresh.release))

        return lambda: service.control.put_tcp(fresh)

    def _renew_access(self, common: AccessControl, own: dict[str, AccessControl]) -> None:
        self.service.access.renew(common, own)
        self._end_logins()

    def _end_logins(self) -> None:
        """End the connections of clients whom the chain would not let in any more."""
        broker = self.service.broker
        text = "what let this client in is not in force any more"
        broker.turn_away(self._admits, text)
        for channel in self._cut_off(self.service.access.still_admits):
            broker.metrics.auth_revoked += 1
            broker.end_channel(channel, reasons.NOT_AUTHORIZED, text)
        broker.perform()

    def _apply(self, before: Config, after: Config, steps: list[Callable[[], Any]]) -> list[str]:
        """Put everything in force; returns what is to be said of it."""
        service = self.service
        service.config = service.gate.config = service.plugins.config = after
        broker = service.broker
        settings_of(after, broker.settings)
        broker.settings_changed()
        service.stalled.timeout = int(after.output.send_timeout * 1000)
        service.overload.take_over(after.overload.lag)
        if before.sys.interval != after.sys.interval:
            service.sys_topics.take_over(after.sys.interval)
        if service.trail is not None and before.trace != after.trace:
            service.trail.take_over(after.trace)
        service.events.take_over(after.log)
        if service.logging is not None:
            service.logging.take_over(after.log)
        service.control.limit_bodies(2 * after.mqtt.max_packet_size)
        notes = service.control.closed(after) if before.admin.tcp != after.admin.tcp else []
        notes += unheard(after) if before.log != after.log else []
        notes += open_secrets(after)
        for step in steps:
            step()
        notes += service.gate.unclaimed()
        service.doors.close_others(after.listener)
        for told in service.doors.take_over(after.listener):
            if told["note"]:
                notes.append(f"listener {told['id']}: {told['note']}")
        for read in (service.access.reload_auth, service.access.reload_acl):
            try:
                read()
            except Exception as error:
                notes.append(str(error))
        broker.access_changed()
        faults = service.doors.reload_certificates()
        return [*notes, *(f"{name}: {fault}" for name, fault in faults.items() if fault)]

    async def _unload(self, before: Config, after: Config) -> None:
        plugins = self.service.plugins
        loaded = plugins.loaded()
        for name in before.plugins.load:
            if name not in after.plugins.load and name in loaded:
                await plugins.unload(name)

    def _files_of_plugins(self) -> list[str]:
        """What is to be told of plugins' own files, which no reload reads."""
        plugins = self.service.plugins
        return [
            f"plugin {name}: {about['config_file']} is not what it was loaded with;"
            f" `mqttd-ctl plugins reload {name}` loads it anew"
            for about in map(plugins.info, plugins.loaded())
            if about["config_file_differs"]
            for name in (about["name"],)
        ]

    def _admits(self, client: ClientInfo, module: str) -> bool:
        """Whether a client that `module` lets in may come in; a plugin answers for its own."""
        if not module or module in self.service.gate.plugins_modules():
            return True
        return bool(self.service.access.still_admits(client, module))

    def _cut_off(self, admits: Callable[[Any, str], bool]) -> list[Any]:
        """The connections of clients whom the module that let them in would not let in now."""
        broker = self.service.broker
        theirs = self.service.gate.plugins_modules()
        found = []
        for session in broker.sessions.values():
            channel = broker.channel_of(session)
            module = module_of(channel.auth) if channel is not None else ""
            if not module or module in theirs:
                continue
            if not admits(broker.client_of(session), module):
                found.append(channel)
        return found

    def _alarm(self, name: str, text: str) -> None:
        self.service.reports.alarm(name, text)

    # -- SIGHUP --------------------------------------------------------------------------------

    def hang_up(self) -> None:
        """SIGHUP: reload, and have the log say what became of it; nothing while the broker ends."""
        if self.service.broker.registry.stopping:
            return
        if self._busy:
            self._again = True  # what is under way may have read files that are others now
            return
        self.service.supervisor.reloading()
        self.run().addCallbacks(self._done, self._failed).addBoth(self._ready)

    def _done(self, told: Json) -> None:
        log = self.service.log
        if not told["applied"]:
            text = "; ".join(told["warnings"])
            log.warn("reload held back, `mqttd-ctl reload --yes` does it: {text}", text=text)
            self._alarm("configuration", f"reload held back: {text}")
            return
        for note in told["notes"]:
            log.warn("reload: {note}", note=note)
        log.info("configuration read again, {n} keys differed", n=len(told["changes"]))

    def _ready(self, result: object) -> None:
        self.service.supervisor.ready()

    def _failed(self, failure: Failure) -> None:
        if failure.check(ReloadError):
            self.service.events("configuration refused", {"reason": str(failure.value)})
        else:
            self.service.log.failure("reload failed", failure)


def _later(call: Callable[[], Any]) -> Callable[[], Any]:
    """`call`, to be awaited like the other steps back."""

    async def step() -> None:
        call()

    return step


def _release(doors: list[Door]) -> None:
    for door in doors:
        door.release()


def listeners_of(config: Config, embedded: bool) -> dict[str, dict[str, Any]]:
    """The listeners as the configuration file says now; raises ListenError."""
    if not config.path or embedded:
        return config.listener
    try:
        return load(config.path, os.environ).listener
    except ConfigError as error:
        more = len(error.mistakes) - 1
        others = f" (and {more} more)" if more else ""
        raise ListenError(f"{error.mistakes[0]}{others}; nothing was changed") from None
