"""Every key of the configuration: a broker that was reloaded is one that was started so.

The keys are found in the schema, their new values are made from its ranges, and what is compared is
whatever the parts of a broker hold: a key that is added later is tested without a word here. Where
a reload does not apply a key, the plan has to say so.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import msgspec
import pytest
from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import LogPublisher, capturedLogs
from twisted.python.failure import Failure

from mqttd.broker.hooks.points import Point
from mqttd.config.load import ConfigError, load
from mqttd.config.options import OPTIONS, Option
from mqttd.config.plan import option_of, values
from mqttd.config.schema import Config
from mqttd.monitor.log.filter import LogLevelFilter
from mqttd.reload import Reload, ReloadError
from mqttd.secrets.passwords import Cost, hash_password
from mqttd.service import MqttdService
from tests.support.certificates import Authority
from tests.unit.admin.node import MemoryClient

#: New values that a range cannot tell, by the end of a key's path.
SPECIAL: dict[str, Any] = {
    "auth.chain": ("username",),
    "auth.jwt.algorithms": ("HS256",),
    "auth.jwt.jwks_url": "https://example.org/keys",
    "auth.backend.ignore_errors_of": ("username",),
    "plugins.load": ("auto_subscribe",),
    "node.workers": "cores",
    "mqueue.priorities": {"alarm/#": 9},
    "durability.topics": {"alarm/#": "fsync"},
    "log.modules": {"mqttd.access": "debug"},
    "auth_chain": ("username",),
    "protocol_versions": ("5.0",),
    "proxy_protocol": ("10.0.0.0/8",),
    "access": ("deny 10.0.0.0/8", "allow all"),
    "mountpoint": "dev/",
    "owner": "0",
    "group": "0",
    "mode": "0600",
    "endpoint": "tcp:0:interface=127.0.0.2",
    "origins": ("https://example.org",),
    "ciphers": "ECDHE+AESGCM",
    "cluster.endpoints": ("http://127.0.0.1:2380",),
    "jetstream.servers": ("127.0.0.1:4223",),
    "cluster.advertise": "127.0.0.1:7883",
    "cluster.export": "https://node-1.example:8081",
    "bind": "127.0.0.2:0",
    "certificate": "copy.crt",
    "private_key": "copy.key",
    "public_key_file": "copy.crt",
    "sni_directory": "sni",
    "token_file": "other.tokens",
    "secret_file": "other.secret",
    "ws.NAME.path": "/other",
    "wss.NAME.path": "/other",
}
PAIR = {"admin.tcp.certificate": "server.crt", "admin.tcp.private_key": "server.key"}
PAGE_PAIR = {name.replace("tcp", "page"): value for name, value in PAIR.items()}
#: What has to be set beside a key so that it means something, by the beginning of its path.
BESIDE: dict[str, dict[str, Any]] = {
    "auth.username.": {"auth.chain": ("username",)},
    "auth.clientid.": {"auth.chain": ("clientid",)},
    "auth.certificate.": {"auth.chain": ("certificate",)},
    "auth.scram.": {"auth.chain": ("scram",)},
    "auth.jwt.": {"auth.chain": ("jwt",), "auth.jwt.secret_file": "secret.txt"},
    "auth.jwt.public_key_file": {"auth.jwt.secret_file": "",
                                 "auth.jwt.public_key_file": "server.crt"},
    "auth.jwt.jwks_url": {"auth.jwt.secret_file": "", "auth.jwt.jwks_url": "http://localhost/keys"},
    "admin.tcp.": {"admin.tcp.token_file": "tokens", "admin.tcp.bind": "127.0.0.1:0"},
    "admin.page.certificate": PAGE_PAIR,
    "admin.page.private_key": PAGE_PAIR,
    "admin.tcp.certificate": PAIR,
    "admin.tcp.private_key": PAIR,
    "listener.ssl.": {"certificate": "server.crt", "private_key": "server.key"},
    "listener.wss.": {"certificate": "server.crt", "private_key": "server.key"},
    "listener.tcp.NAME.reuse_port": {"cluster.kind": "etcd", "bind": "127.0.0.1:28839"},
    "listener.ssl.NAME.verify": {"ca_file": "ca.crt"},
    "listener.wss.NAME.verify": {"ca_file": "ca.crt"},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every file that a configuration here may name."""
    folder = tmp_path_factory.mktemp("reload")
    authority = Authority()
    authority.server("localhost").write(folder, "server")
    authority.write(folder)
    for old, new in (("server.crt", "copy.crt"), ("server.key", "copy.key")):
        shutil.copy(folder / old, folder / new)
    (folder / "sni").mkdir()
    for name in ("acl.conf", "other"):
        (folder / name).write_text("")
    for name in ("users.conf", "clients.conf", "scram.conf", "other"):
        (folder / name).write_text("")
        (folder / name).chmod(0o600)
    for name in ("tokens", "other.tokens", "secret.txt", "other.secret"):
        (folder / name).write_text(f"{name:0<40}\n")
        (folder / name).chmod(0o600)
    return folder


