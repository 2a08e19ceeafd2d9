"""TLS listeners from outside: certificates, host names, what clients show, reload, wrong ports."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mqttd.admin.ctl.main import Client
from tests.support import packets as mq
from tests.support import waiting
from tests.support.broker import start_broker
from tests.support.certificates import Authority
from tests.support.client import RawClient
from tests.support.doors import Door, client_context, dial, doors_of, write_certificates
from tests.support.needs import needs_program

DEADLINE = 10.0
until = partial(waiting.until, deadline=DEADLINE)


class Site:
    """A broker with TLS listeners of one transport, and what signs its certificates."""

    def __init__(self, folder: Path, transport: str) -> None:
        self.folder = folder / "etc" / "certs"
        self.authority = write_certificates(self.folder)
        self.revoked = self.authority.client("stolen")
        self.revoked.write(self.folder, "stolen")
        self.authority.revoked.append(self.revoked)
        self.authority.write(self.folder)
        self.authority.client("late", days=-1).write(self.folder, "late")
        Authority("somebody else").client("stranger").write(self.folder, "stranger")
        for host in ("one.example", "*.many.example"):
            stem = host.replace("*", "any")
            self.authority.server(host).write(self.folder / "sni", stem)
        tls = {"transport": transport, "bind": "127.0.0.1:0", "watch_interval": "100ms"}
        asks = {**tls, "ca_file": "certs/ca.crt", "crl_file": "certs/ca.crl"}
        self.broker = start_broker(
            folder,
            files={"devices.conf": '{allow, {user, "device-7"}, all, ["device-7/#"]}.\n'},
            listener={
                "ssl": {
                    "plain": {**tls, "sni_directory": "certs/sni"},
                    "strict": {**asks, "verify": "required", "cert_as_username": "cn",
                               "cert_as_client_id": "san", "auth_chain": ["certificate"],
                               "acl_file": "devices.conf"},
                    "asking": {**asks, "verify": "optional"},
                    "modern": {**tls, "tls_version": "1.3", "session_resumption": True},
                    "hasty": {**tls, "handshake_timeout": "300ms", "max_handshakes": 2},
                    "v5": {**tls, "protocol_versions": ["5.0"]},
                }
            },
        )  # fmt: skip
        self.doors = doors_of(self.broker)

    def door(self, name: str) -> Door:
        return self.doors[f"ssl:{name}"]

    def dial(self, name: str, client: str = "") -> Any:
        return dial(self.door(name), self.folder, client)

    def said(self, text: str) -> str:
        """The broker's line with this text, which is sure to come."""
        return str(until(lambda: next((x for x in self.broker.lines if text in x), ""), text))

    def control(self) -> Client:
        assert self.broker.directory is not None
        return Client(str(self.broker.directory / "data" / "mqttd.sock"))


@pytest.fixture(scope="module", params=["engine", "twisted"])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("tls"), request.param)
    try:
        yield made
    finally:
        made.broker.stop()


def served_name(site: Site, host: str) -> str:
    """The first host name of the certificate that is served for `host`."""
    context = client_context(site.folder)
    context.check_hostname = False
    sock = socket.create_connection(("127.0.0.1", site.door("plain").port), timeout=DEADLINE)
    with context.wrap_socket(sock, server_hostname=host) as tls:
        certificate: Any = tls.getpeercert()
        return str(certificate["subjectAltName"][0][1])


def refused(site: Site, name: str, client: str) -> None:
    """A client with this certificate does not get in (TLS 1.3 tells after the handshake)."""
    with pytest.raises((ssl.SSLError, ConnectionError)):
        sock = site.dial(name, client)
        sock.sendall(mq.connect("refused", 4))
        if not sock.recv(10):
            raise ConnectionResetError


