"""Plugins that authenticate, with real servers behind them and paho in front.

slapd, PostgreSQL, MariaDB, Redis, a klein service, and for MongoDB what speaks its protocol
(NX-27017; MongoDB's own server is under no licence a distribution takes). One broker has a listener
for each of them, so that what becomes of one shows that it is nothing to the others.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import re
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import bcrypt
import paho.mqtt.client as paho
import pytest
from argon2 import PasswordHasher
from cryptography import x509
from ldap3.core.exceptions import LDAPException
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.subscribeoptions import SubscribeOptions

from mqttd.types import AuthOk
from mqttd_plugins.auth_ldap.plugin import AuthLdap
from mqttd_plugins.auth_ldap.plugin import Settings as LdapSettings
from tests.support import packets as mq
from tests.support import servers
from tests.support.authenticating import Asked
from tests.support.broker import Broker, start_broker
from tests.support.certificates import Authority
from tests.support.client import RawClient
from tests.support.doors import Door, doors_of
from tests.support.servers import Server

# Six servers are started first.
pytestmark = pytest.mark.timeout(180)

DEADLINE = 30.0
TIMEOUT = 3.0  # of every plugin
BACKENDS = ("ldap", "pgsql", "mysql", "redis", "http", "mongo")
USERS = {"alice": "alice's", "root": "root's"}
NO_MATCHING_SUBSCRIBERS = 0x10
SUFFIX = "dc=example,dc=com"
COUNT = count(1)

RULES = [
    ("allow", "publish", "up/${username}/#"),
    ("allow", "subscribe", "down/%c"),
    ("allow", "subscribe", "eq own/#"),
]
SQL = """
CREATE TABLE mqtt_user (username VARCHAR(100) PRIMARY KEY, password_hash VARCHAR(200),
                        salt VARCHAR(40), is_superuser BOOLEAN);
CREATE TABLE mqtt_acl (username VARCHAR(100), permission VARCHAR(5), action VARCHAR(9),
                       topic VARCHAR(200));
"""
SQL += "".join(
    f"INSERT INTO mqtt_acl VALUES ('alice', '{permission}', '{action}', '{topic}');\n"
    for permission, action, topic in RULES
)
ACL_QUERY = "SELECT permission, action, topic FROM mqtt_acl WHERE username = ${username}"

LDIF = f"""
dn: {SUFFIX}
objectClass: dcObject
objectClass: organization
dc: example
o: Example

dn: ou=people,{SUFFIX}
objectClass: organizationalUnit
ou: people

dn: ou=groups,{SUFFIX}
objectClass: organizationalUnit
ou: groups

dn: cn=mqttd,{SUFFIX}
objectClass: person
cn: mqttd
sn: mqttd
userPassword: searches
"""
for name, password in USERS.items():
    LDIF += f"""
dn: uid={name},ou=people,{SUFFIX}
objectClass: inetOrgPerson
uid: {name}
cn: {name}
sn: {name}
userPassword: {password}
"""
for group, member in (("operators", "alice"), ("admins", "root")):
    LDIF += f"""
dn: cn={group},ou=groups,{SUFFIX}
objectClass: groupOfNames
cn: {group}
member: uid={member},ou=people,{SUFFIX}
"""


def sql(hashed: dict[str, str]) -> str:
    return SQL + "".join(
        f"INSERT INTO mqtt_user VALUES ('{name}', '{text}', NULL, {str(name == 'root').upper()});\n"
        for name, text in hashed.items()
    )


def argon2(password: str) -> str:
    return PasswordHasher(time_cost=1, memory_cost=1024, parallelism=1).hash(password)


def bcrypted(password: str) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


def salted(password: str, salt: str = "pepper") -> str:
    return hashlib.sha256((salt + password).encode()).hexdigest()


def pbkdf2(password: str, salt: str = "pepper") -> str:
    return hashlib.pbkdf2_hmac("sha512", password.encode(), salt.encode(), 1000).hex()


def http_service(folder: Path) -> Server:
    folder.mkdir()
    port = servers.free_port()
    return servers.start(
        "klein", port, folder,
        [sys.executable, "-m", "tests.support.auth_service", str(port)],
        lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/asked", timeout=5).read(),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip


@dataclass
class World:
    """The broker and the servers by the names of the plugins."""

    broker: Broker
    servers: dict[str, Server]
    folder: Path
    doors: dict[str, Door]

    def file(self, name: str) -> str:
        """One of the directory's files."""
        return str(self.folder / "ldap" / name)

    def port(self, listener: str) -> int:
        """Where a listener of the broker is."""
        return self.doors[f"tcp:{listener}"].port