NUMBERS = count()


class Site:
    """A configuration file, and brokers that are made of it (and never started)."""

    def __init__(self, folder: Path, keys: dict[str, Any]) -> None:
        self.file = folder / "mqttd.conf"
        self.keys = keys
        self.services: list[MqttdService] = []

    def write(self, **more: Any) -> Config:
        lines = []
        for path, value in {**self.keys, **more.pop("keys", {})}.items():
            lines.append(f"{path} = {option_of(path).write(value)}\n")
        self.file.write_text("".join(lines))
        return load(str(self.file), {})

    def make(self) -> MqttdService:
        """A broker of what the file says, with a data directory of its own."""
        config = load(str(self.file), {})
        if config.node.data_dir.endswith("/data"):
            node = msgspec.structs.replace(config.node, data_dir=f"{self.file}.{next(NUMBERS)}")
            admin = msgspec.structs.replace(config.admin, socket=f"{node.data_dir}/mqttd.sock")
            config = msgspec.structs.replace(config, node=node, admin=admin)
        service = MqttdService(config, MemoryReactorClock())
        service.logging = LogLevelFilter(config.log, LogPublisher())
        service.reload = InPlace(service, maybeDeferred, at_once)
        self.services.append(service)
        return service

    def close(self) -> None:
        for service in self.services:
            for door in service.doors.doors.values():
                door.release()
            if service.control.tcp is not None:
                service.control.tcp.release()
            service.access.close()
            service.engine.close_all()
            service.lock.close()
        self.services.clear()


def at_once(work: Iterator[None]) -> Deferred[None]:
    for _ in work:
        pass
    return succeed(None)


class InPlace(Reload):
    """Leaves the data directory, which is each broker's own here."""

    def _read(self) -> Config:
        config = super()._read()
        here = self.service.config
        node, admin = config.node, config.admin
        if node.data_dir.endswith("/data"):
            node = msgspec.structs.replace(node, data_dir=here.node.data_dir)
        if "admin.socket" not in config.given:
            admin = msgspec.structs.replace(admin, socket=here.admin.socket)
        return msgspec.structs.replace(config, node=node, admin=admin)


@pytest.fixture
def make_site(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[dict[str, Any]], Site]]:
    sites: list[Site] = []
    for module in ("assembly", "service", "rounds"):
        monkeypatch.setattr(f"mqttd.{module}.monotonic_ms", lambda: 1_000_000)

    def make(keys: dict[str, Any]) -> Site:
        sites.append(Site(folder, keys))
        return sites[-1]

    yield make
    for site in sites:
        site.close()


def beside(path: str) -> dict[str, Any]:
    """The other keys that a key is tested with, those of its listener with their whole path."""
    found: dict[str, Any] = {"node.data_dir": "data"}
    kind = path.split(".")[1] if path.startswith("listener.") else "tcp"
    listener = f"listener.{kind}.x"
    if kind == "unix":
        found[f"{listener}.path"] = "x.sock"
    elif kind == "endpoint":
        found[f"{listener}.endpoint"] = "tcp:0:interface=127.0.0.1"
    else:
        found[f"{listener}.bind"] = "127.0.0.1:0"
    for begin, keys in BESIDE.items():
        if path.startswith(begin):
            for key, value in keys.items():
                found[key if "." in key else f"{listener}.{key}"] = value
    return found


