"""Random stories about access: who the clients are, what they send, what changes meanwhile.

`World` is decided once for all brokers that live through it, and knows what the plain walk of the
rules says (`World.may`, by `tests.unit.access.reference`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from zope.interface import implementer

from mqttd.access.acl.rules import AclRules
from mqttd.access.acl.terms import Rule
from mqttd.interfaces import IAccessControl, IAuthenticator
from mqttd.types import Action, AuthOk, AuthVerdict, ClientInfo, Verdict
from tests.unit.access import reference
from tests.unit.access.test_acl_model import WHO

IDS = ["c1", "alice", "dev-7", "+", "#", "a/b", "$x", "$SYS", "é€", "L" * 200, "c1/x", "bob", "a"]
USERS = [None, "alice", "bob", "$u", "a/b", "super", "token", "token2", "c1", "+"]
HOSTS = ["10.0.0.1", "10.0.1.1", "192.168.0.1", "fe80::1"]
LISTENERS = ["tcp:default", "tcp:default", "tcp:own", "tcp:mounted"]
WORDS = ["a", "b", "", "$SYS", "$x", "alice", "c1", "dev", "m", "x"]
OWN = ["%u", "%c", "a%u", "%c%u", "$%u", "${cn}", "${client_attrs.site}", "%u${cn}", "%c", "%c"]
REALMS = ["dev/%c", "%c", "u/%u", "x/%u/%c", "m/%u/dev/%c", "m/%u", "$SYS/%c", "%u"]
ATTRIBUTES = {"bob": {"site": "a"}, "c1": {"site": "#"}}
FLAGGED = ["{publish, [{qos, 1}, {retain, true}]}", "{all, [{qos, [0, 2]}]}"]
LAST = ["{allow, all}.", "{deny, all}.", '{allow, all, all, ["#"]}.', "{allow, all, subscribe}."]


class Dice:
    """Rules, topics and filters."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.choice = self.random.choice
        #: Few rules, and those for what begins so in front: most clients have realms.
        self.calm = self.chance(0.6)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def rules(self, most: int = 14) -> str:
        if self.calm:
            most = 4
        flagged = self.chance(0.25)
        made = [self.rule(flagged) for _ in range(self.random.randrange(most))]
        for _ in range(self.choice([0, 1, 2, 4])):
            own = [self.choice([*OWN, "a", "dev", "m"]) for _ in range(self.choice([1, 2, 3]))]
            whom, access = self.choice(WHO), self.choice(["all", "publish", "subscribe"])
            rule = f'{{allow, {whom}, {access}, ["{"/".join(own)}/#"]}}.'
            made.insert(self.random.randrange(len(made) + 1), rule)
        for _ in range(self.choice([2, 3]) if self.calm else self.choice([0, 1, 2])):
            access = self.choice(["publish", "all", *(FLAGGED if flagged else [])])
            rule = f'{{allow, all, {access}, ["{self.choice(REALMS)}/#"]}}.'
            made.insert(self.choice([0, 0, 1]) if self.calm else len(made) // 2, rule)
        if not self.calm and self.chance(0.3):
            made.append(self.choice(LAST))
        return "\n".join(made) + "\n"

    def rule(self, flagged: bool) -> str:
        access = self.choice(["subscribe", "publish", "all", *(FLAGGED if flagged else [])])
        topics = [
            f'{{eq, "{self.filter()}"}}' if self.chance(0.1) else f'"{self.filter(0.25)}"'
            for _ in range(self.random.randrange(1, 4))
        ]
        listed = "" if self.chance(0.04) else f", [{', '.join(topics)}]"
        return f"{{{self.choice(['allow', 'deny'])}, {self.choice(WHO)}, {access}{listed}}}."

    def filter(self, own: float = 0.0) -> str:
        words = []
        for _ in range(self.random.randrange(5)):
            if self.chance(own):
                words.append(self.choice(OWN))
            else:
                words.append("+" if self.chance(0.2) else self.choice(WORDS))
        if self.chance(0.3):
            words.append("#")
        return "/".join(words) or "+"

    def topic(self, who: ClientInfo, rules: str) -> str:
        """Of any words, or below what some rule lets its client publish."""
        user = who.username or "a"
        begin = self.choice([who.client_id, user, *WORDS])
        if self.chance(0.6):
            begin = self.choice(re.findall(r'"([^"+#]*)/#"', rules) or ["a"])
            if who.listener == "tcp:mounted":
                begin = begin.removeprefix("m/%u/")
            begin = begin.replace("%c", who.client_id).replace("%u", user)
            begin = begin.replace("${cn}", "cn").replace("${client_attrs.site}", "a")
            if self.chance(0.2):
                begin = self.choice([begin[:-1], begin + "x", begin + "x"])
        words = [begin]
        for _ in range(self.random.randrange(4)):
            new = f"n{self.random.randrange(1_000_000)}"
            words.append(self.choice([new, new, "x", who.client_id, user, *WORDS]))
        return "/".join(words).replace("+", "p").replace("#", "h") or "a"


@dataclass
class World:
    """What is in force now."""

    dice: Dice
    common: str = ""
    own: str = ""
    candidate: str = ""
    nomatch: str = "deny"
    order: str = "last"
    shadow: bool = False
    disconnect: bool = False
    tokens: dict[str, str] = field(default_factory=dict)
    #: Role -> its rules, user name -> its role.
    roles: dict[str, str] = field(default_factory=dict)
    members: dict[str, str] = field(default_factory=dict)
    #: What plugins' modules, and the hook, say of a topic with this word.
    before: tuple[str, Verdict] | None = None
    behind: tuple[str, Verdict] | None = None
    hook: tuple[str, str, Verdict] | None = None

    def config(self, path: Path) -> str:
        shadow = f'[acl.shadow]\nfile = "{path}/next.conf"\n' if self.shadow else ""
        return (
            f'[acl]\nfile = "{path}/acl.conf"\nnomatch = "{self.nomatch}"\norder = "{self.order}"\n'
            f'{shadow}[listener.tcp.own]\nbind = "127.0.0.1:0"\nacl_file = "{path}/own.conf"\n'
        )

    def write(self, path: Path) -> None:
        (path / "acl.conf").write_text(self.common)
        (path / "own.conf").write_text(self.own)
        (path / "next.conf").write_text(self.candidate)

    def may(self, who: ClientInfo, action: Action, topic: str) -> bool:
        """Hook, superuser, the client's own rules, then the chain of its listener."""
        if self.hook is not None:
            topic_filter, word, verdict = self.hook
            covers = action.kind == "publish"
            if reference.relates(topic_filter.split("/"), topic.split("/"), covers):
                if word in topic.split("/"):
                    return verdict is Verdict.ALLOW
        if who.username == "super":
            return True
        chain: list[str | tuple[str, Verdict] | None] = [self.tokens.get(who.username or "")]
        role = self.roles.get(self.members.get(who.username or "$anonymous", ""))
        own = who.listener == "tcp:own"
        file = self.own if own else self.common
        chain += [role, file] if self.order == "last" else [file, role]
        if not own:
            chain.insert(1, self.before)
            chain.append(self.behind)
        for link in chain:
            if isinstance(link, tuple):
                if link[0] in topic.split("/"):
                    return link[1] is Verdict.ALLOW
            elif link:
                rules = parsed(link)
                found = reference.decide(rules, who, action, topic)
                if found >= 0:
                    return rules[found].allow
        return self.nomatch == "allow"


def parsed(text: str, known: dict[str, list[Rule]] = {}) -> list[Rule]:  # noqa: B006
    """The rules of a text, read once."""
    if text not in known:
        known[text] = list(AclRules.from_text(text).rules)
    return known[text]


def world(seed: int) -> World:
    """One to begin with."""
    dice = Dice(seed)
    made = World(dice, dice.rules(dice.choice([3, 14, 60])), dice.rules(), dice.rules())
    made.nomatch = "deny" if dice.calm else dice.choice(["allow", "deny"])
    made.order = dice.choice(["first", "last"])
    made.shadow = not dice.calm and dice.chance(0.1)
    made.disconnect = dice.chance(0.1)
    made.tokens = {"token": dice.rules(5), "token2": ""}
    return made


def clients(dice: Dice) -> list[ClientInfo]:
    """A few, of different client ids; `%u` of the mountpoint has to be a level."""
    found: dict[str, ClientInfo] = {}
    if dice.calm:
        user, host = dice.choice([None, "alice", "bob"]), dice.choice(HOSTS)
        who = ClientInfo(dice.choice(["c1", "dev-7", "é€"]), user, host, 1, "tcp:default", 5)
        who.attributes = ATTRIBUTES.get(user or "")
        found[who.client_id] = who
    for _ in range(4):
        who = ClientInfo(
            dice.choice(IDS), dice.choice(USERS), dice.choice(HOSTS), 1, dice.choice(LISTENERS),
            dice.choice([4, 5, 5]),
        )  # fmt: skip
        who.attributes = ATTRIBUTES.get(who.username or "")
        if who.listener == "tcp:mounted" and who.username in (None, "a/b", "+"):
            who.listener = "tcp:default"
        found.setdefault(who.client_id, who)
    return list(found.values())


@implementer(IAuthenticator)
class Lets:
    """Lets everybody in: superusers, clients with rules of their own, with attributes."""

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self.tokens = tokens

    def init(self, opts: object) -> None: ...

    def check(self, client: ClientInfo, password: bytes | None) -> AuthVerdict:
        name = client.username or ""
        return AuthOk(
            superuser=name == "super",
            acl=self.tokens.get(name),
            attributes=ATTRIBUTES.get(name),
        )

    def description(self) -> str:
        return "lets everybody in"


@implementer(IAccessControl)
class Says:
    """Says something of topics that have a word."""

    depends_on_qos_retain = False

    def __init__(self, word: str, verdict: Verdict) -> None:
        self.word = word
        self.verdict = verdict

    def init(self, opts: object) -> None: ...

    def check_acl(self, client: ClientInfo, action: Action, topic: str) -> Verdict:
        return self.verdict if self.word in topic.split("/") else Verdict.IGNORE

    def reload_acl(self) -> None: ...

    def description(self) -> str:
        return "says"
