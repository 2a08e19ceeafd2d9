"""What was kept for a node that is gone is told message by message, whatever else was kept."""

from __future__ import annotations

import pytest

from mqttd.codec.packets import Publish
from mqttd.codec.serializer import serialize
from mqttd.mesh.frames import ABOUT, MEMBER, STATE, frame, packed
from mqttd.mesh.lost import message_of

PUBLISH = serialize(Publish("t", b"x", 1, False, False, 7), 5)


def test_a_message_with_who_has_published_it() -> None:
    about = frame(ABOUT, packed([b"c1", b"\x01\x00ann", (5).to_bytes(16, "big")]))
    message = message_of(about + PUBLISH)
    assert message is not None
    assert (message.topic, message.payload, message.id) == ("t", b"x", 5)
    assert (message.client_id, message.username) == ("c1", "ann")
    message = message_of(frame(MEMBER, packed([b"$share/g/t", b"c2"])) + PUBLISH)
    assert message is not None and message.client_id == "c2"


def test_what_tells_of_a_session_that_moves_is_no_message() -> None:
    assert message_of(frame(STATE, packed([b"what", b"c1", b"\x00" * 8]))) is None


def test_half_a_frame_is_a_fault() -> None:
    with pytest.raises(ValueError, match="cut off"):
        message_of(PUBLISH[:-1])