def test_mosquitto_clients_with_a_certificate(site: Site) -> None:
    """mosquitto_sub and mosquitto_pub meet at the listener that demands certificates."""
    needs_program("mosquitto_sub", "mosquitto-clients")
    port = str(site.door("strict").port)
    site.authority.client("device-7", "eight.example").write(site.folder, "other")

    def command(program: str, stem: str, *more: str) -> list[str]:
        folder = site.folder
        return [program, "-h", "localhost", "-p", port, "-q", "1", "-t", "device-7/x",
                "--cafile", str(folder / "ca.crt"), "--cert", str(folder / f"{stem}.crt"),
                "--key", str(folder / f"{stem}.key"), *more]  # fmt: skip

    with subprocess.Popen(
        ["stdbuf", "-oL", *command("mosquitto_sub", "client", "-d", "-C", "1")],
        stdout=subprocess.PIPE, text=True,
    ) as reader:  # fmt: skip
        assert reader.stdout is not None
        for line in reader.stdout:
            if line.startswith("Subscribed"):
                break
        subprocess.run(
            command("mosquitto_pub", "other", "-m", "hello"), check=True, timeout=DEADLINE
        )
        assert "hello" in reader.stdout.read()
        assert reader.wait(DEADLINE) == 0


def test_the_certificate_names_user_and_client(site: Site) -> None:
    """Common name -> user name, subject alternative name -> client id, whatever CONNECT says."""
    client = RawClient(0, mq.V5, sock=site.dial("strict", "client"))
    client.connect("i-am-somebody-else", username="root", password=b"x")
    found = site.control().get("/clients/seven.example")
    assert found["username"] == "device-7"
    assert found["listener"] == "ssl:strict"
    client.close()


def test_the_listener_has_access_rules_of_its_own(site: Site) -> None:
    client = RawClient(0, mq.V5, sock=site.dial("strict", "client")).connect()
    assert client.subscribe("device-7/a", "elsewhere/a") == [0, 0x87]
    client.close()
    other = RawClient(0, mq.V5, sock=site.dial("plain")).connect()
    assert other.subscribe("elsewhere/a") == [0]
    other.close()


@pytest.mark.parametrize("client", ["", "stranger", "stolen", "late"])
def test_clients_without_a_good_certificate_stay_out(site: Site, client: str) -> None:
    """None, of another authority, revoked, expired."""
    refused(site, "strict", client)
    site.said("TLS handshake failed")
    if client:
        refused(site, "asking", client)


def test_an_optional_certificate_may_be_missing(site: Site) -> None:
    RawClient(0, mq.V5, sock=site.dial("asking")).connect().close()
    RawClient(0, mq.V5, sock=site.dial("asking", "client")).connect().close()


def test_each_host_name_gets_its_certificate(site: Site) -> None:
    assert served_name(site, "one.example") == "one.example"
    assert served_name(site, "a.many.example") == "*.many.example"
    assert served_name(site, "unknown.example") == "localhost"


def test_alpn_and_tls_versions(site: Site) -> None:
    """`mqtt` is agreed to where it is offered; 1.3 alone is 1.3 alone; nothing below 1.2."""

    def shake(name: str, highest: ssl.TLSVersion, alpn: list[str]) -> tuple[str | None, str | None]:
        context = client_context(site.folder)
        context.maximum_version = highest
        context.set_alpn_protocols(alpn)
        sock = socket.create_connection(("127.0.0.1", site.door(name).port), timeout=DEADLINE)
        with context.wrap_socket(sock, server_hostname="localhost") as tls:
            return tls.version(), tls.selected_alpn_protocol()

    assert shake("plain", ssl.TLSVersion.TLSv1_3, ["mqtt"]) == ("TLSv1.3", "mqtt")
    assert shake("plain", ssl.TLSVersion.TLSv1_2, ["mqtt"]) == ("TLSv1.2", "mqtt")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        shake("modern", ssl.TLSVersion.TLSv1_2, ["mqtt"])


