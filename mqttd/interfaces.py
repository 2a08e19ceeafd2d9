"""Every interface a plugin may provide, and nothing else: the plugin author's contract.

Rules that hold for all of them, unless a method says otherwise:

Threads
    Every method is called in the reactor thread and must not block.  Work that waits returns a
    Deferred, which fires in the reactor thread too; the broker gives up on it after a deadline
    (5 seconds for access control).
Errors
    A method may raise or let its Deferred fail: the broker logs and counts it, fails closed
    (refuses the client, denies the action, keeps the message where it is) and goes on.
Units
    Times are seconds (``float``) since the epoch, durations are seconds, sizes are bytes, topic
    names and filters are ``str``, payloads are ``bytes``.
Versions
    `API_VERSION` grows when an interface changes so that old plugins would break;
    `IMqttdPlugin.api_version` says which one a plugin was written for.  Providers are verified
    with ``zope.interface.verify`` when they are registered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from zope.interface import Attribute, Interface

from mqttd.types import (
    Action,
    AuthContinue,
    AuthError,
    AuthOk,
    AuthVerdict,
    Claim,
    ClientInfo,
    Decision,
    HookResult,
    SessionState,
    Verdict,
)

if TYPE_CHECKING:
    from twisted.application.service import IService
    from twisted.internet.defer import Deferred
    from twisted.internet.interfaces import IAddress, IDelayedCall
    from twisted.web.resource import IResource

    from mqttd.codec.packets import Subscription

__all__ = [
    "API_VERSION",
    "IAccessControl",
    "IAccessExplainer",
    "IAuthExchange",
    "IAuthenticator",
    "IEnhancedAuthenticator",
    "IFabric",
    "IHookPlugin",
    "IHooks",
    "IMqttdPlugin",
    "IPlugin",
    "IPluginHandle",
    "IRegistry",
    "IRepeating",
    "IRetainedStore",
    "ISessionStore",
    "ISubscription",
]

#: Version of the interfaces in this module.
API_VERSION: Final = 1


# -- access


class IAuthenticator(Interface):
    """A module of the authentication chain: is this client who it says?

    What a module that answers with a Deferred may cost others is bounded by ``[auth.backend]``
    of the configuration: deadline, concurrency, circuit breaker, cache of its answers.  A module
    may narrow or widen that for itself by an attribute ``limits``, a mapping of keys of that
    table to values (seconds, numbers).

    A module may say by an optional method ``concerns(client, password) -> bool``, at once, for whom
    it is there at all: those it is not concerned with go to the next module even while its
    circuit breaker is open.

    What it raises for one client, or answers that is no verdict, refuses that client (0x88), is
    logged at ``error`` and counted; its circuit breaker hears of exceptions that tell of a back end
    which cannot be reached or does not answer (`ConnectionError`, time-outs, Twisted's of
    connections). With an attribute ``blames_back_end = True`` it hears of all: for modules that
    answer with a refusal to whatever a client may show.
    """

    def init(opts: Mapping[str, object]) -> None:
        """Take the options and get ready; called once, before the first `check`.

        :param opts: mapping of option names to values.
        :raises ValueError: an option or a file is wrong; the text names it.  The broker does
            not start.
        """

    def check(client: ClientInfo, password: bytes | None) -> AuthVerdict | Deferred[AuthVerdict]:
        """Give a verdict on `client`.

        :param client: `mqttd.types.ClientInfo`; its ``username`` is None if it gave none.
        :param password: bytes, or None if it gave none.
        :return: `AuthOk`, `AUTH_IGNORE` (the next module is asked) or `AuthError`, of
            `mqttd.types`, or a Deferred of one.  Anything else, an exception and a Deferred
            that has not fired within the deadline refuse the client.
        """

    def description() -> str:
        """One line of text for operators: what this module does, with what."""


class IEnhancedAuthenticator(Interface):
    """A module of the authentication chain for one MQTT 5.0 Authentication Method.

    It is asked for the clients that name its method in CONNECT, and for nobody else; a module may
    provide `IAuthenticator` as well.
    """

    method = Attribute("str: the Authentication Method it serves, such as SCRAM-SHA-256")

    def init(opts: Mapping[str, object]) -> None:
        """Take the options and get ready; as `IAuthenticator.init`."""

    def begin(client: ClientInfo) -> IAuthExchange:
        """Start the authentication of `client`, at CONNECT or again later."""

    def description() -> str:
        """One line of text for operators: what this module does, with what."""


class IAuthExchange(Interface):
    """One enhanced authentication under way; `step` until it answers yes or no."""

    def step(
        data: bytes,
    ) -> AuthContinue | AuthOk | AuthError | Deferred[AuthContinue | AuthOk | AuthError]:
        """Take the client's Authentication Data (b"" if it sent none) and answer.

        :return: `AuthContinue` with data for the client, who answers; `AuthOk`, perhaps with
            ``username`` and ``data``; `AuthError`; or a Deferred of one.  Anything else, an
            exception and a Deferred that is late refuse the client.
        """


class IAccessControl(Interface):
    """A module of the access-control chain: may this client do that?

    A module without the attribute ``depends_on_qos_retain`` (bool) is taken to look at QoS and
    retain flag, and the broker then caches its answers for each combination of them.
    """

    def init(opts: Mapping[str, object]) -> None:
        """Take the options and get ready; as `IAuthenticator.init`."""

    def check_acl(client: ClientInfo, action: Action, topic: str) -> Verdict:
        """Give a verdict, at once: answers are cached until the access epoch changes.

        :param client: `mqttd.types.ClientInfo`.
        :param action: `mqttd.types.Action`.
        :param topic: the topic name to publish to, or the topic filter to subscribe to (of a
            shared subscription the real filter, without ``$share/group/``).
        :return: `Verdict.ALLOW`, `DENY` or `IGNORE` (the next module is asked).  Anything else
            and an exception deny.
        """

    def reload_acl() -> None:
        """Read the rules again, all or nothing.

        :raises Exception: they cannot be read; the module goes on with those it had.
        """

    def description() -> str:
        """One line of text for operators: what this module does, with what."""


class IAccessExplainer(IAccessControl):
    """An access-control module that can name the rule behind its verdict."""

    def decide(client: ClientInfo, action: Action, topic: str) -> Decision:
        """As `check_acl`, and why: returns `mqttd.types.Decision`.

        The broker calls this instead of `check_acl`, so that explaining and enforcing cannot
        differ.
        """


# -- hooks and plugins


class IHooks(Interface):
    """The hook chains of a broker; see `mqttd.broker.points` for the points."""

    def hook(
        point: str,
        callback: Callable[..., HookResult | None],
        init_args: Sequence[Any] = (),
        priority: int = 0,
        topic_filter: str | Sequence[str] | None = None,
        client: str | Sequence[str] | None = None,
    ) -> None:
        """Have ``callback(*args, acc, *init_args)`` called at `point`.

        :param priority: higher runs earlier; equal ones run in the order of registration.
        :param topic_filter: an MQTT topic filter, or some: only for messages on these topics, at
            the points that are told of a message (``message.*``, ``delivery.*``).
        :param client: a client id, or how one begins with ``*`` at the end (``"pump-*"``), or some
            of both: only for these clients.
        :raises HookError: (of `mqttd.types`) unknown point, hooked there already, no valid filter,
            or a filter at a point that has nothing to compare it with.

        The callback returns `OK` (or None), ``OK(acc)``, `STOP` or ``STOP(acc)`` of
        `mqttd.types`, or a Deferred of one where the point waits (`client.connect`,
        `client.authenticate`), for 5 seconds at most.  It may keep the reactor for 20
        milliseconds, and is broken off then.  One that fails is counted and passed over, or
        refuses, as the policy of its plugin says; after ten the plugin is quarantined.
        """

    def unhook(point: str, callback: Callable[..., HookResult | None]) -> None:
        """Undo `hook`.

        :raises HookError: unknown point, or not hooked there.
        """

    def run_hooks(point: str, args: Sequence[Any], acc: Any = None) -> tuple[HookResult, Any]:
        """Run the chain: returns ``(OK, acc)`` or ``(STOP, acc)``.

        :raises HookError: unknown point.
        """

    def lookup(point: str) -> tuple[Any, ...]:
        """The tuple of `mqttd.plugins.callback.Callback` at `point`, in the order they run.

        :raises HookError: unknown point.
        """


class ISubscription(Interface):
    """A subscription made with `IPluginHandle.subscribe`."""

    topic_filter = Attribute("str: what it subscribes to")

    def unsubscribe() -> None:
        """End it; what is under way may still arrive in this turn.  Twice is no error."""


class IRepeating(Interface):
    """A function called again and again: what `IPluginHandle.call_every` gives."""

    def stop() -> None:
        """Call it no more; twice is no error."""


class IPluginHandle(IHooks):
    """All that a plugin may do with the broker, while it is loaded.

    ::

        plugin --- handle ---> hooks, modules, timers, threads, subscriptions,
                                 routes, commands, metrics, topics, services, listeners
                     '-- unload: every one of them is taken back, whatever the plugin does

    Each plugin has a handle of its own, made for one load and dead after it: once the plugin is
    unloaded each method raises `RuntimeError`.  The exceptions are those that end something
    (``unhook``, ``unregister_mod``, ``clear_alarm``), which then do nothing.

    What the broker calls through it (callbacks, functions, routes) is charged to the plugin: one
    that raises is logged with the plugin's name and counted, the time it takes is measured, and
    a plugin that fails too often is put into quarantine, where its callbacks are not called.

    All methods are called in the reactor thread; ``in_thread`` is the way out of it.
    """

    name = Attribute("str: name of the plugin")
    log = Attribute("twisted.logger.Logger: with namespace ``mqttd.plugin.NAME``")
    clock = Attribute("IReactorTime: the reactor, or a test's clock; for reading the time")
    node = Attribute("str: name of this node, as in ``node.name``")
    data_dir = Attribute(
        "str: absolute path of a directory of the plugin's own, mode 0700, which stays after unload"
    )

    config_dir = Attribute(
        "str: absolute path of the directory of its configuration file, for relative paths in it"
    )

    def register_mod(
        kind: str,
        name: str,
        module: IAuthenticator | IEnhancedAuthenticator | IAccessControl,
        seq: int | None = None,
    ) -> None:
        """Put an authentication or access-control module into its chain.

        :param kind: ``"auth"`` (`IAuthenticator`) or ``"acl"`` (`IAccessControl`).
        :param name: the name operators see; unique in the chain.
        :param module: its ``init`` was called by the plugin; it is verified here.
        :param seq: its place, lower is asked first; None is last.
        :raises ValueError: unknown kind, or a name in use.
        :raises zope.interface.Invalid: it does not fulfil its interface; names the method.
        """

    def unregister_mod(kind: str, name: str) -> None:
        """Undo `register_mod`; ValueError if this plugin has no such module."""

    def call_later(seconds: float, f: Callable[..., object], *args: Any) -> IDelayedCall:
        """Call ``f(*args)`` once, after `seconds`.

        :return: `twisted.internet.interfaces.IDelayedCall`.
        """

    def call_every(seconds: float, f: Callable[..., object], *args: Any) -> IRepeating:
        """Call ``f(*args)`` every `seconds`, first after `seconds`, until stopped.

        A Deferred that it returns is waited for, calls that fall due meanwhile are left out; one
        that raises is counted and called again.

        :return: `IRepeating`.
        """

    def in_thread(f: Callable[..., Any], *args: Any) -> Deferred[Any]:
        """Call ``f(*args)`` in a thread of the plugin's own bounded pool.

        `f` must not touch the handle or the broker.

        :return: a Deferred of its result, which fires in the reactor thread; it fails with what
            `f` raised, with `QueueFull` of `mqttd.types` at once when 1,000 calls wait already.
            After unload it does not fire any more.
        """

    def publish(
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Mapping[int, Any] | None = None,
    ) -> int:
        """Publish a message as the broker itself: no access rule is asked, hooks run.

        That includes the plugin's own callbacks at ``message.publish``: one that publishes must
        leave its own messages alone.

        :param properties: of PUBLISH, by identifier (`mqttd.codec.properties`).
        :return: int, how many sessions it was handed to.
        :raises ValueError: no valid topic name, or larger than ``mqtt.max_packet_size``.
        :raises RuntimeError: called within `message.publish` callbacks, 8 deep.
        """

    def subscribe(
        topic_filter: str, callback: Callable[[Any], object], qos: int = 0
    ) -> ISubscription:
        """Have ``callback(message)`` called for each message that fits, as for a subscriber.

        Each in a turn of its own, in order, retained ones first. 1,000 messages may wait, then
        QoS 0 is dropped first, then the oldest; no access rule is asked.

        :param callback: takes a `mqttd.session.message.Message`.
        :param qos: the highest QoS to keep; messages of QoS 0 are the first to be dropped.
        :return: `ISubscription`.
        :raises ValueError: no valid topic filter.
        """

    def republish(message: Any) -> int:
        """Route a message that a ``message.publish`` callback has held back, now.

        It keeps its message id, client id, user name and expiry; hooks run again.

        :param message: `mqttd.session.message.Message`.
        :return: int, how many sessions it was handed to.
        """

    def authorize(client: ClientInfo, action: Action, topic: str) -> bool:
        """Whether a client may do that: hooks and rules are asked, as when it does it itself.

        For a plugin that lets a client do one thing under the name of another.
        """

    def figures() -> tuple[dict[str, int], dict[str, int]]:
        """The broker's counters since its start, and its gauges of now, by name."""

    def plugin_metrics() -> list[tuple[str, str, float]]:
        """Name, help and value of each metric that a loaded plugin has added."""

    def budgets() -> list[dict[str, Any]]:
        """Limits and account of each plugin, and of each callback that belongs to none.

        As in ``GET /api/v1/hooks``: ``name``, ``state``, ``calls``, ``time`` (seconds),
        ``errors``, ``skipped``, ``quarantines`` and more.
        """

    def hold_acknowledgements(
        hold: Callable[[Callable[[], None], str], object] | None,
        topic_filter: str | Sequence[str] | None = None,
    ) -> None:
        """Have ``hold(release, client_id)`` called before messages are acknowledged.

        It is called once for what a client has sent in a turn of the event loop, after all of it.
        The PUBACKs and PUBRECs are sent when its ``release()`` is called, in the reactor thread,
        and only then; where several plugins hold them, when all of them have released them.  Those
        of one client are sent in the order of its messages, so what is not released keeps what is
        behind it.  What was held at unload can still be released, but nothing waits for it any
        more.  A call that fails holds nothing; with the plugin's policy ``deny`` the client's
        connection is ended instead, and nothing is acknowledged.

        :param hold: takes the place of what this plugin gave before; None ends it.
        :param topic_filter: an MQTT topic filter, or some: only messages that a client has
            published to these topics are held.
        :raises ValueError: no valid topic filter.
        """

    def pause_publishers(paused: bool) -> None:
        """Stop reading from clients that send, for as long as something cannot follow.

        What was received already is still handled, at most 64 KiB per connection.
        """

    def client(client_id: str) -> ClientInfo | None:
        """Who a connected client is; None if it is not connected."""

    def clients() -> list[ClientInfo]:
        """All connected clients, in no particular order."""

    def subscribe_client(client_id: str, subscription: Subscription) -> int:
        """Subscribe a client's session, as if it had asked; access rules are asked.

        :param subscription: `mqttd.codec.packets.Subscription`.
        :return: int, a reason code of SUBACK: the granted QoS, or 0x80 and above if it was not
            granted.
        :raises KeyError: no session has this client id.
        """

    def disconnect(client_id: str, reason_code: int = 0x98) -> bool:
        """End a client's connection with this reason code.

        :return: False if it is not connected.
        """

    def send_info(client_id: str, info: Any) -> bool:
        """Run ``client.handle_info`` for a client: hooks make messages for it out of `info`.

        :return: False if it has no session.
        """

    def add_route(path: str, resource: IResource) -> None:
        """Serve ``/api/v1/plugins/NAME/path``.

        :param path: one segment of letters, digits, ``_ . -``; not load, unload, reload, commands.
        :param resource: `twisted.web.resource.IResource`; who may reach the HTTP interface may
            reach it.
        :raises ValueError: no such segment, or in use.
        """

    def add_command(name: str, function: Callable[[list[str]], Any], help: str = "") -> None:
        """Let operators run ``mqttd-ctl NAME name ARGUMENTS``.

        :param function: takes a list of str, gives the text to print (str) or a Deferred of it;
            what it raises is shown to the operator, its text as the one line.
        :raises ValueError: not ``[a-z][a-z0-9_-]*``, or in use.
        """

    def add_metric(name: str, help: str, read: Callable[[], float]) -> None:
        """Show ``read()`` among the broker's metrics as ``plugin_NAME_name``.

        :param name: ``[a-z][a-z0-9_]*``; one that ends in ``_total`` is a counter, others gauges.
        :raises ValueError: not that, or in use.
        """

    def add_sys_topic(suffix: str, read: Callable[[], Any]) -> None:
        """Publish ``str(read())`` on ``$SYS/broker/plugins/NAME/suffix`` with the others.

        The retained message is removed at unload.

        :raises ValueError: no valid topic name, or in use.
        """

    def add_service(service: IService) -> None:
        """Start a `twisted.application.service.IService` now, stop it at unload."""

    def add_listener(endpoint: str, name: str) -> Deferred[IAddress]:
        """Accept MQTT clients at a Twisted endpoint (``"tcp:1884:interface=127.0.0.1"``).

        :param name: the listener's name, shown as ``NAME.name``.
        :return: a Deferred of the address (`IAddress`) when it listens; fails with the error of
            the endpoint.
        """

    def alarm(name: str, text: str) -> None:
        """Raise an alarm for operators, or change its text; one of a plugin ends with unload."""

    def clear_alarm(name: str) -> None:
        """End an alarm; one that was not raised is no error."""