def other_values(option: Option) -> Iterator[Any]:
    """Values that differ from the default, the likeliest first."""
    for end, value in SPECIAL.items():
        if option.path.endswith(end):
            yield value
    if option.base is bool:
        yield not option.default
    elif option.choices:
        yield from (choice for choice in option.choices if choice != option.default)
    elif option.base in (int, float):
        low, high = option.about.ge or 0, option.about.le or 0
        for value in (
            option.default * 2,
            option.default // 2,
            low,
            low + 1,
            high,
            (low + high) / 2,
        ):
            if value != option.default and low <= value <= high:
                yield option.base(value)
    else:
        yield from ("other", "1", "a/", "https://example.org/", ("other",), {"other": 1})


def changed(site: Site, option: Option) -> tuple[str, Any]:
    """A key of the site with another value that the loader takes; the file has it."""
    path = option.path.replace("NAME", "x")
    before = dict(values(site.write())).get(path)
    for value in other_values(option):
        try:
            config = site.write(keys={path: value})
        except (ConfigError, TypeError, ValueError, AttributeError):
            continue
        found = dict(values(config))[path]
        if found != before:
            return path, found
    pytest.fail(f"{path}: no other value was found; give one in SPECIAL")


# -- what a broker holds ---------------------------------------------------------------------------

#: What is no state of a part: what it was built with, what it is called by.
PASSED_BY = (FunctionType, MethodType, BuiltinFunctionType, ModuleType, type, Config, Point)


def snapshot(service: MqttdService) -> dict[str, object]:
    """Every plain value in the parts of a broker, by the path that leads to it."""
    found: dict[str, object] = {}
    # What only refers to other parts, or to the program, is none of them.
    apart = ("config", "reactor", "reload", "api", "lock", "services", "control", "gate", "reports")
    held = {**vars(service), **vars(service.control)}
    parts = {name: part for name, part in held.items() if name not in apart}
    walk(parts, "", found, set())
    plugins = service.plugins.config.plugins
    found["plugins"] = (plugins.dir, plugins.load)
    found["body"] = service.control.socket.site.max_body
    return found


#: What a file says -> snapshots of two brokers that were made of it.
PLAIN: dict[str, tuple[dict[str, object], dict[str, object]]] = {}


def plain(site: Site) -> tuple[dict[str, object], dict[str, object]]:
    """Two brokers of what the file says: where they differ is chance."""
    text = site.file.read_text()
    if text not in PLAIN:
        first = snapshot(site.make())
        site.close()
        PLAIN[text] = first, snapshot(site.make())
        site.close()
    return PLAIN[text]


def walk(value: Any, path: str, found: dict[str, object], seen: set[int]) -> None:
    if value is None or isinstance(value, str | bytes | int | float):
        found[path] = value
        return
    if isinstance(value, PASSED_BY) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(key, str | int):
                walk(item, f"{path}[{key}]", found, seen)
    elif isinstance(value, list | tuple):
        found[f"{path}#"] = len(value)
        if len(value) > 100:
            return  # a wheel, a ring
        for number, item in enumerate(value):
            walk(item, f"{path}[{number}]", found, seen)
    elif isinstance(value, set | frozenset):
        found[path] = sorted(map(str, value))
    elif type(value).__module__.startswith("mqttd"):
        for name in sorted(attributes(value) - {"epoch"}):
            walk(getattr(value, name, None), f"{path}.{name}", found, seen)


def attributes(value: object) -> set[str]:
    names = {*getattr(value, "__dict__", ()), *getattr(value, "__struct_fields__", ())}
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        names |= {slots} if isinstance(slots, str) else set(slots)
        own = {name for name, held in vars(cls).items() if not name.startswith("__")
               and type(held).__name__ == "getset_descriptor"}  # fmt: skip
        names |= own
    return names


