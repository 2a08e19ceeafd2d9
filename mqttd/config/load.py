"""Read the configuration file and the environment into a `Config`, or say all that is wrong.

    file ──tomllib──┐
                    ├─> values by dotted path ──read──> checked values ──> structs ──> Config
    MQTTD__A__B ────┘           │ unknown, wrong type, out of range, at odds with another key
                                └─> one ConfigError that lists every mistake

Environment variables win over the file, the file over the defaults. Relative paths, wherever they
come from, count from the directory of the file.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final

import msgspec

from mqttd.codec.reasons import MqttError
from mqttd.codec.topic import split_shared, validate_topic_filter
from mqttd.config.guess import example, is_table, pattern_of, unknown
from mqttd.config.options import OPTIONS, TABLES, Option, format_size
from mqttd.config.schema import (
    LISTENER_KINDS,
    AdminPage,
    AdminTcp,
    Cluster,
    Config,
    Listener,
    SocketListener,
    SslListener,
    UnixListener,
)
from mqttd.config.schema.toml_text import fault_in, line_numbers
from mqttd.printable import printable

__all__ = ["ConfigError", "load"]

PREFIX: Final = "MQTTD__"
MAX_SOCKET_PATH: Final = 107
"""Bytes of a Unix socket's path (sun_path less its final zero)."""

_LISTENER_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: A key of more than 64 parts.
_NESTED: Final = re.compile(r"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){64}""")
#: Mistakes that are told; those of a file that is no configuration are many.
_MISTAKES: Final = 100
#: Of the first of them it is said which key may have been meant: 40 ms each, in pure Python.
_GUESSED: Final = 10


class ConfigError(Exception):
    """The configuration cannot be used.

    `mistakes` has one line for each mistake: where it is, the key, its value and what was
    expected. ``str()`` gives them all.
    """

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


def load(path: str | None, environ: Mapping[str, str]) -> Config:
    """The configuration in the TOML file at `path`, with the overrides found in `environ`.

    Without a path the defaults are read as if from ``etc/mqttd.conf`` under the current directory.
    Overrides are called ``MQTTD__TABLE__KEY``, ``MQTTD__LISTENER__TCP__DEFAULT__BIND``.
    Raises ConfigError, with all mistakes in it; reads no file but this one.
    """
    return from_text(_read_text(path) if path is not None else "", path, environ)


def from_text(text: str, path: str | None, environ: Mapping[str, str]) -> Config:
    """The configuration as `load` would read it, if this text stood in the file `path`."""
    # What looks at such a key has work that grows with the square of its depth.
    if _NESTED.search(text) is not None:
        raise ConfigError([f"{path}: not valid TOML: nested too deeply"])
    reading = _Reading(path or "defaults", text)
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number with thousands of digits as well
        raise ConfigError([fault_in(str(path), text, error)]) from None
    reading.override(document, environ)
    base = os.path.dirname(os.path.abspath(path if path is not None else "etc/mqttd.conf"))
    return _config(reading, document, base, os.path.abspath(path) if path is not None else "")


def admin_socket(path: str | None, environ: Mapping[str, str]) -> str:
    """Where `admin.socket` is, whatever else is wrong with the configuration.

    Raises ConfigError if not even that can be read.
    """
    text = _read_text(path) if path is not None else ""
    reading = _Reading(path or "defaults", text)
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError([fault_in(str(path), text, error)]) from None
    reading.override(document, environ)
    kept: dict[str, Any] = {
        table: document[table] for table in ("node", "admin") if table in document
    }
    base = os.path.dirname(os.path.abspath(path if path is not None else "etc/mqttd.conf"))
    return _config(reading, kept, base, "").admin.socket


def from_tables(tables: Mapping[str, Any], base: str) -> Config:
    """The configuration that these tables would be as a file; paths are relative to `base`.

    For programs that embed the broker. Raises ConfigError.
    """
    return _config(_Reading("tables", ""), tables, base, "")


def _config(reading: _Reading, document: Mapping[str, Any], base: str, path: str) -> Config:
    reading.walk(document, "")
    config = reading.build(base, path)
    _agree(config, reading)
    if reading.mistakes:
        raise ConfigError(reading.mistakes)
    return config


