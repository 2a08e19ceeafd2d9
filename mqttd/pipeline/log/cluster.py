"""The event logs of a cluster's nodes as one: etcd says where each is read.

    etcd  export/<node> --> the URL of its pull endpoint --> PullReader --> `ManyLogs`
    a node joins                       it is read from its first event
    it ends or dies                    the others go on; it is waited for, up to `patience`
    it leaves, or is put out           nobody waits; what was not read comes when it is back

Offsets are by node, and so are the ids of the logs: ``a=ID+b=ID``. An offset keeps the ids of nodes
that are not there, so that one which comes back with another log is told from one with its own.

Standard library only; etcd 3.4 and later by the JSON it speaks over HTTP.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from mqttd.pipeline.log.many import ManyLogs, pull_of
from mqttd.pipeline.log.pull import SHARE, Away, Elsewhere, PullError, trusting
from mqttd.pipeline.log.reader import Bounds, EventLog
from mqttd.printable import printable, said_by

__all__ = ["LOOK_EVERY", "ClusterLog", "Exports"]

#: Seconds between two looks at who is there, and for an answer of etcd.
LOOK_EVERY: Final = 2.0
TIMEOUT: Final = 5.0
#: Seconds before a node that was away, or etcd, is tried again by who waits for it.
PAUSE: Final = 0.5

#: A node's name (`node.name`), and where one is read.
_NODE: Final = re.compile(r"[A-Za-z0-9_.@-]{1,64}\Z")
_URL: Final = re.compile(r"https?://[^\s/]+\S*\Z")

#: Opens the log at a URL, which was not there for so many seconds; raises PullError, Away where it
#: is not there now.
Open = Callable[[str, float], EventLog]


def _post(
    connection: http.client.HTTPConnection, path: str, body: dict[str, str], token: str
) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = token
    connection.request("POST", path, json.dumps(body), headers)
    answer = connection.getresponse()
    data = answer.read()
    found: dict[str, Any] = json.loads(data)
    if answer.status != 200:
        raise http.client.HTTPException(f"{answer.status}: {printable(str(found['error'])[:200])}")
    return found


def _read(name: bytes, url: bytes) -> tuple[str, str]:
    """A node and its URL; empty where they are none."""
    try:
        found = name.decode(), url.decode()
    except ValueError:
        return "", ""
    is_one = _NODE.match(found[0]) and _URL.match(found[1])
    return found if is_one else ("", "")


class Exports:
    """Where the nodes of the cluster `name` are read, as etcd at `endpoints` has it.

    ca_file, certificate, private_key: PEM files for TLS with etcd; empty: what the system trusts,
    none of our own. user, password: where etcd asks for them. Raises ValueError for a file that
    cannot be read.
    """

    def __init__(
        self, endpoints: list[str], name: str, ca_file: str = "", certificate: str = "",
        private_key: str = "", user: str = "", password: str = "",
    ) -> None:  # fmt: skip
        self.endpoints = list(endpoints)
        self.name = name
        self._prefix = f"/mqttd/{name}/v1/export/".encode()
        self._login = {"name": user, "password": password} if user else None
        #: Keys that were passed by when etcd was asked last.
        self._unreadable: set[bytes] = set()
        self._tls: ssl.SSLContext | None = None
        if any(one.startswith("https:") for one in endpoints):
            self._tls = trusting(ca_file, "etcdCaFile")
            if certificate:
                try:
                    self._tls.load_cert_chain(certificate, private_key or None)
                except OSError as error:
                    raise ValueError(
                        f"mqttd: options etcdCertificate = {certificate!r}, etcdPrivateKey ="
                        f" {private_key!r}: {error.strerror or error}; expected a certificate and"
                        " its key (PEM)"
                    ) from None

    def urls(self) -> dict[str, str]:
        """Node -> URL. Raises Away where no member of etcd answers."""
        why = ""
        for _ in range(len(self.endpoints)):
            try:
                return self._ask(self.endpoints[0])
            except (OSError, http.client.HTTPException) as error:
                why = said_by(error)
            except (ValueError, KeyError, TypeError):
                why = "an answer, but not of etcd (option etcd)"
            why = f"etcd at {self.endpoints[0]}: {why}"
            self.endpoints.append(self.endpoints.pop(0))
        raise Away(why)

    def url(self, name: str) -> str | None:
        """Where this node is read; None where nobody says so."""
        try:
            return self.urls().get(name)
        except Away:
            return None

    def _ask(self, endpoint: str) -> dict[str, str]:
        parts = urlsplit(endpoint)
        host = parts.hostname or ""
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            connection = http.client.HTTPSConnection(
                host, parts.port, timeout=TIMEOUT, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection(host, parts.port, timeout=TIMEOUT)
        end = self._prefix[:-1] + bytes((self._prefix[-1] + 1,))
        body = {"key": b64encode(self._prefix).decode(), "range_end": b64encode(end).decode()}
        try:
            token = ""
            if self._login is not None:
                token = _post(connection, "/v3/auth/authenticate", self._login, "")["token"]
            found = _post(connection, "/v3/kv/range", body, token)
        finally:
            connection.close()
        urls: dict[str, str] = {}
        unreadable: set[bytes] = set()
        for kv in found.get("kvs", ()):
            key, value = b64decode(kv["key"]), b64decode(kv.get("value", ""))
            name, url = _read(key[len(self._prefix) :], value)
            if url:
                urls[name] = url
            else:
                unreadable.add(key)
                if key not in self._unreadable:
                    _say(f"mqttd: {ascii(key)} in etcd is passed by: expected a node and its URL")
        self._unreadable = unreadable
        return urls


class ClusterLog(ManyLogs):
    """An `EventLog` of the nodes that `exports` tells of, each opened by `opens`.

    patience: seconds that a node, or etcd, may be away. Raises PullError where etcd cannot be
    asked for so long, or says nothing.
    """

    def __init__(
        self,
        exports: Exports,
        opens: Open,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__([], patience)
        self.exports = exports
        self._opens, self._clock, self._sleep = opens, clock, sleep
        #: Node of the cluster -> where it is read; and its log, where it was met.
        self._urls: dict[str, str] = {}
        self._met: dict[str, EventLog] = {}
        #: Nodes that were not met yet: since when they are waited for, and when they are tried.
        self._since: dict[str, float] = {}
        self._try_at: dict[str, float] = {}
        self._look_at = 0.0
        self._etcd_away = False
        self._first()

    @property
    def away_seconds(self) -> float | None:
        """See `ManyLogs.away_seconds`; nodes that were never met count, too."""
        now = self._clock()
        away = [now - since for since in self._since.values()]
        known = super().away_seconds
        return max([*away, *([] if known is None else [known])], default=None)

    def where(self, node: str) -> tuple[str, str]:
        """Which node of the cluster has events of this one, of the column `node`, and its URL."""
        log = self._log(node)
        return next(((name, self._urls[name]) for name, one in self._met.items() if one is log))

    def bounds(self) -> dict[str, Bounds]:
        """See `ManyLogs.bounds`: of the nodes that were met. Nobody is waited for."""
        self._look()
        return super().bounds()

    def meet(self) -> None:
        """Wait for nodes that were not met; raises PullError for one that does not come."""
        self._look()
        while self._since:
            self._sleep(PAUSE)
            self._look()

    # -- who is there --------------------------------------------------------------------------

    def _first(self) -> None:
        began = self._clock()
        while True:
            try:
                self._take(self.exports.urls())
                break
            except Away as error:
                if self._clock() - began >= self.patience:
                    raise PullError(
                        f"mqttd: {error}; it was away for {self.patience:.0f} s"
                    ) from None
                self._say_etcd(error)
                self._sleep(PAUSE)
        if not self._urls:
            raise PullError(
                f"mqttd: no node of the cluster {self.exports.name!r} exports an event log: set"
                " cluster to its name (cluster.name), load the plugin spark at its nodes and give"
                " them admin.tcp"
            )

    def _look(self) -> None:
        """Ask etcd, if that is not long ago, and try nodes that were not met."""
        now = self._clock()
        if now >= self._look_at:
            try:
                self._take(self.exports.urls())
            except Away as error:
                self._say_etcd(error)  # it is known who was there
                self._look_at = now + LOOK_EVERY
        for name in list(self._since):
            if self._clock() >= self._try_at.get(name, 0.0):
                self._try(name)

    def _say_etcd(self, error: Away) -> None:
        if not self._etcd_away:
            self._etcd_away = True
            _say(f"mqttd: {error}; nodes that come are not seen until it answers")

    def _take(self, urls: dict[str, str]) -> None:
        self._look_at = self._clock() + LOOK_EVERY
        if self._etcd_away:
            self._etcd_away = False
            _say("mqttd: etcd answers again")
        for name in list(self._urls):
            if urls.get(name) != self._urls[name]:
                self._drop(name, left=name not in urls)
                del self._urls[name]
        for name in urls.keys() - self._urls.keys():
            self._since.setdefault(name, self._clock())
            self._try_at[name] = 0.0
        self._urls = dict(urls)

    def _drop(self, name: str, left: bool) -> None:
        """A node has left, or is somewhere else."""
        log = self._met.pop(name, None)
        self._since.pop(name, None)
        if left:
            _say(
                f"mqttd: node {name} has left the cluster; what was not read of it comes when it"
                " is back"
            )
        if log is None:
            return
        pull = pull_of(log)
        if not left and pull is not None and pull.away_since is not None:
            self._since[name] = self._clock() - pull.away_seconds
        log.close()
        self.logs.remove(log)
        self._of = {node: one for node, one in self._of.items() if one is not log}

    def _try(self, name: str) -> None:
        """Open the log of a node; it may be away."""
        began = self._clock()
        try:
            log = self._opens(self._urls[name], began - self._since[name])
        except Away as error:
            away = self._clock() - self._since[name]
            if away >= self.patience:
                raise PullError(
                    f"mqttd: node {name}: {error}; it has been away for {away:.0f} s"
                    " (outageTimeout). Bring it back, or put it out: mqttd-ctl cluster force-leave"
                ) from None
            if not self._try_at.get(name):
                _say(f"mqttd: node {name}: {error}; the others go on")
            pause = max(min(max(away, PAUSE), 10.0), (self._clock() - began) / SHARE)
            pause = min(pause, self.patience - away)
            self._try_at[name] = self._clock() + pause
            return
        del self._since[name]
        self._try_at.pop(name, None)
        pull = pull_of(log)
        if pull is not None:
            pull.elsewhere = Elsewhere(name, partial(self.exports.url, name))
        self._met[name] = log
        self.logs.append(log)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
