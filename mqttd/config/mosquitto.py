"""A mosquitto.conf as configuration, rules and users of ours, and a list of what has no place here.

    mosquitto.conf ── include_dir ──> settings, those of each listener
        │ acl_file                          │
        v                                   v
    acl.conf: denials, then the rest    mqttd.conf: the keys that differ from our defaults
    users.conf: the password file as it is (its hashes are read here too)

What is not taken over is listed with its line and the reason: nothing is left out silently. After
mosquitto.conf(5) of mosquitto 2.0.

Promise: reads the files that the configuration names, and writes none.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mqttd.config.mosquitto_lines import Line, NoConfiguration, lines, named
from mqttd.config.options import OPTIONS

__all__ = ["Imported", "NoConfiguration", "import_mosquitto"]

_LISTENER_KEYS: Final = frozenset(
    ("bind_address", "bind_interface", "http_dir", "max_connections", "mount_point", "protocol",
     "socket_domain", "cafile", "capath", "certfile", "keyfile", "ciphers", "ciphers_tls1.3",
     "crlfile", "require_certificate", "use_identity_as_username", "use_subject_as_username",
     "use_username_as_clientid", "tls_version", "psk_hint", "dhparamfile", "max_qos",
     "max_topic_alias", "websockets_headers_size", "websockets_origin", "tls_engine",
     "tls_engine_kpass_sha1", "tls_keyform", "accept_protocol_versions",
     "disable_client_cert_date_checks")
)  # fmt: skip
_OF_LISTENERS: Final = frozenset(
    ("allow_anonymous", "password_file", "acl_file", "psk_file", "allow_zero_length_clientid",
     "auto_id_prefix", "plugin", "auth_plugin")
)  # fmt: skip
_OF_BROKER: Final = frozenset(
    ("allow_anonymous", "password_file", "acl_file", "per_listener_settings")
)
#: Why a setting has no place here.
_NO_PLACE: Final[dict[str, str]] = {
    "persistence_file": "the data directory is node.data_dir (`import --data`)",
    "persistence_location": "the data directory is node.data_dir (`import --data`)",
    "autosave_interval": "nothing is saved at intervals",
    "autosave_on_changes": "nothing is saved at intervals",
    "pid_file": "twistd's own option --pidfile, or a supervisor",
    "user": "the service manager says as whom it runs",
    "include_dir": "",
    "log_timestamp": "every line has its time",
    "log_timestamp_format": "times are ISO 8601",
    "log_facility": "there is no syslog; the journal takes what is written",
    "max_inflight_bytes": "session.max_inflight bounds messages, mqtt.max_packet_size their bytes",
    "websockets_log_level": "the log's levels are by module (log.modules)",
    "retry_interval": "messages are sent again to clients that come back",
    "store_clean_interval": "nothing waits to be cleaned",
    "memory_limit": "limits are kept by session and queue",
    "max_keepalive": "mqtt.server_keepalive replaces every client's own, which is something else",
    "set_tcp_nodelay": "it is on (listener key nodelay)",
    "check_retain_source": "it is always checked",
    "global_plugin": "plugins for mosquitto are C libraries; see the bundled plugins",
    "plugin": "plugins for mosquitto are C libraries; see the bundled plugins",
    "auth_plugin_deny_special_chars": "an access rule is never filled in with + or #",
    "auth_plugin": "plugins for mosquitto are C libraries; see the bundled plugins",
    "psk_file": "pre-shared keys are not offered; use certificates",
    "psk_hint": "pre-shared keys are not offered; use certificates",
    "bind_interface": "name the address of the interface in bind",
    "capath": "name one file with all authorities in ca_file",
    "http_dir": "a WebSocket listener serves its own page alone (listener key page)",
    "dhparamfile": "key exchange is by elliptic curves",
    "clientid_prefixes": "write an access rule, {client, {re, \"^prefix\"}}",
    "use_username_as_clientid": "no counterpart; cert_as_client_id does so for certificates",
    "auto_id_prefix": "ids that the broker gives have a form of their own",
    "allow_zero_length_clientid": "a client without an id is given one",
    "allow_duplicate_messages": "a client gets a message once",
    "socket_domain": "bind says it by the form of its address",
}  # fmt: skip
_BRIDGE: Final = frozenset(
    ("connection", "address", "addresses", "topic", "remote_clientid", "remote_username",
     "remote_password", "local_clientid", "local_username", "local_password", "cleansession",
     "local_cleansession", "clientid", "keepalive_interval", "notifications", "notification_topic",
     "notifications_local_only", "restart_timeout", "round_robin", "start_type", "threshold",
     "try_private", "username", "password", "idle_timeout")
)  # fmt: skip
_NEVER: Final = "never"
_UNKNOWN: Final = "not known here"
_USERS: Final = "users.conf"


@dataclass(slots=True)
class Imported:
    """What came of it: texts of the files to write, and a line for each thing left out."""

    config: str = ""
    rules: str = ""
    users: str | None = None
    users_from: str = ""
    left: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Listener:
    port: int
    host: str
    lines: list[Line] = field(default_factory=list)


def import_mosquitto(path: str) -> Imported:
    """Read a mosquitto.conf with what it names.

    Raises OSError for a file that is not there, and NoConfiguration for one that is something else.
    """
    return _Import(path).run()


class _Import:
    """One import, step by step."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.base = os.path.dirname(os.path.abspath(path))
        self.left: list[str] = []
        self.tables: dict[str, dict[str, Any]] = {}
        self.listeners: list[_Listener] = []
        self.common: dict[str, Line] = {}
        self.bridges = 0

    def run(self) -> Imported:
        self._sort(lines(self.path, self._leave))
        self._listeners()
        known = {
            "max_inflight_messages": self._unlimited("session.max_inflight", 65535),
            "max_queued_messages": self._unlimited("mqueue.max_length", 100_000_000),
            "max_queued_bytes": self._unlimited("mqueue.max_bytes", 1 << 40),
            "queue_qos0_messages": self._flag("mqueue.store_qos0"),
            "upgrade_outgoing_qos": self._flag("session.upgrade_qos"),
            "persistence": lambda line: self._set(
                "store.kind", "sqlite" if _true(line.value) else "memory"
            ),
            "retain_available": self._flag("mqtt.retain_available"),
            "max_packet_size": self._size,
            "message_size_limit": self._size,
            "persistent_client_expiration": self._expiration,
            "sys_interval": lambda line: self._set("sys.interval", f"{int(line.value)}s"),
            "log_type": self._log_type,
            "log_dest": self._log_dest,
            "connection_messages": self._connections,
        }
        here = bool(self.listeners or self.bridges or not self.common)
        if not here and not any(key in known or _is_known(key) for key in self.common):
            raise NoConfiguration(f"{self.path}: no setting in it is one of a mosquitto.conf")
        for key, line in self.common.items():
            if key in _OF_BROKER:
                continue
            try:
                if key in known:
                    known[key](line)
                elif _is_of_others(key):
                    self._leave(line, "belongs to a bridge or a plugin, which are not taken over")
                else:
                    self._leave(line, _NO_PLACE.get(key, _UNKNOWN))
            except ValueError:
                self._leave(line, "its value is none")
        if "persistent_client_expiration" not in self.common:
            self._expires("never")
        users = self._who()
        rules = self._rules(users is not None)
        source = self._file(self.common["password_file"].value) if users is not None else ""
        return Imported(self._text(), rules, users, source, self.left)

    # -- reading ---------------------------------------------------------------------------------

    def _sort(self, lines: Iterator[Line]) -> None:
        """Settings of the broker, of its listeners, and of bridges."""
        here: _Listener | None = None
        default = _Listener(1883, "")
        bridge = False
        for line in lines:
            key, value = line.key, line.value
            if key == "listener":
                port, _, host = value.partition(" ")
                here, bridge = _Listener(line.port(port), host.strip()), False
                self.listeners.append(here)
            elif key == "connection":
                bridge = True
                self.bridges += 1
                self._leave(line, "bridges are not built in; a client of two brokers does it")
            elif bridge and (key in _BRIDGE or key.startswith("bridge_")):
                continue
            elif key in _LISTENER_KEYS:
                (here or default).lines.append(line)
            elif key == "port":
                default.port = line.port(value)
                if default not in self.listeners:
                    self.listeners.insert(0, default)
            elif here is not None and key in _OF_LISTENERS and self._apart():
                here.lines.append(line)
            elif key == "log_dest" and key in self.common and value != self.common[key].value:
                self._leave(line, "the log goes to one place")
            elif key == "log_type" and key in self.common:
                self.common[key].value += f" {value}"
            else:
                self.common[key] = line
        if default.lines and default not in self.listeners:
            self.listeners.insert(0, default)

    def _apart(self) -> bool:
        line = self.common.get("per_listener_settings")
        return line is not None and line.value == "true"

    def _leave(self, line: Line, why: str) -> None:
        self.left.append(f"{line.where}: {named(line, why != _UNKNOWN)}: {why}")

    # -- keys ------------------------------------------------------------------------------------

    def _set(self, path: str, value: Any) -> None:
        table, _, key = path.rpartition(".")
        self.tables.setdefault(table, {})[key] = value

    def _size(self, line: Line) -> None:
        """Of two limits, of a payload and of a packet, the smaller one."""
        known = self.tables.get("mqtt", {}).get("max_packet_size")
        if known is None or 0 < int(line.value) < known:
            self._number("mqtt.max_packet_size")(line)

    def _number(self, path: str) -> Callable[[Line], None]:
        def read(line: Line) -> None:
            about = OPTIONS[path].about
            value = int(line.value)
            if value:
                self._set(path, min(max(value, int(about.ge or 0)), int(about.le or value)))

        return read

    def _unlimited(self, path: str, most: int) -> Callable[[Line], None]:
        def read(line: Line) -> None:
            about = OPTIONS[path].about
            value = int(line.value) or most
            self._set(path, min(max(value, int(about.ge or 0)), int(about.le or value)))

        return read

    def _flag(self, path: str) -> Callable[[Line], None]:
        return lambda line: self._set(path, _true(line.value))

    def _expiration(self, line: Line) -> None:
        found = re.fullmatch(r"(\d+)([hdwmy])", line.value)
        if found is None:
            raise ValueError(line.value)
        days = {"h": 0, "d": 1, "w": 7, "m": 30, "y": 365}[found[2]]
        text = f"{int(found[1]) * days}d" if days else f"{found[1]}h"
        self._expires(text)

    def _expires(self, after: str) -> None:
        self._set("session.expiry_interval", after)
        self._set("session.max_expiry_interval", after)

    def _log_type(self, line: Line) -> None:
        kinds = set(line.value.split())
        level = "warn" if "warning" in kinds else "error"
        if kinds & {"notice", "information"}:
            level = "info"
        if kinds & {"debug", "all"}:
            level = "debug" if "debug" in kinds else "info"
        self._set("log.level", level)

    def _log_dest(self, line: Line) -> None:
        kind, _, rest = line.value.partition(" ")
        if kind == "file" and "log.file" in OPTIONS:
            self._leave(line, 'a file of its own is log.file, with log.to = "file"')
        elif kind not in ("stderr", "stdout"):
            self._leave(line, "the log goes to standard error, the journal or a file")

    def _connections(self, line: Line) -> None:
        option = OPTIONS.get("log.connections")
        if not _true(line.value) and option is not None and "debug" in option.choices:
            self._set("log.connections", "debug")
        elif not _true(line.value):
            self._leave(line, "connections are logged")

    # -- listeners -------------------------------------------------------------------------------

    def _listeners(self) -> None:
        if not self.listeners:
            return  # local only, as our default is
        for number, listener in enumerate(self.listeners):
            given = {line.key: line for line in listener.lines}
            kind = self._kind(listener, given)
            name = "default" if number == 0 else f"port-{listener.port}"
            if listener.port == 0 and number:
                name = f"socket-{number}"
            table = f"listener.{kind}.{name}"
            self.tables.setdefault(table, {})
            if kind == "unix":
                self._set(f"{table}.path", listener.host)
            else:
                host = listener.host
                if "bind_address" in given:
                    host = given.pop("bind_address").value
                host = f"[{host}]" if ":" in host else host
                self._set(f"{table}.bind", f"{host}:{listener.port}")
            if kind in ("ws", "wss"):
                self._set(f"{table}.path", "/mqtt")
                spoken = next(line for line in listener.lines if line.key == "protocol")
                self._leave(spoken, "taken over; but clients connect to the path /mqtt alone here")
                if "websockets_origin" not in given:
                    self._set(f"{table}.origins", ["*"])  # as mosquitto lets the page of any site
            for line in given.values():
                try:
                    if not self._of_listener(table, line, "certfile" in given):
                        self._leave(line, _NO_PLACE.get(line.key, "no counterpart"))
                except ValueError:
                    self._leave(line, "its value is none")

    def _kind(self, listener: _Listener, given: dict[str, Line]) -> str:
        if listener.port == 0:
            return "unix"
        protocol = given.pop("protocol", None)
        tls = "certfile" in given
        if protocol is not None and protocol.value == "websockets":
            return "wss" if tls else "ws"
        if protocol is not None and protocol.value != "mqtt":
            self._leave(protocol, "MQTT and WebSockets are spoken")
        return "ssl" if tls else "tcp"

    def _of_listener(self, table: str, line: Line, tls: bool) -> bool:
        """Take over one setting of a listener; False where it has no place."""
        key, value = line.key, line.value
        files = {"certfile": "certificate", "keyfile": "private_key", "cafile": "ca_file",
                 "crlfile": "crl_file"}  # fmt: skip
        if key in files and tls:
            self._set(f"{table}.{files[key]}", self._file(value))
        elif key == "max_connections":
            if int(value) > 0:
                self._set(f"{table}.max_connections", int(value))
        elif key == "mount_point":
            self._set(f"{table}.mountpoint", value if value.endswith("/") else f"{value}/")
            if not value.endswith("/"):
                self._leave(line, 'a mountpoint ends with "/" here, which was added')
        elif key == "require_certificate" and tls:
            if _true(value):
                self._set(f"{table}.verify", "required")
        elif key in ("use_identity_as_username", "use_subject_as_username") and tls:
            if _true(value):
                self._set(f"{table}.cert_as_username", "cn" if "identity" in key else "dn")
        elif key == "ciphers" and tls:
            self._set(f"{table}.ciphers", value)
        elif key == "tls_version" and tls:
            self._set(f"{table}.tls_version", "1.3" if value == "tlsv1.3" else "1.2")
        elif key == "websockets_origin":
            self.tables[table].setdefault("origins", []).append(value)
        elif key in ("max_qos", "max_topic_alias"):
            self._number(f"mqtt.{key}")(line) if int(value) else self._set(f"mqtt.{key}", 0)
        elif key == "accept_protocol_versions":
            names = {"3": "3.1", "4": "3.1.1", "5": "5.0"}
            versions = [names[each.strip()] for each in value.split(",") if each.strip() in names]
            self._set(f"{table}.protocol_versions", versions)
        elif key == "allow_anonymous":
            chain = ["username", "anonymous"] if _true(value) else ["username"]
            self._set(f"{table}.auth_chain", chain)
        elif key == "socket_domain" or (key == "protocol" and value == "mqtt"):
            return True
        elif key == "password_file":
            if "password_file" not in self.common:
                self.common["password_file"] = line
            else:
                self._leave(line, "there is one file of users for all listeners")
        elif key == "acl_file":
            if "acl_file" not in self.common:
                self.common["acl_file"] = line
            else:
                self._leave(line, "import it apart and name it as the listener's acl_file")
        else:
            return False
        return True

    def _file(self, path: str) -> str:
        return os.path.normpath(os.path.join(self.base, path))

    # -- who and what ----------------------------------------------------------------------------

    def _who(self) -> str | None:
        """Users and anonymous clients; the text of the password file."""
        line = self.common.get("allow_anonymous")
        password = self.common.get("password_file")
        anonymous = _true(line.value) if line is not None else not self.listeners
        choices = OPTIONS["auth.anonymous"].choices
        anybody = "any" if "any" in choices and password is None else "always"
        if any("auth_chain" in keys for keys in self.tables.values()):
            self._set("auth.anonymous", "always")
        elif not self.listeners:
            self._set("auth.anonymous", "loopback")
        else:
            self._set("auth.anonymous", anybody if anonymous else _NEVER)
        if self.tables["auth"]["anonymous"] == "always" and password is None and line is not None:
            self._leave(line, "a client that gives a user name needs a password here all the same")
        if password is None:
            return None
        self._set("auth.username.file", _USERS)
        try:
            return Path(self._file(password.value)).read_text("utf-8")
        except OSError as error:
            self._leave(password, f"{error.strerror}; `mqttd-ctl users import FILE` takes it later")
            return ""

    def _rules(self, users: bool) -> str:
        line = self.common.get("acl_file")
        head = "% Written by `mqttd-ctl import`.\n"
        no_sys = '{deny, all, publish, ["$SYS/#"]}.\n'
        if line is None:
            return f"{head}{no_sys}{{allow, all}}.\n"
        try:
            text = Path(self._file(line.value)).read_text("utf-8")
        except OSError as error:
            self._leave(line, f"{error.strerror}; everything is denied until rules are written")
            return f"{head}{{deny, all}}.\n"
        denials: list[str] = []
        grants: list[str] = []
        who = ""
        for number, raw in enumerate(text.splitlines(), 1):
            words = raw.strip().split(None, 1)
            if not words or words[0].startswith("#"):
                continue
            found = Line(f"{line.value}:{number}", words[0], words[1] if len(words) > 1 else "")
            if found.key == "user":
                who = f"{{user, {json.dumps(found.value.strip(), ensure_ascii=False)}}}"
                continue
            if found.key not in ("topic", "pattern"):
                self._leave(found, _UNKNOWN)
                continue
            if found.key == "topic" and not who and users:
                self._leave(found, "clients without a user name alone: give $anonymous a role")
                continue
            access, topic = _access(found.value)
            subject = who if found.key == "topic" and who else "all"
            shown = json.dumps(topic, ensure_ascii=False)
            if found.key == "topic" and "%" in topic:
                shown = f"{{eq, {shown}}}"
            kind = {"read": "subscribe", "write": "publish"}.get(access, "all")
            verdict = "deny" if access == "deny" else "allow"
            if verdict == "deny":
                why = "taken over; a subscription that would cover it is refused as a whole here"
                self._leave(found, why)
            rule = f"{{{verdict}, {subject}, {kind}, [{shown}]}}.\n"
            (denials if verdict == "deny" else grants).append(rule)
        return "".join([head, *denials, no_sys, *grants, "{deny, all}.\n"])

    # -- writing ---------------------------------------------------------------------------------

    def _text(self) -> str:
        parts = [f"# Written by `mqttd-ctl import {self.path}`. Every other key has its default.\n"]
        for table, keys in self.tables.items():
            parts.append(f"\n[{table}]\n")
            parts += [f"{key} = {_toml(value)}\n" for key, value in keys.items()]
        return "".join(parts)


def _is_known(key: str) -> bool:
    """Whether a setting is mosquitto's, but for those that have a function of their own."""
    return key in _OF_BROKER or key in _NO_PLACE or _is_of_others(key)


def _is_of_others(key: str) -> bool:
    """Whether a setting is one of a bridge or a plugin."""
    return key in _BRIDGE or key.startswith(("bridge_", "auth_opt_", "plugin_opt_"))


def _access(text: str) -> tuple[str, str]:
    """Access and topic of a line of an ACL file."""
    first, _, rest = text.partition(" ")
    if first in ("read", "write", "readwrite", "deny") and rest:
        return first, rest.strip()
    return "readwrite", text


def _true(text: str) -> bool:
    if text not in ("true", "false", "1", "0"):
        raise ValueError(text)
    return text in ("true", "1")


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
