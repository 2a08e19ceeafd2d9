"""The compiled rules against the reference interpreter, and explaining against enforcing.

The suite takes a few thousand random rule/request pairs; a long run takes as many as asked for:

    python -m tests.unit.access.test_acl_model --pairs 1000000 --seed 1

Half of the rule sets have a level with many words, so that the index behind a `+` is searched too.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

import pytest

from mqttd.access.acl.explain import reason, steps
from mqttd.access.acl.rules import AclRules
from mqttd.types import Action, ClientInfo
from tests.unit.access import reference

NAMES = ["alice", "bob", "c1", "$SYS", "+", "a/b", "dev-7", ""]
WHO = [
    "all", "all", "all", "all", '"alice"', '{user, "bob"}', '{client, "c1"}',
    '{ipaddr, "10.0.0.0/8"}', '{ipaddr, "10.0.0.1"}', '{ipaddrs, ["10.0.0.0/24", "fe80::/10"]}',
    '{user, {re, "^(a|b)"}}', '{client, {re, "^dev-[0-9]+$"}}', '{username, {re, "^bob$"}}',
    """{'and', [{user, "alice"}, {ipaddr, "10.0.0.0/8"}]}""",
    """{'or', [{user, "bob"}, {client, "c1"}]}""",
    """{'and', [{'or', [{user, "bob"}, {user, {re, "ali"}}]}, {client, "c1"}]}""",
]  # fmt: skip
ACCESS = [
    "subscribe", "publish", "pubsub", "all", "pubsub", "subscribe", "publish",
    "{publish, [{qos, 1}, {retain, true}]}", "{all, [{qos, [0, 2]}]}", "{all, [{retain, false}]}",
]  # fmt: skip
WORDS = ["a", "b", "", "$SYS", "alice", "c1"]
OWN = ["%u", "%c", "a%u", "%c%u", "$%u", "${cn}", "${client_attrs.site}", "%u${cn}"]
HOSTS = ["10.0.0.1", "10.0.1.1", "fe80::1", "192.168.0.1"]


class Dice:
    """Random rules, clients and requests."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.choice = self.random.choice
        self.words = WORDS

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def rules(self) -> str:
        """A rule set of up to 12 rules, or up to 60 with many words in one level."""
        many = self.chance(0.5)
        self.words = [*WORDS, *(f"w{i}" for i in range(24))] if many else WORDS
        count = self.random.randrange(30, 60) if many else self.random.randrange(12)
        return "\n".join(self.rule() for _ in range(count))

    def rule(self) -> str:
        verdict = self.choice(["allow", "deny"])
        if self.chance(0.04):
            return f"{{{verdict}, {self.choice(WHO)}}}."
        topics = ", ".join(self.rule_topic() for _ in range(self.random.randrange(1, 4)))
        return f"{{{verdict}, {self.choice(WHO)}, {self.choice(ACCESS)}, [{topics}]}}."

    def rule_topic(self) -> str:
        if self.chance(0.1):
            return f'{{eq, "{self.filter()}"}}'
        return f'"{self.filter(own=0.15)}"'

    def filter(self, own: float = 0.0) -> str:
        words = []
        for _ in range(self.random.randrange(5)):
            if self.chance(own):
                words.append(self.choice(OWN))
            else:
                words.append("+" if self.chance(0.25) else self.choice(self.words))
        if self.chance(0.25):
            words.append("#")
        return "/".join(words) or "+"

    def client(self) -> ClientInfo:
        name = self.choice([*NAMES, None])
        client = ClientInfo(self.choice(NAMES), name, self.choice(HOSTS), 1, "tcp:default", 5)
        client.cert_common_name = self.choice([None, "alice", "a/b"])
        client.attributes = self.choice([None, {"site": "a"}, {"site": "#"}, {"site": 3}])
        if client.attributes == {"site": 3}:
            client.attributes = {"place": "a"}
        return client

    def request(self) -> tuple[Action, str]:
        if self.chance(0.5):
            action = Action("publish", self.random.randrange(3), self.chance(0.3))
            count = self.random.randrange(1, 6)
            return action, "/".join(self.choice(self.words) for _ in range(count)) or "a"
        return Action("subscribe", self.random.randrange(3)), self.filter()


def compare(seed: int, pairs: int) -> int:
    """Hold compiled rules, reference and explanation against one another; returns the pairs."""
    dice = Dice(seed)
    done = 0
    while done < pairs:
        text = dice.rules()
        rules = AclRules.from_text(text)
        listed = list(rules.rules)
        for _ in range(25):
            client = dice.client()
            for _ in range(4):
                action, topic = dice.request()
                about = f"{text}\n{client}\n{action} {topic!r}"
                expected = reference.decide(listed, client, action, topic)
                found = rules.first(client, action, topic)
                assert found == expected, f"{about}\nfound {found}, expected {expected}"
                told = steps(rules, client, action, topic, "acl")
                asked = listed if found < 0 else listed[: found + 1]
                assert [step.rule for step in told] == [str(rule) for rule in asked], about
                why = [reason(rule, client, action, topic) for rule in asked]
                if found >= 0:
                    assert told[-1].matched and why.pop() is None, about
                assert all(why), f"{about}\nan earlier rule is said to match: {why}"
                done += 1
    return done


@pytest.mark.parametrize("seed", range(10))
def test_compiled_rules_the_reference_and_the_explanation_agree(seed: int) -> None:
    assert compare(seed, 300) >= 300


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    started = time.monotonic()
    done, part = 0, 0
    while done < options.pairs:
        done += compare(options.seed * 1_000_003 + part, min(10_000, options.pairs - done))
        part += 1
        print(f"\r{done:>9} pairs", end="", file=sys.stderr, flush=True)
    seconds = time.monotonic() - started
    print(f"\n{done} pairs, seed {options.seed}: all agree ({seconds:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