def run(service: MqttdService, **options: bool) -> dict[str, Any]:
    """The answer of a reload, which here comes at once."""
    told: list[Any] = []
    service.reload.run(**options).addBoth(told.append)
    if not told:
        raise AssertionError("the reload has not ended")
    if isinstance(told[0], Failure):
        told[0].raiseException()
    answer: dict[str, Any] = told[0]
    return answer


KEYS = [path for path in OPTIONS if not path.startswith("listener.") or ".tcp." in path]
KEYS += [path for path in OPTIONS if path not in KEYS
         and path.replace(path.split(".")[1], "tcp", 1) not in OPTIONS]  # fmt: skip


@pytest.mark.parametrize("path", KEYS)
@pytest.mark.slow
def test_a_reloaded_broker_is_one_that_was_started_so(
    make_site: Callable[[dict[str, Any]], Site], path: str
) -> None:
    option = OPTIONS[path]
    site = make_site(beside(path))
    site.write()
    before, noise = plain(site)
    second = site.make()
    key, value = changed(site, option)
    dry = run(second, dry_run=True)
    told = [entry for entry in dry["changes"] if entry["key"] == key]
    assert told and not dry["applied"]
    assert told[0]["applies"] is option.reload
    answer = run(second, confirmed=True)
    assert answer["applied"] and not answer["notes"]
    alarm = second.broker.alarms._active.get("configuration differs")
    if not option.reload:
        assert alarm is not None and key in alarm.text
        assert dict(values(second.reload.in_force()))[key] != value
        site.write()
        run(second, confirmed=True)
        assert "configuration differs" not in second.broker.alarms._active
        return
    assert alarm is None
    assert dict(values(second.reload.in_force()))[key] == value

    after = snapshot(second)
    site.close()
    fresh = snapshot(site.make())
    shows = [
        where
        for where in fresh.keys() | before.keys()
        if fresh.get(where) != before.get(where) and before.get(where) == noise.get(where)
    ]
    assert shows, f"{path}: no part of a broker holds it: nothing can be said of its reload"
    wrong = {where: (after.get(where), fresh.get(where)) for where in shows
             if after.get(where) != fresh.get(where)}  # fmt: skip
    assert not wrong, f"{path}: reload left (there, wanted): {wrong}"


# -- who would be cut off --------------------------------------------------------------------------


@pytest.fixture
def site(make_site: Callable[[dict[str, Any]], Site]) -> Site:
    site = make_site(beside("mqtt.max_qos"))
    site.write()
    return site


def alarms(service: MqttdService) -> dict[str, str]:
    return {alarm.name: alarm.text for alarm in service.broker.alarms.active()}


@pytest.mark.parametrize("what", ["listener.tcp.more.bind", "admin.tcp.bind"])
def test_what_cannot_be_opened_is_told_before_it_is_tried(site: Site, what: str) -> None:
    """Asking, and asking what cuts somebody off, say what doing it would."""
    service = site.make()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        site.write(keys={what: place, "admin.tcp.token_file": "tokens"})
        said = set()
        for options in ({"dry_run": True}, {}, {"confirmed": True}):
            with pytest.raises(ReloadError) as refused:
                run(service, **options)
            said.add(str(refused.value))
        assert len(said) == 1 and place in said.pop()
    ports = dict(service.ports)
    assert run(service, dry_run=True)["applied"] is False
    assert service.ports == ports
    assert run(service, confirmed=True)["applied"]  # asking has left nothing bound


def test_a_level_of_a_module_that_is_not_there_is_said(site: Site) -> None:
    service = site.make()
    site.write(keys={"log.modules": {"mqttd.plugin.mine": "debug", "mqttd.brokr": "debug"}})
    (note,) = run(service)["notes"]
    assert note.startswith(f"{site.file}:")
    assert note.endswith("there is no module 'mqttd.brokr'; did you mean mqttd.broker?")


