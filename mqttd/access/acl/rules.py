"""Access rules, compiled: the first rule that matches decides, at a cost flat in their number.

::

    client ──► who-index ──► tables that apply      all | user | client id | address, networks
                               │
    action ────────────────►   ├─ publish    ┬─ allow: every, eq, trie of filters
                               └─ subscribe  └─ deny:  every, eq, trie of filters
                                                  │
    topic ─────────────────────────────────────►  lowest rule number of all that match

A topic name to publish to matches a rule as a message matches a subscription.  A topic filter to
subscribe to stands for all the topics it matches, hence:

- an *allow* rule matches a filter that it **covers**: every topic of the filter is one of the
  rule's.  ``plant/#`` covers ``plant/+`` and ``plant/a/#``, not ``#``;
- a *deny* rule matches a filter that it **overlaps**: at least one topic is of both.
  ``plant/secret`` overlaps ``plant/#``;
- ``{eq, text}`` matches the very same text, no topic besides: ``{eq, "#"}`` matches ``#`` alone
  (and ``+/#``, another spelling of the same filter);
- a first level ``+`` or ``#``, on either side, has nothing to do with topics beginning with ``$``.

Placeholders take the client's own values (user name, client identifier, common name of its
certificate, attributes of its authentication).  A value with ``+``, ``#``, ``/`` or U+0000,
an empty one, or one beginning with ``$`` at the start of a topic, would make a filter say what
its author did not (CVE-2017-7650): an allow rule then matches nothing, a deny rule everything
that begins as it does.  A client without such a value has no topics of its own: neither matches.

Promise: a decision costs what the topic's levels and the matching rules cost, about 10 µs with
10,000 rules; rules that cannot match do not add to it, also where a filter's ``+`` meets thousands
of words (`_Fan`).  Lists in one scan were simpler, and 100 times dearer at 10,000 rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mqttd.access.acl.asked import Asked, Collecting, Condition, OfRealm, condition_of, fill
from mqttd.access.acl.classes import Classes
from mqttd.access.acl.conf import (
    parse_acl,
    read_text,
)
from mqttd.access.acl.terms import (
    And,
    Client,
    IpAddr,
    Network,
    Or,
    Rule,
    User,
    Who,
)
from mqttd.access.acl.topics import Side, Table
from mqttd.access.acl.who import Address, is_anywhere, parse_address
from mqttd.types import Action, ClientInfo, Decision, Verdict

__all__ = ["AclRules"]

#: Realms of a client that are kept.
_REALMS: Final = 8
#: How many addresses' networks are remembered; past it the memory starts anew.
_REMEMBERED: Final = 4096

_NO_RULE: Final = Decision(Verdict.IGNORE, "no rule matched", "acl")


class AclRules:
    """A list of rules, ready to decide.

    ``hits`` counts the decisions of each rule, by its place in ``rules``: what the broker remembers
    is decided once, for a client or for all of its class.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules: tuple[Rule, ...] = tuple(rules)
        self.hits: list[int] = [0] * len(self.rules)
        #: what they were made of, and its name; empty where that was no text
        self.text: str = ""
        self.source: str = ""
        #: True if any rule looks at QoS or retain
        self.depends_on_qos_retain: bool = any(
            rule.qos is not None or rule.retain is not None for rule in self.rules
        )
        self._decisions: list[Decision] = []
        self._conditions: list[Condition | None] = [condition_of(rule) for rule in self.rules]
        self._everybody: Table = Table()
        self._users: dict[str, Table] = {}
        self._clients: dict[str, Table] = {}
        self._networks: _Networks | None = None
        #: clients that none of these rules tells apart
        self.classes: Classes = Classes([rule.allow for rule in self.rules], self._conditions)
        denying: set[Table] = set()
        for number, rule in enumerate(self.rules):
            verdict = Verdict.ALLOW if rule.allow else Verdict.DENY
            self._decisions.append(Decision(verdict, str(rule), "acl"))
            for table in self._tables(rule.who):
                table.add(number, rule, self._conditions[number])
                if not rule.allow:
                    denying.add(table)
        for table in denying:
            table.spread()

    @classmethod
    def from_text(cls, text: str, source: str = "acl.conf") -> AclRules:
        """Rules from text; raises `AclSyntaxError`."""
        made = cls(parse_acl(text, source))
        made.text = text
        made.source = source
        return made

    @classmethod
    def from_file(cls, path: str) -> AclRules:
        """Rules from a file; raises OSError or `AclSyntaxError`."""
        return cls.from_text(read_text(path), path)

    def decide(self, client: ClientInfo, action: Action, topic: str) -> Decision:
        """The decision of the first rule that matches; IGNORE where none does.

        `topic` is a topic name for publish, a topic filter for subscribe.  The topic decides
        as it is: the caller has checked its syntax.
        """
        found = self.first(client, action, topic)
        if found < 0:
            return _NO_RULE
        self.hits[found] += 1
        return self._decisions[found]

    def look(self, client: ClientInfo, action: Action, topic: str) -> Decision:
        """As `decide`, without counting it."""
        found = self.first(client, action, topic)
        return self._decisions[found] if found >= 0 else _NO_RULE

    def first(self, client: ClientInfo, action: Action, topic: str) -> int:
        """The number of the first rule that matches, or -1."""
        publish = action.kind == "publish"
        asked = Asked(self._conditions, client, publish, action.qos, action.retain, topic)
        for table in self._applying(client):
            side = table.publish if publish else table.subscribe
            side.search(asked)
        return asked.best if asked.best < len(self.rules) else -1

    def class_of(self, client: ClientInfo) -> int:
        """The number of its class in `classes`; -1 if `client` is to be asked for by itself."""
        if is_anywhere(client):
            return -1
        sides: list[Side] = []
        for table in self._applying(client):
            if table.publish.filled:
                sides.append(table.publish)
        return self.classes.number(sides, client)

    def realms(self, client: ClientInfo, publish: bool) -> list[tuple[str, int]]:
        """Beginnings of topics below all of which `client` may publish, and the rules that say so.

        Whatever QoS and RETAIN are.  Else, of filters that it may subscribe to; there "" stands for
        all that do not begin with ``$``.  Each ends with its last ``/``; some may be missing.
        """
        found: list[tuple[str, int]] = []
        if is_anywhere(client):
            return found
        sides: list[Side] = []
        wanted: list[str] = [] if publish else [""]
        for table in self._applying(client):
            side = table.publish if publish else table.subscribe
            if side.filled:
                sides.append(side)
                wanted += side.realms
        for beginning in wanted:
            realm = fill(beginning, client) if beginning else ""
            if realm is None or (beginning and not realm):
                continue
            asked = OfRealm(self._conditions, client, publish, realm)
            for side in sides:
                side.over(asked)
            if asked.best < len(self.rules) and self.rules[asked.best].allow:
                found.append((realm, asked.best))
                if not realm:
                    return found
        return found[:_REALMS]

    def leaves_free(self, client: ClientInfo) -> bool:
        """Whether no rule keeps `client` from subscribing to any filter, but below ``$``.

        Then what the rules do not allow is for whoever is asked after them.
        """
        if is_anywhere(client):
            return False
        asked = OfRealm(self._conditions, client, False, "")
        for table in self._applying(client):
            table.subscribe.over(asked)
        return asked.best == len(self.rules) or self.rules[asked.best].allow

    def covering(self, who: Who, kind: str, topic: str | None, exact: bool) -> list[int]:
        """The rules that cover `topic` (None: all topics) and may be about all of `who`, rising.

        With `exact`, also those with ``{eq, topic}``.  A placeholder in `topic` is covered by the
        same placeholder.  For reports: the conditions of the rules and whom exactly they are
        about is for the caller to see.
        """
        publish = kind == "publish"
        own = ClientInfo("%c", "%u", "", 0, "", 5, cert_common_name="${cn}")
        asked = Collecting(self._conditions, own, publish, topic if topic is not None else "\0")
        if publish and topic is not None:
            asked.wild = "+" in topic or "#" in topic
        for table in self._around(who):
            side = table.publish if publish else table.subscribe
            if topic is None:
                asked.take(side.every)
            else:
                side.covering(asked, exact)
        return sorted(asked.numbers)

    def _around(self, who: Who) -> list[Table]:
        """The tables in which a rule about all of `who` can be."""
        tables = [self._everybody]
        match who:
            case User(name) if name in self._users:
                tables.append(self._users[name])
            case Client(client_id) if client_id in self._clients:
                tables.append(self._clients[client_id])
            case IpAddr(networks):
                if self._networks is not None:
                    tables += self._networks.containing(networks[0].network_address)
            case And(parts):
                tables += [table for part in parts for table in self._around(part)]
            case Or(parts):
                tables += self._around(parts[0])
        return tables

    def _applying(self, client: ClientInfo) -> list[Table]:
        tables = [self._everybody]
        username = client.username
        if username is not None:
            table = self._users.get(username)
            if table is not None:
                tables.append(table)
        table = self._clients.get(client.client_id)
        if table is not None:
            tables.append(table)
        networks = self._networks
        if networks is not None:
            tables += networks.all() if is_anywhere(client) else networks.of(client.peerhost)
        return tables

    def _tables(self, who: Who) -> list[Table]:
        """The tables in which a rule for `who` must be, so that all it is about find it.

        For the conditions of ``and`` one is enough: the narrowest; the search checks them all.
        """
        match who:
            case User(name):
                return [self._users.setdefault(name, Table())]
            case Client(client_id):
                return [self._clients.setdefault(client_id, Table())]
            case IpAddr(networks):
                if self._networks is None:
                    self._networks = _Networks()
                return [self._networks.table(network) for network in networks]
            case Or(parts):
                return [table for part in parts for table in self._tables(part)]
            case And(parts):
                return self._tables(min(parts, key=_breadth))
        return [self._everybody]


