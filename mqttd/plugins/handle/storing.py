"""The handle's store: a drawer of the broker under the plugin's name, and messages as bytes.

    handle.store --put, delete--> Drawer      stays after unload (`mqttd.broker.ground.drawers`)
    Message <--dump, load--> b"\\x01", since (8 bytes, ms), what crosses to processes (`crossing`)

A message's expiry is in the server's own milliseconds, which end with the process: `since` makes
them those since 1970, and back.
"""

from __future__ import annotations

from typing import Any, Final

from twisted.internet.defer import Deferred
from zope.interface import implementer

from mqttd.broker.ground.drawers import Drawer
from mqttd.interfaces import IPluginStore
from mqttd.plugins.calls.crossing import CrossingError, pack, unpack
from mqttd.plugins.handle.base import HandleBase
from mqttd.session.ground.message import Message

__all__ = ["PluginStore", "Storing"]

_FORMAT: Final = 1


@implementer(IPluginStore)
class PluginStore:
    """A plugin's drawer, as long as its handle lives."""

    def __init__(self, handle: HandleBase, drawer: Drawer) -> None:
        self._handle = handle
        self._drawer = drawer

    def _get(self) -> Drawer:
        self._handle._check()
        return self._drawer

    @property
    def used(self) -> int:
        """See `IPluginStore`."""
        return self._get().bytes

    @property
    def most(self) -> int:
        """See `IPluginStore`."""
        return self._get().most

    def get(self, key: str) -> Any:
        """See `IPluginStore.get`."""
        return self._get().get(key)

    def put(self, key: str, value: Any) -> None:
        """See `IPluginStore.put`."""
        self._get().put(key, value)

    def delete(self, key: str) -> bool:
        """See `IPluginStore.delete`."""
        return self._get().delete(key)

    def keys(self, prefix: str = "") -> list[str]:
        """See `IPluginStore.keys`."""
        return self._get().keys(prefix)

    def written(self) -> Deferred[None]:
        """See `IPluginStore.written`."""
        fired: Deferred[None] = Deferred()

        def told() -> None:
            if not self._handle.revoked:
                fired.callback(None)

        self._get().when_kept(told)
        return fired


class Storing(HandleBase):
    """The plugin's own store."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        drawers = self._host.broker.drawers
        self._store = PluginStore(self, drawers.open(self.name))

    @property
    def store(self) -> PluginStore:
        """See `IPluginHandle`."""
        self._check()
        return self._store

    def dump_message(self, message: Any) -> bytes:
        """See `IPluginHandle.dump_message`."""
        self._check()
        if not isinstance(message, Message):
            raise TypeError(f"{message!r} is no Message")
        since: int = self._host.broker.since()
        return bytes((_FORMAT,)) + since.to_bytes(8, "big", signed=True) + pack(message)

    def load_message(self, data: bytes) -> Message:
        """See `IPluginHandle.load_message`."""
        self._check()
        if data[:1] != bytes((_FORMAT,)):
            raise ValueError("not what dump_message has made")
        try:
            message = unpack(data[9:])
        except CrossingError as error:
            raise ValueError(str(error)) from None
        if not isinstance(message, Message):
            raise ValueError("not what dump_message has made")
        if message.expires_at:
            moved = int.from_bytes(data[1:9], "big", signed=True) - self._host.broker.since()
            message.expires_at = message.expires_at + moved or 1
        return message

    def describe(self) -> dict[str, Any]:
        """See `HandleBase.describe`."""
        store = self._store
        return {"store": {"keys": len(store._get()), "bytes": store.used}, **super().describe()}
