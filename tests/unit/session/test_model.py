"""Sessions against a model: whatever clients and networks do, QoS means what it says.

    python -m tests.unit.session.test_model --steps 1000000 --seed 1

runs the same state machine for as long as asked, and prints the seed and what it did. The model is
`tests/unit/session/model.py`; one Hypothesis rule is one step of it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.unit.session.model import CLIENTS, FILTERS, TOPICS, World

CLIENT = st.integers(0, CLIENTS - 1)
SMALL = st.integers(0, 7)


def pick(clients: list[int], n: int) -> int:
    """One of these."""
    return clients[n % len(clients)]


class Sessions(RuleBasedStateMachine):
    """Clients that come, go, publish, subscribe, acknowledge late, and repeat themselves."""

    #: Of all runs in this process.
    steps = 0
    figures: Counter[str] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        # A head start: without subscriptions there is nothing to see.
        self.world.connect(0, 4, False, True)
        self.world.connect(1, 5, False, True)
        self.world.subscribe(0, "t/+", 2)
        self.world.subscribe(1, "t/0", 1)
        self.own_steps = 0
        self.started = self.world.figures.copy()

    @rule(
        client=CLIENT,
        version=st.sampled_from([3, 4, 5, 5]),
        clean=st.sampled_from([False, False, False, True]),
        lasting=st.sampled_from([True, True, False]),
        receive_maximum=st.integers(0, 3),
    )
    def connect(
        self, client: int, version: int, clean: bool, lasting: bool, receive_maximum: int
    ) -> None:
        self.world.connect(client, version, clean, lasting, receive_maximum)

    @precondition(lambda self: self.world.away())
    @rule(n=SMALL, version=st.sampled_from([3, 4, 5, 5]), receive_maximum=st.integers(0, 3))
    def come_back(self, n: int, version: int, receive_maximum: int) -> None:
        self.world.connect(pick(self.world.away(), n), version, False, True, receive_maximum)

    @precondition(lambda self: self.world.online())
    @rule(n=SMALL)
    def drop(self, n: int) -> None:
        self.world.drop(pick(self.world.online(), n))

    @precondition(lambda self: self.world.online())
    @rule(n=SMALL)
    def leave(self, n: int) -> None:
        self.world.leave(pick(self.world.online(), n))

    @precondition(lambda self: self.world.online())
    @rule(n=SMALL, topic_filter=st.sampled_from(FILTERS), qos=st.integers(0, 2))
    def subscribe(self, n: int, topic_filter: str, qos: int) -> None:
        self.world.subscribe(pick(self.world.online(), n), topic_filter, qos)

    @precondition(lambda self: self.world.online())
    @rule(n=SMALL, topic_filter=st.sampled_from(FILTERS))
    def unsubscribe(self, n: int, topic_filter: str) -> None:
        self.world.unsubscribe(pick(self.world.online(), n), topic_filter)

    @precondition(lambda self: self.world.online())
    @rule(n=SMALL, topic=st.sampled_from(TOPICS), qos=st.integers(0, 2))
    def publish(self, n: int, topic: str, qos: int) -> None:
        self.world.publish(pick(self.world.online(), n), topic, qos)

    @precondition(lambda self: self.world.publishers())
    @rule(n=SMALL, topic=st.sampled_from(TOPICS), amount=st.integers(1, 4))
    def publish_exactly_once(self, n: int, topic: str, amount: int) -> None:
        client = pick(self.world.publishers(), n)
        for _ in range(amount):
            self.world.publish(client, topic, 2)

    @precondition(lambda self: self.world.publishers())
    @rule(n=SMALL, topic=st.sampled_from(TOPICS), qos=st.integers(1, 2), cut=SMALL)
    def publish_cut(self, n: int, topic: str, qos: int, cut: int) -> None:
        self.world.publish(pick(self.world.publishers(), n), topic, qos, cut)

    @precondition(lambda self: self.world.unfinished())
    @rule(n=SMALL, m=SMALL)
    def duplicate(self, n: int, m: int) -> None:
        self.world.duplicate(pick(self.world.unfinished(), n), m)

    @precondition(lambda self: self.world.readers())
    @rule(n=SMALL, amount=st.integers(1, 8))
    def receive(self, n: int, amount: int) -> None:
        self.world.receive(pick(self.world.readers(), n), amount)

    @precondition(lambda self: self.world.debtors())
    @rule(n=SMALL, m=SMALL)
    def acknowledge(self, n: int, m: int) -> None:
        self.world.acknowledge(pick(self.world.debtors(), n), m)

    @precondition(lambda self: self.world.debtors())
    @rule(n=SMALL)
    def acknowledge_all(self, n: int) -> None:
        client = pick(self.world.debtors(), n)
        while self.world.clients[client].owed:
            self.world.acknowledge(client, 0)

    @precondition(lambda self: self.world.online())
    @rule(
        rounds=st.integers(1, 6),
        topic=st.sampled_from(TOPICS),
        qos=st.integers(0, 2),
        n=SMALL,
    )
    def converse(self, rounds: int, topic: str, qos: int, n: int) -> None:
        """A network that works for a while: without it hardly anything gets to its end."""
        world = self.world
        if world.publishers():
            world.publish(pick(world.publishers(), n), topic, qos)
        for _ in range(rounds):
            for client in world.online():
                world.receive(client, 100)
                while world.clients[client].owed:
                    world.acknowledge(client, 0)

    @precondition(lambda self: self.world.away())
    @rule(really=st.integers(0, 9))
    def expire(self, really: int) -> None:
        if really == 9:
            self.world.expire()

    @rule(really=st.integers(0, 99))
    def restart(self, really: int) -> None:
        if really > 95:
            self.world.restart()

    @invariant()
    def count(self) -> None:
        self.own_steps += 1

    def teardown(self) -> None:
        Sessions.steps += max(0, self.own_steps - 1)  # it is checked once before the first rule
        self.world.finish()
        figures = self.world.figures
        figures.subtract(self.started)
        Sessions.figures.update(figures)


def run(examples: int, steps: int, number: int) -> None:
    """Run the machine `examples` times for `steps` steps each, from one seed."""
    machine = seed(number)(Sessions)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.slow
def test_qos_holds_whatever_happens() -> None:
    """Exactly once, at least once, in order, within bounds: short form of the long run."""
    run(60, 40, 1)


def main(arguments: list[str] | None = None) -> int:
    """Run for a number of steps, a new seed for each round; the exit status is 1 after a fault."""
    options = argparse.ArgumentParser(prog="python -m tests.unit.session.test_model")
    options.add_argument("--steps", type=int, default=1_000_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--length", type=int, default=150, help="steps of one run, at most")
    chosen = options.parse_args(arguments)
    started = time.monotonic()
    number = chosen.seed
    runs = 0
    while Sessions.steps < chosen.steps:
        try:
            run(100, chosen.length, number)
        except Exception:
            print(f"FAULT with --seed {number} --length {chosen.length}", flush=True)
            raise
        runs += 100
        number += 1
    took = time.monotonic() - started
    print(
        f"{Sessions.steps} steps in {runs} runs, seeds {chosen.seed} to {number - 1}, no fault, "
        f"{Sessions.steps / took:.0f} steps/s"
    )
    for what, count in sorted(Sessions.figures.items()):
        print(f"{count:>10}  {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