def test_an_address_over_tcp_without_tokens_is_said_to_open_nothing(site: Site) -> None:
    bind = {"admin.tcp.bind": "127.0.0.1:0"}
    site.write(keys=bind)
    with capturedLogs() as lines:
        service = site.make()
    told = [str(line["note"]) for line in lines if "note" in line]
    assert len(told) == 1 and 'admin.tcp.bind = "127.0.0.1:0" opens nothing' in told[0]
    assert told[0].startswith(f"{site.file}:") and service.control.tcp is None
    site.write(keys={**bind, "admin.tcp.token_file": "tokens"})
    assert run(service)["notes"] == []
    site.write(keys=bind)
    assert run(service, confirmed=True)["notes"] == told


def test_a_name_in_a_chain_that_no_plugin_has_made_a_module_of_is_told(site: Site) -> None:
    """With plugins it may be the name of one of their modules, and is no mistake of the file."""
    plugins = {"plugins.load": ("auto_subscribe",)}
    site.write(keys={**plugins, "listener.tcp.default.auth_chain": ("jwtt",)})
    service = site.make()
    (told,) = service.gate.unclaimed()
    assert told.startswith(f"{site.file}:"), told
    assert "listener.tcp.default.auth_chain names 'jwtt', which is no module" in told
    assert told.endswith("; did you mean jwt?")
    site.write(keys={**plugins, "auth.chain": ("usernme", "anonymous")})
    notes = run(service, confirmed=True)["notes"]
    assert any("auth.chain names 'usernme'" in note for note in notes)
    site.write(keys={**plugins, "auth.chain": ("anonymous",)})
    assert run(service, confirmed=True)["notes"] == []


def test_a_listener_that_comes_is_asked_about_as_it_wants_it(site: Site) -> None:
    service = site.make()
    bind = {"listener.tcp.apart.bind": "127.0.0.1:0"}
    chain = {"listener.tcp.apart.auth_chain": ("username",), "listener.tcp.apart.acl_file": "other"}
    site.write(keys={**bind, **chain})
    assert run(service, confirmed=True)["applied"]
    own = service.access.own["tcp:apart"].config
    assert own.auth.chain == ("username",) and own.acl.file.endswith("/other")
    site.write()
    assert run(service, confirmed=True)["applied"]
    # One of the same name that wants nothing of its own.
    site.write(keys=bind)
    assert run(service, confirmed=True)["applied"]
    assert "tcp:apart" not in service.access.own


def test_rules_of_a_listener_go_with_what_the_same_reload_says_of_users(site: Site) -> None:
    default = {"listener.tcp.default.bind": "127.0.0.1:0"}
    site.write(keys={**default, "auth.anonymous": "any"})
    service = site.make()
    rules = {"listener.tcp.default.acl_file": "other"}
    site.write(keys={**default, **rules, "auth.anonymous": "never"})
    assert run(service, confirmed=True)["applied"]
    assert service.access.own["tcp:default"].config.auth.anonymous == "never"


@pytest.mark.parametrize(
    ("key", "content", "told", "said"),
    [
        ("acl.file", None, "acl.file", " = '{file}': No such file or directory"),
        ("acl.file", "{allow, all}\n", "acl.file", ": {file}:1:13: found end of file"),
        ("certificate", None, "listener.ssl.x.certificate", " = '{file}': No such file"),
        ("private_key", "x", "listener.ssl.x.certificate", ": {folder}/server.crt with {file}: "),
    ],
)
def test_a_file_that_cannot_be_used_is_told_with_the_line_that_names_it(
    site: Site, folder: Path, tmp_path: Path, key: str, content: str | None, told: str, said: str
) -> None:
    keys: dict[str, Any] = {
        "listener.ssl.x.bind": "127.0.0.1:0",
        "listener.ssl.x.certificate": str(folder / "server.crt"),
        "listener.ssl.x.private_key": str(folder / "server.key"),
        "acl.file": str(folder / "acl.conf"),
    }
    site.write(keys=keys)
    service = site.make()
    file = tmp_path / "file"
    if content is not None:
        file.write_text(content)
    site.write(keys=keys | {name: str(file) for name in keys if name.endswith(key)})
    with pytest.raises(ReloadError) as refused:
        run(service)
    lines = enumerate(site.file.read_text().splitlines(), 1)
    line = next(number for number, text in lines if text.startswith(f"{told} = "))
    begin = f"{site.file}:{line}: {told}{said.format(file=file, folder=folder)}"
    assert str(refused.value).startswith(begin)


