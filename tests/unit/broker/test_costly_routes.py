"""What one message may cost its publisher's turn, and those who are over."""

from __future__ import annotations

from itertools import product

from mqttd.codec.packets import Publish, Subscribe, Subscription
from tests.support.memory import MemoryBroker

MEMBERS = 400


def test_each_filter_that_matches_counts_as_work_however_few_the_receivers() -> None:
    node = MemoryBroker()
    names = ["/".join(levels) for levels in product("a+", repeat=8)]
    client = node.connect("tangled", 5)
    client.send(Subscribe(1, [Subscription(name) for name in names]))
    node.run_soon()
    node.connect("writer", 5).send(Publish("/".join("a" * 8), b"x"))
    assert node.broker.router.work > len(names)


def test_a_message_for_a_group_whose_members_are_all_over_goes_nowhere() -> None:
    node = MemoryBroker()
    for number in range(MEMBERS):
        node.connect(f"member-{number}", 5).send(Subscribe(1, [Subscription("$share/g/t")]))
        # As while its many subscriptions leave the router bit by bit.
        node.broker.sessions[f"member-{number}"].ended = True
        node.broker.sessions[f"member-{number}"].channel = None
    writer = node.connect("writer", 5)
    writer.send(Publish("t", b"x"))
    assert len(node.broker.router.groups["$share/g/t"]) == 0
