"""What may have been meant by a key that is not known.

    unknown key ──> a table, a kind of listener under another name?
                ├─> the same but for a letter here, the same name elsewhere
                ├─> what another broker calls so                   (`ELSEWHERE`)
                ├─> nearly the same name elsewhere, something like it here, there, anywhere
                └─> nothing is like it: where all keys are

Promise: says something of every key, in time that is bounded however long the key is.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from typing import Final

from mqttd.config.options import OPTIONS, TABLES

__all__ = ["example", "is_table", "pattern_of", "unknown"]

#: What other brokers and people call the kinds of listeners.
_KINDS: Final = {
    "tls": "ssl", "mqtts": "ssl", "mqtt": "tcp", "websocket": "ws", "websockets": "ws",
    "https": "wss", "http": "ws", "socket": "unix",
}  # fmt: skip
#: What other brokers and people call keys of a listener, where they say so in its table ...
_OF_LISTENERS: Final = {
    "port": "bind", "address": "bind", "bind_address": "bind", "host": "bind",
    "certfile": "certificate", "cert": "certificate", "keyfile": "private_key",
    "key": "private_key", "cafile": "ca_file", "cacertfile": "ca_file", "crlfile": "crl_file",
    "require_certificate": "verify", "fail_if_no_peer_cert": "verify",
    "use_identity_as_username": "cert_as_username", "use_subject_as_username": "cert_as_username",
    "peer_cert_as_username": "cert_as_username", "peer_cert_as_clientid": "cert_as_client_id",
    "max_conn_rate": "accept_rate", "max_conn": "max_connections", "versions": "tls_version",
    "mount_point": "mountpoint", "authentication": "auth_chain",
}  # fmt: skip
#: ... and elsewhere: their names of keys and tables, and the one here.
_ELSEWHERE: Final = {
    "listener": "listener.tcp.NAME.bind", "port": "listener.tcp.NAME.bind",
    "bind": "listener.tcp.NAME.bind", "bind_address": "listener.tcp.NAME.bind",
    "access": "listener.tcp.NAME.access", "tls": "listener.ssl.NAME.certificate",
    "ssl_options": "listener.ssl.NAME.certificate", "certfile": "listener.ssl.NAME.certificate",
    "keyfile": "listener.ssl.NAME.private_key", "cafile": "listener.ssl.NAME.ca_file",
    "cacertfile": "listener.ssl.NAME.ca_file", "crlfile": "listener.ssl.NAME.crl_file",
    "require_certificate": "listener.ssl.NAME.verify",
    "flapping_detect": "listener.tcp.NAME.flapping_disconnects",
    "mount_point": "listener.tcp.NAME.mountpoint",
    "users": "auth.username.file", "password_file": "auth.username.file",
    "passwords": "auth.username.file", "authentication": "auth.chain",
    "allow_anonymous": "auth.anonymous", "acl_file": "acl.file", "authorization": "acl.file",
    "sources": "acl.file", "keepalive": "mqtt.server_keepalive",
    "max_mqueue_len": "mqueue.max_length",
    "mqueue_store_qos0": "mqueue.store_qos0", "queue_qos0_messages": "mqueue.store_qos0",
    "mqueue_priorities": "mqueue.priorities", "max_queued_messages": "mqueue.max_length",
    "max_queued_bytes": "mqueue.max_bytes", "max_inflight_messages": "session.max_inflight",
    "persistent_client_expiration": "session.max_expiry_interval",
    "max_clientid_len": "mqtt.max_client_id_length", "max_qos_allowed": "mqtt.max_qos",
    "message_size_limit": "mqtt.max_packet_size", "retainer": "retained",
    "persistence": "store.kind", "persistence_location": "node.data_dir",
    "dashboard": "admin.page", "api": "admin.tcp", "http_api": "admin.tcp",
    "log_dest": "log.to", "log_type": "log.level", "sys_interval": "sys.interval",
    "sys_topics": "sys.interval", "sys_msg_interval": "sys.interval",
    "seeds": "cluster.endpoints", "discovery_strategy": "cluster.kind",
    "prometheus": "plugins.load", "rule_engine": "plugins.load", "bridges": "plugins.load",
    "delayed": "plugins.load", "rewrite": "plugins.load", "auto_subscribe": "plugins.load",
}  # fmt: skip
#: Characters of a key that its like is looked for by.
_LONGEST: Final = 200
#: Where there is nothing to guess.
_ALL: Final = "docs/reference/configuration.md has all there are"
#: How like it a key elsewhere has to be, so that it is named.
_LIKE: Final = 0.75


def pattern_of(path: str) -> str:
    """The path as `OPTIONS` and `TABLES` know it: a listener's name becomes ``NAME``."""
    steps = path.split(".")
    if steps[0] == "listener" and len(steps) > 2:
        steps[2] = "NAME"
    return ".".join(steps)


def is_table(pattern: str) -> bool:
    """Whether tables of the schema stand at or below this path."""
    return any(table == pattern or table.startswith(f"{pattern}.") for table in TABLES)


def example(pattern: str) -> str:
    """A table header for a path, with a name where one is needed."""
    table = next(table for table in TABLES if table == pattern or table.startswith(f"{pattern}."))
    return table.replace("NAME", "default")


def unknown(path: str, spell: Callable[[str], str]) -> str:
    """What to say of a key that is not known: the nearest known one, as `spell` writes it."""
    path = path[:_LONGEST]
    pattern = pattern_of(path)
    if is_table(pattern):
        return f"is a table; name a key in it, such as {spell(example(pattern) + '.key')}"
    steps = pattern.split(".")
    if steps[0] == "listener" and len(steps) > 1 and steps[1] in _KINDS:
        kind = _KINDS[steps[1]]
        return f"unknown kind of listener; it is called {spell('.'.join(['listener', kind]))} here"
    nearest = next(_near(pattern), "")
    if not nearest:
        return f"unknown key, and none is like it; {_ALL}"
    table = pattern.rpartition(".")[0]
    if table.startswith("listener.") and nearest.startswith(f"{table}."):
        nearest = f"{path.rpartition('.')[0]}.{nearest.rpartition('.')[2]}"
    return f"unknown key; the nearest known key is {spell(nearest)}"


def _near(pattern: str) -> Iterator[str]:
    """Known keys and tables, that which was most likely meant first."""
    table, _, name = pattern.rpartition(".")
    tops = [] if table else sorted({key.partition(".")[0] for key in TABLES})
    known = [*OPTIONS, *TABLES, *tops]
    # One letter more or less is rather that than another table's.
    here = [key for key in (*OPTIONS, *TABLES) if key.rpartition(".")[0] == table]
    yield from difflib.get_close_matches(pattern, here, 1, 0.95)
    if table.startswith("listener."):
        yield from (key for key in (f"{table}.{_OF_LISTENERS.get(name)}",) if key in OPTIONS)
    if name in _ELSEWHERE:
        yield _ELSEWHERE[name]
    yield from (key for key in OPTIONS if key.endswith(f".{name}"))
    names = {key.rpartition(".")[2] for key in OPTIONS}
    yield from _called(difflib.get_close_matches(name, names, 1, 0.9))
    below = {key.removeprefix(f"{table}."): key for key in known if key.startswith(table)}
    yield from (below[key] for key in difflib.get_close_matches(name, below))
    other = [key for key in known if key not in here]
    yield from difflib.get_close_matches(pattern, other, 1, _LIKE)
    yield from _called(difflib.get_close_matches(name, names, 1, _LIKE))


def _called(names: list[str]) -> list[str]:
    return [key for key in OPTIONS if names and key.endswith(f".{names[0]}")]
