"""How long one access decision takes, and that rules which cannot match do not make it longer.

    python -m benchmarks.acl [--rules 10000] [--decisions 20000]

Prints a table: for each shape of rules the microseconds of one uncached decision with 100 and with
`--rules` rules (median and worst of batches of 100), and the seconds it takes to read that many.
The shapes are what files of real sites look like; `$SYS` and a final ``{deny, all}`` are in all.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable

from mqttd.access.acl.rules import AclRules
from mqttd.types import Action, ClientInfo

__all__ = ["SHAPES", "main", "measure"]

PUBLISH = Action("publish", 1)
SUBSCRIBE = Action("subscribe", 1)

HEAD = '{deny, all, subscribe, ["$SYS/#", {eq, "#"}]}.\n'
TAIL = "{deny, all}.\n"

Question = tuple[ClientInfo, Action, str]


def client(user: str, client_id: str = "c", peer: str = "10.0.0.1") -> ClientInfo:
    """A client that asks."""
    return ClientInfo(client_id, user, peer, 1, "tcp:default", 5)


def per_user(n: int) -> tuple[str, Callable[[random.Random], Question]]:
    """One rule for each user."""
    rules = "".join(f'{{allow, {{user, "u{i}"}}, all, ["site/{i}/#"]}}.\n' for i in range(n))

    def ask(dice: random.Random) -> Question:
        i = dice.randrange(n)
        return client(f"u{i}"), PUBLISH, f"site/{dice.choice((i, i + 1))}/pump/{dice.randrange(99)}"

    return rules, ask


def per_topic(n: int) -> tuple[str, Callable[[random.Random], Question]]:
    """Rules for everybody, each with a topic of its own, allow and deny mixed."""
    rules = "".join(
        f'{{{"deny" if i % 3 == 0 else "allow"}, all, all, ["plant/{i}/+/state"]}}.\n'
        for i in range(n)
    )

    def ask(dice: random.Random) -> Question:
        return client("bob"), PUBLISH, f"plant/{dice.randrange(n)}/x/state"

    return rules, ask


def subscribe(n: int) -> tuple[str, Callable[[random.Random], Question]]:
    """Filters with wildcards against those rules."""
    rules, _ = per_topic(n)

    def ask(dice: random.Random) -> Question:
        i = dice.randrange(n)
        return client("bob"), SUBSCRIBE, dice.choice((f"plant/{i}/#", f"plant/{i}/+/state", "#"))

    return rules, ask


def wide(n: int) -> tuple[str, Callable[[random.Random], Question]]:
    """Filters with `+` where all deny rules differ: they touch none of them."""
    rules = "".join(f'{{deny, all, all, ["plant/{i}/secret"]}}.\n' for i in range(n))

    def ask(dice: random.Random) -> Question:
        return client("bob"), SUBSCRIBE, "plant/+/open"

    return rules, ask


def per_network(n: int) -> tuple[str, Callable[[random.Random], Question]]:
    """One rule for each network."""
    rules = "".join(
        f'{{allow, {{ipaddr, "10.{i >> 8 & 255}.{i & 255}.0/24"}}, all, ["net/{i}/#"]}}.\n'
        for i in range(n)
    )

    def ask(dice: random.Random) -> Question:
        i = dice.randrange(n)
        peer = f"10.{i >> 8 & 255}.{i & 255}.{dice.randrange(1, 255)}"
        return client("bob", peer=peer), PUBLISH, f"net/{i}/x"

    return rules, ask


def placeholders(n: int) -> tuple[str, Callable[[random.Random], Question]]:
    """Templates, and rules for others beside them."""
    rules = "".join(
        f'{{allow, {{client, "dev{i}"}}, all, ["area/{i % 50}/%u/%c/#"]}}.\n' for i in range(n)
    )

    def ask(dice: random.Random) -> Question:
        i = dice.randrange(n)
        return client("bob", f"dev{i}"), PUBLISH, f"area/{i % 50}/bob/dev{i}/up"

    return rules, ask


SHAPES = {
    "one rule per user": per_user,
    "one rule per topic": per_topic,
    "the same, subscribing": subscribe,
    "+ beside deny rules": wide,
    "one rule per network": per_network,
    "placeholders": placeholders,
}


def measure(
    shape: Callable[[int], tuple[str, Callable[[random.Random], Question]]],
    rules: int,
    decisions: int,
    seed: int = 1,
) -> tuple[float, float, float]:
    """Microseconds of a decision, median and worst batch of 100, and seconds to read the rules."""
    text, ask = shape(rules)
    started = time.perf_counter()
    compiled = AclRules.from_text(HEAD + text + TAIL)
    read = time.perf_counter() - started
    dice = random.Random(seed)
    questions = [ask(dice) for _ in range(decisions)]
    batches: list[float] = []
    for at in range(0, decisions, 100):
        batch = questions[at : at + 100]
        started = time.perf_counter()
        for who, action, topic in batch:
            compiled.decide(who, action, topic)
        batches.append((time.perf_counter() - started) * 1e6 / len(batch))
    return statistics.median(batches), max(batches), read


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.acl", description=__doc__)
    parser.add_argument("--rules", type=int, default=10_000)
    parser.add_argument("--decisions", type=int, default=20_000)
    options = parser.parse_args(argv)
    many = options.rules
    print(f"{'rules':<24}{'100':>10}{many:>10}{'worst':>10}{'read':>10}")
    for name, shape in SHAPES.items():
        few, _, _ = measure(shape, 100, options.decisions)
        median, worst, read = measure(shape, many, options.decisions)
        print(f"{name:<24}{few:>7.1f} us{median:>7.1f} us{worst:>7.1f} us{read:>8.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
