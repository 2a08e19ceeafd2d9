"""acl.conf: access rules as Erlang terms, from text to `Rule` objects.

::

    text --tokens--> { allow , { user , "dashboard" } , subscribe , [ "$SYS/#" ] } .
         --terms---> Tuple(allow, Tuple(user, "dashboard"), subscribe, List("$SYS/#"))
         --rules---> Rule(allow=True, who=User("dashboard"), ...)

The grammar is that of EMQ's design documents, and what EMQX 5 added where it is easy::

    rule   ::= {allow | deny, all}. | {allow | deny, who [, access [, topics]]}.
    who    ::= all | "user name" | {user | username, name} | {client | clientid, name}
             | {ipaddr, "CIDR"} | {ipaddrs, ["CIDR", ...]} | {'and' | 'or', [who, ...]}
    name   ::= "text" | {re, "expression"}
    access ::= subscribe | publish | pubsub | all | {access, [{qos, N | [N]}, {retain, BOOL}]}
    topics ::= all | [topic, ...]
    topic  ::= "filter" | {eq, "text"}          %c ${clientid}, %u ${username}, ${cn} and
                                                ${client_attrs.NAME} in filters

Promise: what this module does not understand is refused with file, line and column, and never
passed over: a rule that was lost could be the one that denies.  No side effects but reading.
"""

from __future__ import annotations

import ipaddress
import os
import re
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mqttd.access.acl.linear_re import LinearRe, RegexError
from mqttd.access.acl.terms import (
    All,
    And,
    Client,
    IpAddr,
    Match,
    Network,
    Or,
    Rule,
    Topic,
    User,
    Who,
)
from mqttd.codec.reasons import MqttError
from mqttd.codec.topic import is_shared, validate_topic_filter
from mqttd.types import ACTION_PUBLISH, ACTION_SUBSCRIBE

__all__ = ["AclSyntaxError", "parse_acl", "read_acl"]


class AclSyntaxError(ValueError):
    """The rules cannot be understood; `mistakes` are ``file:line:column: ...``, one for each."""

    def __init__(self, *mistakes: str) -> None:
        super().__init__("; ".join(mistakes))
        self.mistakes = mistakes


