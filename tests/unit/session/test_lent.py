"""Deliveries that lead back to the queue they are in: the garbage collector has these alone."""

from __future__ import annotations

import gc

import mqttd
from mqttd.codec import properties as prop
from mqttd.session.ground.message import Delivery, Lent, Message
from mqttd.testing import MemoryBroker


def test_what_a_group_has_chosen_a_receiver_for_leads_back_to_it() -> None:
    node = MemoryBroker()
    for at, qos in enumerate((1, 2)):
        away = node.connect(f"away{at}", properties={prop.SESSION_EXPIRY_INTERVAL: 60})
        away.subscribe("$share/g/a", "b", qos=qos)
        away.disconnect()
    # As bytes; at a higher QoS than is granted; with an expiry; as a whole message.
    writer = node.connect("writer")
    expiry = {prop.MESSAGE_EXPIRY_INTERVAL: 60}
    for qos in (1, 2):
        for properties in (None, expiry):
            for topic in ("a", "b"):
                writer.publish(topic, b"x", qos, properties=dict(properties or {}))
    node.hook("message.delivered", lambda *args: None)
    for topic in ("a", "b"):
        writer.publish(topic, b"x", 2)
    kept = []
    for name in ("away0", "away1"):
        session = node.session(name)
        assert session is not None and session.mqueue is not None
        kept += [entry for entry in session.mqueue.items() if isinstance(entry, Delivery)]
    lent = [one for one in kept if one.group is not None]
    assert len(lent) == 5 and len(kept) > 10
    for one in lent:
        assert type(one) is type(one.copy()) is type(one.fresh(False, 0)) is Lent
        assert one.copy().group is one.group is one.fresh(False, 0).group
        assert gc.is_tracked(one)
    for one in kept:
        if one.group is None:
            assert type(one) is Delivery
            assert not (mqttd.compiled() and gc.is_tracked(one))


def test_a_delivery_that_is_lent_has_all_it_had() -> None:
    message = Message(7 << 64, "a", b"x", 1, False, None, "c", None, 9)
    made = Delivery.of(message, 1, False, True, [3], 0)
    made.original = b"original"
    group = object()
    lent = made.lent(group)
    for name in ("wire", "qos", "v5", "packet_id", "id_at", "source", "id", "message", "run",
                 "original", "identifiers", "expires_at", "expiry_at"):  # fmt: skip
        assert getattr(lent, name) == getattr(made, name)
    assert lent.group is group and made.group is None