def test_anonymous_clients_go_when_they_are_not_let_in_any_more(site: Site) -> None:
    service = site.make()
    client = MemoryClient(service.broker, "a")
    site.write(keys={"auth.anonymous": "never", "auth.chain": ("username", "anonymous")})
    held = run(service)
    assert not held["applied"]
    assert held["warnings"] == [
        'locks everybody out, by auth.anonymous = "never": nobody else has anybody to let in',
        'ends the connections of 1 client, by auth.anonymous = "never"',
    ]
    assert service.broker.stats()["clients_connected"] == 1
    assert run(service, confirmed=True)["applied"]
    assert [type(packet).__name__ for packet in client.received()][-1] == "Disconnect"
    late = MemoryClient(service.broker, "b")
    assert late.received()[0].reason_code == 0x87


def test_sessions_whose_clients_addresses_nobody_knows_are_not_told_of(
    site: Site, folder: Path
) -> None:
    """As after a restart: they are judged when their clients are back."""
    service = site.make()
    (folder / "acl.conf").write_text("{allow, all}.\n")
    try:
        run(service)
        client = MemoryClient(service.broker, "a")
        client.subscribe("ok")
        session = service.broker.sessions["a"]
        session.detach()
        session.client = None
        (folder / "acl.conf").write_text('{allow, {ipaddr, "127.0.0.1"}}.\n')
        assert run(service, dry_run=True)["warnings"] == []
    finally:
        (folder / "acl.conf").write_text("{allow, all}.\n")
        service.broker.stop()


def test_rules_that_revoke_more_than_a_tenth_are_told_first(site: Site, folder: Path) -> None:
    service = site.make()
    (folder / "acl.conf").write_text("{allow, all}.\n")
    try:
        run(service)
        client = MemoryClient(service.broker, "a")
        for number in range(8):
            client.subscribe(f"ok/{number}")
        client.subscribe("secret")
        (folder / "acl.conf").write_text('{deny, all, subscribe, ["secret"]}.\n{allow, all}.\n')
        planned = run(service, dry_run=True)
        assert planned["warnings"] == ["revokes 11 % of the subscriptions that clients hold"]
        assert [file["text"] for file in planned["files"]] == [
            "rules: 1 added; 1 client loses a subscription"
        ]
        for number in range(8, 12):
            client.subscribe(f"ok/{number}")
        assert run(service)["applied"]
    finally:
        (folder / "acl.conf").write_text("")


def test_users_and_rules_that_differ_are_named(
    make_site: Callable[[dict[str, Any]], Site], folder: Path
) -> None:
    site = make_site(
        {
            "auth.chain": ("username", "anonymous"),
            "auth.anonymous": "any",
            "auth.username.unknown": "ignore",
            "listener.tcp.x.acl_file": "other",
        }
    )
    users, acl, own = folder / "users.conf", folder / "acl.conf", folder / "other"

    def have(**passwords: str) -> None:
        cost = Cost(8, 1, 1)
        lines = (f"{name}:{hash_password(text, cost)}\n" for name, text in passwords.items())
        users.write_text("".join(lines))

    try:
        acl.write_text("{allow, all}.\n{deny, all}.\n")
        site.write()
        service = site.make()
        for client_id, username in (("a1", "ann"), ("a2", "ann"), ("b", "bob")):
            # Who has shown a password; here nobody is asked for one.
            MemoryClient(service.broker, client_id, username).channel.auth = "username"
        have(ann="1", bob="2", eve="3")
        service.access.reload_auth()
        have(bob="other", new="4")
        acl.write_text("{deny, all}.\n{allow, all}.\n")
        own.write_text("{allow, all}.\n")
        planned = run(service, dry_run=True)
        assert planned["changes"] == [] and not planned["applied"]
        assert [file["text"] for file in planned["files"]] == [
            "rules: 2 moved",
            "users: ann (2 connected), eve removed, bob (1 connected) changed, new added",
            "rules of tcp:x: 1 added",
        ]
        assert run(service)["applied"]
        assert service.broker.stats()["clients_connected"] == 0
        assert run(service, dry_run=True)["files"] == []
    finally:
        for file in (users, acl, own):
            file.write_text("")