def _breadth(who: Who) -> int:
    """How many clients a condition may be true of, roughly: for choosing an index."""
    match who:
        case User() | Client():
            return 0
        case IpAddr():
            return 1
        case And(parts):
            return min(_breadth(part) for part in parts)
        case Or(parts):
            return max(_breadth(part) for part in parts)
    return 2


class _Networks:
    """Tables by network: one dict per version and prefix length."""

    __slots__ = ("_by_prefix", "_known")

    def __init__(self) -> None:
        self._by_prefix: dict[tuple[int, int], dict[int, Table]] = {}
        self._known: dict[str, list[Table]] = {}

    def table(self, network: Network) -> Table:
        tables = self._by_prefix.setdefault((network.version, network.prefixlen), {})
        return tables.setdefault(int(network.network_address) >> _host_bits(network), Table())

    def of(self, peerhost: str) -> list[Table]:
        """The tables of a client's address; none if it has none."""
        found = self._known.get(peerhost)
        if found is None:
            address = parse_address(peerhost)
            found = [] if address is None else self.containing(address)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[peerhost] = found
        return found

    def containing(self, address: Address) -> list[Table]:
        found: list[Table] = []
        number = int(address)
        for (version, prefix), tables in self._by_prefix.items():
            if version == address.version:
                table = tables.get(number >> (address.max_prefixlen - prefix))
                if table is not None:
                    found.append(table)
        return found

    def all(self) -> list[Table]:
        return [table for tables in self._by_prefix.values() for table in tables.values()]


def _host_bits(network: Network) -> int:
    return network.max_prefixlen - network.prefixlen
