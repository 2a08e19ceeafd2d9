"""What brokers remember about access, against one that asks about each message and the plain walk.

    story --> broker that remembers, and is not heard of   --+
          --> broker that remembers                          +-- the same bytes, figures, refusals
          --> broker that asks for each message            --+
          --> the rules, walked one by one                   `-- the same messages get through

Meanwhile rules, roles, modules, hooks and listeners change: the next message is judged by the new
ones. More of them: ``python -m tests.unit.access.test_stories --stories 1000 --seed 1``
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqttd.access.by_listener import AccessByListener, configs_by_listener
from mqttd.access.chain import AccessControl
from mqttd.access.roles.roles import Roles
from mqttd.broker.broker import Broker
from mqttd.broker.ground.roles import Change, Member, Role
from mqttd.codec import properties as prop
from mqttd.codec.packets import Connect, Publish, Pubrel, Suback, Subscribe, Subscription
from mqttd.codec.parser import Parser
from mqttd.codec.serializer import serialize
from mqttd.config.load import load
from mqttd.plugins.calls.hooks import Hooks
from mqttd.session.channel.channel import CLOSED, Channel
from mqttd.session.channel.listener import Listener
from mqttd.session.ground.settings import Settings
from mqttd.transports.stream import StreamEdge
from mqttd.types import STOP, Action, ClientInfo, HookResult, Verdict
from tests.unit.access.stories import WORDS, Lets, Says, World, clients, world
from tests.unit.admin.node import Transport

STEPS = ["burst"] * 9 + ["subscribe"] * 2 + [
    "rules", "roles", "hook", "module", "look", "epoch", "listener",
]  # fmt: skip
#: Those of a story in which most clients have realms: nobody is asked before the rules.
CALM = ["burst"] * 9 + ["subscribe", "rules", "hook", "look", "epoch"]
FIGURES = [
    "publishes_denied", "dropped_denied", "subscribes_denied", "subscribes", "messages_sent",
    "messages_no_subscriber", "messages_received_qos0", "messages_received_qos1",
    "messages_received_qos2",
]  # fmt: skip
READER = ClientInfo("reader", "super", "127.0.0.1", 1, "tcp:default", 5)


class One:
    """A broker, its access control and its clients."""

    def __init__(self, path: Path, story: World, **settings: Any) -> None:
        self.path = path
        self.world = story
        path.mkdir()
        story.write(path)
        (path / "mqttd.conf").write_text(story.config(path))
        self.config = load(str(path / "mqttd.conf"), {})
        self.told: list[tuple[str, str, str, str]] = []
        self.untold = 0
        self.roles = Roles()
        self.access = AccessByListener(self.control(self.config), self.owns())
        self.hooks = Hooks()
        made = Settings()
        made.deny_disconnect = story.disconnect
        selective = settings.pop("selective", 1 << 30)
        for name, value in settings.items():
            setattr(made, name, value)
        self.soon: list[Callable[[], None]] = []
        ticks = iter(range(1, 1 << 40))
        self.broker = Broker(
            made, self.access, self.hooks, clock=lambda: next(ticks), now=1000,
            soon=self.soon.append, log=lambda event, fields: None, name="test",
        )  # fmt: skip
        self.hooks.listeners_changed.append(self.broker.hooks_changed)
        self.access.on_change = self.broker.access_changed
        self.roles.on_change = lambda disabled: self.broker.access_changed()
        self.broker.listeners["tcp:mounted"] = Listener("tcp:mounted", mountpoint="m/%u/")
        self.broker.router.selective = selective
        self.broker.access_changed()
        self.peers: dict[str, Client] = {}
        self.callback: Callable[..., HookResult | None] | None = None
        self.peer(READER).send(
            Subscribe(1, [Subscription(each, 0) for each in ("#", "$SYS/#", "$x/#", "$u/#")])
        )

    def control(self, config: Any) -> AccessControl:
        made = AccessControl(config, on_deny=self.denied, roles=self.roles)
        made.register_mod("auth", "lets", Lets(self.world.tokens), -1)
        return made

    def owns(self) -> dict[str, AccessControl]:
        found = configs_by_listener(self.config).items()
        return {name: self.control(config) for name, config in found}

    def denied(self, client: ClientInfo, action: Action, topic: str, rule: str) -> None:
        found = rule.replace(str(self.path), "")
        self.told.append((client.client_id, action.kind, topic, found))

    def peer(self, who: ClientInfo) -> Client:
        """Its connection; another one, if it has been sent away."""
        known = self.peers.get(who.client_id)
        if known is None or known.channel.state == CLOSED:
            known = self.peers[who.client_id] = Client(self, who)
        return known

    def turns(self) -> None:
        self.broker.perform()
        while self.soon:
            tasks, self.soon[:] = list(self.soon), []
            for task in tasks:
                task()
        self.broker.perform()

    def look(self) -> None:
        """As a few times a second."""
        self.untold += self.broker.untold
        self.broker.untold = self.broker.unkept = 0
        self.broker.tap_denied = True
        self.broker.tick(self.broker.now + 250)

    def figures(self) -> list[object]:
        every = [self.access.common, *self.access.own.values()]
        rules = [one.authorization.rules() for one in every]
        denying = [
            [hits for rule, hits in zip(one.rules, one.hits, strict=True) if not rule.allow]
            for one in rules
        ]
        modules = [(row["name"], row["deny"]) for one in every for row in one.describe()
                   if row["kind"] == "acl"]  # fmt: skip
        return [
            [getattr(self.broker.metrics, name) for name in FIGURES],
            [one.denied for one in every], denying, modules,
            len(self.told) + self.untold + self.broker.untold,
        ]  # fmt: skip


class Client:
    """A connection in memory."""

    def __init__(self, one: One, who: ClientInfo) -> None:
        self.one = one
        self.version = who.protocol_version
        self.wire = Transport()
        edge = StreamEdge(one.broker, self.wire, who.peerhost, 1)
        self.channel = edge.channel = Channel(one.broker, edge, -1, who.listener)
        self.parser = Parser(self.version, role="client")
        password = None if who.username is None else b"p"
        self.send(Connect(who.client_id, self.version, username=who.username, password=password))
        self.take()

    def feed(self, data: bytes) -> int:
        """The units of work that it was."""
        self.channel.feed(data)
        self.one.turns()
        return int(self.one.broker.router.work)

    def send(self, packet: Any) -> int:
        return self.feed(serialize(packet, self.version))

    def take(self) -> list[Any]:
        data, self.wire.written = bytes(self.wire.written), bytearray()
        return self.parser.feed(data)


def shown(packets: list[Any]) -> list[object]:
    """What a client got, for comparison."""
    return [
        (one.topic, bytes(one.payload), one.qos, one.retain)
        if isinstance(one, Publish)
        else (type(one).__name__, getattr(one, "packet_id", 0), getattr(one, "reason_code", 0))
        for one in packets
    ]


class Story:
    """One of them, lived through by three brokers."""

    def __init__(self, path: Path, seed: int) -> None:
        self.world = story = world(seed)
        self.dice = dice = story.dice
        common = {"look_ahead": dice.choice([0, 0, 1 << 30])}
        common["selective"] = dice.choice([0, 0, 1 << 30])
        self.ones = [
            One(path / "unheard", story, **common),
            One(path / "heard", story, **common),
            One(path / "asks", story, cache_grants=False, fast_path=dice.chance(0.5)),
        ]
        self.who = clients(dice)
        self.pools: dict[str, list[str]] = {}
        self.serial = 0
        self.counts: Counter[str] = Counter()
        self.about = f"seed {seed}"

    def play(self) -> Counter[str]:
        for at in range(self.dice.random.randrange(8, 22)):
            step = self.dice.choice(CALM if self.dice.calm else STEPS)
            who = self.dice.choice([*self.who, self.who[0], self.who[0], self.who[0]])
            self.about += f"\n{at} {step} {who.client_id} {who.username} {who.listener}"
            getattr(self, step)(who)
            for one in self.ones:
                one.turns()
                for peer in one.peers.values():
                    peer.take()
            unheard, heard, asks = self.ones
            assert unheard.figures() == asks.figures(), self.state()
            assert heard.figures() == asks.figures(), self.state()
            assert heard.told == asks.told, self.state()
        return self.counts

    def state(self) -> str:
        return f"{self.about}\n{self.world}"

    def inside(self, who: ClientInfo, name: str) -> str:
        return f"m/{who.username}/{name}" if who.listener == "tcp:mounted" else name

    # -- steps

    def burst(self, who: ClientInfo) -> None:
        """Many messages, some of topics that came before, cut anywhere."""
        dice, story = self.dice, self.world
        rules = story.common + story.own
        pool = self.pools.setdefault(who.client_id, [dice.topic(who, rules) for _ in range(8)])
        pool[dice.random.randrange(8)] = dice.topic(who, rules)
        known = dice.choice([0.0, 0.5, 0.5, 1.0])
        data, passed, expected = b"", [], []
        aliases: dict[int, str] = {}
        for number in range(1, dice.choice([3, 20, 45, 45]) + 1):
            topic = sent = dice.choice(pool) if dice.chance(known) else dice.topic(who, rules)
            properties = None
            if who.protocol_version == 5 and dice.chance(0.15):
                alias = dice.choice([1, 2, 3])
                properties = {prop.TOPIC_ALIAS: alias}
                if alias in aliases and dice.chance(0.6):
                    topic, sent = aliases[alias], ""
                aliases[alias] = topic
            qos, retain = dice.choice([0, 0, 1, 2, 1]), dice.chance(0.08)
            self.serial += 1
            payload = b"%d" % self.serial + b"." * dice.choice([0, 0, 40])
            packet = Publish(sent, payload, qos, retain, False, number if qos else 0, properties)
            data += serialize(packet, who.protocol_version)
            full = self.inside(who, topic)
            may = story.may(who, Action("publish", qos, retain), full)
            self.counts["allowed" if may else "refused"] += 1
            passed.append(may)
            if may and (not story.disconnect or all(passed)):
                if not full.startswith("$") or full.split("/")[0] in ("$SYS", "$x", "$u"):
                    expected.append((full, payload))
            if qos == 2 and (may or who.protocol_version == 4):
                data += serialize(Pubrel(number), who.protocol_version)
        cuts = sorted(dice.random.randrange(len(data)) for _ in range(dice.choice([0, 0, 1, 4])))
        if dice.chance(0.7):
            self.ones[0].broker.nobody_hears()
        results, works = [], []
        for one in self.ones:
            peer = one.peer(who)
            places = zip([0, *cuts], [*cuts, len(data)], strict=True)
            works.append([peer.feed(data[start:end]) for start, end in places])
            warm = peer.channel.warm
            if one is self.ones[0] and warm is not None:
                self.counts["realms"] += len(warm.realms or ())
                self.counts["kept"] += len(warm.refused or ())
            got = one.peers["reader"].take()
            found = [(each.topic, bytes(each.payload)) for each in got if type(each) is Publish]
            assert found == expected, f"{self.state()}\n{one.path.name}\n{found}\n{expected}"
            closed = peer.channel.state == CLOSED
            others = {name: shown(other.take()) for name, other in one.peers.items()}
            results.append((closed, others))
        assert results[0] == results[1] == results[2], f"{self.state()}\n{results}"
        assert works[0] == works[1], self.state()

    def subscribe(self, who: ClientInfo) -> None:
        """Few filters or many, some of them shared."""
        dice, story = self.dice, self.world
        filters = []
        for _ in range(dice.choice([2, 9, 30, 230])):
            below = dice.topic(who, story.common + story.own) + dice.choice(["", "/#", "/+"])
            filters.append(dice.filter() if dice.chance(0.6) else below)
        asked = [f"$share/g/{one}" if dice.chance(0.1) else one for one in filters]
        qos = dice.choice([0, 1, 2])
        no = 0x87 if who.protocol_version == 5 else 0x80
        expected = []
        for one in filters:
            may = story.may(who, Action("subscribe", qos), self.inside(who, one))
            self.counts["granted" if may else "not granted"] += 1
            expected.append(qos if may else no)
        for each in self.ones:
            peer = each.peer(who)
            peer.send(Subscribe(7, [Subscription(one, qos) for one in asked]))
            (answer,) = (one for one in peer.take() if isinstance(one, Suback))
            assert list(answer.reason_codes) == expected, f"{self.state()}\n{asked}\n{answer}"

    def rules(self, who: ClientInfo) -> None:
        """Other rules are read."""
        self.world.common = self.dice.rules(self.dice.choice([3, 14, 60]))
        self.world.own = self.dice.rules()
        for one in self.ones:
            self.world.write(one.path)
            one.access.reload_acl()
            one.broker.access_changed()

    def roles(self, who: ClientInfo) -> None:
        """A user has another role, or its role other rules."""
        role = self.dice.choice(["r1", "r2"])
        user = self.dice.choice(["alice", "bob", "$anonymous", "token2", "c1"])
        self.world.roles[role] = text = self.dice.rules(5)
        self.world.members[user] = role
        change = Change(
            roles=[Role(name=role, rules=text)], members=[Member(username=user, roles=[role])]
        )
        for one in self.ones:
            one.roles.put(change)

    def hook(self, who: ClientInfo) -> None:
        """Somebody is asked about each topic, or no more."""
        if self.world.hook is not None:
            self.world.hook = None
            for one in self.ones:
                assert one.callback is not None
                one.hooks.unhook("client.authorize", one.callback)
            return
        below = ["a/#", "dev/+/#", "$SYS/#", "+/+/x/#", "+/x/#"]
        topic_filter = self.dice.choice(below if self.dice.calm else [*below, "#"])
        word = self.dice.choice(WORDS)
        verdict = self.dice.choice([Verdict.ALLOW, Verdict.DENY])
        self.world.hook = topic_filter, word, verdict

        def asked(client: object, action: object, topic: str, now: object) -> HookResult | None:
            return STOP(verdict) if word in topic.split("/") else None

        for one in self.ones:
            one.callback = asked
            one.hooks.hook("client.authorize", asked, topic_filter=topic_filter)

    def module(self, who: ClientInfo) -> None:
        """A plugin's module comes, before the rules or behind them, or goes."""
        where = self.dice.choice(["before", "behind"])
        known = getattr(self.world, where)
        made = None
        if known is None:
            made = self.dice.choice(WORDS), self.dice.choice([Verdict.ALLOW, Verdict.DENY])
        setattr(self.world, where, made)
        for one in self.ones:
            if made is None:
                one.access.unregister_mod("acl", where)
            else:
                one.access.register_mod("acl", where, Says(*made), -1 if where == "before" else 9)

    def look(self, who: ClientInfo) -> None:
        """Time passes."""
        for one in self.ones:
            one.look()

    def epoch(self, who: ClientInfo) -> None:
        """Everything is asked for again."""
        for one in self.ones:
            one.broker.access_changed()

    def listener(self, who: ClientInfo) -> None:
        """A listener gets other rules."""
        self.world.own = self.dice.rules()
        for one in self.ones:
            self.world.write(one.path)
            one.access.put("tcp:own", one.owns()["tcp:own"])


@pytest.mark.parametrize("first", range(0, 18, 6))
def test_what_is_remembered_is_what_the_rules_say(tmp_path: Path, first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + 6):
        (tmp_path / str(seed)).mkdir()
        counts += Story(tmp_path / str(seed), seed).play()
    for about in ("allowed", "refused", "granted", "not granted"):
        assert counts[about] > 20, counts
    assert counts["realms"] and counts["kept"], counts


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--stories", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    for seed in range(options.seed, options.seed + options.stories):
        with tempfile.TemporaryDirectory() as path:
            counts += Story(Path(path), seed).play()
    print(dict(counts))


if __name__ == "__main__":
    main()
