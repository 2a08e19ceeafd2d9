"""Times the topic functions of the design documents' own table, and prints ours beside theirs.

    python -m benchmarks.topic [--rounds N]

match   one topic name against one filter            emqttd_topic:match/2
triples a filter taken apart into its trie's edges   emqttd_topic:triples/1; ours: insert and remove
words   a topic cut into its words                   emqttd_topic:words/1
split   the bare cut, without a call of our own      binary:split/3; ours: str.split

Below the table: the functions that have no counterpart there, with many filters in the trie.
Every figure is the best of five runs, in microseconds of one call. Asserts nothing about time.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable
from timeit import repeat

from mqttd import compiled
from mqttd.broker.retained.retainer import Retainer
from mqttd.broker.routing.trie import Trie
from mqttd.codec.topic import match, validate_topic_name, words

__all__ = ["main"]

TOPIC = "/abkc/19383/192939/akakdkkdkak/xxxyyuya/akakak"
FILTER = "/abkc/19383/+/akakdkkdkak/#"
DEEPEST = "/".join(["x" * 510] * 128)

#: The design documents' "Topic Functions Benchmark": function -> (Mac Air 11, iMac).
DESIGN = {
    "match": ("match", 6.25086, 3.2348),
    "triples": ("triples", 13.86881, 6.93524),
    "words": ("words", 3.41177, 1.89616),
    "split": ("binary:split", 3.03776, 1.65243),
}


def microseconds(call: Callable[[], object], rounds: int) -> float:
    """Return the time of one call, the best of five runs of `rounds` calls."""
    return min(repeat(call, number=rounds, repeat=5)) / rounds * 1e6


def triples(trie: Trie) -> None:
    """Put a filter's edges into a trie and take them out again."""
    trie.insert(FILTER)
    trie.remove(FILTER)


def trie_of(count: int) -> Trie:
    """Return a trie of `count` filters, half of them with a wildcard."""
    trie = Trie()
    for number in range(count):
        trie.insert(f"site/{number}/+/temperature" if number % 2 else f"site/{number}/state")
    return trie


def retainer_of(count: int) -> Retainer:
    """Return a retainer of `count` topics."""
    retainer = Retainer()
    for number in range(count):
        retainer.store(f"site/{number % 1000}/device/{number}/state", None, 64)
    return retainer


def print_table(rounds: int) -> None:
    """Print our times beside those of the design documents."""
    empty = Trie()
    ours = {
        "match": microseconds(lambda: match(TOPIC, FILTER), rounds),
        "triples": microseconds(lambda: triples(empty), rounds),
        "words": microseconds(lambda: words(TOPIC), rounds),
        "split": microseconds(lambda: TOPIC.split("/"), rounds),
    }
    print("Function     | mqttd, us | Mac Air(11), us | iMac, us | times the iMac")
    print("-------------|-----------|-----------------|----------|---------------")
    for name, (theirs, air, imac) in DESIGN.items():
        ratio = imac / ours[name]
        print(f"{theirs:<12} | {ours[name]:9.3f} | {air:15.3f} | {imac:8.3f} | {ratio:13.1f}x")


def print_more(rounds: int) -> None:
    """Print the times of what the design documents did not measure."""
    print("\nMore                                                       | us")
    print("-----------------------------------------------------------|---------")
    hundred_thousand = trie_of(100_000)
    retainer = retainer_of(100_000)
    name = "site/777/room/temperature"
    rows: list[tuple[str, Callable[[], object], int]] = [
        ("validate a topic name", lambda: validate_topic_name(TOPIC), rounds),
        ("trie match, 1 of 100,000 filters", lambda: hundred_thousand.match(name), rounds),
        ("trie match, 0 of 100,000 filters", lambda: hundred_thousand.match(TOPIC), rounds),
        ("trie match, 128 levels in 65,535 bytes", lambda: hundred_thousand.match(DEEPEST), 100),
        ("match, 128 levels in 65,535 bytes", lambda: match(DEEPEST, "+/" * 127 + "+"), 100),
        ("retained, 100 of 100,000, `+` and `#`", lambda: read(retainer, "site/7/+/#"), 100),
        ("retained, 0 of 100,000, `+`", lambda: read(retainer, "site/+/device/+/none"), 100),
    ]
    for label, call, number in rows:
        print(f"{label:<58} | {microseconds(call, number):8.3f}")


def read(retainer: Retainer, topic_filter: str) -> int:
    """Return how many retained messages match."""
    cursor = retainer.match(topic_filter)
    count = 0
    while not cursor.done:
        count += len(cursor.next(64))
    return count


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="benchmarks.topic", description="Time topic functions.")
    parser.add_argument("--rounds", type=int, default=20_000, help="calls per run (%(default)s)")
    rounds = parser.parse_args().rounds
    kind = "compiled" if compiled() else "pure Python"
    print(f"topic {TOPIC}\nfilter {FILTER}\n{kind}, {platform.python_version()}\n")
    print_table(rounds)
    print_more(rounds)


if __name__ == "__main__":
    main()
