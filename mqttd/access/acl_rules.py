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

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Final

from zope.interface import implementer

from mqttd.access.acl_conf import (
    All,
    And,
    Client,
    IpAddr,
    Match,
    Network,
    Or,
    Rule,
    User,
    Who,
    parse_acl,
    read_acl,
)
from mqttd.access.anonymous import is_unix_peer
from mqttd.interfaces import IAccessExplainer
from mqttd.types import (
    ACTION_PUBLISH,
    ACTION_SUBSCRIBE,
    Action,
    ClientInfo,
    Decision,
    Verdict,
)

__all__ = ["AclFile", "AclRules", "Address", "fill", "is_about", "own_value", "parse_address"]

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

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
        self._everybody = _Table()
        self._users: dict[str, _Table] = {}
        self._clients: dict[str, _Table] = {}
        self._networks = _Networks()
        self._denying: set[_Table] = set()
        self._tables_of: dict[tuple[str | None, str, str], tuple[_Table, ...]] = {}
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
        key = (client.username, client.client_id, client.peerhost)
        tables = self._tables_of.get(key)
        if tables is None:
            tables = self._applying(client)
            if len(self._tables_of) >= _REMEMBERED:
                self._tables_of.clear()
            self._tables_of[key] = tables
        asked = _Asked(self.rules, client, action, topic)
        if action.kind == "publish":
            for table in tables:
                table.publish.search(asked)
        else:
            for table in tables:
                table.subscribe.search(asked)
        return asked.best if asked.best < len(self.rules) else -1

    def _applying(self, client: ClientInfo) -> tuple[_Table, ...]:
        tables = [self._everybody]
        if client.username is not None and client.username in self._users:
            tables.append(self._users[client.username])
        if client.client_id in self._clients:
            tables.append(self._clients[client.client_id])
        address = parse_address(client.peerhost)
        if address is not None:
            tables.extend(self._networks.containing(address))
        return tuple(tables)

    def _tables(self, who: Who) -> list[_Table]:
        """The tables in which a rule for `who` must be, so that all it is about find it.

        For the conditions of ``and`` one is enough: the narrowest; the search checks them all.
        """
        match who:
            case User(name):
                return [self._users.setdefault(name, _Table())]
            case Client(client_id):
                return [self._clients.setdefault(client_id, _Table())]
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

    def init(self, opts: Mapping[str, object]) -> None:
        """Read the file; raises OSError or `AclSyntaxError`, which name it."""
        self.path = str(opts["file"])
        self.reload_acl()

    def reload_acl(self) -> None:
        """Read the file again; on any error the rules there were stay."""
        self.rules = AclRules.from_file(self.path)

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


# -- who


def parse_address(peerhost: str) -> Address | None:
    """The address that ``{ipaddr, ...}`` rules see; None if it is none.

    IPv4-mapped IPv6 is the IPv4 address; a Unix socket peer is on this machine: 127.0.0.1.
    """
    if is_unix_peer(peerhost):
        return ipaddress.IPv4Address("127.0.0.1")
    try:
        address = ipaddress.ip_address(peerhost)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.scope_id is not None:
            return ipaddress.IPv6Address(int(address))
    return address


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


def is_about(client: ClientInfo, address: Address | None, who: Who) -> bool:
    """True if `who` is true of the client."""
    match who:
        case All():
            return True
        case User(name):
            return client.username == name
        case Client(client_id):
            return client.client_id == client_id
        case Match(regex, of_client):
            text = client.client_id if of_client else client.username
            return text is not None and regex.search(text)
        case IpAddr(networks):
            return address is not None and any(address in network for network in networks)
        case And(parts):
            return all(is_about(client, address, part) for part in parts)
        case Or(parts):
            return any(is_about(client, address, part) for part in parts)


class _Networks:
    """Tables by network: one dict per version and prefix length."""

    __slots__ = ("_by_prefix",)

    def __init__(self) -> None:
        self._by_prefix: dict[tuple[int, int], dict[int, _Table]] = {}

    def table(self, network: Network) -> _Table:
        tables = self._by_prefix.setdefault((network.version, network.prefixlen), {})
        return tables.setdefault(int(network.network_address) >> _host_bits(network), _Table())

    def containing(self, address: Address) -> list[_Table]:
        found: list[_Table] = []
        number = int(address)
        for (version, prefix), tables in self._by_prefix.items():
            if version == address.version:
                table = tables.get(number >> (address.max_prefixlen - prefix))
                if table is not None:
                    found.append(table)
        return found


