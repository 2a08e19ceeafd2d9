"""Random sequences, the same for the same seed and profile.

A sequence ends with a look at what is left: every client comes back to its session, one more
publishes to all topics, subscribes to all and removes what is retained, and the sessions end.
"""

from __future__ import annotations

import random
from typing import Any, Final

from fuzz.lockstep.profiles import PROFILES, Profile
from fuzz.lockstep.steps import (
    Acknowledge,
    Answer,
    Automatic,
    Close,
    Connect,
    Disconnect,
    Kill,
    Mutation,
    Packet,
    Pause,
    Props,
    Publish,
    Raw,
    Sequence,
    Step,
    Subscribe,
    Unsubscribe,
    WillMessage,
    Write,
)
from tests.support import packets as mq
from tests.support import sizes

__all__ = ["generate"]

TOPICS: Final = ["~/a", "~/b", "~/a/b", "~/a/b/c", "~//a", "~/$x", "~"]
FILTERS: Final = ["~/#", "~/+", "~/a", "~/b", "~/a/#", "~/+/b", "~/a/b", "~/+/+/#"]
FILTERS_TOO: Final = ["~/a/b/c", "~//a", "~/+/a", "~/a/+/c"]
APART: Final = ["~/a", "~/b", "~/a/b", "~/a/b/c"]
SHARED: Final = ["~/#", "~/a", "~/+"]

NEVER: Final = 0xFFFFFFFF
#: Intervals in seconds: one that is not over within a sequence, and one that is over after `PAUSE`,
#: as are two behind one another, and not before it for all that the steps between take.
LONG: Final = 1000
SHORT: Final = 2
PAUSE: Final = 5.0
#: A packet id that nobody uses.
UNKNOWN: Final = 60001

#: Reason codes of PUBACK and PUBREC (3.4.2.1).
REFUSALS: Final = [0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99, 0x10]

#: What is wrong, out of place, or allowed and rare, each of a right length.
RAW: Final = (
    "e00182 e000 c00100 c100 d000 20020000 9003000100 b0020001 f000 f0021800 f0021900 0000 80020001"
    " 8206000100000161 a2020001 3602ffff 3f0700016100016162 100d00044d51545405020000000000 6000"
    " 400100 40020000 62020000 6002ea61 3000 30ffffffffff e20100 e0028200 e00704051100000000"
    " e0070005110000000a 4003ea6110 4003ea6187 5003ea6187 6203ea6192 7003ea6192 4004ea611000"
    " 5003ea61ee 82080001020001610001"
).split()


def generate(seed: int, profile: str, kill: bool = False) -> Sequence:
    """The sequence of a seed. With `kill` the broker is killed somewhere in it; there are no wills
    then, which a broker that is started again may publish or not (3.1.2.5)."""
    return _Generator(random.Random(f"{profile} {seed}"), PROFILES[profile], kill).sequence()