class _Reading:
    """One reading: the values found so far, where each stands, and the mistakes."""

    def __init__(self, label: str, text: str) -> None:
        self.label = label
        self.lines = line_numbers(text)
        self.variables: dict[str, str] = {}
        self.values: dict[str, Any] = {}
        self.listeners: dict[str, dict[str, None]] = {}
        self.faulty: set[str] = set()
        self.mistakes: list[str] = []

    def override(self, document: dict[str, Any], environ: Mapping[str, str]) -> None:
        """Write the variables of `environ` into the document, as the file would have said it."""
        for variable in sorted(environ):
            if not variable.startswith(PREFIX):
                continue
            steps = variable.removeprefix(PREFIX).lower().split("__")
            if steps[0] == "listener" and len(steps) == 4:
                steps[2] = _listener_name(document, steps[1], steps[2])
            path = ".".join(steps)
            option = OPTIONS.get(pattern_of(path))
            if option is None:
                self.note(f"environment {variable}: {self._unknown(path, _variable)}")
                continue
            table: Any = document
            for step in steps[:-1]:
                table = table.setdefault(step, {}) if isinstance(table, dict) else None
            if isinstance(table, dict):
                table[steps[-1]] = option.read_text(environ[variable])
                self.variables[path] = variable

    def _unknown(self, path: str, spell: Callable[[str], str]) -> str:
        return unknown(path, spell) if len(self.mistakes) < _GUESSED else "unknown key"

    def walk(self, table: Mapping[str, Any], above: str) -> None:
        """Read every key of a table and of the tables in it."""
        for key, value in table.items():
            path = f"{above}.{key}" if above else key
            pattern = pattern_of(path)
            if "." in key or not (pattern in OPTIONS or is_table(pattern)):
                self.note(f"{self._where(path)}: {path}: {self._unknown(path, str)}")
            elif (option := OPTIONS.get(pattern)) is not None:
                try:
                    self.values[path] = option.read(value)
                except (ValueError, msgspec.ValidationError):
                    self.fault(path, _wrong_in(option, value), option.expected)
            elif not isinstance(value, dict):
                self.fault(path, value, f"a table, [{example(pattern)}]")
            elif pattern.endswith(".NAME") and not _LISTENER_NAME.fullmatch(key):
                self.fault(path, key, "a listener name of 1 to 64 letters, digits, _ and -")
            else:
                if pattern.endswith(".NAME"):
                    self.listeners.setdefault(path.split(".")[1], {})[key] = None
                self.walk(value, path)

    def build(self, base: str, path: str) -> Config:
        """The structs of the values read, with defaults for the others and paths made absolute."""
        sections: dict[str, Any] = {}
        for table, struct in TABLES.items():
            if "NAME" not in table and "." not in table:
                sections[table] = self._build(struct, table, base)
        kinds = self.listeners or {"tcp": {"default": None}}
        listener = {
            kind: {name: self._build(LISTENER_KINDS[kind], f"listener.{kind}.{name}", base)
                   for name in names}
            for kind, names in kinds.items()
        }  # fmt: skip
        admin, node = sections["admin"], sections["node"]
        if not admin.socket:
            socket = os.path.join(node.data_dir, "mqttd.sock")
            sections["admin"] = msgspec.structs.replace(admin, socket=socket)
        given = {path: self._where(path) for path in self.values}
        return Config(listener=listener, path=path, given=given, **sections)

    def fault(self, path: str, value: object, expected: str) -> None:
        """Note that the value of a key is not what was expected."""
        self.faulty.add(path)
        self.note(f"{self._where(path)}: {path} = {_shown(value)}: expected {expected}")

    def note(self, mistake: str) -> None:
        """Add a mistake, safe to print: what was read may hold control characters."""
        self.mistakes.append(printable(mistake))
        if len(self.mistakes) >= _MISTAKES:
            raise ConfigError([*self.mistakes, "and perhaps more: nobody has looked further"])

    def conflict(self, path: str, other: str, value: object, expected: str) -> None:
        """Note that two keys, each fine alone, do not go together."""
        if path not in self.faulty and other not in self.faulty:
            self.fault(path, value, expected)

    def _build(self, struct: type[msgspec.Struct], table: str, base: str) -> Any:
        """One struct from the values of its table."""
        chosen: dict[str, Any] = {}
        for name, kind in _fields(struct):
            path = f"{table}.{name}"
            option = OPTIONS.get(pattern_of(path))
            if option is None:
                chosen[name] = self._build(kind, path, base)
            elif option.kind == "path":
                value = self.values.get(path, option.default)
                chosen[name] = os.path.abspath(os.path.join(base, value)) if value else ""
            elif path in self.values:
                chosen[name] = self.values[path]
        return struct(**chosen)

    def _where(self, path: str) -> str:
        """File and line of a key, or the variable that set it."""
        if path in self.variables:
            return f"environment {self.variables[path]}"
        if path in self.lines:
            return f"{self.label}:{self.lines[path]}"
        while path:
            for key, line in self.lines.items():
                if key == path or key.startswith(f"{path}."):
                    return f"{self.label}:{line}"
            path = path.rpartition(".")[0]
        return self.label