def read_acl(path: str | os.PathLike[str]) -> list[Rule]:
    """The rules of a file.  Raises OSError, or `AclSyntaxError`."""
    return parse_acl(read_text(path), str(path))


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a file of rules.  Raises OSError, or `AclSyntaxError`."""
    try:
        return Path(path).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise AclSyntaxError(f"{path}:1:1: expected UTF-8 text: {error}") from None


def parse_acl(text: str, source: str = "acl.conf") -> list[Rule]:
    """The rules of a text, in their order; `source` names it in errors."""
    return _Parser(text, source).rules()


# -- tokens


@dataclass(slots=True, frozen=True)
class _Token:
    kind: str  # "atom", "string", "integer", "end", or the punctuation mark itself
    text: str
    start: int
    end: int

    def __str__(self) -> str:
        if self.kind == "end":
            return "end of file"
        return f'"{self.text}"' if self.kind == "string" else self.text or "''"


_SPACE: Final = re.compile(r"(?:\s|%[^\n]*)+")
_ATOM: Final = re.compile(r"[a-z][A-Za-z0-9_@]*")
_ESCAPE: Final = re.compile(r"\\(?:x\{([0-9a-fA-F]{1,6})\}|x([0-9a-fA-F]{2})|([0-7]{1,3}))")
_INTEGER: Final = re.compile(r"[0-9]+")
_MARKS: Final = ("<<", ">>", "{", "}", "[", "]", ",", ".")
_ESCAPES: Final = {
    "b": "\b",
    "d": "\x7f",
    "e": "\x1b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "s": " ",
    "t": "\t",
    "v": "\v",
}


# -- terms


@dataclass(slots=True, frozen=True)
class _Term:
    """An Erlang term with its place: ``value`` is str for atoms and strings, int, or a tuple."""

    kind: str  # "atom", "string", "integer", "tuple", "list"
    value: str | int | tuple[_Term, ...]
    start: int
    end: int

    @property
    def items(self) -> tuple[_Term, ...]:
        return self.value if isinstance(self.value, tuple) else ()

    def is_atom(self, *names: str) -> bool:
        return self.kind == "atom" and self.value in names


_WHO: Final = 'all, {user, "..."}, {client, "..."}, {ipaddr, "CIDR"}, {\'and\', [...]}'
_ACCESS: Final = "subscribe, publish, pubsub or all"
_KINDS: Final = {
    "subscribe": frozenset({ACTION_SUBSCRIBE}),
    "publish": frozenset({ACTION_PUBLISH}),
    "pubsub": frozenset({ACTION_PUBLISH, ACTION_SUBSCRIBE}),
    "all": frozenset({ACTION_PUBLISH, ACTION_SUBSCRIBE}),
}
_MAX_DEPTH: Final = 16
#: Mistakes that are told of one file.
_TOLD: Final = 20
#: Where reading goes on behind a rule that is none.
_BEGIN: Final = re.compile(r"^(?:\{|[ \t]*\{\s*(?:allow|deny)\b)", re.MULTILINE)
#: What lines of another broker's file of rules begin with.
_MOSQUITTO: Final = re.compile(r"(?:user|topic|pattern)[ \t]+[^,.\s]")
_PLACEHOLDERS: Final = {
    "${clientid}": "%c",
    "${username}": "%u",
    "${cert_common_name}": "${cn}",
}
_KNOWN: Final = re.compile(r"\$\{(?:cn|client_attrs\.[A-Za-z0-9_-]+)\}")


class _Parser:
    """Tokens, terms and rules of one text."""

    def __init__(self, text: str, source: str) -> None:
        self.text = text.removeprefix("\ufeff")
        self.source = source
        self._lines = [0, *(end.end() for end in re.finditer("\n", self.text))]
        self._behind = 0  # the rules that were read
        self._wrong = 0  # the last mistake's place
        self.token = _Token("end", "", 0, 0)

    def rules(self) -> list[Rule]:
        """All of them; raises `AclSyntaxError` with every mistake that is found."""
        rules: list[Rule] = []
        mistakes: list[str] = []
        while True:
            try:
                term = self._whole()
            except AclSyntaxError as error:
                mistakes.append(str(error))
                begin = _BEGIN.search(self.text, self._line_behind(self._wrong))
                self._behind = len(self.text) if begin is None else begin.start()
                continue
            if term is None:
                break
            try:
                rules.append(self._rule(term, self._line(term.start)))
            except AclSyntaxError as error:
                mistakes.append(str(error))
        if len(mistakes) > _TOLD:
            mistakes[_TOLD:] = [f"{self.source}: {len(mistakes) - _TOLD} more mistakes"]
        if mistakes:
            raise AclSyntaxError(*mistakes)
        return rules

    def _whole(self) -> _Term | None:
        """The next rule with its dot, as a term; None at the end."""
        self.token = self._next(self._behind)
        if self.token.kind == "end":
            return None
        if _MOSQUITTO.match(self.text, self.token.start) is not None:
            end = self._line_behind(self.token.start)
            raise self._error(
                self.token.start,
                self.text[self.token.start : end],
                "a rule like {allow, all}. (a file of mosquitto's: `mqttd-ctl import"
                " mosquitto.conf` translates it)",
            )
        term = self._term(0)
        if self.token.kind != "." and self._line(self.token.start) > self._line(term.end):
            # Said of the rule that lacks it, not of the next one.
            found = "end of file" if self.token.kind == "end" else "end of line"
            raise self._error(term.end, found, "'.' after the rule")
        if self.token.kind != ".":
            raise self._error(self.token.start, str(self.token), "'.' after the rule")
        self._behind = self.token.end
        return term

    # tokens

    def _next(self, pos: int) -> _Token:
        text = self.text
        space = _SPACE.match(text, pos)
        if space is not None:
            pos = space.end()
        if pos == len(text):
            return _Token("end", "", pos, pos)
        if text[pos] in "\"'":
            return self._quoted(pos)
        for kind, pattern in (("atom", _ATOM), ("integer", _INTEGER)):
            found = pattern.match(text, pos)
            if found is not None:
                return _Token(kind, found.group(), pos, found.end())
        for mark in _MARKS:
            if text.startswith(mark, pos):
                return _Token(mark, mark, pos, pos + len(mark))
        expected = "a rule like {allow, all}."
        if text[pos] == "#":
            expected += " (a comment begins with %)"
        raise self._error(pos, text[pos], expected)

    def _quoted(self, start: int) -> _Token:
        text, quote = self.text, self.text[start]
        kind = "string" if quote == '"' else "atom"
        parts: list[str] = []
        pos = start + 1
        while pos < len(text):
            char = text[pos]
            if char == quote:
                return _Token(kind, "".join(parts), start, pos + 1)
            if char == "\n":
                break
            if char == "\\":
                char, pos = self._escape(pos)
                parts.append(char)
                continue
            parts.append(char)
            pos += 1
        raise self._error(start, "text without an end", f"a closing {quote} in the same line")

    def _escape(self, pos: int) -> tuple[str, int]:
        """The character that the escape at `pos` stands for, and the position after it."""
        text = self.text
        found = _ESCAPE.match(text, pos)
        if found is not None:
            digits, base = found.group(1) or found.group(2), 16
            if digits is None:
                digits, base = found.group(3), 8
            code = int(digits, base)
            if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF or code == 0:
                raise self._error(pos, found.group(), "the code of a character")
            return chr(code), found.end()
        char = text[pos + 1 : pos + 2]
        if not char or char in "\nx^":
            raise self._error(pos, f"\\{char}".strip(), r"an escape like \" \\ \n \x{20}")
        return _ESCAPES.get(char, char), pos + 2

    def _take(self, kind: str, expected: str) -> _Token:
        token = self.token
        if token.kind != kind:
            raise self._error(token.start, str(token), expected)
        self.token = self._next(token.end)
        return token

    # terms

    def _term(self, depth: int) -> _Term:
        token = self.token
        if depth > _MAX_DEPTH:
            raise self._error(token.start, str(token), f"at most {_MAX_DEPTH} nested terms")
        if token.kind in ("atom", "string", "integer"):
            self.token = self._next(token.end)
            value: str | int = int(token.text[:20]) if token.kind == "integer" else token.text
            return _Term(token.kind, value, token.start, token.end)
        if token.kind == "<<":
            self.token = self._next(token.end)
            string = self._take("string", 'text as in <<"...">>')
            end = self._take(">>", "'>>'").end
            return _Term("string", string.text, token.start, end)
        if token.kind == "{":
            return self._sequence("tuple", "}", depth)
        if token.kind == "[":
            return self._sequence("list", "]", depth)
        expected = "a rule like {allow, all}." if depth == 0 else "a name, a text, '{' or '['"
        raise self._error(token.start, str(token), expected)

    def _sequence(self, kind: str, close: str, depth: int) -> _Term:
        start = self.token.start
        self.token = self._next(self.token.end)
        items: list[_Term] = []
        if self.token.kind != close:
            items.append(self._term(depth + 1))
            while self.token.kind == ",":
                self.token = self._next(self.token.end)
                items.append(self._term(depth + 1))
        end = self._take(close, f"',' or '{close}'").end
        return _Term(kind, tuple(items), start, end)

    # rules

    def _rule(self, term: _Term, line: int) -> Rule:
        items = term.items
        if term.kind != "tuple" or not 2 <= len(items) <= 4:
            raise self._unexpected(term, "a rule like {allow, WHO, ACCESS, [TOPIC, ...]}")
        if not items[0].is_atom("allow", "deny"):
            raise self._unexpected(items[0], "allow or deny")
        kinds, qos, retain = _KINDS["all"], None, None
        if len(items) > 2:
            kinds, qos, retain = self._access(items[2])
        return Rule(
            allow=items[0].value == "allow",
            who=self._who(items[1]),
            kinds=kinds,
            topics=self._topics(items[3]) if len(items) > 3 else None,
            source=self.source,
            line=line,
            text=" ".join(self.text[term.start : term.end].split()),
            qos=qos,
            retain=retain,
        )

    def _who(self, term: _Term) -> Who:
        if term.is_atom("all"):
            return All()
        if term.kind == "string":
            # A bare text is a user name: that is proved, a client identifier is chosen.
            return User(str(term.value))
        if term.kind != "tuple" or len(term.items) != 2:
            raise self._unexpected(term, _WHO)
        key, value = term.items
        if key.is_atom("user", "username"):
            return self._named(value, False)
        if key.is_atom("client", "clientid"):
            return self._named(value, True)
        if key.is_atom("ipaddr"):
            return IpAddr((self._network(value),))
        if key.is_atom("ipaddrs"):
            return IpAddr(tuple(self._network(item) for item in self._list(value)))
        if key.is_atom("and", "or"):
            parts = tuple(self._who(item) for item in self._list(value))
            return And(parts) if key.value == "and" else Or(parts)
        raise self._unexpected(key, "user, client, ipaddr, ipaddrs, 'and' or 'or'")

    def _named(self, term: _Term, client: bool) -> Who:
        what = "client identifier" if client else "user name"
        if term.kind == "tuple" and len(term.items) == 2 and term.items[0].is_atom("re"):
            pattern = term.items[1]
            if pattern.kind != "string":
                raise self._unexpected(pattern, 'an expression as text, as in {re, "^dev-"}')
            try:
                regex = LinearRe(str(pattern.value))
            except RegexError as error:
                raise self._unexpected(pattern, str(error)) from None
            if regex.literal is None:
                return Match(regex, client)
            return Client(regex.literal) if client else User(regex.literal)
        if term.kind != "string":
            # {user, all} is everybody in EMQ, those with a name in its reader's mind.
            raise self._unexpected(term, f'a {what} as text ("..."); everybody is: all')
        return Client(str(term.value)) if client else User(str(term.value))

    def _network(self, term: _Term) -> Network:
        if term.kind == "string":
            try:
                # As EMQ: "10.0.0.1/8" is the network that this address is in.
                network = ipaddress.ip_network(str(term.value), strict=False)
            except ValueError:
                pass
            else:
                return _unmapped(network)
        raise self._unexpected(term, 'an address or network as text, like "10.0.0.0/8" or "::1"')

    def _access(self, term: _Term) -> tuple[frozenset[str], frozenset[int] | None, bool | None]:
        options: tuple[_Term, ...] = ()
        name = term
        if term.kind == "tuple" and len(term.items) == 2:
            name, options = term.items[0], self._list(term.items[1])
        if not name.is_atom(*_KINDS):
            raise self._unexpected(name, _ACCESS)
        qos: frozenset[int] | None = None
        retain: bool | None = None
        for option in options:
            if len(option.items) != 2:
                raise self._unexpected(option, "{qos, 0..2} or {retain, true|false|all}")
            key, value = option.items
            if key.is_atom("qos"):
                levels = value.items if value.kind == "list" else (value,)
                if not levels or any(item.value not in (0, 1, 2) for item in levels):
                    raise self._unexpected(value, "0, 1, 2 or a list of them")
                qos = frozenset(int(str(item.value)) for item in levels)
            elif key.is_atom("retain"):
                if not value.is_atom("true", "false", "all"):
                    raise self._unexpected(value, "true, false or all")
                retain = None if value.value == "all" else value.value == "true"
            else:
                raise self._unexpected(key, "qos or retain")
        if retain is not None and name.value == "subscribe":
            raise self._unexpected(name, "publish: a subscription has no retain flag")
        return _KINDS[str(name.value)], qos, retain

    def _topics(self, term: _Term) -> tuple[Topic, ...] | None:
        if term.is_atom("all"):
            return None
        if term.kind != "list":
            raise self._unexpected(term, 'a list of topics like ["a/b", "c/#"]')
        if not term.items:
            raise self._unexpected(term, "at least one topic, or all")
        return tuple(self._topic(item) for item in term.items)

    def _topic(self, term: _Term) -> Topic:
        if term.kind == "tuple" and len(term.items) == 2 and term.items[0].is_atom("eq"):
            text = term.items[1]
            if text.kind != "string" or not text.value:
                raise self._unexpected(text, 'a text, as in {eq, "#"}')
            return Topic(str(text.value), eq=True)
        if term.kind != "string":
            raise self._unexpected(term, 'a topic filter as text, or {eq, "..."}')
        text_value = str(term.value)
        for long, short in _PLACEHOLDERS.items():
            text_value = text_value.replace(long, short)
        if "${" in _KNOWN.sub("", text_value):
            raise self._unexpected(
                term, "no placeholder but ${username}, ${clientid}, ${cn}, ${client_attrs.NAME}"
            )
        try:
            validate_topic_filter(text_value)
        except MqttError as error:
            raise self._unexpected(term, f"a topic filter: {error.detail}") from None
        if is_shared(text_value):
            raise self._unexpected(term, "the real filter of a shared subscription")
        return Topic(text_value)

    def _list(self, term: _Term) -> tuple[_Term, ...]:
        if term.kind != "list" or not term.items:
            raise self._unexpected(term, "a list that is not empty, like [...]")
        return term.items

    # errors

    def _line(self, pos: int) -> int:
        return bisect_right(self._lines, pos)

    def _line_behind(self, pos: int) -> int:
        """Where the line behind that of `pos` begins."""
        line = self._line(pos)
        return self._lines[line] if line < len(self._lines) else len(self.text)

    def _unexpected(self, term: _Term, expected: str) -> AclSyntaxError:
        return self._error(term.start, self.text[term.start : term.end], expected)

    def _error(self, pos: int, found: str, expected: str) -> AclSyntaxError:
        self._wrong = pos
        line = self._line(pos)
        column = pos - self._lines[line - 1] + 1
        found = " ".join(found.split())
        if len(found) > 40:
            found = f"{found[:37]}..."
        return AclSyntaxError(f"{self.source}:{line}:{column}: found {found}, expected {expected}")


def _unmapped(network: Network) -> Network:
    """An IPv4-mapped IPv6 network as the IPv4 network it is: addresses are compared so."""
    if isinstance(network, ipaddress.IPv6Network) and network.prefixlen >= 96:
        address = network.network_address.ipv4_mapped
        if address is not None:
            return ipaddress.IPv4Network((address, network.prefixlen - 96))
    return network
