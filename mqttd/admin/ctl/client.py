"""How mqttd-ctl reaches the broker: HTTP over the Unix socket that the configuration names.

Part of `mqttd.admin.ctl.main`, whose promises hold here too.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

if TYPE_CHECKING:
    from mqttd.config.schema import Config

__all__ = [
    "Client",
    "CtlError",
    "NoAnswer",
    "NoBroker",
    "at_this_node",
    "client_of",
    "config_of",
    "of_node",
]

#: Seconds to wait for an answer.
TIMEOUT: Final = 30.0

Json = dict[str, Any]


class CtlError(Exception):
    """What was asked cannot be done; the text is the one line the operator sees."""


class NoAnswer(CtlError):
    """A broker is there, and has not answered in time."""


class NoBroker(CtlError):
    """There is no broker to talk to."""


class Client:
    """Speaks to the broker that listens on the Unix socket `path`.

    With a `token` the path is a URL, ``https://host:port``, of ``[admin.tcp]``; `authorities` is a
    PEM file with whom to trust there, in place of the system's. `node`: of the cluster of that
    broker, the node that is meant.
    """

    def __init__(
        self,
        path: str,
        timeout: float = TIMEOUT,
        token: str = "",
        authorities: str = "",
        node: str | None = None,
    ) -> None:
        self.path = path
        self.timeout = timeout
        self.token = token
        self.authorities = authorities
        self.node = node
        #: Nodes or workers that were asked and have not answered: each with its `reason`, once.
        self.missing: list[Json] = []
        #: Told of each of them.
        self.misses: Callable[[Json], object] = lambda one: None
        self._noted: str | None = None

    def _connection(self) -> http.client.HTTPConnection:
        if not self.token:
            return _UnixConnection(self.path, self.timeout)
        url = urlsplit(self.path)
        if url.scheme == "https":
            context = ssl.create_default_context(cafile=self.authorities or None)
            return http.client.HTTPSConnection(url.netloc, timeout=self.timeout, context=context)
        return http.client.HTTPConnection(url.netloc, timeout=self.timeout)

    def get(self, path: str, **query: object) -> Json:
        """GET below /api/v1; a query item that is None is left out."""
        given = {key: value for key, value in query.items() if value is not None}
        return self.request("GET", f"{path}?{urlencode(given)}" if given else path)

    def request(self, method: str, path: str, body: Json | None = None) -> Json:
        """One request; raises CtlError with the broker's message if it is refused."""
        if self.node is not None:
            path += ("&" if "?" in path else "?") + urlencode({"node": self.node})
        headers = {"Content-Type": "application/json", "Connection": "close"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            connection = self._connection()
        except OSError as error:
            raise CtlError(f"{self.authorities}: {error.strerror}") from None
        try:
            connection.request(
                method,
                "/api/v1" + path,
                None if body is None else json.dumps(body).encode(),
                headers,
            )
            response = connection.getresponse()
            status, data = response.status, response.read()
            note = response.getheader("x-mqttd-note")
            self._note(note)
        except (FileNotFoundError, ConnectionRefusedError):
            raise NoBroker(f"no broker is running at {self.path}") from None
        except ssl.SSLCertVerificationError as error:
            raise CtlError(
                f"{self.path}: its certificate is not trusted ({error.verify_message}); --ca-file"
                " names whom to trust"
            ) from None
        except PermissionError:
            raise CtlError(
                f"no right to open {self.path}: run this as the broker's user, or as root"
            ) from None
        except TimeoutError:
            other = "; is it http:// there, without TLS?" if self.path.startswith("https:") else ""
            raise NoAnswer(
                f"the broker at {self.path} did not answer within {self.timeout:g} s{other}"
            ) from None
        except http.client.RemoteDisconnected:
            text = f"what listens at {self.path} has closed the connection without an answer"
            if self.token:
                text += (
                    ": expected the port of admin.page or admin.tcp, by https:// where it has a"
                    " certificate"
                )
            raise CtlError(text) from None
        except (OSError, http.client.HTTPException) as error:
            raise CtlError(f"talking to the broker at {self.path} failed: {error!r}") from None
        finally:
            connection.close()
        try:
            answer = json.loads(data)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise CtlError(f"what listens at {self.path} is no mqttd (HTTP status {status})")
        if status >= 400:
            detail = str(answer.get("detail", f"HTTP status {status}"))
            if self.node is not None and status == 400 and _KNOWS_NO_NODES.search(detail):
                detail = "--node: the broker that was asked is no node of a cluster"
            raise CtlError(detail)
        for one in answer.get("missing", ()):
            if _who(one) not in map(_who, self.missing):
                self.missing.append(one)
                if note is None:  # nodes of before say it there alone
                    self.misses(one)
        return answer

    def found(self, key: str, entries: list[Json]) -> Json:
        """Entries of all pages as JSON, with the nodes or workers whose are not there."""
        return {key: entries, **({"missing": self.missing} if self.missing else {})}

    def _note(self, text: str | None) -> None:
        """Say what is to be known beside an answer, once."""
        if text is not None and text != self._noted:
            print(f"mqttd-ctl: {text}", file=sys.stderr)
        self._noted = text

    def pages(self, path: str, key: str, **query: object) -> list[Json]:
        """The entries `key` of all pages of a list."""
        found: list[Json] = []
        cursor: str | None = None
        while True:
            answer = self.get(path, limit=1000, cursor=cursor, **query)
            found += answer[key]
            cursor = answer["cursor"]
            if cursor is None:
                return found


def _who(missing: Json) -> object:
    """The node or worker whose part is not in an answer."""
    return missing.get("node"), missing.get("worker")


class _UnixConnection(http.client.HTTPConnection):
    """An HTTP connection over a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def config_of(options: argparse.Namespace) -> Config:
    """The broker's configuration, from where the command line says."""
    from mqttd.config.files import find, places
    from mqttd.config.load import ConfigError, load

    path = options.config or find(os.environ)
    if path is None and not any(name.startswith("MQTTD__") for name in os.environ):
        raise CtlError(
            f"no configuration found; looked for {', '.join(places(os.environ))}: name it with"
            " --config, or the broker's socket with --socket"
        )
    try:
        return load(path, os.environ)
    except ConfigError as error:
        raise CtlError(f"the configuration has mistakes: {error.mistakes[0]}") from None
    except OSError as error:
        raise CtlError(f"{path}: {error.strerror}") from None


def at_this_node(options: argparse.Namespace) -> str:
    """A clause for who has changed users or rules of one node of a cluster; empty where it is in
    none, or where its configuration is not here."""
    if getattr(options, "url", None):
        return ""
    try:
        alone = config_of(options).cluster.kind == "none"
    except CtlError:
        return ""
    return "" if alone else "; this node alone: other nodes of the cluster have files of their own"


def client_of(options: argparse.Namespace) -> Client:
    """The broker that the command line means."""
    if getattr(options, "url", None):
        client = _remote(options)
    else:
        client = Client(options.socket or _socket_of(options))
    client.node = getattr(options, "of_node", None)
    client.misses = getattr(options, "misses", client.misses)
    return client


def of_node(command: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Let a command be about one node of a cluster; returns it."""
    # It may stand before the command, too, which must not set back what was said there.
    text = "of this node of the cluster alone"
    command.add_argument(
        "--node", dest="of_node", metavar="NODE", default=argparse.SUPPRESS, help=text
    )
    command.set_defaults(asks_nodes=True)
    return command


#: What a broker says to the parameter `node` that has no nodes.
_KNOWS_NO_NODES: Final = re.compile(r"unknown field `node`|^'node': this path takes no query")


def _socket_of(options: argparse.Namespace) -> str:
    """The broker's socket; mistakes elsewhere in the configuration do not hide a running broker."""
    from mqttd.config.files import find
    from mqttd.config.load import ConfigError, admin_socket

    try:
        return config_of(options).admin.socket
    except CtlError as error:
        path = options.config or find(os.environ)
        if path is None:
            raise
        failed = error
        with suppress(ConfigError, OSError):
            place = admin_socket(path, os.environ)
            if os.path.exists(place):
                return place
        text = "; a broker that is running is reached with --socket PATH all the same"
        raise CtlError(f"{failed}{text}") from None


def _remote(options: argparse.Namespace) -> Client:
    """The broker at a URL; who asks shows the first token of a file."""
    url = urlsplit(options.url)
    is_local = url.hostname in ("localhost", "127.0.0.1", "::1")
    if url.scheme not in ("http", "https") or not url.netloc:
        raise CtlError(f"--url {options.url!r}: expected https://host:port")
    if url.scheme == "http" and not is_local:
        raise CtlError(f"--url {options.url!r}: expected https, tokens do not travel in plain")
    if not options.token_file:
        raise CtlError("--url needs --token-file, a file with a token of admin.tcp.token_file")
    try:
        with open(options.token_file, encoding="ascii") as file:
            lines = [line.strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not ASCII"
        raise CtlError(f"{options.token_file}: {reason}") from None
    tokens = [line for line in lines if line and not line.startswith("#")]
    if not tokens:
        raise CtlError(f"{options.token_file}: no token in it")
    return Client(options.url.rstrip("/"), token=tokens[0], authorities=options.ca_file or "")