@cache
def _fields(struct: type[msgspec.Struct]) -> tuple[tuple[str, Any], ...]:
    """Names and types of a struct's fields, whose annotations are read once."""
    return tuple((part.name, part.type) for part in msgspec.structs.fields(struct))


def _wrong_in(option: Option, value: object) -> object:
    """The entries of a table that are wrong by themselves; else the whole value."""
    wrong: dict[str, object] = {}
    for key, one in value.items() if isinstance(value, dict) else ():
        try:
            option.read({key: one})
        except (ValueError, msgspec.ValidationError):
            wrong[key] = one
    return wrong or value


def _agree(config: Config, reading: _Reading) -> None:
    """Check the keys that limit one another."""
    output, low, high = config.output, "output.low_watermark", "output.high_watermark"
    if output.low_watermark >= output.high_watermark:
        bound = f"less than {high}, which is {format_size(output.high_watermark)}"
        reading.conflict(low, high, format_size(output.low_watermark), bound)
    if output.high_watermark > output.backlog:
        bound = f"at most output.backlog, which is {format_size(output.backlog)}"
        reading.conflict(high, "output.backlog", format_size(output.high_watermark), bound)
    for path, filters in (
        ("mqueue.priorities", config.mqueue.priorities),
        ("durability.topics", config.durability.topics),
        ("trace.topics", config.trace.topics),
    ):
        _agree_filters(path, filters, reading)
    _agree_addresses(config, reading)
    for path, listener in _listeners(config):
        _agree_listener(path, listener, reading)
        if isinstance(listener, SocketListener):
            if text := listener.unshared(config.cluster.kind != "none"):
                reading.conflict(f"{path}.reuse_port", f"{path}.bind", True, f"false: {text}")
    if len(os.fsencode(config.admin.socket)) > MAX_SOCKET_PATH:
        bound = f"a path of at most {MAX_SOCKET_PATH} bytes, the limit of Unix sockets"
        reading.conflict("admin.socket", "node.data_dir", config.admin.socket, bound)
    for path, door, is_open in _doors(config):
        _agree_admin(path, door, is_open, reading)
    if config.cluster.kind != "none":
        _agree_cluster(config.cluster, reading)


def _agree_filters(path: str, filters: Iterable[str], reading: _Reading) -> None:
    """Filters that topics are compared with."""
    for topic_filter in filters:
        try:
            validate_topic_filter(topic_filter)
            shared = split_shared(topic_filter)[0] is not None
        except MqttError as error:
            reading.fault(path, topic_filter, f"topic filters ({error.detail})")
            continue
        if shared:
            bound = "topic filters without $share or $queue: they are compared with topics"
            reading.fault(path, topic_filter, bound)


def _agree_addresses(config: Config, reading: _Reading) -> None:
    """Check that no two of what the broker listens at have the same address."""
    taken: dict[int, dict[str, tuple[str, str]]] = {}
    for path, bound in _addresses(config):
        host, port = bound.address
        if not port:
            continue
        hosts = taken.setdefault(port, {})
        other = hosts.get(host) or hosts.get("")
        if other is None and not host:
            other = next(iter(hosts.values()), None)
        if other is not None:
            expected = f"another address than {other[0]}.bind, which is {other[1]}"
            reading.conflict(f"{path}.bind", f"{other[0]}.bind", bound.bind, expected)
        hosts.setdefault(host, (path, bound.bind))


def _agree_admin(path: str, door: AdminTcp | AdminPage, is_open: bool, reading: _Reading) -> None:
    """Check a door of the HTTP interface: nothing of it travels in plain beyond this machine."""
    if bool(door.certificate) != bool(door.private_key):
        bound = f"a file, as {path}.certificate and {path}.private_key go together"
        missing = "private_key" if door.certificate else "certificate"
        reading.conflict(f"{path}.{missing}", f"{path}.bind", "", bound)
    host = door.address[0]
    is_local = host == "localhost" or host == "::1" or host.startswith("127.")
    if is_open and not door.certificate and not is_local:
        bound = f"a loopback address, or {path}.certificate: tokens do not travel in plain"
        reading.conflict(f"{path}.bind", f"{path}.certificate", door.bind, bound)


