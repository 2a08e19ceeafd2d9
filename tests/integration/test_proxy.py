"""Behind a load balancer: haproxy with send-proxy-v2, and headers by hand."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqttd.admin.ctl.main import Client
from tests.support import packets as mq
from tests.support.broker import Broker, start_broker
from tests.support.client import RawClient
from tests.support.doors import (
    Door,
    WebSocketWire,
    client_context,
    dial,
    doors_of,
    write_certificates,
)
from tests.support.needs import needs_program
from tests.support.servers import free_ports

DEADLINE = 10.0
V1 = b"PROXY TCP4 192.0.2.7 198.51.100.1 40000 1883\r\n"


@pytest.fixture(scope="module", params=["engine", "twisted"])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("proxy")
    write_certificates(folder / "etc" / "certs")
    behind = {"bind": "127.0.0.1:0", "transport": request.param, "proxy_protocol": ["127.0.0.0/8"]}
    made = start_broker(
        folder,
        auth={"anonymous": "always"},
        listener={
            "tcp": {"behind": {**behind, "cert_as_username": "cn",
                               "auth_chain": ["certificate", "anonymous"]},
                    "elsewhere": {**behind, "proxy_protocol": ["192.0.2.0/24"]}},
            "ssl": {"behind": behind},
            "ws": {"behind": behind},
        },
    )  # fmt: skip
    try:
        yield made
    finally:
        made.stop()


def control(broker: Broker) -> Client:
    assert broker.directory is not None
    return Client(str(broker.directory / "data" / "mqttd.sock"))


def certificates(broker: Broker) -> Path:
    assert broker.directory is not None
    return broker.directory / "etc" / "certs"


def connect(broker: Broker, door: str = "tcp:behind") -> Any:
    found = doors_of(broker)[door]
    return socket.create_connection((found.host, found.port), timeout=DEADLINE)


def peer(broker: Broker, client_id: str) -> tuple[str, int]:
    found = control(broker).get(f"/clients/{client_id}")
    return found["peerhost"], found["peerport"]


@pytest.mark.parametrize("header", [
    V1,
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes((192, 0, 2, 7, 198, 51, 100, 1))
    + (40000).to_bytes(2, "big") + b"\x07\x5b",
], ids=["v1", "v2"])  # fmt: skip
def test_the_header_names_the_client(broker: Broker, header: bytes) -> None:
    """Its address is the client's everywhere, also when header and CONNECT come byte by byte."""
    sock = connect(broker)
    sock.sendall(header)
    client = RawClient(0, mq.V5, sock=sock).connect("proxied")
    assert peer(broker, "proxied") == ("192.0.2.7", 40000)
    client.close()
    slow = RawClient(0, mq.V5, sock=connect(broker))
    slow.send_slowly(header + mq.connect("slow", 5))
    slow.expect(mq.CONNACK, reason=0)
    assert peer(broker, "slow") == ("192.0.2.7", 40000)
    slow.close()