class IPlugin(Interface):
    """The running part of a plugin: what a plugin's factory makes, once for each load."""

    def load(handle: IPluginHandle, config: Any) -> Deferred[None] | None:
        """Register what is wanted; called when the plugin is loaded.

        :param handle: `IPluginHandle`; what is registered through it ends with `unload`.
        :param config: an instance of the plugin's msgspec Struct, or a dict without one, read
            from ``etc/plugins/NAME.conf``.
        :return: None, or a Deferred that fires when the plugin is ready, within 10 seconds.
        :raises Exception: it cannot run; the text says why.  All that was registered is taken
            back, and `unload` is called.
        """

    def unload() -> Deferred[None] | None:
        """Let go of what does not end with the handle; called once after each `load`.

        Also after one that failed.  The handle still works while it runs.

        :return: None, or a Deferred that fires when it is done, within 10 seconds.
        """


#: What `IPlugin` was called first.
IHookPlugin = IPlugin


class IMqttdPlugin(Interface):
    """The declaration of a plugin: a module-level object in ``mqttd_plugins``.

    Importing the declaration must cost nothing: heavy imports belong to the module that
    `factory` names.
    """

    name = Attribute("str: name in the configuration and in mqttd-ctl, [a-z][a-z0-9_]*")
    version = Attribute("str: version of the plugin")
    api_version = Attribute("int: the `API_VERSION` it was written for")
    description = Attribute("str: one line for operators")
    config_schema = Attribute(
        "str | None: ``package.module:Struct``, the msgspec Struct that its configuration file, "
        "``etc/plugins/NAME.conf`` (TOML), must fit"
    )
    factory = Attribute(
        "str: ``package.module:callable``, called without arguments on each load; what it returns "
        "provides `IPlugin`"
    )
    isolation = Attribute(
        'str: ``"none"``, it runs in the broker; ``"process"``, in a process of its own'
    )
    policy = Attribute(
        'str: what its callbacks answer in quarantine: ``"ignore"`` passes them over, ``"deny"`` '
        "refuses at client.authenticate, client.authorize and message.publish"
    )