def _agree_cluster(cluster: Cluster, reading: _Reading) -> None:
    """Check the keys of a cluster: nothing travels in plain between machines."""
    files = ("certificate", "private_key", "ca_file")
    named = [key for key in files if getattr(cluster, key)]
    host = cluster.address[0]
    is_local = host == "localhost" or host == "::1" or host.startswith("127.")
    if named and len(named) < len(files):
        missing = next(key for key in files if key not in named)
        bound = f"a file, as cluster.{named[0]} and cluster.{missing} go together"
        reading.conflict(f"cluster.{missing}", f"cluster.{named[0]}", "", bound)
    elif not named and not is_local:
        bound = "a loopback address, or cluster.certificate: nodes do not speak in plain"
        reading.conflict("cluster.bind", "cluster.certificate", cluster.bind, bound)
    if bool(cluster.etcd_certificate) != bool(cluster.etcd_private_key):
        missing = "etcd_private_key" if cluster.etcd_certificate else "etcd_certificate"
        bound = "a file, as cluster.etcd_certificate and cluster.etcd_private_key go together"
        reading.conflict(f"cluster.{missing}", "cluster.endpoints", "", bound)
    if bool(cluster.etcd_user) != bool(cluster.etcd_password_file):
        missing = "etcd_password_file" if cluster.etcd_user else "etcd_user"
        bound = "a value, as cluster.etcd_user and cluster.etcd_password_file go together"
        reading.conflict(f"cluster.{missing}", "cluster.endpoints", "", bound)
    if not cluster.endpoints:
        reading.fault("cluster.endpoints", [], "at least one URL")


def _agree_listener(path: str, listener: Listener, reading: _Reading) -> None:
    """Check the keys of one listener."""
    if isinstance(listener, SocketListener):
        for network in listener.proxy_protocol:
            try:
                ipaddress.ip_network(network)
            except ValueError:
                expected = 'networks such as "10.0.0.0/8" or "::1/128"'
                reading.fault(f"{path}.proxy_protocol", network, expected)
        try:
            _ = listener.rules
        except ValueError as error:
            rules = "address rules, the first that matches decides"
            reading.fault(f"{path}.access", list(listener.access), f"{rules}: {error}")
    if isinstance(listener, SslListener) and listener.verify != "none" and not listener.ca_file:
        bound = f'"none", or a {path}.ca_file'
        reading.conflict(f"{path}.verify", f"{path}.ca_file", listener.verify, bound)
    if isinstance(listener, UnixListener) and len(os.fsencode(listener.path)) > MAX_SOCKET_PATH:
        bound = f"a path of at most {MAX_SOCKET_PATH} bytes, the limit of Unix sockets"
        reading.fault(f"{path}.path", listener.path, bound)


def _listeners(config: Config) -> Iterator[tuple[str, Any]]:
    """Every listener and its path."""
    for kind, names in config.listener.items():
        for name, listener in names.items():
            yield f"listener.{kind}.{name}", listener


def _doors(config: Config) -> Iterator[tuple[str, AdminTcp | AdminPage, bool]]:
    """The doors of the HTTP interface, their paths, and whether they are opened."""
    tcp, page = config.admin.tcp, config.admin.page
    yield "admin.tcp", tcp, bool(tcp.token_file or tcp.pull_token_file)
    yield "admin.page", page, page.enabled


def _addresses(config: Config) -> Iterator[tuple[str, SocketListener | AdminTcp | AdminPage]]:
    """What is listened at with an address of its own, and its path."""
    for path, listener in _listeners(config):
        if isinstance(listener, SocketListener):
            yield path, listener
    for path, door, is_open in _doors(config):
        if is_open:
            yield path, door


def _read_text(path: str) -> str:
    """The text of the file."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: not UTF-8 at byte {error.start}"]) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError([f"{path}: cannot be read: {reason}"]) from None


def _listener_name(document: Mapping[str, Any], kind: str, name: str) -> str:
    """The listener of the file that a variable means: variables know neither case nor hyphens."""
    try:
        names = list(document["listener"][kind])
    except (KeyError, TypeError):
        return name
    return next((had for had in names if had.lower().replace("-", "_") == name), name)


def _variable(path: str) -> str:
    """The environment variable of a key."""
    return PREFIX + path.upper().replace(".", "__").replace("-", "_")


def _shown(value: object) -> str:
    """A value as the file has it, cut to a line's length."""
    if isinstance(value, (str, bool, int, float, list, dict)):
        text = json.dumps(value, ensure_ascii=False, default=str)
    else:
        text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
