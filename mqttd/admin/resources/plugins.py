"""Plugins: see, load and unload them, run their commands. What they serve themselves is below them.

Promise: an operation answers when it is done; what a plugin does wrong is told in one line with
status 422, and never a traceback.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from mqttd.admin.http.parts import Json, Parts
from mqttd.admin.http.requests import ADMINISTRATOR, ApiError
from mqttd.admin.http.route import Ask, get, post
from mqttd.types import PluginError

__all__ = ["Plugins"]


Value = str | int | float | bool | list[str | int] | None


class PluginList(Struct):
    """Every plugin found, loaded or not, and the modules that failed."""

    plugins: list[Json]


class Arguments(Struct, forbid_unknown_fields=True):
    """The words behind a command."""

    argv: list[str] = field(default_factory=list)


class Output(Struct):
    """What a command has said."""

    output: str


class Field(Struct):
    """One key of a plugin's file: its JSON Schema, its value now; secrets are not told."""

    name: str
    schema: Json
    required: bool
    secret: bool
    value: Any
    #: The file says so; else it is the default.
    given: bool


class Settings(Struct):
    """A plugin's file and the keys it may have."""

    file: str
    fields: list[Field]


class SettingsBody(Struct, forbid_unknown_fields=True):
    """Other values of keys of the top level; None takes a key out of the file."""

    changes: dict[str, Value]


class Plugins:
    """The plugins of the broker."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    @get("/plugins", answer=PluginList, errors=(409,))
    def list(self, ask: Ask) -> PluginList:
        """Every plugin there is, and the modules that failed."""
        plugins = self.parts.plugins
        try:
            return PluginList([] if plugins is None else plugins.list())
        except PluginError as error:
            raise ApiError(409, "refused", str(error)) from None

    @get("/plugins/{name}")
    def one(self, ask: Ask) -> Json:
        """One plugin: state, what it registered, its budget."""
        try:
            told: Json = self._plugins().info(ask.path["name"])
        except PluginError as error:
            raise ApiError(404, "not_found", str(error)) from None
        return told

    @post("/plugins/{name}/load", role=ADMINISTRATOR, errors=(422,))
    def load(self, ask: Ask) -> Deferred[Json]:
        """Load a plugin; it is loaded again when the broker starts next."""
        return self._do(ask, "load")

    @post("/plugins/{name}/unload", role=ADMINISTRATOR, errors=(422,))
    def unload(self, ask: Ask) -> Deferred[Json]:
        """Unload a plugin, with everything it has registered."""
        return self._do(ask, "unload")

    @post("/plugins/{name}/reload", role=ADMINISTRATOR, errors=(422,))
    def reload(self, ask: Ask) -> Deferred[Json]:
        """Load a plugin anew from its files; with a mistake in them the old one stays."""
        return self._do(ask, "reload")

    @get("/plugins/{name}/settings", role=ADMINISTRATOR, answer=Settings, errors=(422,))
    def settings(self, ask: Ask) -> Deferred[Settings]:
        """What a plugin's file says, by the plugin's schema; secrets are left out."""
        return self._settings(self._editor(ask.path["name"]))

    @post(
        "/plugins/{name}/settings", role=ADMINISTRATOR, body=SettingsBody, answer=Settings,
        errors=(422,),
    )  # fmt: skip
    def change(self, ask: Ask) -> Deferred[Settings]:
        """Change a plugin's file, if it is sound then; in force with the plugin's next load."""
        editor = self._editor(ask.path["name"])
        ask.changed(None, {"keys": sorted(ask.body.changes)})
        work: Deferred[None] = self.parts.in_thread(editor.change, ask.body.changes)
        return work.addErrback(_not_written).addCallback(lambda _: self._settings(editor))

    @post(
        "/plugins/{name}/commands/{command}",
        role=ADMINISTRATOR,
        body=Arguments,
        answer=Output,
        errors=(422,),
    )
    def command(self, ask: Ask) -> Deferred[Output]:
        """Run a command of a plugin."""
        plugins = self._plugins()
        ask.changed(None, {"argv": ask.body.argv})
        try:
            work: Deferred[str] = plugins.command(
                ask.path["name"], ask.path["command"], ask.body.argv
            )
        except PluginError as error:
            raise ApiError(422, "plugin_failed", str(error)) from None
        return work.addCallbacks(Output, _failed)

    def _editor(self, name: str) -> Any:
        try:
            return self._plugins().editor(name)
        except PluginError as error:
            raise ApiError(404, "not_found", str(error)) from None

    def _settings(self, editor: Any) -> Deferred[Settings]:
        work: Deferred[Any] = self.parts.in_thread(editor.fields)
        return work.addCallbacks(
            lambda found: Settings(editor.path, [Field(**one) for one in found]), _not_written
        )

    def _plugins(self) -> Any:
        return self.parts.need(self.parts.plugins, "there are no plugins")

    def _do(self, ask: Ask, operation: str) -> Deferred[Json]:
        name, plugins = ask.path["name"], self._plugins()

        def done(_: object) -> Json:
            told = self._state(name)
            ask.changed({"state": before}, {"state": told["state"]})
            return told

        try:
            before = self._state(name)["state"]
            work: Deferred[None] = getattr(plugins, operation)(name)
        except PluginError as error:
            raise ApiError(422, "plugin_failed", str(error)) from None
        return work.addErrback(_failed).addCallback(done)

    def _state(self, name: str) -> Json:
        for entry in self._plugins().list():
            if entry["name"] == name:
                found: Json = entry
                return found
        return {"name": name, "state": "unloaded"}


def _not_written(failure: Failure) -> Any:
    failure.trap(PluginError, OSError)
    raise ApiError(422, "bad_settings", failure.getErrorMessage())


def _failed(failure: Failure) -> Any:
    """A plugin does not do what was asked."""
    failure.trap(PluginError)
    raise ApiError(422, "plugin_failed", str(failure.value))