def start_servers(base: Path, authority: Authority) -> dict[str, Server]:
    ldap = base / "ldap"
    ldap.mkdir()
    authority.write(ldap)
    # Not for 127.0.0.1, where it is reached too.
    authority.issue("localhost", [x509.DNSName("localhost")], True).write(ldap, "server")
    users = [
        {"username": name, "password_hash": pbkdf2(password), "salt": "pepper",
         "is_superuser": name == "root"}
        for name, password in USERS.items()
    ]  # fmt: skip
    rules = [
        {"username": "alice", "permission": permission, "action": action, "topics": [topic]}
        for permission, action, topic in RULES
    ]
    commands = [
        ["HSET", f"mqtt_user:{name}", "password_hash", salted(password), "salt", "pepper",
         "is_superuser", "1" if name == "root" else "0"]
        for name, password in USERS.items()
    ]  # fmt: skip
    for _, action, topic in RULES:
        commands.append(["HSET", "mqtt_acl:alice", topic, action])
    commands.append(["SET", "mqtt_user:strange", "not a hash"])
    hashed = {name: argon2(password) for name, password in USERS.items()}
    quick = {name: bcrypted(password) for name, password in USERS.items()}
    found = servers.start_all(
        [
            partial(servers.slapd, ldap, SUFFIX, "admin", LDIF),
            partial(
                servers.postgres,
                base / "pgsql",
                sql(hashed) + "CREATE USER mqttd PASSWORD 'reads'; GRANT SELECT ON ALL TABLES"
                " IN SCHEMA public TO mqttd;",
            ),
            partial(
                servers.mariadb,
                base / "mysql",
                sql(quick) + "CREATE USER mqttd@'127.0.0.1' IDENTIFIED BY 'reads';\n"
                "GRANT SELECT ON mqtt.* TO mqttd@'127.0.0.1';\n",
            ),
            partial(servers.redis, base / "redis", "reads", commands),
            partial(http_service, base / "http"),
            partial(servers.mongo, base / "mongo", {"mqtt_user": users, "mqtt_acl": rules}),
        ]
    )
    return dict(zip(BACKENDS, found, strict=True))


def settings(name: str, port: int, base: Path) -> str:
    """The configuration of a plugin, as an operator writes it."""
    texts = {
        "ldap": (
            f'url = "ldap://localhost:{port}"\nstarttls = true\nca_file = "{base}/ldap/ca.crt"\n'
            f'bind_dn = "cn=mqttd,{SUFFIX}"\nbind_password = "searches"\n'
            f'[search]\nbase = "ou=people,{SUFFIX}"\n'
            'filter = "(&(objectClass=inetOrgPerson)(uid=${username}))"\n'
            f'[groups]\nbase = "ou=groups,{SUFFIX}"\nsuperusers = ["admins"]\nrules = [\n'
            + "".join(
                f'{{group = "operators", permission = "{permission}", action = "{action}",'
                f' topic = "{topic}"}},\n'
                for permission, action, topic in RULES
            )
            + "]\n"
        ),
        "pgsql": f'port = {port}\npassword = "reads"\nacl_query = "{ACL_QUERY}"\n',
        "mysql": (
            f'port = {port}\npassword = "reads"\nacl_query = "{ACL_QUERY}"\n'
            "query = \"SELECT * FROM mqtt_user WHERE username = '%u'\"\n"
            '[password_hash]\nalgorithm = "bcrypt"\n'
        ),
        "redis": (
            f'port = {port}\npassword = "reads"\nacl_command = "HGETALL mqtt_acl:${{username}}"\n'
            '[password_hash]\nalgorithm = "sha256"\nsalt_position = "prefix"\n'
        ),
        "http": f'url = "http://127.0.0.1:{port}/mqtt"\n',
        "mongo": (
            f'port = {port}\nacl_filter = {{username = "${{username}}"}}\n'
            '[password_hash]\nalgorithm = "pbkdf2"\nmac_fun = "sha512"\niterations = 1000\n'
        ),
    }
    return f"timeout = {TIMEOUT}\n" + texts[name]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    # PostgreSQL runs as another user: pytest's own folders are for nobody else.
    base = Path(tempfile.mkdtemp(prefix="mqttd-backends-"))
    base.chmod(0o755)
    authority = Authority()
    running: dict[str, Server] = {}
    broker = None
    try:
        running = start_servers(base, authority)
        plugins = {
            f"plugins/auth_{name}.conf": settings(name, server.port, base)
            for name, server in running.items()
        }
        names = [f"auth_{name}" for name in BACKENDS]
        listeners = {
            name: {"bind": "127.0.0.1:0", "auth_chain": [f"auth_{name}"]} for name in BACKENDS
        }
        broker = start_broker(
            tmp_path_factory.mktemp("broker"),
            acl="{deny, all}.\n",
            files=plugins,
            plugins={"load": names},
            listener={"tcp": listeners},
            auth={
                "chain": ["anonymous"],
                "anonymous": "always",
                "backend": {"deadline": "5s", "cache_ok": "0s", "cache_denied": "0s",
                            "breaker_failures": 3, "breaker_retry": "300ms",
                            "breaker_max_retry": "300ms"},
            },
        )  # fmt: skip
        yield World(broker, running, base, doors_of(broker))
    finally:
        if broker is not None:
            broker.stop()
        for server in running.values():
            server.stop()
        shutil.rmtree(base, ignore_errors=True)


