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

from collections.abc import Iterable, Mapping
from typing import Final

from zope.interface import implementer

from mqttd.access.acl_conf import (
    And,
    Client,
    IpAddr,
    Network,
    Or,
    Rule,
    User,
    Who,
    parse_acl,
    read_acl,
)
from mqttd.access.acl_topics import Asked, Collecting, Table
from mqttd.access.acl_who import Address, is_anywhere, parse_address
from mqttd.interfaces import IAccessExplainer
from mqttd.types import (
    Action,
    ClientInfo,
    Decision,
    Verdict,
)

__all__ = ["AclFile", "AclRules"]

#: How many clients' tables and addresses are remembered; past it the memory starts anew.
_REMEMBERED: Final = 4096

_NO_RULE: Final = Decision(Verdict.IGNORE, "no rule matched", "acl")


class AclRules:
    """A list of rules, ready to decide.

    ``hits`` counts the decisions of each rule, by its place in ``rules``.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules: tuple[Rule, ...] = tuple(rules)
        self.hits: list[int] = [0] * len(self.rules)
        #: True if any rule looks at QoS or retain
        self.depends_on_qos_retain: bool = any(
            rule.qos is not None or rule.retain is not None for rule in self.rules
        )
        self._decisions: list[Decision] = []
        self._everybody = Table()
        self._users: dict[str, Table] = {}
        self._clients: dict[str, Table] = {}
        self._networks = _Networks()
        self._denying: set[Table] = set()
        self._tables_of: dict[tuple[str | None, str, str], tuple[Table, ...]] = {}
        for number, rule in enumerate(self.rules):
            verdict = Verdict.ALLOW if rule.allow else Verdict.DENY
            self._decisions.append(Decision(verdict, str(rule), "acl"))
            for table in self._tables(rule.who):
                table.add(number, rule)
                if not rule.allow:
                    self._denying.add(table)
        for table in self._denying:
            table.spread()

    @classmethod
    def from_text(cls, text: str, source: str = "acl.conf") -> AclRules:
        """Rules from text; raises `AclSyntaxError`."""
        return cls(parse_acl(text, source))

    @classmethod
    def from_file(cls, path: str) -> AclRules:
        """Rules from a file; raises OSError or `AclSyntaxError`."""
        return cls(read_acl(path))

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
        # No address is the name of a listener: who is not connected has neither.
        key = (client.username, client.client_id, client.peerhost or client.listener)
        tables = self._tables_of.get(key)
        if tables is None:
            tables = self._applying(client)
            if len(self._tables_of) >= _REMEMBERED:
                self._tables_of.clear()
            self._tables_of[key] = tables
        asked = Asked(self.rules, client, action, topic)
        if action.kind == "publish":
            for table in tables:
                table.publish.search(asked)
        else:
            for table in tables:
                table.subscribe.search(asked)
        return asked.best if asked.best < len(self.rules) else -1

    def covering(self, who: Who, kind: str, topic: str | None, exact: bool) -> list[int]:
        """The rules that cover `topic` (None: all topics) and may be about all of `who`, rising.

        With `exact`, also those with ``{eq, topic}``.  A placeholder in `topic` is covered by the
        same placeholder.  For reports: the conditions of the rules and whom exactly they are
        about is for the caller to see.
        """
        action = Action("publish" if kind == "publish" else "subscribe")
        own = ClientInfo("%c", "%u", "", 0, "", 5, cert_common_name="${cn}")
        asked = Collecting(self.rules, own, action, topic if topic is not None else "\0")
        if kind == "publish" and topic is not None:
            asked.wild = "+" in topic or "#" in topic
        for table in self._around(who):
            side = table.publish if kind == "publish" else table.subscribe
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
                tables += self._networks.containing(networks[0].network_address)
            case And(parts):
                tables += [table for part in parts for table in self._around(part)]
            case Or(parts):
                tables += self._around(parts[0])
        return tables

    def _applying(self, client: ClientInfo) -> tuple[Table, ...]:
        tables = [self._everybody]
        if client.username is not None and client.username in self._users:
            tables.append(self._users[client.username])
        if client.client_id in self._clients:
            tables.append(self._clients[client.client_id])
        address = parse_address(client.peerhost)
        if address is not None:
            tables.extend(self._networks.containing(address))
        elif is_anywhere(client):
            tables.extend(self._networks.all())
        return tuple(tables)

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
                return [self._networks.table(network) for network in networks]
            case Or(parts):
                return [table for part in parts for table in self._tables(part)]
            case And(parts):
                return self._tables(min(parts, key=_breadth))
        return [self._everybody]


@implementer(IAccessExplainer)
class AclFile:
    """The rules of a file as an access-control module; option ``file``: its path."""

    def __init__(self) -> None:
        self.path = ""
        self.rules = AclRules(())
        self._ready: AclRules | Exception | None = None

    def init(self, opts: Mapping[str, object]) -> None:
        """Read the file; raises OSError or `AclSyntaxError`, which name it."""
        self.path = str(opts["file"])
        self.reload_acl()

    def prepare(self) -> None:
        """Do the slow part of the next `reload_acl`, in any thread."""
        try:
            self._ready = AclRules.from_file(self.path)
        except Exception as error:
            self._ready = error

    def reload_acl(self) -> None:
        """Read the file again; on any error the rules there were stay."""
        if self._ready is None:
            self.prepare()
        ready, self._ready = self._ready, None
        if isinstance(ready, Exception):
            raise ready
        assert ready is not None
        self.rules = ready

    def check_acl(self, client: ClientInfo, action: Action, topic: str) -> Verdict:
        """The verdict of the first rule that matches, IGNORE where none does."""
        return self.rules.decide(client, action, topic).verdict

    def decide(self, client: ClientInfo, action: Action, topic: str) -> Decision:
        """As `check_acl`, with the rule."""
        return self.rules.decide(client, action, topic)

    @property
    def depends_on_qos_retain(self) -> bool:
        """True if any rule looks at QoS or retain."""
        return self.rules.depends_on_qos_retain

    def description(self) -> str:
        """The file and how many rules it holds."""
        return f"acl: {len(self.rules.rules)} rules in {self.path}"


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

    __slots__ = ("_by_prefix",)

    def __init__(self) -> None:
        self._by_prefix: dict[tuple[int, int], dict[int, Table]] = {}

    def table(self, network: Network) -> Table:
        tables = self._by_prefix.setdefault((network.version, network.prefixlen), {})
        return tables.setdefault(int(network.network_address) >> _host_bits(network), Table())

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
