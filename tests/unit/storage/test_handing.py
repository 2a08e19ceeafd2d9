"""A session ends that has much to hand on, and the broker dies in the midst of it."""

from __future__ import annotations

from pathlib import Path

from mqttd.broker.sessions.handing import HANDED
from mqttd.codec.packets import Publish
from mqttd.storage.ledger import Ledger
from mqttd.storage.recovery import read
from tests.unit.storage.test_journal import Kept, make
from tests.unit.storage.test_wide import step

COUNT = 3 * HANDED + 7


def on_disk(kept: Kept) -> tuple[int, int]:
    """Messages for the one who ends, and for the other."""
    records = read(kept.base, Ledger()).records
    return len(records.get(1, [])), len(records.get(2, []))


def test_each_message_is_the_ended_session_s_or_has_been_handed_on(tmp_path: Path) -> None:
    kept = make(tmp_path)
    broker = kept.node.broker
    broker.settings.mqueue_max_length = 100_000
    kept.subscriber("first", "$share/g/t", 1, kept=True).drop()
    kept.settle()
    publisher = kept.client("publisher", kept=False)
    for number in range(COUNT):
        publisher.send(Publish("t", b"x", 1, False, False, number + 1, None))
        kept.settle()
        publisher.take()
    kept.subscriber("second", "$share/g/t", 1, kept=True).drop()
    kept.settle()
    assert on_disk(kept) == (COUNT, 0)
    assert broker.registry.end_session("first", 0x98, "kicked")
    seen = {on_disk(kept)}
    while step(kept.node):
        assert broker.fans.gate.held == len(broker.registry.handing.line)
        kept.settle()
        seen.add(on_disk(kept))
    kept.settle()
    seen.add(on_disk(kept))
    assert seen == {(COUNT, 0), (0, COUNT)}
    assert not broker.fans.gate.held and not broker.journal.whole
    kept.base.close()
