"""A plugin that authenticates, loaded with settings made here, and asked.

asked = Asked(AuthRedis(connect), Settings(port=1)); asked("alice", b"secret") -> AuthVerdict
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock
from zope.interface.verify import verifyObject

from mqttd.interfaces import IAuthenticator, IPlugin
from mqttd.testing import MemoryBroker, result_of
from mqttd.testing.conformance import _held, client_info
from mqttd.types import AUTH_IGNORE

__all__ = ["Asked", "comes_and_goes", "configured"]


def configured(plugin: Any, settings: Any) -> Any:
    """The plugin, which loads with these settings whatever a file says."""
    original = plugin.load
    plugin.load = lambda handle, _: original(handle, settings)
    return plugin


def comes_and_goes(make: Callable[[], Any]) -> None:
    """Load and unload what `make` gives, with a client that it refuses; nothing of it stays."""
    node = MemoryBroker()
    verifyObject(IPlugin, make())
    before = _held(node)
    for _ in range(5):
        loaded = node.load(make())
        assert node.connect("c", username="mallory", password=b"x").closed
        loaded.unload()
        node.settle()
        assert _held(node) == before
    assert not node.faults
    assert not node.connect("c", username="mallory", password=b"x").closed


class Asked:
    """The handle of the plugin, and the chain with its module; calls in threads happen at once."""

    name = "auth_test"

    def __init__(self, plugin: Any, settings: Any) -> None:
        self.clock = Clock()
        self.plugin = plugin
        self.module: Any = None
        plugin.load(self, settings)

    def register_mod(self, kind: str, name: str, module: Any, seq: int | None = None) -> None:
        assert (kind, name) == ("auth", self.name)
        verifyObject(IAuthenticator, module)
        self.module = module

    def in_thread(self, f: Any, *args: Any) -> Deferred[Any]:
        return maybeDeferred(f, *args)

    def ask(self, username: str | None, password: bytes | None, **more: Any) -> Any:
        """The verdict, or a Deferred of one."""
        client = client_info(more.pop("client_id", "c"), username, **more)
        if not self.module.concerns(client, password):
            return AUTH_IGNORE
        return self.module.check(client, password)

    def __call__(
        self, username: str | None, password: bytes | None = b"secret", **more: Any
    ) -> Any:
        """The verdict."""
        return result_of(self.ask(username, password, **more))
