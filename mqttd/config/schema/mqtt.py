"""What the protocol allows, and what is kept for a client: ``[mqtt]``, ``[session]``, ``[mqueue]``,
``[retained]``, ``[memory]``."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from mqttd.config.schema import keys
from mqttd.config.schema.keys import DAY, GIB, HOUR, KIB, MIB, NEVER

__all__ = ["Memory", "Mqtt", "Mqueue", "Retained", "Session"]


class Mqtt(Struct, frozen=True, kw_only=True):
    """What the protocol allows a client, announced in CONNACK to MQTT 5.0 clients."""

    max_packet_size: Annotated[
        int,
        keys.size(
            "Largest packet a client may send, in bytes; a larger one ends the connection with"
            " reason 0x95 before it is buffered.",
            "connection",
            KIB,
            256 * MIB,
        ),
    ] = MIB
    max_client_id_length: Annotated[
        int,
        keys.count(
            "Longest client identifier, in UTF-8 bytes; the standard asks for at least 23.",
            "connection",
            23,
            65535,
        ),
    ] = 256
    max_topic_levels: Annotated[
        int,
        keys.count(
            "Most levels in a topic name or filter; what has more is refused by itself (0x90, 0x8F;"
            " 0x80 in a SUBACK of 3.1.1), and the connection goes on.",
            "message",
            1,
            65535,
        ),
    ] = 256
    max_topic_length: Annotated[
        int,
        keys.count(
            "Longest topic name or filter, in UTF-8 bytes; a longer one is refused likewise.",
            "message",
            1,
            65535,
        ),
    ] = 65535
    max_topic_alias: Annotated[
        int,
        keys.count(
            "Topic aliases a 5.0 client may use (Topic Alias Maximum); 0 allows none.",
            "connection",
            0,
            65535,
        ),
    ] = 65535
    outbound_topic_alias: Annotated[
        bool,
        keys.plain(
            "Send topic aliases to 5.0 clients that allow them: fewer bytes, but such a client's"
            " messages are made for it alone instead of being shared with the others.",
            "connection",
        ),
    ] = False
    topic_cache: Annotated[
        int,
        keys.size(
            "Memory for topics in use with their routes and rights, looked up once for all"
            " clients, a quarter of `memory.budget` at most; topics beyond it cost a search for"
            " each message.",
            "broker",
            MIB,
            64 * GIB,
        ),
    ] = 128 * MIB
    topic_cache_entries: Annotated[
        int,
        keys.count("Topics in that cache, whatever they weigh.", "broker", 1, 100_000_000),
    ] = 1_000_000
    max_qos: Annotated[
        int,
        keys.count(
            "Highest QoS a client may publish with (Maximum QoS); subscriptions are granted at"
            " most this.",
            "message",
            0,
            2,
        ),
    ] = 2
    retain_available: Annotated[
        bool,
        keys.plain("Whether clients may publish retained messages (Retain Available).", "message"),
    ] = True
    wildcard_subscription: Annotated[
        bool,
        keys.plain(
            "Whether filters may hold `+` and `#` (Wildcard Subscription Available).", "session"
        ),
    ] = True
    shared_subscription: Annotated[
        bool,
        keys.plain(
            "Whether `$share/group/filter` and `$queue/filter` work (Shared Subscription"
            " Available).",
            "session",
        ),
    ] = True
    shared_strategy: Annotated[
        Literal["round_robin", "random", "sticky", "hash_clientid", "hash_topic"],
        keys.plain(
            "How a shared subscription picks the member for a message: in turn per publisher, at"
            " random, the same while it lasts, by publisher's client id, or by topic.",
        ),
    ] = "round_robin"
    shared_prefer: Annotated[
        Literal["local", "any"],
        keys.plain(
            "With several workers: `local` takes a member of the worker where the message came in,"
            " if one is online; with `any` the other workers have their turns, each as one member.",
        ),
    ] = "local"
    server_keepalive: Annotated[
        int,
        keys.duration(
            "Keep alive that replaces every client's own (Server Keep Alive), in whole seconds; 0"
            " keeps the client's.",
            "connection",
            0,
            65535,
        ),
    ] = 0
    keepalive_multiplier: Annotated[
        float,
        keys.count(
            "A client silent for its keep alive times this is disconnected; the standard says 1.5.",
            "connection",
            1,
            10,
        ),
    ] = 1.5
    connect_timeout: Annotated[
        float,
        keys.duration(
            "Time from an accepted connection to its complete CONNECT, after which it is closed.",
            "connection",
            0.1,
            HOUR,
        ),
    ] = 10.0
    response_information: Annotated[
        str,
        keys.plain(
            "Response Information given to 5.0 clients that ask for it, usually a topic prefix;"
            " empty gives none.",
            "connection",
            max_length=1024,
            pattern=r"^[^\0]*\Z",
            expects="a text of at most 1024 characters without U+0000",
        ),
    ] = ""


class Session(Struct, frozen=True, kw_only=True):
    """What the broker keeps for one client, connected or not."""

    replicate: Annotated[
        Literal["none", "jetstream"],
        keys.plain(
            "Where sessions that outlast their connections are kept beside the store of their node,"
            " the same in all nodes of a cluster: `none`: nowhere; `jetstream`: in a stream on the"
            " servers of `[jetstream]`, which have what is acknowledged, and out of which other"
            " nodes take the sessions of one that is gone.",
            reload=False,
        ),
    ] = "none"
    max_inflight: Annotated[
        int,
        keys.count(
            "QoS 1 and 2 messages sent and not yet acknowledged, a client's smaller Receive"
            " Maximum wins; the rest wait in the mqueue.",
            "session",
            1,
            65535,
        ),
    ] = 100
    receive_maximum: Annotated[
        int,
        keys.count(
            "QoS 1 and 2 messages a 5.0 client may have unacknowledged towards the broker"
            " (Receive Maximum).",
            "session",
            1,
            65535,
        ),
    ] = 1000
    retry_interval: Annotated[
        float,
        keys.duration(
            "Time after which an unacknowledged message is sent again to a 3.1 or 3.1.1 client;"
            " 0 sends again only on resume, as 5.0 does always.",
            "session",
            0,
            DAY,
        ),
    ] = 30.0
    max_awaiting_rel: Annotated[
        int,
        keys.count("Incoming QoS 2 messages that wait for their PUBREL.", "session", 1, 65535),
    ] = 1000
    await_rel_timeout: Annotated[
        float,
        keys.duration(
            "Time after which an incoming QoS 2 message that got no PUBREL is forgotten.",
            "session",
            1,
            NEVER,
        ),
    ] = 300.0
    expiry_interval: Annotated[
        int,
        keys.duration(
            "Time the session of a 3.1 or 3.1.1 client with clean session 0 outlives its"
            ' connection, in whole seconds; `"never"` keeps it.',
            "session",
            0,
            NEVER,
        ),
    ] = 2 * HOUR
    max_expiry_interval: Annotated[
        int,
        keys.duration(
            "Longest Session Expiry Interval a 5.0 client gets, in whole seconds; a longer wish is"
            " lowered to this, so that no client id is taken for ever.",
            "session",
            0,
            NEVER,
        ),
    ] = 30 * DAY
    wills_at_stop: Annotated[
        Literal["publish", "keep", "drop"],
        keys.plain(
            "What becomes of the wills of connected clients when the broker is stopped: published,"
            " kept with sessions that are stored until their clients are back or not in time after"
            " the restart (others are published), or dropped; in a cluster other nodes publish"
            " those with a delay when that is over, unless they are kept.",
            "session",
        ),
    ] = "publish"
    owner: Annotated[
        Literal["user", "client_id"],
        keys.plain(
            "Whose a session is: the user's who took its client id first, and others are refused"
            " with 0x87 until it ends; or of whoever shows the client id, and of another user it is"
            " discarded first.",
            "session",
        ),
    ] = "user"
    client_id: Annotated[
        str,
        keys.plain(
            "What client identifiers must look like, with `%u` for the user name and `*` for any"
            ' text, such as `"%u-*"`; others are refused with 0x85, empty takes any.',
            "session",
            max_length=256,
            pattern=r"^([^%\0]|%u)*\Z",
            expects='a pattern with %u for the user name and * for any text, such as "%u-*"',
        ),
    ] = ""
    max_per_user: Annotated[
        int,
        keys.count(
            "Sessions that clients of one user name may have, connected or away; a further one is"
            " refused with 0x97, and 0 is no limit; clients without one are not counted.",
            "broker",
            0,
            100_000_000,
        ),
    ] = 0
    max_per_address: Annotated[
        int,
        keys.count(
            "Sessions that clients from one address (of IPv6: one /64) may have, likewise; a house"
            " behind one NAT is one address.",
            "broker",
            0,
            100_000_000,
        ),
    ] = 0
    max_subscriptions: Annotated[
        int,
        keys.count(
            "Subscriptions one session may hold; a further one is refused with reason 0x97.",
            "session",
            1,
            10_000_000,
        ),
    ] = 10_000
    upgrade_qos: Annotated[
        bool,
        keys.plain(
            "Deliver with the subscription's QoS even where the message was published with a"
            " lower one; the standard says no.",
            "session",
        ),
    ] = False


class Mqueue(Struct, frozen=True, kw_only=True):
    """Messages that wait for a client that is offline or whose inflight window is full."""

    max_length: Annotated[
        int,
        keys.count("Messages one session may queue.", "session", 1, 100_000_000),
    ] = 1000
    max_bytes: Annotated[
        int,
        keys.size(
            "What one session may queue, in bytes, in memory or in the store.",
            "session",
            KIB,
            1024 * GIB,
        ),
    ] = 8 * MIB
    in_memory: Annotated[
        int,
        keys.size(
            "What of that stays in memory, where the session is in the store: messages beyond it"
            " are read from there when they are due; with 0 none stays.",
            "session",
            0,
            1024 * GIB,
        ),
    ] = MIB
    in_memory_total: Annotated[
        int,
        keys.size("The same for the queues of all sessions together.", "session", 0, 1024 * GIB),
    ] = 256 * MIB
    store_qos0: Annotated[
        bool,
        keys.plain(
            "Queue QoS 0 messages too; when the queue is full they are dropped first, then the"
            " oldest.",
            "session",
        ),
    ] = True
    priorities: Annotated[
        dict[Annotated[str, Meta(min_length=1)], Annotated[int, Meta(ge=0, le=255)]],
        keys.plain(
            "Topic filters and their priorities, 0 to 255; higher leaves the queue first, topics"
            ' without one have 0; such as `{ "alarm/#" = 9 }`.',
            "session",
            expects="a table of topic filters and priorities from 0 to 255, such as"
            ' { "alarm/#" = 9 }',
        ),
    ] = field(default_factory=dict)


class Retained(Struct, frozen=True, kw_only=True):
    """The last message of a topic, kept for later subscribers."""

    max_messages: Annotated[
        int,
        keys.count(
            "Retained messages kept, beside the broker's own below `$SYS/`; a message for a new"
            " topic beyond it is refused with 0x97, and 0 is no limit.",
            "broker",
            0,
            1_000_000_000,
        ),
    ] = 1_000_000
    max_bytes: Annotated[
        int,
        keys.size(
            "Memory that retained messages may take, topics included; 0: no limit.",
            "broker",
            0,
            1024 * GIB,
        ),
    ] = GIB
    max_payload: Annotated[
        int,
        keys.size("Largest payload that is retained; 0: no limit.", "message", 0, 256 * MIB),
    ] = MIB
    max_per_user: Annotated[
        int,
        keys.count(
            "Retained messages that one user may have set, all clients without a user name being"
            " one; a further one is refused with 0x97, and 0 is no limit.",
            "broker",
            0,
            1_000_000_000,
        ),
    ] = 500_000
    max_bytes_per_user: Annotated[
        int,
        keys.size(
            "Memory that the retained messages of one user may take, topics included, likewise;"
            " half of what all may take (the smaller of `max_bytes` and half of `memory.budget`) is"
            " the most in any case, and 0 is no limit.",
            "broker",
            0,
            1024 * GIB,
        ),
    ] = 512 * MIB
    expiry: Annotated[
        int,
        keys.duration(
            "Longest time a retained message is kept, in whole seconds; its own Message Expiry"
            " Interval counts where that is shorter.",
            "message",
            1,
            NEVER,
        ),
    ] = NEVER


class Memory(Struct, frozen=True, kw_only=True):
    """What may be held in memory for clients; `mqttd-ctl memory` shows who holds what."""

    budget: Annotated[
        int,
        keys.size(
            "All that is held for clients: beyond it caches go, then QoS 0 that waits, then new"
            " sessions, subscriptions and retained messages are refused (0x97), then whoever holds"
            " most loses connection and session; 0: half of the memory that the machine or its"
            " control group has.",
            "broker",
            0,
            1024 * GIB,
        ),
    ] = 0
    per_session: Annotated[
        int,
        keys.size(
            "What one session may hold, but for what is in flight: a subscription beyond it is"
            " refused (0x97), a message is dropped; also what its topic aliases may take; 0: no"
            " limit.",
            "session",
            0,
            1024 * GIB,
        ),
    ] = 128 * MIB
    per_user: Annotated[
        int,
        keys.size(
            "The same for all sessions of one user name together; 0: no limit.",
            "session",
            0,
            1024 * GIB,
        ),
    ] = 0
    unauthenticated: Annotated[
        int,
        keys.size(
            "All that is held for connections that have not been let in; beyond it the oldest of"
            " them are closed; 0: no limit.",
            "broker",
            0,
            1024 * GIB,
        ),
    ] = 64 * MIB
