"""Rows, documents and JSON of back ends as rules in the grammar of acl.conf.

    permission  action     topic          qos    retain
    allow       publish    dev/%c/up/#    0,1    false
      --> {allow, all, {publish, [{qos, [0, 1]}, {retain, false}]}, ["dev/%c/up/#"]}.

The columns of EMQ's older tables do as well: ``allow`` (0, 1), ``access`` (1 subscribe, 2 publish,
3 both), ``ipaddr``, ``username``, ``clientid``.

Promise: a topic is one topic: it is quoted, whatever is in it, and checked, so nothing in it ends
the rule or starts another. ``${username}`` and its like are put in by the rule engine, which never
lets a ``+``, ``#`` or ``/`` of a client widen them. What is not understood raises ValueError: the
client is refused, for the rule could be the one that denies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from mqttd.codec.reasons import MqttError
from mqttd.codec.topic import is_shared, validate_topic_filter

__all__ = ["MOST_RULES", "acl_text", "is_superuser"]

#: Rules one client may have.
MOST_RULES: Final = 1000

_ACTIONS: Final = {
    "publish": "publish",
    "pub": "publish",
    "2": "publish",
    "subscribe": "subscribe",
    "sub": "subscribe",
    "1": "subscribe",
    "all": "all",
    "pubsub": "all",
    "3": "all",
}
_PERMISSIONS: Final = {"allow": "allow", "1": "allow", "deny": "deny", "0": "deny"}
_RETAIN: Final = {"1": "true", "true": "true", "0": "false", "false": "false", "all": "", "": ""}
_KEYS: Final = frozenset(
    ("permission", "allow", "action", "access", "topic", "topics", "qos", "retain",
     "ipaddr", "username", "clientid")
)  # fmt: skip
_KNOWN: Final = re.compile(r"\$\{(?:username|clientid|cn|cert_common_name|client_attrs\.[\w-]+)\}")


def acl_text(rules: Iterable[Mapping[str, Any]]) -> str:
    """The rules as text for `AuthOk.acl`; ValueError says what is wrong with which."""
    made = []
    for number, rule in enumerate(rules, 1):
        if number > MOST_RULES:
            raise ValueError(f"more than {MOST_RULES} rules")
        try:
            made.append(_rule(rule))
        except ValueError as error:
            raise ValueError(f"rule {number}: {error}") from None
    return "\n".join(made)


def is_superuser(value: object) -> bool:
    """Whether a column or key says so: true, 1, "true", "t", "1"; anything else does not."""
    return value is True or _text(value).lower() in ("1", "true", "t")


def _rule(rule: Mapping[str, Any]) -> str:
    if not isinstance(rule, Mapping) or not _KEYS.issuperset(rule):
        raise ValueError(f"expected no keys but {', '.join(sorted(_KEYS))}")
    permission = _chosen(rule, ("permission", "allow"), _PERMISSIONS, None)
    action = _chosen(rule, ("action", "access"), _ACTIONS, "all")
    options = []
    if (levels := _levels(rule.get("qos"))) is not None:
        options.append(f"{{qos, [{', '.join(levels)}]}}")
    retain = _RETAIN.get(_text(rule.get("retain")).lower())
    if retain is None:
        raise ValueError(f"retain = {_shown(rule['retain'])}: expected true, false, all or nothing")
    if retain:
        # A subscription has no retain flag: a rule for both is one for publishing there.
        action = "publish" if action == "all" else action
        if action == "subscribe":
            raise ValueError("retain: expected nothing for subscribe")
        options.append(f"{{retain, {retain}}}")
    access = f"{{{action}, [{', '.join(options)}]}}" if options else action
    return f"{{{permission}, {_who(rule)}, {access}, [{', '.join(_topics(rule))}]}}."


def _chosen(
    rule: Mapping[str, Any], keys: tuple[str, ...], known: Mapping[str, str], default: str | None
) -> str:
    for key in keys:
        if rule.get(key) is not None:
            found = known.get(_text(rule[key]).lower())
            if found is None:
                raise ValueError(f"{key} = {_shown(rule[key])}: expected one of {', '.join(known)}")
            return found
    if default is None:
        raise ValueError(f"{keys[0]}: expected one of {', '.join(known)}")
    return default


def _levels(value: Any) -> list[str] | None:
    if value is None or value == "":
        return None
    levels = value if isinstance(value, list | tuple) else _text(value).split(",")
    found = [_text(level).strip() for level in levels]
    if not found or any(level not in ("0", "1", "2") for level in found):
        raise ValueError(f"qos = {_shown(value)}: expected 0, 1, 2 or several of them")
    return found


def _who(rule: Mapping[str, Any]) -> str:
    """Whom a row of an older table is about; it was asked for because it is about the client."""
    parts = []
    for key, name in (("ipaddr", "ipaddr"), ("username", "user"), ("clientid", "client")):
        value = _text(rule.get(key))
        if value and value != "$all":
            parts.append(f"{{{name}, {_quoted(value)}}}")
    return "all" if not parts else f"{{'and', [{', '.join(parts)}]}}"


def _topics(rule: Mapping[str, Any]) -> list[str]:
    topics = rule.get("topics") if rule.get("topic") is None else rule["topic"]
    if not isinstance(topics, list | tuple):
        topics = [topics]
    if not topics:
        raise ValueError("topic: expected one")
    return [_topic(topic) for topic in topics]


def _topic(topic: Any) -> str:
    text = _text(topic)
    if text.startswith("eq "):
        if not text[3:]:
            raise ValueError("topic: expected a text behind eq")
        return f"{{eq, {_quoted(text[3:])}}}"
    if "${" in _KNOWN.sub("", text):
        raise ValueError(
            f"topic = {_shown(text)}: expected no placeholder but ${{username}}, ${{clientid}},"
            " ${cert_common_name}"
        )
    try:
        validate_topic_filter(text)
    except MqttError as error:
        raise ValueError(f"topic = {_shown(text)}: {error.detail}") from None
    if is_shared(text):
        raise ValueError("topic: expected the real filter of a shared subscription")
    return _quoted(text)


def _quoted(text: str) -> str:
    """A text as a string of the grammar, every character that is not plain as its code."""
    made = []
    for char in text:
        if char == "\0":
            raise ValueError("a text with U+0000")
        plain = char.isprintable() and char not in '"\\'
        made.append(char if plain else f"\\x{{{ord(char):x}}}")
    return f'"{"".join(made)}"'


def _shown(value: Any) -> str:
    """A value in a message: the start of it."""
    return repr(value)[:80]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode()
    return "" if value is None else str(value)
