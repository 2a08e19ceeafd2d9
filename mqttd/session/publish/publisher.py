"""What one connection may publish: its class of clients, and answers of its own where it has none.

    topic --> Route.right == my class?      yes: one comparison
                 | no
                 +-- it begins as what this client may publish   a comparison, nothing remembered
                 +-- the class may publish anywhere, or here?    remembered with the route
                 +-- this client may, or may not?                remembered here, bounded

Right and route are separate questions. Clients that no rule tells apart are a class and share the
answers, which lie with the route; a client that rules name, or a topic under rules with `%c` or
`%u`, is asked about by itself. A client that is asked about more than a few times is given its
*realms* (`dev/7/`), beginnings below all of which it may publish. A change of rules, users or bans
moves the broker's `epoch`, and all answers are asked for again. A refusal is told with its rule,
and decided anew for that, as long as somebody hears of it; beyond that it is counted.

Promise: a first decision costs a search of the rules per class and topic, not per connection. What
is kept per connection is bounded in bytes, in two generations, so that more topics than fit cost
what does not fit, not everything. Nothing is kept of a topic that may not come again.
"""

from __future__ import annotations

from typing import Final, cast

from mqttd.codec.frame import ONE_BYTE
from mqttd.codec.reasons import MalformedPacket
from mqttd.codec.topic import validate_topic_name
from mqttd.session.ground.connection import Connection, Edge
from mqttd.session.ground.refusal import Refusal
from mqttd.session.ground.settings import Settings
from mqttd.session.routes.route import Beyond, Route
from mqttd.session.routes.stems import Stems
from mqttd.session.routes.topics import Topics
from mqttd.session.session import Session
from mqttd.session.state import Keeper

__all__ = ["Judge", "Publisher", "TRIES", "Warm"]

#: Bytes of names in one generation of a connection's own answers.
_OWN_BYTES: Final = 65536
#: Bytes of a refusal that is kept, beside the name.
_REFUSAL: Final = 240
#: Blocks of properties in a row that were not as the last, after which none is kept.
TRIES: Final = 8
#: Decisions about a connection after which its realms are asked for.
_DECISIONS: Final = 16
#: Classes whose answers one route remembers.
_CLASSES: Final = 32
#: The number of a class in `Publisher.right`, without its epoch and flags, and whether it is free.
_NUMBER: Final = (1 << 28) - 1
_FREE: Final = 1 << 31


class Judge(Keeper):
    """What a publisher asks of the broker: topics and rights."""

    def __init__(self, settings: Settings, now: int, topics: Topics) -> None:
        super().__init__(settings, now, topics)
        #: Moves when rules, users, bans or hooks change: every answer is asked for again.
        self.epoch: int = 0
        #: A rule depends on QoS or RETAIN, so answers are kept per these flags.
        self.by_flags: bool = False
        #: Connections that keep something for the sake of speed only; see `Broker.tick`.
        self.warm: list[Publisher] = []
        #: Those who have been asked lately who their client is.
        self.asked: list[Publisher] = []
        #: Client ids whose messages are followed, and how many of them yet; below 0: all.
        self.watched: dict[str, int] = {}
        #: Somebody hears of the next message that may not be published: log, trail or hook.
        self.tap_denied: bool = True
        #: Somebody keeps as bytes what may not be published, each of it (`note_refused`).
        self.tap_refused: bool = False
        #: Refusals that the log, and messages that the trail has not heard of meanwhile.
        self.untold: int = 0
        self.unkept: int = 0

    def class_of(self, channel: Publisher) -> int:
        """The class of the connection's client, as far as rules tell clients apart; -1: its own."""
        raise NotImplementedError

    def is_free(self, number: int) -> bool:
        """Whether this class may publish anything anywhere, but to topics that begin with `$`."""
        raise NotImplementedError

    def judge(self, number: int, qos: int, retain: bool, topic: str) -> bool:
        """Whether all clients of this class may publish to a topic. False: ask for each."""
        raise NotImplementedError

    def may_publish(self, channel: Publisher, topic: str, qos: int, retain: bool) -> bool:
        """Whether this client may publish to a topic now; a refusal is logged with its rule."""
        raise NotImplementedError

    def note_refused(self, channel: Publisher, key: bytes, first: int, size: int) -> None:
        """Somebody keeps what may not be published (`tap_refused`): a message of `size` bytes.

        key: of its topic's route; first: QoS and RETAIN, as where a PUBLISH has them.
        """

    def realms(self, channel: Publisher) -> list[bytes]:
        """Beginnings of topics, with their last `/`, below all of which this client may publish."""
        raise NotImplementedError

    def refuses(self, channel: Publisher, topic: str, qos: int, retain: bool) -> Refusal | None:
        """What this client may not publish there by, while `epoch` stays; None: ask each time."""
        raise NotImplementedError


