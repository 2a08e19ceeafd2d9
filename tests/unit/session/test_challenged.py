"""Between CONNECT and CONNACK of an enhanced authentication, only AUTH has something to say."""

from __future__ import annotations

import pytest

from mqttd.codec import properties as prop
from mqttd.codec.packets import Auth, Connack, Connect
from mqttd.types import AuthContinue, ClientInfo
from tests.cases.packets import frame, text
from tests.support.memory import AllowAll, MemoryBroker


class Challenge(AllowAll):
    def begin(self, client: ClientInfo, method: str) -> object:
        return self

    def step(self, data: bytes) -> object:
        return AuthContinue(b"prove it")


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(frame(0x82, b"\0\1\0", text("a/#/b"), b"\0"), id="SUBSCRIBE, bad filter"),
        pytest.param(frame(0x30, text("a/+"), b"\0"), id="PUBLISH, bad topic"),
        pytest.param(b"\xc0\x00", id="PINGREQ"),
        pytest.param(b"\x82\x20", id="the first bytes of a SUBSCRIBE"),
        pytest.param(b"\x00", id="no packet"),
    ],
)
def test_another_packet_is_a_protocol_error_whatever_else_is_wrong_with_it(wire: bytes) -> None:
    client = MemoryBroker(access=Challenge()).client(5)
    client.send(Connect("c", 5, properties={prop.AUTHENTICATION_METHOD: "m"}))
    assert [type(packet) for packet in client.take()] == [Auth]
    client.feed(wire)
    (connack,) = client.take()
    assert isinstance(connack, Connack) and connack.reason_code == 0x82
    assert client.closed
