"""What sessions, retained messages and owners of client ids are kept in.

    ISessionStore, IRetainedStore    what outlasts a restart
    IRegistry                        who owns a client id, among several processes
    IPluginStore                     what a plugin keeps for itself

Keys and values are opaque to a store: the broker hands over bytes and gets the same bytes back.

Durable: a change is stored, as durably as `description` says, when its call returns None or its
Deferred fires. Order: changes of one key take effect in the order of their calls, also of those
that nobody has waited for. Repeated: a `save`, `put`, `remove` or `delete` that is made twice is as
good as once; what is appended twice is there twice. Errors: a change that raises, or whose Deferred
fails, has changed nothing; the store serves on. Part of `mqttd.interfaces`, whose rules hold here
too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from zope.interface import Attribute, Interface

from mqttd.types import (
    Claim,
    SessionState,
)

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred


__all__ = ["ISessionStore", "IRetainedStore", "IRegistry", "IPluginStore"]


class ISessionStore(Interface):
    """Keeps sessions across restarts: of each one record, and behind it the packets that wait.

    Both are one interface, and there is none of queues alone: a session and what waits for it are
    changed under one epoch, and go together.

    It belongs to one worker.  Every change bears the epoch of the ownership (`IRegistry`) that it
    is made under: the store keeps the highest of each client identifier, and a change that bears a
    lower one fails with `mqttd.types.StaleEpoch`.
    """

    keeps = Attribute(
        "bool: what is saved outlasts the process; where it does not, the broker saves nothing"
    )

    def open() -> Deferred[None] | None:
        """Make ready; returns None or a Deferred.

        :raises Exception: the store cannot be used; the text names it.
        """

    def save(client_id: str, epoch: int, record: bytes) -> Deferred[None] | None:
        """Store a session, in place of its record and all its packets before.

        :return: None when stored, or a Deferred that fires when it is.
        :raises StaleEpoch: the session has another owner by now.
        """

    def append(client_id: str, epoch: int, packets: Sequence[bytes]) -> Deferred[None] | None:
        """Put a batch of packets behind those that wait for a session already.

        :param packets: sequence of bytes, each one PUBLISH of MQTT 5.0 as on the wire.
        :return: as `save`.  A batch is stored as a whole or not at all.
        :raises StaleEpoch: as `save`.
        :raises KeyError: there is no such session.
        """

    def load(client_id: str) -> SessionState | Deferred[SessionState | None] | None:
        """A session with its packets, in their order, or None if there is none; it stays stored.

        :return: `mqttd.types.SessionState`, None, or a Deferred of one.
        """

    def remove(client_id: str, epoch: int) -> Deferred[None] | None:
        """The session has ended, or lives elsewhere; one that is not there is no error.

        Returns and raises as `save`.
        """

    def recover() -> (
        Iterable[tuple[str, SessionState]] | Deferred[Iterable[tuple[str, SessionState]]]
    ):
        """All sessions, in no particular order; asked once, before clients are let in."""

    def close() -> Deferred[None] | None:
        """Store what is still on its way and let go; returns None or a Deferred."""

    def description() -> str:
        """One line for operators: what, where, how durable."""


class IRetainedStore(Interface):
    """Keeps retained messages across restarts; the broker holds the topic index itself."""

    def open() -> Deferred[None] | None:
        """Make ready; as `ISessionStore.open`."""

    def put(topic_name: str, message: bytes) -> Deferred[None] | None:
        """Store the retained message (bytes) of a topic, in place of the one before.

        :return: None when stored, or a Deferred that fires when it is.
        """

    def delete(topic_name: str) -> Deferred[None] | None:
        """Forget the retained message of a topic; none there is no error.  Returns as `put`."""

    def load() -> Iterable[tuple[str, bytes]]:
        """All retained messages: an iterable of ``(topic_name, message)``, in any order."""

    def close() -> Deferred[None] | None:
        """As `ISessionStore.close`."""

    def description() -> str:
        """As `ISessionStore.description`."""


class IRegistry(Interface):
    """Who owns a client identifier: at most one worker of one node at any time.

    The broker claims one for each client that has proved who it is, before it is accepted; it waits
    for the answer for 5 seconds, and holds back other clients of the same identifier meanwhile.
    """

    def claim(client_id: str, principal: str | None, lasts: bool) -> Claim | Deferred[Claim]:
        """Make this process the owner of a client identifier.

        The owner before, if there is another, ends the client's connection and hands the session
        over (see `watch`) before the claim is answered.  Claiming what is owned already is no
        error, and answered with the same epoch.

        :param principal: str, the user name that was proved, or None; only the same one may take a
            session over.
        :param lasts: bool, whether the client's session is to outlast its connection.
        :return: `mqttd.types.Claim`, at once where nobody has to be asked, or a Deferred of it.
        :raises PermissionError: it belongs to another principal.
        """

    def release(client_id: str, epoch: int) -> Deferred[None] | None:
        """The session has ended; a stale epoch and not being the owner are no errors."""

    def watch(taken: Callable[[str, int], SessionState | None]) -> None:
        """Have ``taken(client_id, epoch)`` called when another owner takes over what is owned here.

        :param taken: ends the session here, and returns its state for the new owner, or None if
            there is none.  ``epoch`` is the new owner's; nothing happens if it is not higher.
        """

    def description() -> str:
        """One line for operators."""


class IPluginStore(Interface):
    """What one plugin keeps under keys, small enough for memory; other plugins do not see it.

    ::

        put, delete --at once--> get, keys        in memory
               '----one transaction a turn--> the store, as durable as ``durability.default`` says

    It outlives the load of its plugin; with ``store.kind = "sqlite"`` the process too, ``kill -9``
    included.  What is changed in a callback at ``message.publish`` is kept before the message is
    acknowledged: a plugin that takes a message there and puts it here has not lost it.  All
    changes of one turn are kept together or not at all.
    """

    used = Attribute("int: what is kept weighs: keys, values, and 200 bytes for each")
    most = Attribute("int: what it may weigh, ``plugins.max_store_bytes``")

    def get(key: str) -> bytes | None:
        """The value of a key, None if there is none."""

    def put(key: str, value: bytes) -> None:
        """Keep a value under a key, in place of the one before.

        :param key: 1 to 1024 bytes of UTF-8.
        :param value: bytes; what is kept is a copy.
        :raises StoreFull: `mqttd.types.StoreFull`: it does not fit, or the disk takes no more.
            Nothing was changed.
        :raises ValueError: no such key.
        :raises TypeError: the key is no str, or the value no bytes.
        """

    def delete(key: str) -> bool:
        """Forget a key; returns whether there was one.  This never fails for want of room."""

    def keys(prefix: str = "") -> list[str]:
        """The keys that begin with `prefix`, sorted by code point."""

    def written() -> Deferred[None]:
        """Know when what was changed so far is kept.

        :return: a Deferred that fires when it is as durable as ``durability.default`` says, at
            once where that is ``none`` or there is no store.  While the disk takes no more it
            waits; after unload it does not fire any more.
        """