class Client:
    """A paho client that waits for every answer."""

    def __init__(self, port: int, client_id: str, username: str, password: str) -> None:
        self.answers: queue.Queue[Any] = queue.Queue()
        self.messages: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self.paho = client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5
        )
        client.username_pw_set(username, password)
        client.on_connect = lambda c, data, flags, reason, properties: self.answers.put(reason)
        client.on_subscribe = lambda c, data, mid, reasons, properties: self.answers.put(reasons[0])
        client.on_publish = lambda c, data, mid, reason, properties: self.answers.put(reason)
        client.on_message = lambda c, data, message: self.messages.put(
            (message.topic, message.payload)
        )
        client.connect("127.0.0.1", port)
        client.loop_start()
        self.connack = self.answers.get(timeout=DEADLINE)

    def subscribe(self, topic: str) -> int:
        self.paho.subscribe(topic, options=SubscribeOptions(qos=1))
        return int(self.answers.get(timeout=DEADLINE).value)

    def publish(self, topic: str) -> int:
        self.paho.publish(topic, topic.encode(), qos=1)
        return int(self.answers.get(timeout=DEADLINE).value)

    def close(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


def connack(
    world: World,
    listener: str,
    username: str | None,
    password: str | None,
    deadline: float = DEADLINE,
) -> int:
    """The reason code for a client that connects so, each with its own client id.

    A session that the broker has not ended yet keeps its client id from other users.
    """
    client = RawClient(world.port(listener), mq.V5, deadline)
    try:
        secret = None if password is None else password.encode()
        client.send(mq.connect(f"c{next(COUNT)}", mq.V5, username=username, password=secret))
        return int(client.expect(mq.CONNACK).reason)
    finally:
        client.close()


def opened(world: World, name: str) -> int:
    """How often the breaker of a plugin's module has opened."""
    return sum(
        "auth breaker opened" in line and f"auth_{name}" in line for line in world.broker.lines
    )


@pytest.mark.parametrize("name", BACKENDS)
def test_a_client_is_authenticated_and_authorised(world: World, name: str) -> None:
    port = world.port(name)
    root = Client(port, f"{name}-root", "root", USERS["root"])
    alice = Client(port, f"{name}-alice", "alice", USERS["alice"])
    try:
        assert root.connack == alice.connack == "Success"
        assert root.subscribe("#") == 1
        assert alice.subscribe(f"down/{name}-alice") == 1
        assert alice.subscribe("own/#") == 1
        for topic in ("down/somebody", "own/x", "#", "up/#"):
            assert alice.subscribe(topic) == 0x87, topic
        for topic in ("up/root/x", "up", f"down/{name}-alice"):
            assert alice.publish(topic) == 0x87, topic
        assert alice.publish("up/alice/x") in (0, NO_MATCHING_SUBSCRIBERS)
        assert root.publish(f"down/{name}-alice") == 0
        assert alice.messages.get(timeout=DEADLINE)[0] == f"down/{name}-alice"
        assert [root.messages.get(timeout=DEADLINE)[0] for _ in range(2)] == [
            "up/alice/x",
            f"down/{name}-alice",
        ]
    finally:
        root.close()
        alice.close()


ATTEMPTS = [
    ("alice", "wrong"),
    ("alice", ""),
    ("alice", None),
    ("nobody", "alice's"),
    ("", "alice's"),
    ("*", "alice's"),
    ("alice*", "alice's"),
    ("*)(uid=*", "alice's"),
    ("alice)(|(uid=*", "alice's"),
    ("*))(|(uid=alice", "alice's"),
    ("alice,ou=people", "alice's"),
    (f"alice,ou=people,{SUFFIX}", "alice's"),
    ("alice\\2a", "alice's"),
    ("alice' OR '1'='1", "alice's"),
    ("' OR username='alice' -- ", "alice's"),
    ("\\' OR 1=1 -- ", "alice's"),
    ("alice'/*", "alice's"),
    ("x' UNION SELECT 'alice''s', '', true -- ", "alice's"),
    ("%", "alice's"),
    ("alice\r\nGET mqtt_user:root", "alice's"),
    ("alice password_hash", "alice's"),
    ("strange", "not a hash"),
    ("${username}", "alice's"),
    ("%u", "alice's"),
    ("%s", "alice's"),
    ('{"$ne": ""}', "alice's"),
    ('alice", "is_superuser": true, "x": "', "alice's"),
    ("../open", "alice's"),
    ("a" * 5000, "alice's"),
]


@pytest.mark.parametrize("name", BACKENDS)
def test_nobody_else_gets_in_whatever_they_call_themselves(world: World, name: str) -> None:
    before = opened(world, name)
    codes = {
        (username, password): connack(world, name, username, password)
        for username, password in ATTEMPTS
    }
    assert {attempt: code for attempt, code in codes.items() if code not in (0x86, 0x87)} == {}
    # None of it has been taken for a fault of the back end, which would keep others out.
    assert opened(world, name) == before
    assert connack(world, name, "alice", USERS["alice"]) == 0
    assert connack(world, name, None, None) in (0x86, 0x87)
    assert connack(world, "default", None, None) == 0


@pytest.mark.parametrize("name", ["ldap", "mysql"])
@pytest.mark.parametrize("spelling", ["ALICE", "alice "])
def test_whoever_is_the_same_to_the_back_end_is_the_same_to_the_broker(
    world: World, name: str, spelling: str
) -> None:
    alice = Client(world.port(name), "spelled", spelling, USERS["alice"])
    try:
        assert alice.connack == "Success"
        assert alice.publish("up/alice/x") in (0, NO_MATCHING_SUBSCRIBERS)
        assert alice.publish(f"up/{spelling}/x") == 0x87
    finally:
        alice.close()


def ldap(world: World, **config: Any) -> Asked:
    """The plugin with another configuration, asked without a broker."""
    port = world.servers["ldap"].port
    base = {"url": f"ldap://localhost:{port}", "starttls": True, "ca_file": world.file("ca.crt")}
    dn = f"uid=${{username}},ou=people,{SUFFIX}"
    return Asked(AuthLdap(), LdapSettings(**{**base, "user_dn": dn, **config}))


def test_a_directory_can_be_asked_without_a_search(world: World) -> None:
    asking = ldap(world)
    assert asking("Alice", b"alice's") == AuthOk(username="alice")
    for username, password in ATTEMPTS:
        secret = None if password is None else password.encode()
        assert not isinstance(asking(username, secret), AuthOk), (username, password)


def test_a_directory_that_cannot_show_its_certificate_gets_no_password(world: World) -> None:
    Authority().write(world.folder / "other")
    port = world.servers["ldap"].port
    ldaps = int(Path(world.file("ldaps")).read_text())
    for starttls, scheme, where in ((True, "ldap", port), (False, "ldaps", ldaps)):
        url = {"url": f"{scheme}://localhost:{where}", "starttls": starttls}
        assert isinstance(ldap(world, **url)("alice", b"alice's"), AuthOk)
        by_address = {**url, "url": f"{scheme}://127.0.0.1:{where}"}
        others = str(world.folder / "other/ca.crt")
        for config in ({**url, "ca_file": others}, {**url, "ca_file": ""}, by_address):
            with pytest.raises(LDAPException, match="(?i)certificate|wrap"):
                ldap(world, **config)("alice", b"alice's")
    plain = ldap(world, url=f"ldap://127.0.0.1:{port}", starttls=False)
    assert isinstance(plain("alice", b"alice's"), AuthOk)


@pytest.mark.parametrize("username", ["garbage", "large", "moved", "hang"])
def test_an_http_service_that_talks_nonsense_lets_nobody_in(world: World, username: str) -> None:
    assert connack(world, "http", username, "x", 10) == 0x88
    assert eventually(lambda: connack(world, "http", "alice", USERS["alice"]) == 0)


def test_a_service_that_ignores_a_client_leaves_it_to_the_next_module(world: World) -> None:
    assert connack(world, "http", "stranger", "x") in (0x86, 0x87)
    asked = json.loads(
        urllib.request.urlopen(
            f"http://127.0.0.1:{world.servers['http'].port}/asked", timeout=DEADLINE
        ).read()
    )
    assert re.fullmatch(r"c\d+", asked[-1].pop("clientid"))
    assert asked[-1] == {"username": "stranger", "peerhost": "127.0.0.1", "password": "x"}


def together(works: list[Callable[[], object]]) -> None:
    """Call all of them at the same time."""
    with ThreadPoolExecutor(len(works)) as pool:
        for work in [pool.submit(work) for work in works]:
            work.result(DEADLINE)


def eventually(true: Any) -> bool:
    until = time.monotonic() + DEADLINE
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def test_servers_that_hang_keep_their_own_clients_out_and_nobody_else(world: World) -> None:
    hanging = ("ldap", "pgsql", "redis")
    family = []
    for name in hanging:
        parent = world.servers[name].process.pid
        family += [parent, *children(parent)]
    for pid in family:
        os.kill(pid, signal.SIGSTOP)
    codes: dict[str, list[int]] = {name: [] for name in hanging}
    took: list[float] = []

    def knock(name: str) -> None:
        codes[name].append(connack(world, name, "alice", USERS["alice"]))

    def connect() -> None:
        for _ in range(10):
            began = time.monotonic()
            assert connack(world, "default", None, None) == 0
            assert connack(world, "mysql", "alice", USERS["alice"]) == 0
            took.append(time.monotonic() - began)

    try:
        together([partial(knock, name) for name in hanging] * 5 + [connect])
    finally:
        for pid in reversed(family):
            os.kill(pid, signal.SIGCONT)
    assert codes == dict.fromkeys(hanging, [0x88] * 5)
    assert max(took) < TIMEOUT
    for name in hanging:
        assert eventually(lambda name=name: connack(world, name, "alice", USERS["alice"]) == 0)


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in listed]


def test_servers_that_are_gone_let_nobody_in_until_they_are_back(world: World) -> None:
    for server in world.servers.values():
        server.stop()
    refused: dict[str, list[int]] = {name: [] for name in BACKENDS}

    def knock(name: str) -> None:
        for _ in range(4):
            refused[name].append(connack(world, name, "alice", USERS["alice"]))

    together([partial(knock, name) for name in BACKENDS])
    assert refused == dict.fromkeys(BACKENDS, [0x88] * 4)
    assert all(opened(world, name) for name in BACKENDS)
    assert connack(world, "default", None, None) == 0
    assert all(
        any("alarm raised" in line and f"auth_{name}" in line for line in world.broker.lines)
        for name in BACKENDS
    )
    for name in ("pgsql", "redis"):
        world.servers[name].start(lambda: None)
    for name in ("pgsql", "redis"):
        assert eventually(lambda name=name: connack(world, name, "alice", USERS["alice"]) == 0)
    assert "internal error" not in world.broker.output
    told = [line for line in world.broker.lines if not line.startswith("    ")]  # no tracebacks
    assert not [line for line in told if "alice's" in line or "reads" in line]
