"""What a plugin may do with the broker.

Part of `mqttd.interfaces`, whose rules hold here too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zope.interface import Attribute

from mqttd.interfaces.access import IAccessControl, IAuthenticator, IEnhancedAuthenticator
from mqttd.interfaces.hooks import IHooks, IRepeating, ISubscription
from mqttd.types import (
    Action,
    ClientInfo,
)

if TYPE_CHECKING:
    from twisted.application.service import IService
    from twisted.internet.defer import Deferred
    from twisted.internet.interfaces import IAddress, IDelayedCall
    from twisted.web.resource import IResource

    from mqttd.codec.packets import Subscription

__all__ = ["IPluginHandle"]


class IPluginHandle(IHooks):
    """All that a plugin may do with the broker, while it is loaded.

    ::

        plugin --- handle ---> hooks, modules, timers, threads, subscriptions,
                                 routes, commands, metrics, topics, services, listeners
                     |-- unload: every one of them is taken back, whatever the plugin does
                     '-- store, data_dir: stay

    Each plugin has a handle of its own, made for one load and dead after it: once the plugin is
    unloaded each method raises `RuntimeError`.  The exceptions are ``time``, and those that end
    something (``unhook``, ``unregister_mod``, ``clear_alarm``), which then do nothing.

    What the broker calls through it (callbacks, functions, routes) is charged to the plugin: one
    that raises is logged with the plugin's name and counted, the time it takes is measured, and
    a plugin that fails too often is put into quarantine, where its callbacks are not called.

    All methods are called in the reactor thread; ``in_thread`` is the way out of it.
    """

    name = Attribute("str: name of the plugin")
    log = Attribute("twisted.logger.Logger: with namespace ``mqttd.plugin.NAME``")
    clock = Attribute(
        "IReactorTime: the reactor, or a test's clock; for how long something takes: it goes on"
        " evenly while the clock of the machine is set, where no program embeds the broker"
    )
    node = Attribute("str: name of this node, as in ``node.name``")
    worker = Attribute(
        "int: which of several workers of the node this process is, from 1; 0 where it is the only"
        " one"
    )
    workers = Attribute("int: how many workers the node has, 1 where it is one process")
    data_dir = Attribute(
        "str: absolute path of a directory of the plugin's own, mode 0700, which stays after unload"
    )

    store = Attribute(
        "IPluginStore: keys and values of the plugin's own, which stay after unload, and with a"
        " store after a restart"
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

    def time() -> float:
        """Seconds since 1970, by the clock of the machine, which may be set; or by a test's."""

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

    def bell(f: Callable[[], object]) -> Callable[[], None]:
        """Have a thread of the plugin's wake the reactor's, cheaper than by ``callFromThread``.

        :param f: called in the reactor thread, on nobody's budget, so it must be short.
        :return: what has it called, from any thread; calls that come together may be one.
        """

    def pause(f: Callable[[], object]) -> Any:
        """Have `f` called after some microseconds, which timers of the reactor round up.

        :param f: called in the reactor thread, on nobody's budget, so it must be short.
        :return: `mqttd.net.pause.Pause`: ``begin(seconds)``, less than one.
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
        :raises TypeError: a payload that is no bytes: text has to be encoded.
        :raises ValueError: no valid topic name, or larger than ``mqtt.max_packet_size``.
        :raises RuntimeError: called within `message.publish` callbacks, 8 deep.
        """

    def subscribe(
        topic_filter: str, callback: Callable[[Any], object], qos: int = 0
    ) -> ISubscription:
        """Have ``callback(message)`` called for each message that fits, as for a subscriber.

        Each in a turn of its own, in order, retained ones first. 1,000 messages may wait, then
        QoS 0 is dropped first, then the oldest; no access rule is asked.

        :param callback: takes a `mqttd.session.ground.message.Message`.
        :param qos: the highest QoS to keep; messages of QoS 0 are the first to be dropped.
        :return: `ISubscription`.
        :raises ValueError: no valid topic filter.
        """

    def republish(message: Any, noted: bool = False, routed: bool = False) -> int:
        """Route a message that a ``message.publish`` callback has held back, now.

        It keeps its message id, client id, user name and expiry; hooks run again.

        :param message: `mqttd.session.ground.message.Message`.
        :param noted: it was noted before (`keep_messages`), and is not again.
        :param routed: sessions have it: it is only noted.
        :return: int, how many sessions it was handed to, or minus the reason code with which a
            hook or the retained store has refused it.
        """

    def holds(message: Any, until: str) -> None:
        """Say that a message is not lost which a ``message.publish`` callback stops now.

        `mqttd-ctl why` tells whose plugin has it, and until when.

        :param message: `mqttd.session.ground.message.Message`, with the id that it came with.
        :param until: words for an operator, ``until 2026-01-31 12:00:00 UTC``.
        """

    def arrived(client_id: str = "") -> Deferred[None]:
        """Know when what was published so far has arrived, also at other workers and nodes.

        One that is away counts as there, since what is for it is kept; whether on the disk says
        `IPluginStore.written`, asked for after this.

        :param client_id: the publisher of messages that were given to `republish`; to very many
            receivers they go in slices. Those of `publish` have none.
        :return: a Deferred that fires then; after unload it does not fire any more.
        """

    def dump_message(message: Any) -> bytes:
        """A message as bytes, to be put away, with its id, publisher and expiry.

        :param message: `mqttd.session.ground.message.Message`.
        """

    def load_message(data: bytes) -> Any:
        """The message of `dump_message`, after a restart too; `republish` takes it.

        :raises ValueError: bytes of another make.
        """

    def authorize(client: ClientInfo, action: Action, topic: str) -> bool:
        """Whether a client may do that: hooks and rules are asked, as when it does it itself.

        For a plugin that lets a client do one thing under the name of another.
        """

    def beyond(action: Action, topic: str, size: int) -> str:
        """Which limit of the broker a client's message would be beyond, in words; "" for none.

        Of the limits that a message is measured by alone, whatever else is kept or under way.

        :param size: bytes of its payload.
        """

    def room(topics: Sequence[str], size: int) -> int:
        """How many messages of QoS 1 or 2 to these topics all who are connected have room for.

        For who can wait with what he publishes: what a queue (``mqueue.max_length``) has no room
        for is lost. Receivers at other workers and nodes are not seen (the plugin there may ask for
        them), of thousands not all; one
        whose queue is full and of which nothing is taken for five seconds counts no more.

        :param size: bytes of the largest one.
        :return: int, 0 where somebody's queue is full; more than 1,000,000 where nothing bounds it.
        """

    def figures() -> tuple[dict[str, int], dict[str, int]]:
        """The broker's counters since its start, and its gauges of now, by name."""

    def counter(name: str) -> int:
        """One of the counters, for who looks at it often.

        :raises KeyError: there is none of this name.
        """

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
        required: bool = False,
        brought: Callable[[], object] | None = None,
    ) -> Any:
        """Have ``hold(release, client_id)`` called before messages are acknowledged.

        It is called once for what a client has sent in a turn of the event loop, after all of it.
        The PUBACKs and PUBRECs are sent when its ``release()`` is called, in the reactor thread,
        and only then; where several plugins hold them, when all of them have released them.  Those
        of one client are sent in the order of its messages, so what is not released keeps what is
        behind it, also what refuses a message that the rules forbid: about that nobody is asked.
        What is still held when the plugin is unloaded is acknowledged then; with
        `required` or the policy ``deny`` the connections end that wait for it, and their clients
        send it again.  A call that fails holds nothing; with the plugin's policy ``deny`` the
        client's connection is ended instead, and nothing is acknowledged.

        :param hold: takes the place of what this plugin gave before; None ends it.
        :param topic_filter: an MQTT topic filter, or some: only messages that a client has
            published to these topics are held.
        :param required: nothing is acknowledged that `hold` was not asked about: while its calls
            fail, and in quarantine, clients are treated as with the policy ``deny``.
        :param brought: called in place of `hold`, once for a turn, whoever has sent: for keepers
            that write what came in groups, such as an event log.
        :return: with `brought` a `mqttd.session.gathering.Gathering`, where what was sent waits.
        :raises ValueError: no valid topic filter.
        """

    def keep_messages(notes: Any, topic_filter: str | Sequence[str] | None = None) -> None:
        """Have messages noted as bytes when they are routed: what a hook costs is not paid.

        After the hooks of ``message.publish``, with what these made of a message.

        :param notes: a `mqttd.session.publish.notes.Notes`, which must not raise; takes the place
            of what this plugin gave before; None ends it.
        :param topic_filter: an MQTT topic filter, or some: only messages on these topics.
        :raises ValueError: no valid topic filter.
        """

    def keep_deliveries(
        notes: Any,
        delivered: bool = True,
        acked: bool = True,
        topic_filter: str | Sequence[str] | None = None,
        dropped: bool = False,
        unheard: bool = False,
    ) -> None:
        """Have deliveries noted, acknowledgements of them, or both, without what a hook costs.

        With `dropped`, what one receiver misses too, as ``delivery.dropped`` hears of it; with
        `unheard` what reaches nobody, as ``message.dropped``.

        :param notes: a `mqttd.session.publish.notes.Notes`, which must not raise; takes the place
            of what this plugin gave before; None ends it.
        :param topic_filter: an MQTT topic filter, or some: only messages on these topics.
        :raises ValueError: no valid topic filter.
        """

    def keep_denials(notes: Any) -> None:
        """Have noted what clients may not do, as ``client.denied`` hears of it (`note_denied`).

        On all topics, without what a hook costs: of what may not be published that is told at the
        end of the turn of the event loop.  What of a message was refused `keep_deliveries` tells,
        with `unheard`.

        :param notes: a `mqttd.session.publish.notes.Notes`, which must not raise; takes the place
            of what this plugin gave before; None ends it.
        """

    def pause_publishers(paused: bool) -> None:
        """Stop reading from clients that send, for as long as something cannot follow.

        What was received already is still handled, at most 64 KiB per connection.
        """

    def ready() -> Deferred[None]:
        """Know when sessions and retained messages are there and clients are let in.

        Plugins are loaded before: what one publishes then, sessions that come back from the store
        do not get.  Do not wait for it in `load`, which clients wait for.

        :return: a Deferred that fires then, at once when clients are let in already; after unload
            it does not fire any more.
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

    def add_route(path: str, resource: IResource, alike: bool = False) -> None:
        """Serve ``/api/v1/plugins/NAME/path``.

        :param path: one segment of letters, digits, ``_ . -``; not load, unload, reload, commands.
        :param resource: `twisted.web.resource.IResource`; who may reach the HTTP interface may
            reach it. Who asks is `request.mqttd_caller.name`, a token of `pull_token_file` by the
            first digits of its SHA-256.
        :param alike: all workers of a broker answer alike, so whichever is there is asked; else
            who asks has to name one, ``/api/v1/workers/N/plugins/NAME/path``.
        :raises ValueError: no such segment, or in use.
        """

    def add_command(name: str, function: Callable[[list[str]], Any], help: str = "") -> None:
        """Let operators run ``mqttd-ctl NAME name ARGUMENTS``.

        :param function: takes a list of str, gives the text to print (str) or a Deferred of it;
            what it raises is shown to the operator, its text as the one line.  It may take 10
            seconds, and block for 2: nobody is served meanwhile, so what blocks belongs into
            `in_thread`.
        :raises ValueError: not ``[a-z][a-z0-9_-]*``, or in use.
        """

    def add_metric(name: str, help: str, read: Callable[[], float]) -> None:
        """Show ``read()`` among the broker's metrics as ``plugin_NAME_name``.

        :param name: ``[a-z][a-z0-9_]*``; one that ends in ``_total`` is a counter, others gauges;
            ``held_bytes`` is what the plugin holds in memory for clients: it counts in
            ``memory.budget``.
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
