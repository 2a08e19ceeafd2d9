"""TLS 1.3 messages behind the handshake that bring no data, as OpenSSL's own client makes them."""

from __future__ import annotations

import ctypes
import ctypes.util
import ssl
from pathlib import Path
from typing import Any

import pytest

from mqttd.transports.records import TlsLayer
from tests.support.certificates import Authority


def _library(name: str) -> Any:
    found = ctypes.util.find_library(name)
    return ctypes.CDLL(found) if found else None


SSL, CRYPTO = _library("ssl"), _library("crypto")
pytestmark = pytest.mark.skipif(not hasattr(SSL, "SSL_key_update"), reason="no OpenSSL 1.1.1 or 3")


class Client:
    """OpenSSL's client over two memory BIOs."""

    def __init__(self, layer: TlsLayer) -> None:
        self.layer = layer
        for function in (SSL.TLS_client_method, SSL.SSL_CTX_new, SSL.SSL_new):
            function.restype = ctypes.c_void_p
        for function in (CRYPTO.BIO_new, CRYPTO.BIO_s_mem):
            function.restype = ctypes.c_void_p
        pointer = ctypes.c_void_p
        context = pointer(SSL.SSL_CTX_new(pointer(SSL.TLS_client_method())))
        self.ssl = pointer(SSL.SSL_new(context))
        self.into, self.out = (pointer(CRYPTO.BIO_new(pointer(CRYPTO.BIO_s_mem()))) for _ in "12")
        SSL.SSL_set_bio(self.ssl, self.into, self.out)
        SSL.SSL_set_connect_state(self.ssl)
        while layer.shaking:
            SSL.SSL_do_handshake(self.ssl)
            layer.received(self.said())
            CRYPTO.BIO_write(self.into, layer.answer, len(layer.answer))
            layer.answer = b""

    def said(self) -> bytes:
        """The records that it has made."""
        room = ctypes.create_string_buffer(1 << 17)
        size = CRYPTO.BIO_read(self.out, room, len(room))
        return room.raw[: max(size, 0)]

    def updates(self, count: int) -> bytes:
        """So many KeyUpdates."""
        for _ in range(count):
            assert SSL.SSL_key_update(self.ssl, 0) == 1
            SSL.SSL_do_handshake(self.ssl)
        return self.said()

    def write(self, data: bytes) -> bytes:
        """A record of data."""
        assert SSL.SSL_write(self.ssl, data, len(data)) == len(data)
        return self.said()


@pytest.fixture
def client(tmp_path: Path) -> Client:
    Authority().server("localhost").write(tmp_path, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    return Client(TlsLayer(context, lambda session: None))


def test_a_flood_of_key_updates_ends_the_connection(client: Client) -> None:
    layer = client.layer
    assert layer.received(client.write(b"before") + client.updates(2000)) == b"before"
    assert layer.ended == "TLS: records without data"


def test_who_sends_data_may_change_keys(client: Client) -> None:
    layer = client.layer
    client.said()
    for number in range(500):
        data = b"%d" % number + bytes(100)
        assert layer.received(client.updates(1) + client.write(data)) == data
    large = bytes(60_000)
    wire = b"".join(client.write(large[at : at + 15_000]) for at in range(0, 60_000, 15_000))
    got = b"".join(layer.received(wire[at : at + 7_000]) for at in range(0, len(wire), 7_000))
    assert got == large
    assert layer.received(b"".join(client.write(bytes(15_000)) for _ in range(4))) == large
    assert not layer.ended


def test_records_are_work_of_their_turn_however_little_they_bring(client: Client) -> None:
    client.layer.work = 0
    said = b"".join(client.write(b"x") for _ in range(1000))
    assert client.layer.received(said) == b"x" * 1000
    assert 400 < client.layer.work <= 500
