"""Plugins over HTTP: see, load and unload them, run their commands, reach their own routes.

    GET    /api/v1/plugins                          every plugin there is, and what failed
    GET    /api/v1/plugins/{name}                   one of them: state, what it registered, budget
    POST   /api/v1/plugins/{name}/load              load, unload, reload it
    POST   /api/v1/plugins/{name}/commands/{cmd}    run one of its commands, {argv: [...]}
    *      /api/v1/plugins/{name}/{path}[/...]      what the plugin serves itself

Promise: an operation answers when it is done; what a plugin does wrong is told in one line with
status 422, and never a traceback.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from klein import Klein
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest
from twisted.web.resource import IResource

from mqttd.admin.requests import ApiError, answer, answer_faults, body_of, refusal
from mqttd.types import PluginError

__all__ = ["PluginsApi"]

Operation = Callable[[str], "Deferred[None]"]


class PluginsApi:
    """The resource below ``/api/v1/plugins``; `plugins` is a `mqttd.plugins.plugins.Plugins`."""

    app = Klein()

    def __init__(self, plugins: Any) -> None:
        self.plugins = plugins
        self.log = Logger(namespace="mqttd.admin")

    def resource(self) -> IResource:
        """What the API serves for all paths that begin with ``/api/v1/plugins``."""
        return cast(IResource, self.app.resource())

    def list(self) -> Any:
        """Every plugin found, loaded or not, and the modules that failed."""
        try:
            return self.plugins.list()
        except PluginError as error:
            raise ApiError(409, "refused", str(error)) from None

    @app.route("/<string:name>", methods=["GET"])
    def info(self, request: IRequest, name: str) -> bytes:
        """One plugin."""
        try:
            return answer(request, self.plugins.info(name))
        except PluginError as error:
            raise ApiError(404, "not_found", str(error)) from None

    @app.route("/<string:name>/<any(load, unload, reload):operation>", methods=["POST"])
    def change(self, request: IRequest, name: str, operation: str) -> Deferred[bytes]:
        """Load, unload or reload one plugin; the answer is its state afterwards."""
        work: Operation = {
            "load": self.plugins.load,
            "unload": self.plugins.unload,
            "reload": self.plugins.reload,
        }[operation]
        self.log.info("plugin {name}: {operation} by administrator", name=name, operation=operation)
        done = work(name)
        return done.addCallback(lambda _: answer(request, self._state(name)))

    @app.route("/<string:name>/commands/<string:command>", methods=["POST"])
    def command(self, request: IRequest, name: str, command: str) -> Deferred[bytes]:
        """Run a command of a plugin."""
        argv = _texts(body_of(request).get("argv", []))
        if argv is None:
            raise ApiError(400, "bad_request", "argv: expected a list of texts")
        done: Deferred[str] = self.plugins.command(name, command, argv)
        return done.addCallback(lambda text: answer(request, {"output": text}))

    @app.route("/<string:name>/<string:path>", branch=True)
    def route(self, request: IRequest, name: str, path: str) -> IResource:
        """What a plugin serves itself."""
        resource = self.plugins.handle(name).routes.get(path)
        if resource is None:
            raise ApiError(404, "not_found", f"plugin {name!r} serves no {path!r}")
        return cast(IResource, resource)

    def _state(self, name: str) -> dict[str, Any]:
        for entry in self.plugins.list():
            if entry["name"] == name:
                return cast(dict[str, Any], entry)
        return {"name": name, "state": "unloaded"}

    # -- errors

    @app.handle_errors(PluginError)
    def failed(self, request: IRequest, failure: Failure) -> bytes:
        """A plugin does not do what was asked."""
        return refusal(request, 422, "plugin_failed", str(failure.value))

    answer_faults(app)


def _texts(value: object) -> list[str] | None:
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return value
    return None