class _Generator:
    """One sequence."""

    def __init__(self, rnd: random.Random, profile: Profile, kill: bool) -> None:
        self.rnd = rnd
        self.profile = profile
        self.kill = kill
        self.clients = rnd.randint(3, 5)
        self.versions = [self.version() for _ in range(self.clients)]
        #: The client identifier that each is connected with; None: assigned.
        self.client_ids: list[int | None] = list(range(self.clients))
        self.connected = [False] * self.clients
        self.aliases: list[set[int]] = [set() for _ in range(self.clients)]
        overlapping = self.chance(profile.overlapping)
        self.filters = rnd.sample(FILTERS + FILTERS_TOO, 4) if overlapping else APART
        self.payloads = 0

    def chance(self, share: float) -> bool:
        """True in this share of the cases."""
        return self.rnd.random() < share

    def version(self) -> int:
        """3.1.1 or 5.0."""
        return mq.V5 if self.chance(self.profile.newer) else mq.V311

    # -- all of it -----------------------------------------------------------------------------

    def sequence(self) -> Sequence:
        """Some connect and subscribe, much happens, and what is left is looked at."""
        rnd, steps = self.rnd, list[Step]()
        for client in range(self.clients):
            if self.chance(0.9):
                steps.append(self.connect(client))
                if self.chance(0.7):
                    steps.append(Write(client, (self.subscribe(client),)))
        weights = self.profile.weights
        length = self.clients + rnd.randint(*self.profile.steps)
        while len(steps) < length:
            kind = rnd.choices(list(weights), list(weights.values()))[0]
            if kind == "pause":
                if Pause(PAUSE) not in steps:  # once is long enough
                    steps.append(Pause(PAUSE))
                continue
            there = [client for client in range(self.clients) if self.connected[client]]
            away = [client for client in range(self.clients) if not self.connected[client]]
            if among := away if kind == "connect" else there:
                steps.append(self.step(kind, rnd.choice(among)))
        if self.kill:
            steps.insert(len(steps) * rnd.choice([2, 3, 4]) // 4, Kill())
        return Sequence(self.clients + 1, (*steps, *self.last_look()))

    def last_look(self) -> list[Step]:
        """Queues, messages in flight, subscriptions, retained messages."""
        looker, steps = self.clients, list[Step]()
        steps += [Close(client) for client in range(self.clients)]
        if self.profile.short_time:
            steps.append(Pause(PAUSE))
        for client, version in enumerate(self.versions):
            steps.append(Write(client, (Connect(version, client, False, EXPIRING),)))
        steps.append(Write(looker, (Connect(mq.V5, looker),)))
        for topic in TOPICS:
            payload = "e" + topic[1:] + "y" * (40 if topic == "~/b" else 0)
            steps.append(Write(looker, (Publish(topic, payload, 2, 7),)))
        everything = Subscribe(5, (("~/#", 2 | 8),), ((mq.SUBSCRIPTION_ID, 3),))
        steps.append(Write(looker, (everything,)))
        steps += [Write(looker, (Publish(topic, retain=True),)) for topic in TOPICS]
        for client in range(self.clients):
            steps.append(Write(client, (Disconnect(),)))
        for client in range(self.clients):
            steps.append(Write(client, (Connect(mq.V311, client),)))
            steps.append(Write(client, (Disconnect(),)))
        return steps

    def step(self, kind: str, client: int) -> Step:
        """A step of this kind."""
        rnd = self.rnd
        if kind == "connect":
            return self.connect(client)
        if kind == "close":
            self.connected[client] = False
            return Close(client)
        if kind == "automatic":
            return Automatic(client, self.chance(0.6))
        if kind == "answer":
            return self.answer(client)
        if kind == "raw":
            return Write(client, (Raw(rnd.choice(RAW)),))
        if kind == "mutate":
            what = rnd.choice(["publish", "subscribe", "unsubscribe", "disconnect", "stray"])
            write = Write(client, (self.packet(what, client),), (), self.mutation())
            self.connected[client] = True  # perhaps
            return write
        if kind == "together":
            return Write(client, self.together(client), self.cuts(0.5))
        if kind == "burst":
            return Write(client, self.burst(client), self.cuts(0.3))
        return Write(client, (self.packet(kind, client),), self.cuts(0.08))

    def cuts(self, share: float) -> tuple[int, ...]:
        """Where a write is cut, if it is."""
        if not self.chance(share):
            return ()
        return tuple(self.rnd.randrange(1, 400) for _ in range(self.rnd.randint(1, 3)))

    def mutation(self) -> Mutation:
        """One change of a packet."""
        rnd = self.rnd
        kind = rnd.choice(["set", "bit", "flag", "cut", "tail"])
        value = rnd.choice([0, 1, 2, 3, 4, 0x7F, 0x80, 0xFF, rnd.randrange(256)])
        return Mutation(kind, rnd.randrange(70), value)

    def answer(self, client: int) -> Answer:
        """An acknowledgement, the right one or not."""
        rnd = self.rnd
        which = rnd.choice([0, 0, 0, 1, 2, 5])
        wrong = rnd.choice([mq.PUBACK, mq.PUBREC, mq.PUBCOMP, mq.PUBREC])
        reason = rnd.choice(REFUSALS)
        return Answer(
            client,
            which,
            wrong if self.chance(self.profile.wrong) else 0,
            reason if self.chance(self.profile.refused) else 0,
        )

    # -- packets -------------------------------------------------------------------------------

    def packet(self, kind: str, client: int) -> Packet:
        """A packet of a connected client."""
        if kind == "publish":
            return self.publish(client)
        if kind == "subscribe":
            return self.subscribe(client)
        if kind == "unsubscribe":
            return self.unsubscribe(client)
        if kind == "disconnect":
            return self.disconnect(client)
        return self.stray(client)

    def together(self, client: int) -> tuple[Packet, ...]:
        """A few packets, with DISCONNECT between them sometimes."""
        kinds = ["publish", "publish", "publish", "subscribe", "subscribe", "unsubscribe", "stray"]
        packets = [
            self.packet(self.rnd.choice(kinds), client) for _ in range(self.rnd.randint(2, 5))
        ]
        if self.chance(0.1):
            packets += [self.disconnect(client), self.publish(client)]
        return tuple(packets)

    def connect(self, client: int) -> Write:
        """CONNECT, with packets behind it sometimes."""
        rnd, profile = self.rnd, self.profile
        if self.chance(0.08):
            self.versions[client] = self.version()
        version = self.versions[client]
        client_id: int | None = client
        if self.chance(profile.borrowed):
            client_id = rnd.randrange(self.clients)
        if self.chance(0.03):
            client_id = None
        by_hand = self.chance(profile.by_hand)
        props = self.connect_props(by_hand) if version == mq.V5 else ()
        will = None
        if self.chance(profile.wills) and not self.kill:
            will = self.will(version)
        clean = self.chance(0.1 if profile.narrow else 0.3)
        packet = Connect(version, client_id, clean, props, will, by_hand)
        self.connected[client] = True
        self.client_ids[client] = client_id
        self.aliases[client] = set()
        eager = self.together(client)[:3] if self.chance(profile.eager) else ()
        mutated = profile.mutate and self.chance(0.12)
        mutation = self.mutation() if mutated else None
        return Write(client, (packet, *eager), self.cuts(0.1), mutation)

    def connect_props(self, by_hand: bool) -> Props:
        """Properties of a CONNECT (3.1.2.11)."""
        rnd, profile, props = self.rnd, self.profile, list[tuple[int, Any]]()
        often, seldom = [None, 0, LONG, LONG, NEVER], [None, 0, SHORT, SHORT, LONG]
        expiry = rnd.choice(seldom if profile.short_time else often)
        if expiry is not None:
            props.append((mq.SESSION_EXPIRY, expiry))
        if profile.narrow or self.chance(0.6 if by_hand else 0.15):
            windows = [1, 1, 2] if profile.narrow else [1, 1, 2, 3, 65535]
            props.append((mq.RECEIVE_MAXIMUM, rnd.choice(windows)))
        if self.chance(0.6 if profile.borders else 0.12):
            some = [rnd.randint(90, 140), rnd.randint(16370, 16400)]
            props.append(
                (mq.MAXIMUM_PACKET_SIZE, rnd.choice(some if profile.borders else [80, 100, 120]))
            )
        if self.chance(0.2):
            props.append((mq.TOPIC_ALIAS_MAXIMUM, rnd.choice([0, 1, 2, 10])))
        if self.chance(0.15):
            props.append((mq.REQUEST_PROBLEM_INFO, rnd.choice([0, 1])))
        if self.chance(0.1):
            props.append((mq.REQUEST_RESPONSE_INFO, rnd.choice([0, 1])))
        if self.chance(0.05):
            props.append((mq.USER_PROPERTY, ("k", "v")))
        return tuple(props)

    def will(self, version: int) -> WillMessage:
        """A will (3.1.3)."""
        rnd, profile = self.rnd, self.profile
        payload = "" if self.chance(0.25) else self.payload()
        props = self.props() if version == mq.V5 else ()
        if version == mq.V5 and profile.short_time and self.chance(0.6):
            props += ((mq.WILL_DELAY, rnd.choice([0, SHORT, SHORT, LONG])),)
        elif version == mq.V5 and self.chance(0.4):
            props += ((mq.WILL_DELAY, rnd.choice([0, LONG])),)
        return WillMessage(rnd.choice(TOPICS), payload, rnd.randrange(3), self.chance(0.3), props)

    def payload(self) -> str:
        """Known by its number, and of some length."""
        rnd = self.rnd
        self.payloads += 1
        length = rnd.choice([0, 0, 0, 0, 0, 20, 40, 44, 60, 90])
        if self.profile.borders:
            # What stands before a payload, and what its number takes, are 5 to 60 bytes.
            lengths = [sizes.around(border, 60) for border in sizes.BORDERS[:2]]
            length = rnd.choice([*map(rnd.choice, lengths), 40000, 5])
        return f"m{self.payloads}" + "x" * length

    def props(self) -> Props:
        """Properties of a message (3.3.2.3)."""
        rnd, rate, props = self.rnd, self.profile.properties, list[tuple[int, Any]]()
        if self.chance(rate):
            props.append((mq.PAYLOAD_FORMAT, rnd.choice([0, 1])))
        if self.chance(rate):
            short = self.profile.short_time and self.chance(0.5)
            props.append((mq.MESSAGE_EXPIRY, SHORT if short else LONG))
        if self.chance(rate):
            props.append((mq.CONTENT_TYPE, rnd.choice(["", "text"])))
        if self.chance(rate):
            props.append((mq.RESPONSE_TOPIC, "~/resp"))
        if self.chance(rate):
            props.append((mq.CORRELATION_DATA, rnd.choice([b"", b"\x00\xff"])))
        if self.chance(rate):
            for _ in range(rnd.randint(1, 3)):
                pair = rnd.choice(["k", "a", ""]), rnd.choice(["v", "", "z"])
                props.append((mq.USER_PROPERTY, pair))
        rnd.shuffle(props)
        return tuple(props)

    def publish(self, client: int) -> Publish:
        """A PUBLISH."""
        rnd, profile = self.rnd, self.profile
        qos = rnd.choice([1, 1, 1, 2] if profile.narrow else [0, 1, 1, 2])
        topic, payload = rnd.choice(TOPICS), self.payload()
        retain = self.chance(profile.retained)
        if retain and self.chance(0.3):
            payload = ""
        packet_id = rnd.randint(1, 2000) if qos else 0
        if qos and profile.borders:
            packet_id = rnd.choice(sizes.PACKET_IDS[qos - 1 :: 2])  # those of QoS 2 are its own
        dup, release = False, True
        if profile.few_ids and qos:
            packet_id = rnd.randint(1, 3) + (10 if qos == 1 else 0)
            dup, release = self.chance(0.4), self.chance(0.3)
        props = self.props() if self.versions[client] == mq.V5 else ()
        if self.versions[client] == mq.V5 and self.chance(profile.aliases):
            alias = rnd.randint(1, 3)
            if alias in self.aliases[client] and self.chance(0.6):
                topic = ""
            self.aliases[client].add(alias)
            props += ((mq.TOPIC_ALIAS, alias),)
        return Publish(topic, payload, qos, packet_id, retain, dup, release, props)

    def burst(self, client: int) -> tuple[Packet, ...]:
        """Many of few topics, properties and QoS, as a busy publisher sends them."""
        rnd, packets = self.rnd, list[Packet]()
        topics = rnd.sample(TOPICS, rnd.randint(1, 3))
        mix = rnd.choice([[0], [1], [2], [0, 1], [1, 2], [0, 1, 2], [1, 1, 1, 1, 0]])
        in_order, start = self.chance(0.6), rnd.choice([1, 1, 65500, 20])
        some_ids = rnd.sample(range(1, 100), 60)
        retained = rnd.choice([0, 0, 0, 0.1])
        new = self.versions[client] == mq.V5
        same = self.props() if new and self.chance(0.5) else None
        self.payloads += 1
        burst = self.payloads
        for i in range(rnd.choice([3, 10, 30, 60])):
            qos = rnd.choice(mix)
            packet_id = (start + i - 1) % 65535 + 1 if in_order else some_ids[i]
            props = same if same is not None else self.props() if new and self.chance(0.2) else ()
            payload = self.payload() if self.chance(0.3) else f"b{burst}.{i}"
            retain = self.chance(retained)
            packets.append(
                Publish(
                    rnd.choice(topics), payload, qos, packet_id if qos else 0, retain, props=props
                )
            )
            if self.chance(0.02):
                packets.append(self.subscribe(client))
        return tuple(packets)

    def subscribe(self, client: int) -> Subscribe:
        """A SUBSCRIBE, of each filter once."""
        rnd, profile, filters = self.rnd, self.profile, dict[str, int]()
        for _ in range(rnd.choice([1, 1, 1, 2, 3])):
            text = rnd.choice(self.filters)
            options = rnd.choice([1, 1, 2] if profile.narrow else [0, 1, 2, 2])
            if self.chance(profile.shared) and self.client_ids[client] is not None:
                # Who of several members gets a message is nobody's rule: each has its groups.
                group = rnd.choice(["g", "h"])
                text = f"$share/{group}{self.client_ids[client]}/{rnd.choice(SHARED)}"
            elif self.chance(0.15):
                options |= 4
            options |= 8 * self.chance(0.4)
            handling = 0 if profile.narrow else rnd.choice([0, 0, 0, 1, 1, 2])
            filters[text] = options | handling << 4
        props: Props = ()
        if self.versions[client] == mq.V5 and self.chance(profile.identified):
            props = ((mq.SUBSCRIPTION_ID, rnd.choice([2, *sizes.IDENTIFIERS])),)
        return Subscribe(rnd.randint(1, 2000), tuple(filters.items()), props)

    def unsubscribe(self, client: int) -> Unsubscribe:
        """An UNSUBSCRIBE, of what is subscribed or not."""
        rnd = self.rnd
        shared = [f"$share/g{self.client_ids[client]}/{text}" for text in SHARED]
        pool = [*self.filters, *(shared if self.profile.shared > 0.1 else []), "~/none"]
        filters = tuple(rnd.choice(pool) for _ in range(rnd.choice([1, 1, 2])))
        return Unsubscribe(rnd.randint(1, 2000), filters)

    def disconnect(self, client: int) -> Disconnect:
        """A DISCONNECT."""
        self.connected[client] = False
        if self.versions[client] != mq.V5:
            return Disconnect()
        reason = self.rnd.choice([0, 4, 4]) if self.chance(0.4) else 0
        expiry = self.rnd.choice([0, SHORT if self.profile.short_time else LONG, LONG, NEVER])
        return Disconnect(reason, ((mq.SESSION_EXPIRY, expiry),) if self.chance(0.3) else ())

    def stray(self, client: int) -> Acknowledge:
        """An acknowledgement of what was not sent, or PUBREL of what perhaps was."""
        rnd, few = self.rnd, self.profile.few_ids
        kind = mq.PUBREL if few else rnd.choice([mq.PUBACK, mq.PUBREC, mq.PUBREL, mq.PUBCOMP])
        packet_id = rnd.choice([1, 2, 3, 3, 999]) if kind == mq.PUBREL else UNKNOWN
        reason = 0
        if not few and self.versions[client] == mq.V5 and self.chance(0.2):
            reason = rnd.choice([0x80, 0x10]) if kind in (mq.PUBACK, mq.PUBREC) else 0x92
        return Acknowledge(kind, packet_id, reason)


EXPIRING: Final[Props] = ((mq.SESSION_EXPIRY, LONG),)