def test_an_unknown_client_keeps_the_proxys_address(broker: Broker) -> None:
    """Health checks: UNKNOWN in version 1, LOCAL in version 2."""
    for header in (b"PROXY UNKNOWN\r\n", b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"):
        sock = connect(broker)
        sock.sendall(header)
        client = RawClient(0, mq.V5, sock=sock).connect("check")
        assert peer(broker, "check")[0] == "127.0.0.1"
        client.close()


def test_no_header_no_service(broker: Broker) -> None:
    client = RawClient(0, mq.V5, sock=connect(broker))
    client.send(mq.connect("bare", 5))
    assert client.receive() is None
    wait_for(broker, "expected a PROXY protocol header, got an MQTT CONNECT")


def test_a_stranger_may_not_say_who_he_is(broker: Broker) -> None:
    """From a network that is not trusted the header is not even read."""
    try:
        sock = connect(broker, "tcp:elsewhere")
        sock.sendall(V1 + mq.connect("liar", 5))
        assert sock.recv(100) == b""
    except ConnectionError:
        pass
    wait_for(broker, "no proxy of this listener")


def test_a_header_where_none_is_expected_is_named(broker: Broker) -> None:
    sock = socket.create_connection(("127.0.0.1", doors_of(broker)["tcp:default"].port), DEADLINE)
    sock.sendall(V1)
    assert sock.recv(10) == b""
    wait_for(broker, "the first packet is not CONNECT but a PROXY protocol header")


def test_the_header_comes_before_tls_and_before_websocket(broker: Broker) -> None:
    sock = connect(broker, "ssl:behind")
    sock.sendall(V1)
    tls = client_context(certificates(broker)).wrap_socket(sock, server_hostname="localhost")
    client = RawClient(0, mq.V5, sock=tls).connect("tls")
    assert peer(broker, "tls") == ("192.0.2.7", 40000)
    client.close()
    sock = connect(broker, "ws:behind")
    sock.sendall(V1)
    client = RawClient(0, mq.V5, sock=WebSocketWire(sock)).connect("web")
    assert peer(broker, "web") == ("192.0.2.7", 40000)
    client.close()


def wait_for(broker: Broker, text: str) -> None:
    end = time.monotonic() + DEADLINE
    while text not in broker.output:
        assert time.monotonic() < end, f"no line with {text!r}"
        time.sleep(0.02)


@pytest.fixture
def haproxy(broker: Broker, tmp_path: Path) -> Iterator[dict[str, int]]:
    """haproxy in front: a plain port, and one that ends TLS and asks for certificates."""
    program = needs_program("haproxy", "haproxy")
    folder = certificates(broker)
    pem = (folder / "server.crt").read_bytes() + (folder / "server.key").read_bytes()
    (tmp_path / "server.pem").write_bytes(pem)
    ports = dict(zip(("plain", "tls"), free_ports(2), strict=True))
    behind = doors_of(broker)["tcp:behind"].port
    (tmp_path / "haproxy.cfg").write_text(
        f"""
        global
            nbthread 1
        defaults
            mode tcp
            timeout connect 5s
            timeout client 30s
            timeout server 30s
        listen plain
            bind 127.0.0.1:{ports["plain"]}
            server mqttd 127.0.0.1:{behind} send-proxy-v2
        listen tls
            bind 127.0.0.1:{ports["tls"]} ssl crt {tmp_path}/server.pem ca-file {folder}/ca.crt verify required
            server mqttd 127.0.0.1:{behind} send-proxy-v2-ssl-cn
        \n"""  # noqa: E501
    )
    process = subprocess.Popen(
        [program, "-db", "-f", str(tmp_path / "haproxy.cfg")],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    end = time.monotonic() + DEADLINE
    while True:
        try:
            socket.create_connection(("127.0.0.1", ports["tls"]), timeout=1).close()
            break
        except OSError:
            assert process.poll() is None and time.monotonic() < end, "haproxy has not started"
            time.sleep(0.02)
    try:
        yield ports
    finally:
        process.kill()
        process.communicate()


def test_haproxy_passes_the_address_and_the_certificate_on(
    broker: Broker, haproxy: dict[str, int]
) -> None:
    """send-proxy-v2: the client's address; send-proxy-v2-ssl-cn: the common name as user name."""
    client = RawClient(haproxy["plain"], mq.V5).connect("plain")
    own = client.sock.getsockname()
    assert peer(broker, "plain") == own
    client.close()
    door = Door("ssl", "haproxy", "127.0.0.1", haproxy["tls"])
    sock = dial(door, certificates(broker), "client")
    client = RawClient(0, mq.V5, sock=sock).connect("balanced")
    found = control(broker).get("/clients/balanced")
    assert (found["peerport"], found["username"]) == (sock.getsockname()[1], "device-7")
    client.publish("a/b", b"through haproxy", 1)
    client.close()