def test_a_mistake_changes_nothing_and_raises_an_alarm(site: Site, folder: Path) -> None:
    service = site.make()
    for keys, told in (
        ({"mqtt.max_qos": 1, "acl.file": "missing.conf"}, "missing.conf"),
        ({"mqtt.max_qos": 1, "auth.chain": ("nobody",)}, "nobody"),
        ({"mqtt.max_qos": 1, "plugins.load": ("nothing",)}, "nothing"),
    ):
        site.write(keys=keys)
        with pytest.raises(ReloadError, match=told):
            run(service, confirmed=True)
        assert told in alarms(service)["configuration"]
        assert service.broker.settings.max_qos == 2
    site.file.write_text("mqtt.max_quos = 1\n")
    with pytest.raises(ReloadError, match="mqtt.max_quos: unknown key"):
        run(service, dry_run=True)
    site.file.write_text("mqtt.max_quos = 1\nmqtt.max_qos = 7\n")
    with pytest.raises(ReloadError) as told_all:
        run(service)
    assert "unknown key" in str(told_all.value) and "7" in str(told_all.value)
    assert "\n" not in str(told_all.value) + alarms(service)["configuration"]
    site.write()
    assert run(service)["changes"] == []
    assert alarms(service) == {}


def test_listeners_come_and_go(site: Site) -> None:
    service = site.make()
    site.write(keys={"listener.unix.late.path": "late.sock"})
    answer = run(service)
    assert [change["key"] for change in answer["changes"]] == ["listener.unix.late"]
    assert set(service.doors.doors) == {"tcp:x", "unix:late"}
    late = service.doors.doors["unix:late"]
    assert not late.running  # nobody is let in yet
    service.doors.start()
    assert late.running
    site.write(keys={"listener.unix.later.path": "later.sock"})
    run(service)
    assert service.doors.doors["unix:later"].running and not late.running
    site.write()
    assert run(service)["changes"][0]["effect"] == "is closed, its connections end"
    assert set(service.doors.doors) == {"tcp:x"}


def test_a_plugin_comes_and_goes(site: Site) -> None:
    service = site.make()
    site.write(keys={"plugins.load": ("auto_subscribe",)})
    assert run(service)["applied"]
    assert service.plugins.loaded() == ["auto_subscribe"]
    site.write()
    assert run(service)["applied"]
    assert service.plugins.loaded() == []


def test_a_plugins_file_that_was_edited_is_told_with_what_takes_it(site: Site) -> None:
    service = site.make()
    site.write(keys={"plugins.load": ("auto_subscribe",)})
    assert run(service)["notes"] == run(service, dry_run=True)["notes"] == []
    file = site.file.parent / "plugins" / "auto_subscribe.conf"
    file.parent.mkdir(exist_ok=True)
    try:
        for text in ('[[topics]]\nfilter = "a"\n', "x = 1\n", "broken"):
            file.write_text(text)
            (told,) = run(service)["notes"]
            assert told.startswith(f"plugin auto_subscribe: {file} is not what it was loaded with")
            assert "`mqttd-ctl plugins reload auto_subscribe`" in told
            assert run(service, dry_run=True)["notes"] == [told]
        file.write_text("# nothing but a comment\n")
        assert run(service)["notes"] == []
    finally:
        file.unlink()


def test_what_is_in_force_says_where_it_comes_from(site: Site) -> None:
    service = site.make()
    site.write(keys={"mqtt.max_qos": 1, "node.name": "other"})
    run(service)
    keys = {entry["key"]: entry for entry in service.reload.describe()["keys"]}
    assert keys["mqtt.max_qos"]["value"] == "1"
    assert keys["mqtt.max_qos"]["source"].endswith("mqttd.conf:3")
    assert keys["mqtt.max_topic_levels"]["source"] == "default"
    assert (keys["node.name"]["value"], keys["node.name"]["file"]) == ('"mqttd"', '"other"')