@pytest.mark.parametrize("highest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_is_resumed(site: Site, highest: ssl.TLSVersion) -> None:
    context = client_context(site.folder)
    context.maximum_version = highest
    session = None
    reused = []
    for _ in range(2):
        sock = socket.create_connection(("127.0.0.1", site.door("plain").port), timeout=DEADLINE)
        tls = context.wrap_socket(sock, server_hostname="localhost", session=session)
        client = RawClient(0, mq.V5, sock=tls).connect()  # 1.3 sends its ticket with the answer
        session = tls.session
        reused.append(tls.session_reused)
        client.close()
    assert reused == [False, True]


def test_a_listener_takes_only_its_protocol_versions(site: Site) -> None:
    RawClient(0, mq.V5, sock=site.dial("v5")).connect().close()
    client = RawClient(0, mq.V311, sock=site.dial("v5"))
    client.connect("old", reason=1)
    assert client.receive() is None


def test_half_a_handshake_ends_in_time_and_holds_nobody_up(site: Site) -> None:
    """More silent peers than handshakes are allowed: a client gets in, and they are closed."""
    port = site.door("hasty").port
    silent = [socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) for _ in range(6)]
    silent[0].sendall(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a hello
    RawClient(0, mq.V5, sock=site.dial("hasty"), deadline=DEADLINE).connect().close()
    for each in silent:
        with contextlib.suppress(ConnectionResetError):
            assert each.recv(10) == b""


def test_other_protocols_are_named(site: Site) -> None:
    """HTTP and MQTT on a TLS port, TLS on a plain port: one line that says what was seen."""
    for first, seen in ((b"GET / HTTP/1.1\r\n\r\n", "expected TLS, got an HTTP request"),
                        (mq.connect("plain", 4), "expected TLS, got an MQTT CONNECT")):  # fmt: skip
        with socket.create_connection(("127.0.0.1", site.door("plain").port), DEADLINE) as sock:
            sock.sendall(first)
            while sock.recv(100):
                pass
        line = site.said(seen)
        assert "ssl:plain" in line and "127.0.0.1" in line
    sock = socket.create_connection(("127.0.0.1", site.broker.port), DEADLINE)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        client_context(site.folder).wrap_socket(sock, server_hostname="localhost")
    site.said("the first packet is not CONNECT but TLS")
    with socket.create_connection(("127.0.0.1", site.broker.port), DEADLINE) as plain:
        plain.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert plain.recv(100) == b""
    site.said("the first packet is not CONNECT but an HTTP request")


def serial(site: Site, name: str) -> str:
    """The serial number of the certificate this listener serves now."""
    with site.dial(name) as tls:
        return str(tls.getpeercert()["serialNumber"])


def test_certificates_change_under_connected_clients(site: Site) -> None:
    """A new file is served at once; who is connected stays; a bad one is refused with an alarm."""
    client = RawClient(0, mq.V5, sock=site.dial("plain")).connect()
    first = serial(site, "plain")
    site.authority.server("localhost").write(site.folder, "server")
    until(lambda: serial(site, "plain") != first, "the new certificate")
    second = serial(site, "plain")

    # A key that does not belong to it, then an expired pair.
    good = (site.folder / "server.crt").read_bytes(), (site.folder / "server.key").read_bytes()
    (site.folder / "server.key").write_bytes(site.authority.server("localhost").key_pem())
    site.said("the old certificate stays in use")
    assert serial(site, "plain") == second
    site.authority.server("localhost", days=-2).write(site.folder, "server")
    site.said("server.crt: expired on")
    assert serial(site, "plain") == second
    with pytest.raises(Exception, match="old certificates stay in use"):
        site.control().request("POST", "/listeners/certificates/reload")

    (site.folder / "server.crt").write_bytes(good[0])
    (site.folder / "server.key").write_bytes(good[1])
    assert site.broker.process is not None
    os.kill(site.broker.process.pid, signal.SIGHUP)
    site.said("alarm cleared")
    assert serial(site, "plain") == second
    client.ping()
    client.close()


def test_a_certificate_that_expires_raises_an_alarm(site: Site) -> None:
    """While the broker runs, and the next good one clears it."""
    site.authority.server("localhost", days=2 / 86400).write(site.folder, "server")

    def alarm() -> str:
        alarms = {each["name"]: each["text"] for each in site.control().get("/alarms")["alarms"]}
        return str(alarms.get("tls:ssl:plain", ""))

    until(lambda: "server.crt: expired on" in alarm(), "the alarm")
    site.authority.server("localhost").write(site.folder, "server")
    until(lambda: not alarm(), "the end of the alarm")
    serial(site, "plain")


def test_a_swap_under_load_drops_nobody(site: Site) -> None:
    """Twenty clients publish without a break through five swaps: every message is acknowledged."""
    going = threading.Event()
    counts: list[int] = []
    faults: list[BaseException] = []

    def talk(number: int) -> None:
        try:
            client = RawClient(0, mq.V5, sock=site.dial("plain"), deadline=DEADLINE)
            client.connect(f"busy{number}")
            count = 0
            while not going.is_set():
                client.publish(f"busy/{number}", b"x" * 200, 1)
                count += 1
            counts.append(count)
            client.close()
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=talk, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        site.authority.server("localhost").write(site.folder, "server")
        site.control().request("POST", "/listeners/certificates/reload")
        serial(site, "plain")
    going.set()
    for thread in threads:
        thread.join(3 * DEADLINE)
    assert faults == []
    assert len(counts) == 20


def test_a_revocation_takes_effect_without_a_restart(site: Site) -> None:
    other = site.authority.client("sold")
    other.write(site.folder, "sold")
    RawClient(0, mq.V5, sock=site.dial("asking", "sold")).connect().close()
    site.authority.revoked.append(other)
    site.authority.write(site.folder)

    def out() -> bool:
        try:
            sock = site.dial("asking", "sold")
            sock.sendall(mq.connect("sold", 4))
            return not sock.recv(4)
        except (ssl.SSLError, ConnectionError):
            return True

    until(out, "the refusal of a revoked certificate")


def test_one_listener_stops_starts_and_restarts(site: Site) -> None:
    """Its clients are told and let go; those of the others notice nothing."""
    control = site.control()
    stays = RawClient(0, mq.V5, sock=site.dial("plain")).connect()
    goes = RawClient(0, mq.V5, sock=site.dial("asking")).connect()
    answer = control.request("POST", "/listeners/ssl:asking/stop")
    assert (answer["state"], answer["connections"]) == ("stopped", 0)
    assert goes.expect(mq.DISCONNECT).reason == 0x8B
    assert goes.receive() is None
    with pytest.raises(OSError):
        site.dial("asking")
    assert control.request("POST", "/listeners/ssl:asking/start")["state"] == "running"
    RawClient(0, mq.V5, sock=site.dial("asking")).connect().close()
    assert control.request("POST", "/listeners/ssl:asking/restart")["state"] == "running"
    RawClient(0, mq.V5, sock=site.dial("asking")).connect().close()
    stays.ping()
    stays.close()


@pytest.mark.parametrize("fault", ["missing", "no certificate", "wrong key"])
def test_a_certificate_that_cannot_be_used_stops_the_start(tmp_path: Path, fault: str) -> None:
    folder = tmp_path / "etc" / "certs"
    authority = write_certificates(folder)
    if fault == "missing":
        (folder / "server.crt").unlink()
    elif fault == "no certificate":
        (folder / "server.crt").write_text("nothing")
    else:
        (folder / "server.key").write_bytes(authority.server("x").key_pem())
    with pytest.raises(RuntimeError, match=r"listener\.ssl\.door\.certificate.*server\.crt"):
        start_broker(tmp_path, listener={"ssl": {"door": {"bind": "127.0.0.1:0"}}})
