"""Access rules decided the plain way: one rule after the other, one topic after the other.

`decide` to `relate` are the reference interpreter that the compiled rules are held against. It
knows no index, no tree and no cache, and shares no code with them but the parsed rules.
"""

from __future__ import annotations

import ipaddress
import re

from mqttd.access.acl.terms import (
    All,
    And,
    Client,
    IpAddr,
    Match,
    Or,
    Rule,
    User,
    Who,
)
from mqttd.types import Action, ClientInfo


def decide(rules: list[Rule], client: ClientInfo, action: Action, topic: str) -> int:
    """The number of the first rule that matches, or -1."""
    for number, rule in enumerate(rules):
        if action.kind not in rule.kinds or not is_about(rule.who, client):
            continue
        if rule.qos is not None and action.qos not in rule.qos:
            continue
        if rule.retain not in (None, action.retain) and action.kind == "publish":
            continue
        if rule.topics is None:
            return number
        for wanted in rule.topics:
            if wanted.eq:
                if plain(wanted.text) == plain(topic):
                    return number
            else:
                own = fill(wanted.text, client, rule.allow)
                if own is not None and relates(own, topic.split("/"), rule.allow):
                    return number
    return -1


def plain(topic: str) -> str:
    return "#" if topic == "+/#" else topic


def is_about(who: Who, client: ClientInfo) -> bool:
    match who:
        case All():
            return True
        case User(name):
            return name == client.username
        case Client(name):
            return name == client.client_id
        case Match(regex, of_client):
            value = client.client_id if of_client else client.username
            return value is not None and re.search(regex.pattern, value) is not None
        case IpAddr(networks):
            return any(ipaddress.ip_address(client.peerhost) in network for network in networks)
        case And(parts):
            return all(is_about(part, client) for part in parts)
        case Or(parts):
            return any(is_about(part, client) for part in parts)


def fill(text: str, client: ClientInfo, allow: bool) -> list[str] | None:
    """The words of a rule's filter for this client; None where it says nothing."""
    values = {"%u": client.username, "%c": client.client_id, "${cn}": client.cert_common_name}
    values["${client_attrs.site}"] = (client.attributes or {}).get("site")  # type: ignore[assignment]
    if any(value is None and name in text for name, value in values.items()):
        return None
    words: list[str] = []
    for word in text.split("/"):
        own = ""
        while word:
            name = next((name for name in values if word.startswith(name)), word[0])
            value = values.get(name, name)
            if name in values:
                first = not words and not own
                if not value or set(value) & set("+#/") or (first and value[0] == "$"):
                    return None if allow else [*words, "**"]
            own, word = own + value, word[len(name) :]
        words.append(own)
    return words


def relates(rule: list[str], asked: list[str], covers: bool) -> bool:
    """Whether the rule's words cover all topics of the asked ones, or else share any."""
    if asked == ["#"]:
        asked = ["+", "#"]
    dollar = [words[0] for words in (rule, asked) if words[0][:1] == "$"]
    wild = [words[0] for words in (rule, asked) if words[0] in ("+", "#")]
    if dollar and wild and rule != ["**"]:
        return False
    return relate(rule, asked, covers)


def relate(rule: list[str], asked: list[str], covers: bool) -> bool:
    if rule == ["#"] or (rule == ["**"] and asked):
        return True
    if asked == ["#"]:
        return not covers
    if not rule or not asked:
        return rule == asked
    if rule[0] != "+" and rule[0] != asked[0] and (covers or asked[0] != "+"):
        return False
    return relate(rule[1:], asked[1:], covers)