class Warm:
    """What a connection keeps for the sake of speed, while its client is busy."""

    __slots__ = (
        "block",
        "decisions",
        "found",
        "known",
        "listed",
        "old",
        "origin",
        "own",
        "own_bytes",
        "realms",
        "refused",
        "refused_bytes",
        "rest",
        "tries",
    )

    def __init__(self) -> None:
        #: Who the client is (a ClientInfo).
        self.known: object | None = None
        #: Its address and listener as the broker says (`Rights.origin`), while `known` holds.
        self.origin: tuple[str, str] | None = None
        #: Its connection stands on the list of those that have something to give back.
        self.listed: bool = False
        #: Keys (with flags) that this client may publish to, and those it might before.
        self.own: dict[bytes, bool] | None = None
        self.old: dict[bytes, bool] | None = None
        self.own_bytes: int = 0
        #: Keys (with flags) that this client may not publish to.
        self.refused: dict[bytes, Refusal] | None = None
        self.refused_bytes: int = 0
        #: See `Judge.realms`; and how many decisions there were about this client.
        self.realms: list[bytes] | None = None
        self.decisions: int = 0
        #: The block of properties that came last, and what the scan found in it; as it is without
        #: its topic alias.
        self.block: bytes | None = None
        self.found: int = 0
        self.rest: bytes | None = None
        self.tries: int = TRIES