# -- stores
#
# Keys and values are opaque to a store: the broker hands over bytes and gets the same bytes
# back.  "Stored" means: as durable as the store promises in `description`, when the Deferred
# fires.


class ISessionStore(Interface):
    """Keeps sessions across restarts: of each one record, and behind it the packets that wait.

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


# -- more than one process


class IRegistry(Interface):
    """Who owns a client identifier: at most one worker of one node at any time.

    The broker claims one for each client that has proved who it is, before it is accepted; it waits
    for the answer for 5 seconds, and holds back other clients of the same identifier meanwhile.
    """

    def claim(client_id: str, principal: str | None) -> Claim | Deferred[Claim]:
        """Make this process the owner of a client identifier.

        The owner before, if there is another, ends the client's connection and hands the session
        over (see `watch`) before the claim is answered.  Claiming what is owned already is no
        error, and answered with the same epoch.

        :param principal: str, the user name that was proved, or None; only the same one may take a
            session over.
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


class IFabric(Interface):
    """Carries messages and calls to another worker or node.

    Order is kept between two nodes.  A message to a node that is gone is lost: the route to it
    goes, and its sessions come back through `IRegistry` and `ISessionStore`.
    """

    def peers() -> list[str]:
        """The other nodes there are now: a list of str, ``node/worker``."""

    def forward(peer: str, topic_filters: Sequence[str], message: Any) -> bool:
        """Deliver a message to the subscribers another node has.

        :param peer: str, ``node/worker``.
        :param topic_filters: list of str, the route's filters that matched.
        :param message: the message object of the broker.
        :return: True if it was sent or buffered, False if the buffer for this peer is full.
        """

    def call(peer: str, name: str, args: Mapping[str, object]) -> Deferred[Any]:
        """Call a named procedure on another node.

        :param name: str.
        :param args: dict of plain values.
        :return: a Deferred of a plain value; it fails if the peer is gone or answers with an
            error.
        """

    def on_receive(callback: Callable[[str, Sequence[str], Any], None]) -> None:
        """Have ``callback(peer, topic_filters, message)`` called for each message that comes."""