def _host_bits(network: Network) -> int:
    return network.max_prefixlen - network.prefixlen


# -- topics


class _Asked:
    """One question on its way through the tables; ``best`` is the lowest rule number so far."""

    __slots__ = ("action", "best", "client", "rules", "topic", "wild", "words")

    def __init__(
        self, rules: tuple[Rule, ...], client: ClientInfo, action: Action, topic: str
    ) -> None:
        self.rules = rules
        self.client = client
        self.action = action
        self.topic = topic
        self.words = topic.split("/")
        self.best = len(rules)
        self.wild = action.kind == "subscribe" and ("+" in topic or "#" in topic)
        if self.wild and topic in ("#", "+/#"):
            # Two spellings of the same topics: {eq, "#"} finds one, "+/#" in a rule the other.
            self.topic = "#"
            self.words = ["+", "#"]

    def take(self, numbers: list[int]) -> None:
        """Take the first of these rules that holds, if it comes before the best so far."""
        for number in numbers:
            if number >= self.best:
                return
            if self._holds(self.rules[number]):
                self.best = number
                return

    def _holds(self, rule: Rule) -> bool:
        """The conditions that the index does not cover: QoS, retain, ``and``."""
        if rule.qos is not None and self.action.qos not in rule.qos:
            return False
        if (
            rule.retain is not None
            and self.action.kind == "publish"
            and self.action.retain is not rule.retain
        ):
            return False
        if isinstance(rule.who, And | Or | Match):
            return is_about(self.client, parse_address(self.client.peerhost), rule.who)
        return True

    def own(self, template: tuple[str, ...], first: bool) -> str | None:
        """A level with the client's values put in; None if it has none, `_UNSAFE` if unsafe."""
        parts: list[str] = []
        for part in template:
            if _is_placeholder(part):
                value = own_value(self.client, part)
                if value is None:
                    return None
                if not value or "+" in value or "#" in value or "/" in value or "\0" in value:
                    return _UNSAFE
                parts.append(value)
            else:
                parts.append(part)
        if first and parts[0].startswith("$") and _is_placeholder(template[0]):
            return _UNSAFE
        return "".join(parts)


def own_value(client: ClientInfo, placeholder: str) -> str | None:
    """What a placeholder of a rule's topic stands for; None if the client has no such value."""
    if placeholder == "%u":
        return client.username
    if placeholder == "%c":
        return client.client_id
    if placeholder == "${cn}":
        return client.cert_common_name
    value = (client.attributes or {}).get(placeholder[len("${client_attrs.") : -1])
    return value if isinstance(value, str) else None


def fill(text: str, client: ClientInfo) -> str | None:
    """A rule's topic with the client's values put in.

    None if the client has no such value, "" if one must not stand in a topic.
    """
    asked = _Asked((), client, Action(ACTION_PUBLISH), "")
    words: list[str] = []
    for word in text.split("/"):
        template = tuple(part for part in _TEMPLATE.split(word) if part)
        if any(_is_placeholder(part) for part in template):
            own = asked.own(template, not words)
            if own is None or own == _UNSAFE:
                return None if own is None else ""
            word = own
        words.append(word)
    return "/".join(words)


def _is_placeholder(part: str) -> bool:
    return part in ("%u", "%c") or part.startswith("${")


_TEMPLATE: Final = re.compile(r"(%u|%c|\$\{[^}]*\})")

#: What `_Asked.own` answers for a value that must not stand in a topic; no level reads so.
_UNSAFE: Final = "#"


class _Table:
    """The rules that apply to the same clients."""

    __slots__ = ("publish", "subscribe")

    def __init__(self) -> None:
        self.publish = _Side()
        self.subscribe = _Side()

    def add(self, number: int, rule: Rule) -> None:
        if ACTION_PUBLISH in rule.kinds:
            self.publish.add(number, rule)
        if ACTION_SUBSCRIBE in rule.kinds:
            self.subscribe.add(number, rule)

    def spread(self) -> None:
        """All rules are in: index what a filter with ``+`` may have to search."""
        if self.subscribe.deny is not None:
            self.subscribe.deny.spread()


