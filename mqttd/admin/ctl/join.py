"""`mqttd-ctl cluster join`: a configuration becomes that of a node, or a node is let in again.

    text of the file --tables put in--> checked as a start checks it --> etcd: is the name free?
                                                                     --> written

Part of `mqttd.admin.ctl.main`, whose promises hold here too. Promise: what would not start is not
written, nor is where no etcd answers, unless that is wanted (`--anyway`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

from mqttd.admin.ctl.client import CtlError, NoBroker, client_of
from mqttd.admin.ctl.printing import done, warn
from mqttd.config.files import find, initialize
from mqttd.printable import printable

__all__ = ["add_command"]

#: Options that are keys of `[cluster]`, and files among them.
_KEYS = {
    "bind": ("HOST:PORT", "where other nodes reach it"),
    "advertise": ("HOST:PORT", "what they are told, where that is another"),
    "etcd_user": ("NAME", "by which etcd knows it"),
}
_FILES = {
    "certificate": "this node's, which names it",
    "private_key": "of that certificate",
    "ca_file": "who vouches for nodes",
    "etcd_ca_file": "who vouches for etcd",
    "etcd_certificate": "by which etcd knows it",
    "etcd_private_key": "of that certificate",
    "etcd_password_file": "the password of --etcd-user",
}


def add_command(add: Callable[..., Any], cluster: Any) -> None:
    """Add it to the group `cluster`, with `add` of `mqttd.admin.ctl.main`."""
    text = "Make a cluster's node of this broker, or let it be one again."
    join = add(cluster, "join", _join, text)
    join.add_argument(
        "endpoints", metavar="URL", nargs="*", help="where etcd is: written to the file"
    )
    join.add_argument("--cluster", metavar="NAME", default="mqttd", help="its name (mqttd)")
    join.add_argument("--node", metavar="NAME", default="", help="of this node")
    for key, (what, text) in _KEYS.items():
        join.add_argument(_option(key), metavar=what, default="", dest=f"node_{key}", help=text)
    for key, text in _FILES.items():
        join.add_argument(_option(key), metavar="FILE", default="", dest=f"node_{key}", help=text)
    text = "write it though etcd does not answer"
    join.add_argument("--anyway", action="store_true", help=text)


def _option(key: str) -> str:
    return "--" + key.replace("_", "-")


def _join(options: argparse.Namespace) -> None:
    if not options.endpoints:
        try:
            answer = client_of(options).request("POST", "/cluster/join", {})
        except NoBroker as error:
            raise CtlError(f"{error}: start it first, then join") from None
        text = "may be a member again" if answer["done"] else "was not put out"
        return done(options, answer, f"this node {text}")
    try:
        path, fresh = _file_of(options)
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
            joined = _joined(text, options)
            etcd, others = _check(joined, path)
            if etcd and not options.anyway:
                text = "once it does, or with --anyway, it is"
                raise CtlError(f"nothing is written: etcd has not answered: {etcd}; {text}")
        except BaseException:
            _undo(fresh)
            raise
        with open(path, "w", encoding="utf-8") as file:
            file.write(joined)
    except OSError as error:
        raise CtlError(f"{error.filename}: {error.strerror}") from None
    if etcd:
        text = "written all the same, and whether the name is free is not known"
        print(f"mqttd-ctl: etcd has not answered: {etcd}; {path} is {text}", file=sys.stderr)
    said = {"file": path, "etcd": etcd, "nodes": others}
    text = f"{path} names the cluster now: start or restart mqttd"
    if not etcd:
        there = f"has {', '.join(others)}" if others else "has no node yet: this is its first"
        text += f"; the cluster {options.cluster!r} {there}"
    return done(options, said, printable(text))


def _file_of(options: argparse.Namespace) -> tuple[str, list[str]]:
    """The configuration, and what was made where there was none."""
    found: str | None = options.config or find(os.environ)
    if found is not None:
        return found, []
    fresh, _ = initialize(".")
    return os.path.join("etc", "mqttd.conf"), fresh


def _undo(fresh: list[str]) -> None:
    """A configuration that was made for nothing."""
    for path in reversed(fresh):
        try:
            os.rmdir(path) if os.path.isdir(path) else os.remove(path)
        except OSError:
            pass  # somebody has put something there


def _check(text: str, path: str) -> tuple[str, list[str]]:
    """Whether a node with this configuration would start; why etcd does not answer, if it does not,
    and which nodes are there.

    Raises CtlError.
    """
    from mqttd.cluster.etcd.client import EtcdError
    from mqttd.cluster.probe import members_at
    from mqttd.config.load import from_text
    from mqttd.net.tls import TlsError
    from mqttd.options import check, why

    config = None
    try:
        config = from_text(text, path, os.environ)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = warn
            check(config)
        members = members_at(config)
    except EtcdError as error:
        return str(error), []
    except TlsError as error:
        raise CtlError(f"nothing is written: {error}") from None
    except Exception as error:
        text = why(error, config).replace(":\n", ": ").replace("\n", "; ")
        raise CtlError(f"nothing is written: {text}") from None
    if member := members.get(config.node.name):
        text = f"node.name = {member.name!r} is in use in the cluster {config.cluster.name!r}"
        raise CtlError(f"nothing is written: {text}, by the node at {member.address}")
    return "", sorted(members)


def _joined(text: str, options: argparse.Namespace) -> str:
    """A configuration as that of a node; its tables and comments stay where they are."""
    table = re.search(r"^\[cluster\].*?(?=^\[|\Z)", text, re.M | re.S)
    if table is not None and re.search(r"^kind\b", table[0], re.M):
        raise CtlError("the configuration names a cluster already: change it there")
    values = {"kind": "etcd", "name": options.cluster, "endpoints": options.endpoints}
    for key in (*_KEYS, *_FILES):
        if value := getattr(options, f"node_{key}"):
            values[key] = os.path.abspath(value) if key in _FILES else value
    if options.node:
        text = _with(text, "node", {"name": options.node})
    return _with(text, "cluster", values)


def _with(text: str, table: str, values: dict[str, Any]) -> str:
    """With these values in a table, in place of those that it has."""
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    head = f"[{table}]\n"
    found = re.search(rf"^\[{table}\]\n(.*?)(?=^\[|\Z)", text, re.M | re.S)
    if found is None:
        return f"{text}\n{head}{lines}"
    own = found[1]
    for key in values:
        own = re.sub(rf"^{key}\s*=.*\n", "", own, flags=re.M)
    return f"{text[: found.start()]}{head}{lines}{own}{text[found.end() :]}"