class Publisher(Connection):
    """A connection whose client may publish."""

    __slots__ = ("right", "session", "warm")

    def __init__(self, judge: Judge, edge: Edge, fd: int, listener: str) -> None:
        super().__init__(judge, edge, fd, listener)
        self.session: Session | None = None
        self.warm: Warm | None = None
        #: What `Route.right` is compared with: the class of this client, unique to the epoch, with
        #: room for three bits of flags, and one that says that the class may publish anywhere. -1:
        #: it has not been asked for; -3 - epoch: there is none, it is asked about by itself.
        self.right: int = -1

    @property
    def judge(self) -> Judge:
        """The broker, which is the connection's `turn` too."""
        return cast(Judge, self.turn)

    @property
    def known(self) -> object | None:
        """Who the client is (a ClientInfo), if that was asked lately."""
        warm = self.warm
        return None if warm is None else warm.known

    def warm_up(self) -> Warm:
        """Something is kept that is given back when the client has been quiet for a while."""
        warm = self.warm
        if warm is None:
            warm = Warm()
            self.warm = warm
        if not warm.listed:
            warm.listed = True
            self.judge.warm.append(self)
        return warm

    def cool(self) -> None:
        """The client is quiet: keep only what cannot be found out again."""
        self.warm = None
        if self.session is not None:
            self.session.rest()

    def is_watched(self) -> bool:
        """Whether the messages of this client are followed."""
        session = self.session
        return session is not None and session.client_id in self.judge.watched

    def forget_rights(self) -> None:
        """Ask for everything again: the client may be another one by now."""
        self.right = -1
        warm = self.warm
        if warm is not None:
            warm.origin = None
            warm.own = None
            warm.old = None
            warm.own_bytes = 0
            warm.refused = None
            warm.refused_bytes = 0
            warm.realms = None
            warm.decisions = 0

    def know(self, client: object) -> None:
        """Who the client is (a ClientInfo), until the next tick."""
        warm = self.warm
        if warm is None:
            warm = Warm()
            self.warm = warm
        if warm.known is None:
            self.judge.asked.append(self)
        warm.known = client
        warm.origin = None

    def forget_known(self) -> None:
        """Ask again who the client is."""
        warm = self.warm
        if warm is not None:
            warm.known = None
            warm.origin = None
            if not warm.listed:
                self.warm = None

    def stems(self) -> Stems | None:
        """What leads its topics by their first words; None where each has to be looked up."""
        judge = self.judge
        right = self.right
        if right < 0 or right >> 32 != judge.epoch or judge.by_flags:
            return None
        realms: list[bytes] | None = None
        if not right & _FREE:
            warm = self.warm
            if warm is None or not warm.realms:
                return None
            realms = warm.realms
        stems = judge.topics.stems
        settings = judge.settings
        if stems is not None and stems.serve(
            right, judge.epoch, settings.max_topic_levels, settings.max_topic_length, realms
        ):
            return stems
        return None

    def topics(self, limit: int) -> list[str]:
        """Topics in use that this client, or all of its class, was found to be allowed."""
        found: list[str] = []
        own = None if self.warm is None else self.warm.own
        for key, route in self.judge.topics.table.items():
            if len(found) >= limit:
                break
            if route.epoch == self.judge.epoch and (
                (self.right >= 0 and route.right & ~7 == self.right)
                or self._in_realm(key)
                or (own is not None and any(ONE_BYTE[flags] + key in own for flags in range(8)))
            ):
                found.append(route.topic)
        return found

    def find(self, key: bytes) -> Route:
        """The current route of a topic that is not in the table; validates it (4.7.3).

        A `Beyond` for one that has more levels or bytes than are taken.
        """
        topic = self.check_topic(key[2:])
        settings = self.judge.settings
        if topic.count("/") >= settings.max_topic_levels:
            return Beyond(topic, f"at most {settings.max_topic_levels} levels are taken")
        if len(key) - 2 > settings.max_topic_length:
            return Beyond(topic, f"at most {settings.max_topic_length} bytes are taken")
        return self.judge.topics.meet(key, topic)

    def check_topic(self, raw: bytes) -> str:
        """Decode a topic name and check its syntax (MQTT-1.5.4-1, 3.3.2-2, 4.7.3)."""
        try:
            topic = raw.decode()
        except UnicodeDecodeError:
            raise MalformedPacket("topic name is not UTF-8") from None
        validate_topic_name(topic, 0)
        return topic

    def may(self, route: Route, first: int) -> bool:
        """May this client publish here? `first`: the first byte of the packet, for its flags."""
        if isinstance(route, Beyond):
            return False
        judge = self.judge
        epoch = judge.epoch
        mine = self.right
        if (mine >> 32 if mine >= 0 else -3 - mine) != epoch:
            self._classify(epoch)
        if route.epoch != epoch:
            route.epoch = epoch
            route.right = -2
            route.classes = None
        flags = first & 7 if judge.by_flags else 0
        warm = self.warm
        refused = None if warm is None else warm.refused
        right = self.right | flags if self.right >= 0 else -1
        if right >= 0:
            if route.right == right or self._in_realm(route.key):
                return True
            if refused is None and self._may_class(route, right, first):
                return True
        # The flags always stand first: else a topic could pass for another one with flags.
        key = ONE_BYTE[flags] + route.key
        if refused is not None:
            refusal = refused.get(key)
            if refusal is not None and not judge.tap_denied:
                refusal.again()
                judge.untold += 1
                return False
            if right >= 0 and self._may_class(route, right, first):
                return True
        if warm is not None and warm.own is not None and key in warm.own:
            return True
        if warm is None or warm.old is None or key not in warm.old:
            if not self._decide(route, key, first):
                return False
            # Among many topics one that came once is not remembered: nor is that it was allowed.
            if route.place < 0 or not judge.settings.cache_grants:
                return True
        self._remember(key)
        return True

    def _in_realm(self, key: bytes) -> bool:
        """Whether a topic, as on the wire, begins with one of the client's realms."""
        warm = self.warm
        if warm is not None and warm.realms:
            for realm in warm.realms:
                if key[2 : 2 + len(realm)] == realm:
                    return True
        return False

    def _decide(self, route: Route, key: bytes, first: int) -> bool:
        """Have the broker decide about this client; what it refuses once more is kept."""
        judge = self.judge
        judge.metrics.rights_decided += 1
        qos = first >> 1 & 3
        retain = first & 1 == 1
        may = judge.may_publish(self, route.topic, qos, retain)
        if not judge.settings.cache_grants or (judge.watched and self.is_watched()):
            return may
        if not may:
            if route.place >= 0:
                refusal = judge.refuses(self, route.topic, qos, retain)
                if refusal is not None:
                    self._keep_refusal(key, refusal)
        elif self.right >= 0:
            self._decided()
        return may

    def _decided(self) -> None:
        """One more decision about this client: from some on its realms are worth asking for."""
        warm = self.warm_up()
        warm.decisions += 1
        if warm.decisions == _DECISIONS:
            warm.realms = self.judge.realms(self)

    def _classify(self, epoch: int) -> None:
        self.forget_rights()
        judge = self.judge
        number = judge.class_of(self) if judge.settings.cache_grants else -1
        if judge.watched and self.is_watched():
            number = -1  # asked by itself, it passes `may` with each message
        if number < 0:
            self.right = -3 - epoch
        else:
            free = _FREE if judge.is_free(number) else 0
            self.right = epoch << 32 | free | number << 3

    def _may_class(self, route: Route, right: int, first: int) -> bool:
        """Whether the whole class may publish here; if so, the route remembers it."""
        if self._judge_class(route, right, first):
            route.right = right
            return True
        return False

    def _judge_class(self, route: Route, right: int, first: int) -> bool:
        if right & _FREE and not route.topic.startswith("$"):
            return True
        judge = self.judge
        number = right >> 3 & _NUMBER
        classes = route.classes
        if classes is not None:
            known = classes.get(right)
            if known is not None:
                return known
        judge.metrics.rights_decided += 1
        may = judge.judge(number, first >> 1 & 3, first & 1 == 1, route.topic)
        if route.place < 0:
            if may:
                self._decided()
            return may  # not remembered: the next one that comes this way is of another topic
        if classes is None:
            if may and route.right < 0:
                return True  # `route.right` alone remembers it, until another class comes
            classes = {}
            route.classes = classes
            if route.right >= 0:
                classes[route.right] = True
        elif len(classes) >= _CLASSES:
            classes.clear()  # what a route weighs stays what it is counted with
        classes[right] = may
        return may

    def _keep_refusal(self, key: bytes, refusal: Refusal) -> None:
        warm = self.warm_up()
        refused = warm.refused
        if refused is None or warm.refused_bytes > _OWN_BYTES:
            refused = {}
            warm.refused = refused
            warm.refused_bytes = 0
        refused[key] = refusal
        warm.refused_bytes += _REFUSAL + len(key)

    def _remember(self, key: bytes) -> None:
        warm = self.warm_up()
        own = warm.own
        if own is None or warm.own_bytes > _OWN_BYTES:
            warm.old = own
            own = {}
            warm.own = own
            warm.own_bytes = 0
        own[key] = True
        warm.own_bytes += 100 + len(key)