class _Side:
    """The rules of a table that are about publishing, or about subscribing.

    Numbers are added in rising order, so that every list of them is sorted.
    """

    __slots__ = ("allow", "deny", "every", "exact")

    def __init__(self) -> None:
        self.every: list[int] = []
        self.exact: dict[str, list[int]] | None = None
        self.allow: _Node | None = None
        self.deny: _Node | None = None

    def add(self, number: int, rule: Rule) -> None:
        if rule.topics is None:
            self.every.append(number)
            return
        for topic in rule.topics:
            if topic.eq:
                if self.exact is None:
                    self.exact = {}
                text = "#" if topic.text == "+/#" else topic.text
                self.exact.setdefault(text, []).append(number)
            elif rule.allow:
                if self.allow is None:
                    self.allow = _Node(number)
                self.allow.add(number, topic.text)
            else:
                if self.deny is None:
                    self.deny = _Node(number)
                self.deny.add(number, topic.text)

    def search(self, asked: _Asked) -> None:
        if self.every:
            asked.take(self.every)
        if self.exact is not None:
            numbers = self.exact.get(asked.topic)
            if numbers is not None:
                asked.take(numbers)
        if self.allow is not None:
            _covering(self.allow, asked, 0)
        if self.deny is not None:
            _overlapping(self.deny, asked, 0)


class _Node:
    """One level of the filters of a side.

    ``ends`` are the rules whose filter ends here, ``hashes`` those that go on with ``#``;
    ``templates`` are levels with placeholders.  ``lowest`` is the lowest number from here on:
    a search turns back where it cannot improve.  The order of ``children`` is that of their
    ``lowest``, as rules are added in their order.
    """

    __slots__ = ("children", "ends", "fan", "hashes", "lowest", "plus", "templates")

    def __init__(self, lowest: int) -> None:
        self.lowest = lowest
        self.children: dict[str, _Node] = {}
        self.plus: _Node | None = None
        self.templates: dict[tuple[str, ...], _Node] | None = None
        self.ends: list[int] = []
        self.hashes: list[int] = []
        self.fan: _Fan | None = None

    def below(self) -> list[_Node]:
        """The levels below, whatever leads to them."""
        found = list(self.children.values())
        if self.plus is not None:
            found.append(self.plus)
        if self.templates is not None:
            found += self.templates.values()
        return found

    def spread(self) -> None:
        """Give each level with many words below, from here on, its `_Fan`."""
        if len(self.children) >= _MANY:
            self.fan = _Fan(self)
        for node in self.below():
            node.spread()

    def add(self, number: int, topic_filter: str) -> None:
        node = self
        for word in topic_filter.split("/"):
            if word == "#":
                node.hashes.append(number)
                return
            node = node._child(number, word)
        node.ends.append(number)

    def _child(self, number: int, word: str) -> _Node:
        if word == "+":
            if self.plus is None:
                self.plus = _Node(number)
            return self.plus
        if "%u" in word or "%c" in word or "${" in word:
            if self.templates is None:
                self.templates = {}
            template = tuple(part for part in _TEMPLATE.split(word) if part)
            return self.templates.setdefault(template, _Node(number))
        child = self.children.get(word)
        if child is None:
            child = self.children[word] = _Node(number)
        return child


class _Fan:
    """Which of a level's many children can hold what a filter asks for behind its ``+``.

    ::

        plant/1/secret  plant/2/secret ... plant/9999/secret     asked: plant/+/open     none

    Offsets count from the children: what follows directly has offset 1.  A child is listed under
    each word at each offset below it; under ``open`` at an offset where anything may stand
    (``+``, a placeholder, or ``#`` before it); under ``ends`` at an offset where a rule may end.
    """

    __slots__ = ("ends", "most", "open", "words")

    def __init__(self, node: _Node) -> None:
        reaches = {name: _Reach(child) for name, child in node.children.items()}
        #: the largest offset that occurs; beyond it only ``#`` reaches
        self.most: int = max(reach.most for reach in reaches.values()) + 1
        self.words: dict[tuple[int, str], list[tuple[str, _Node]]] = {}
        self.open: list[list[tuple[str, _Node]]] = [[] for _ in range(self.most + 1)]
        self.ends: list[list[tuple[str, _Node]]] = [[] for _ in range(self.most + 1)]
        for name, child in node.children.items():
            reach = reaches[name]
            for key in reach.words:
                self.words.setdefault(key, []).append((name, child))
            for offset in range(self.most + 1):
                if offset in reach.wild or offset > reach.hash:
                    self.open[offset].append((name, child))
                if offset in reach.ends or offset >= reach.hash:
                    self.ends[offset].append((name, child))

    def may_match(self, words: list[str], i: int) -> tuple[list[tuple[str, _Node]], ...] | None:
        """The children that `words` from `i` on (a ``+``) can lead to; None for all."""
        best: tuple[list[tuple[str, _Node]], ...] | None = None
        fewest = -1
        for offset in range(1, len(words) - i):
            word = words[i + offset]
            if word == "+":
                continue
            if word == "#":
                return best
            found = self.words.get((offset, word), [])
            anything = self.open[offset if offset < self.most else self.most]
            count = len(found) + len(anything)
            if fewest < 0 or count < fewest:
                fewest, best = count, (found, anything)
        last = len(words) - i - 1
        ends = self.ends[last if last < self.most else self.most]
        return (ends,) if fewest < 0 or len(ends) < fewest else best


