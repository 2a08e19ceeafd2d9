"""The HTTP side of a WebSocket port: the upgrade, the page, and what no parser may see."""

from __future__ import annotations

import random

import pytest

from mqttd.transports import websocket
from mqttd.transports.frames import WebSocketLayer
from mqttd.transports.layers import SERVED
from mqttd.transports.websocket import MAX_HEAD, WebSite, may_connect
from tests.support.doors import frame

SITE = WebSite("/mqtt", (), True)
KEY = "dGhlIHNhbXBsZSBub25jZQ=="


def request(path: str = "/mqtt", method: str = "GET", **changes: str | None) -> bytes:
    fields: dict[str, str | None] = {
        "Host": "localhost:8083",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": KEY,
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "mqtt",
    }
    fields.update({name.replace("_", "-"): value for name, value in changes.items()})
    lines = [
        f"{method} {path} HTTP/1.1",
        *(f"{k}: {v}" for k, v in fields.items() if v is not None),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def plain(path: str, **headers: str) -> bytes:
    none = dict.fromkeys(("Upgrade", "Connection", "Sec_WebSocket_Key", "Sec_WebSocket_Version",
                          "Sec_WebSocket_Protocol"))  # fmt: skip
    return request(path, **none, **headers)


def ask(data: bytes, site: WebSite = SITE) -> tuple[str, bytes, WebSocketLayer]:
    """Status line, all of the answer, and the layer."""
    layer = WebSocketLayer(site.upgrade())
    assert layer.received(data) == b""
    return layer.answer.split(b"\r\n")[0].decode(), layer.answer, layer


def test_the_upgrade_and_what_came_right_behind_it() -> None:
    layer = WebSocketLayer(SITE.upgrade())
    assert layer.received(request() + frame(0x82, b"CONNECT")) == b"CONNECT"
    assert layer.answer.startswith(b"HTTP/1.1 101 ")
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in layer.answer
    assert b"Sec-WebSocket-Protocol: mqtt\r\n" in layer.answer
    assert not layer.shaking and not layer.ended


def test_no_words_are_put_together_for_a_log_that_nobody_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They took two thirds of a handshake; a program's own Autobahn has them as before."""
    said: list[object] = []
    words = {name for _, name, _ in websocket._WORDS}
    assert words == {"hltype", "hlval", "pformat"}
    counted = [(module, name, said.append) for module, name, _ in websocket._WORDS]
    monkeypatch.setattr(websocket, "_WORDS", counted)
    for module, name, put in counted:
        monkeypatch.setattr(module, name, put)
    test_the_upgrade_and_what_came_right_behind_it()
    test_random_requests_raise_nothing()
    assert said == []
    assert all(getattr(module, name) == put for module, name, put in counted)


def test_one_byte_at_a_time() -> None:
    layer = WebSocketLayer(SITE.upgrade())
    wire = request() + frame(0x82, b"CONNECT")
    assert b"".join(layer.received(wire[i : i + 1]) for i in range(len(wire))) == b"CONNECT"


def test_compression_is_not_agreed_to() -> None:
    status, answer, _ = ask(request(Sec_WebSocket_Extensions="permessage-deflate"))
    assert " 101 " in status
    assert b"deflate" not in answer


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (request("/other"), "404"),
        (request(method="POST"), "405"),
        (request(Host=None), "400"),
        (request(Sec_WebSocket_Key=None), "400"),
        (request(Sec_WebSocket_Version="12"), "400"),
        (request(Sec_WebSocket_Protocol="chat"), "400"),
        (request(Sec_WebSocket_Protocol=None), "400"),
        (request(Connection="close"), "400"),
        (request(Origin="http://evil.example"), "403"),
        (request(Origin="null"), "403"),
        (plain("/mqtt"), "426"),
        (plain("/nothing"), "404"),
        (plain("/../../etc/passwd"), "404"),
        (plain("/?redirect=http://evil.example/"), "404"),
        (plain("/").replace(b"HTTP/1.1", b"HTTP/1.0"), "505"),
    ],
)
def test_what_is_no_upgrade_gets_an_http_answer(data: bytes, status: str) -> None:
    """With no word of the peer's in it, and the end of the connection."""
    line, answer, layer = ask(data)
    assert line.split()[1] == status
    assert b"evil" not in answer
    assert layer.ended


