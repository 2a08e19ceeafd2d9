"""What one connection may publish: its class of clients, and answers of its own where it has none.

    topic --> Route.right == my class?      yes: one comparison
                 | no
                 +-- the class may publish anywhere, or here?    remembered with the route
                 +-- this client may?                            remembered here, bounded

Right and route are separate questions. Clients that no rule tells apart are a class and share the
answers, which lie with the route; a client that rules name, or a topic under rules with `%c` or
`%u`, is asked about by itself. A change of rules, users or bans moves the broker's `epoch`, and all
answers are asked for again; a refusal is never kept: each is counted and told with its rule.

Promise: a first decision costs a search of the rules per class and topic, not per connection. What
is kept per connection is bounded in bytes, in two generations, so that more topics than fit cost
what does not fit, not everything.
"""

from __future__ import annotations

from typing import Final

from mqttd.codec.reasons import MalformedPacket
from mqttd.codec.topic import validate_topic_name
from mqttd.session.connection import Connection, Edge
from mqttd.session.route import Beyond, Route
from mqttd.session.session import Session
from mqttd.session.settings import Settings
from mqttd.session.state import Keeper
from mqttd.session.topics import Topics

__all__ = ["Judge", "Publisher"]

#: Bytes of names in one generation of a connection's own answers.
_OWN_BYTES: Final = 65536
#: Classes whose answers one route remembers.
_CLASSES: Final = 32


class Judge(Keeper):
    """What a publisher asks of the broker: topics and rights."""

    def __init__(self, settings: Settings, now: int, topics: Topics) -> None:
        super().__init__(settings, now)
        self.topics = topics
        #: Moves when rules, users, bans or hooks change: every answer is asked for again.
        self.epoch: int = 0
        #: A rule depends on QoS or RETAIN, so answers are kept per these flags.
        self.by_flags: bool = False
        #: Connections that keep something for the sake of speed only; see `Broker.tick`.
        self.warm: list[Publisher] = []

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


class Publisher(Connection):
    """A connection whose client may publish."""

    __slots__ = (
        "_number",
        "_old",
        "_own",
        "_own_bytes",
        "class_epoch",
        "judge",
        "known",
        "right",
        "session",
        "warm",
    )

    def __init__(self, judge: Judge, edge: Edge, fd: int, listener: str) -> None:
        super().__init__(judge, edge, fd, listener)
        self.judge = judge
        self.session: Session | None = None
        #: Who the client is (a ClientInfo), kept while it is busy.
        self.known: object | None = None
        #: Stands on the list of those that have something to give back.
        self.warm: bool = False
        #: What `Route.right` is compared with: the class of this client, unique to the epoch, with
        #: room for three bits of flags; -1 for a client of its own.
        self.right: int = -1
        self._number: int = -1
        self.class_epoch: int = -1
        #: Keys (with flags) that this client may publish to, and those it might before.
        self._own: dict[bytes, bool] | None = None
        self._old: dict[bytes, bool] | None = None
        self._own_bytes: int = 0

    def warm_up(self) -> None:
        """Something is kept that is given back when the client has been quiet for a while."""
        if not self.warm:
            self.warm = True
            self.judge.warm.append(self)

    def cool(self) -> None:
        """The client is quiet: keep only what cannot be found out again."""
        self.warm = False
        self.known = None
        self.forget_rights()
        if self.session is not None:
            self.session.rest()

    def forget_rights(self) -> None:
        """Ask for everything again: the client may be another one by now."""
        self.class_epoch = -1
        self.right = -1
        self._number = -1
        self._own = None
        self._old = None
        self._own_bytes = 0

    def topics(self, limit: int) -> list[str]:
        """Topics in use that this client, or all of its class, was found to be allowed."""
        found: list[str] = []
        own = self._own
        for key, route in self.judge.topics.table.items():
            if len(found) >= limit:
                break
            if route.epoch == self.judge.epoch and (
                (self.right >= 0 and route.right & ~7 == self.right)
                or (own is not None and any(bytes((flags,)) + key in own for flags in range(8)))
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
        return self.judge.topics.enter(key, topic)

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
        if self.class_epoch != epoch:
            self._classify(epoch)
        if route.epoch != epoch:
            route.epoch = epoch
            route.right = -2
            route.classes = None
        flags = first & 7 if judge.by_flags else 0
        if self.right >= 0:
            right = self.right | flags
            if route.right == right:
                return True
            if self._may_class(route, right, first):
                route.right = right
                return True
        # The flags always stand first: else a topic could pass for another one with flags.
        key = bytes((flags,)) + route.key
        own = self._own
        if own is not None and key in own:
            return True
        old = self._old
        if old is None or key not in old:
            judge.metrics.rights_decided += 1
            if not judge.may_publish(self, route.topic, first >> 1 & 3, first & 1 == 1):
                return False
            if not judge.settings.cache_grants:
                return True
        self._remember(key)
        return True

    def _classify(self, epoch: int) -> None:
        self.forget_rights()
        self.class_epoch = epoch
        judge = self.judge
        if judge.settings.cache_grants:
            number = judge.class_of(self)
            self._number = number
            self.right = -1 if number < 0 else epoch << 24 | number << 3
        self.warm_up()

    def _may_class(self, route: Route, right: int, first: int) -> bool:
        """Whether the whole class may publish here."""
        judge = self.judge
        if judge.is_free(self._number) and not route.topic.startswith("$"):
            return True
        classes = route.classes
        if classes is not None:
            known = classes.get(right)
            if known is not None:
                return known
        judge.metrics.rights_decided += 1
        may = judge.judge(self._number, first >> 1 & 3, first & 1 == 1, route.topic)
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

    def _remember(self, key: bytes) -> None:
        own = self._own
        if own is None or self._own_bytes > _OWN_BYTES:
            self._old = own
            own = {}
            self._own = own
            self._own_bytes = 0
        own[key] = True
        self._own_bytes += 100 + len(key)
        self.warm_up()