class _Reach:
    """What there is at and below a level, by offset; ``hash`` is the first ``#``, or far away."""

    __slots__ = ("ends", "hash", "most", "wild", "words")

    def __init__(self, node: _Node) -> None:
        self.words: set[tuple[int, str]] = set()
        self.wild: set[int] = set()
        self.ends: set[int] = set()
        self.hash: int = 1 << 30
        self.most: int = 0
        level = [node]
        while level:
            if any(each.ends for each in level):
                self.ends.add(self.most)
            if self.hash > self.most and any(each.hashes for each in level):
                self.hash = self.most
            under: list[_Node] = []
            for each in level:
                self.words.update((self.most + 1, word) for word in each.children)
                if each.plus is not None or each.templates is not None:
                    self.wild.add(self.most + 1)
                under += each.below()
            if under:
                self.most += 1
            level = under


#: Words below a level from which it has a `_Fan`.
_MANY: Final = 16


# The recursions below end with the rules' own depth, which the parser bounds: a deep topic
# does not make them deeper.


def _covering(node: _Node, asked: _Asked, i: int) -> None:
    """Take the rules below `node` that cover all topics of the asked words from `i` on."""
    if node.lowest >= asked.best:
        return
    words = asked.words
    dollar = i == 0 and words[0].startswith("$")
    if node.hashes and not dollar:
        asked.take(node.hashes)
    if i == len(words):
        if node.ends:
            asked.take(node.ends)
        return
    word = words[i]
    if asked.wild and word == "#":
        return
    if node.plus is not None and not dollar:
        _covering(node.plus, asked, i + 1)
    if asked.wild and word == "+":
        return
    child = node.children.get(word)
    if child is not None:
        _covering(child, asked, i + 1)
    if node.templates is not None:
        for template, child in node.templates.items():
            value = asked.own(template, i == 0)
            if value == word and value != _UNSAFE:
                _covering(child, asked, i + 1)


def _overlapping(node: _Node, asked: _Asked, i: int) -> None:
    """Take the rules below `node` that share a topic with the asked words from `i` on."""
    if node.lowest >= asked.best:
        return
    words = asked.words
    dollar = i == 0 and words[0].startswith("$")
    if node.hashes and not dollar:
        asked.take(node.hashes)
    if i == len(words):
        if node.ends:
            asked.take(node.ends)
        return
    word = words[i]
    if asked.wild and word == "#":
        _everything(node, asked)
        return
    any_word = asked.wild and word == "+"
    if node.plus is not None and not dollar:
        _overlapping(node.plus, asked, i + 1)
    if any_word:
        found = node.fan.may_match(words, i) if node.fan is not None else None
        for children in (node.children.items(),) if found is None else found:
            for name, child in children:
                if child.lowest >= asked.best:
                    break
                if i > 0 or not name.startswith("$"):
                    _overlapping(child, asked, i + 1)
    else:
        literal = node.children.get(word)
        if literal is not None:
            _overlapping(literal, asked, i + 1)
    if node.templates is not None:
        for template, child in node.templates.items():
            value = asked.own(template, i == 0)
            if value is None:
                continue
            if value == _UNSAFE:
                _everything(child, asked)
            elif value == word or (any_word and (i > 0 or not value.startswith("$"))):
                _overlapping(child, asked, i + 1)


def _everything(node: _Node, asked: _Asked) -> None:
    """Take all rules below `node`; never called for the first level."""
    if node.lowest >= asked.best:
        return
    asked.take(node.hashes)
    asked.take(node.ends)
    for child in node.children.values():
        if child.lowest >= asked.best:
            break
        _everything(child, asked)
    if node.plus is not None:
        _everything(node.plus, asked)
    if node.templates is not None:
        for template, child in node.templates.items():
            if asked.own(template, False) is not None:
                _everything(child, asked)