@pytest.mark.parametrize(
    "smuggled",
    [
        "x\nOrigin: http://127.0.0.1:8083",
        "x\rOrigin: y",
        "x\x85Origin: y",
        "x\x0bOrigin: y",
        "x\x0cOrigin: y",
        "x\x1cOrigin: y",
        "x\x00y",
        "x\xa0y",
        "x\x7fy",
    ],
)
def test_cve_2026_44546_bytes_that_parsers_split_differently_are_refused(smuggled: str) -> None:
    """A line end to one parser and not to another: nobody gets to parse it."""
    line, _, layer = ask(request(X_Header=smuggled))
    assert line == "HTTP/1.1 400 Bad Request"
    assert layer.ended == "HTTP request with bytes that do not belong there"


def test_a_head_without_an_end_is_bounded() -> None:
    layer = WebSocketLayer(SITE.upgrade())
    layer.received(b"GET / HTTP/1.1\r\nHost: x\r\nX: ")
    for _ in range(MAX_HEAD // 1000 + 1):
        layer.received(b"x" * 1000)
    assert layer.answer.startswith(b"HTTP/1.1 431 ")
    assert layer.ended


@pytest.mark.parametrize(
    ("first", "seen"),
    [
        (bytes.fromhex("16030100f8010000"), "TLS"),
        (b"\x10\x0c\x00\x04MQTT\x05\x00\x00\x00", "an MQTT CONNECT"),
        (b"PROXY TCP4 ", "a PROXY protocol header"),
        (b"\x00\x01\x02\x03", "bytes that begin with 00 01 02 03"),
    ],
)
def test_other_protocols_are_named(first: bytes, seen: str) -> None:
    _, answer, layer = ask(first)
    assert layer.ended == f"expected HTTP, got {seen}"
    assert answer == b""


def test_the_page_is_served_with_a_policy() -> None:
    line, answer, layer = ask(plain("/"))
    assert line == "HTTP/1.1 200 OK"
    assert layer.ended == SERVED
    assert b"default-src 'none'; script-src 'self'" in answer
    assert b"<title>mqttd</title>" in answer
    for path in ("/page.js", "/page.css", "/mqtt.min.js", "/mqtt.min.js.LICENSE.txt"):
        assert ask(plain(path))[0] == "HTTP/1.1 200 OK"
    packed = ask(plain("/mqtt.min.js", Accept_Encoding="gzip, br"))[1]
    assert b"Content-Encoding: gzip" in packed
    assert len(packed) < 150_000


def test_the_page_knows_the_path_and_can_be_left_out() -> None:
    assert b'data-path="/live?&lt;"' in ask(plain("/"), WebSite("/live?<", (), True))[1]
    assert ask(plain("/"), WebSite("/mqtt", (), False))[0].split()[1] == "404"


@pytest.mark.parametrize(
    ("origin", "host", "origins", "allowed"),
    [
        (None, "x", (), True),
        ("http://127.0.0.1:8083", "127.0.0.1:8083", (), True),
        ("https://[::1]", "[::1]", (), True),
        ("http://localhost:8083", "localhost:8083", (), True),
        ("http://localhost:8083", "127.0.0.1:8083", (), False),
        ("http://127.0.0.1:80", "127.0.0.1:8083", (), False),
        ("http://rebound.example:8083", "rebound.example:8083", (), False),
        ("null", "127.0.0.1:8083", (), False),
        ("http://[", "127.0.0.1", (), False),
        ("https://app.example", "broker.example", ("https://app.example",), True),
        ("https://APP.example/", "broker.example", ("https://app.example",), True),
        ("https://app.example.evil.org", "broker.example", ("https://app.example",), False),
        ("http://127.0.0.1:8083", "127.0.0.1:8083", ("https://app.example",), False),
        ("https://anything.example", "x", ("*",), True),
    ],
)
def test_which_pages_may_connect(
    origin: str | None, host: str, origins: tuple[str, ...], allowed: bool
) -> None:
    """Without a list only the page of this port, by an address or as localhost (DNS rebinding)."""
    assert may_connect(origin, host, origins) is allowed


def test_random_requests_raise_nothing() -> None:
    rng = random.Random(7)
    for _ in range(1500):
        data = bytearray(request(rng.choice(("/mqtt", "/", "/?redirect=http://[", "//[x"))))
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(0x20, 0x7F)
        layer = WebSocketLayer(SITE.upgrade())
        layer.received(bytes(data))
        assert layer.answer.startswith(b"HTTP/1.1 ") or layer.ended or layer.shaking
