"""`mqttd-ctl`: look into a running broker, and manage its users, from a shell.

    mqttd-ctl  --HTTP over the Unix socket-->  the broker (mqttd.admin.api)
        |
        +-- users ...  --->  the password file itself, with or without a broker

A program of its own: it runs no reactor, finds the socket by the configuration file, and needs
the right to open it (the broker's user, or root).

Promise: one request per page of a list; exit status 0 when done, 1 with one line on standard
error when not, 2 for a wrong command line. Text that came from clients is printed with its
control characters escaped. See docs/reference/ctl.md.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import quote, urlencode

if TYPE_CHECKING:
    from mqttd.config.schema import Config

__all__ = [
    "Client",
    "CtlError",
    "client_of",
    "done",
    "main",
    "print_json",
    "print_pairs",
    "print_table",
    "printable",
    "time_text",
]

DEFAULT_CONFIG: Final = "etc/mqttd.conf"
#: Seconds to wait for an answer.
TIMEOUT: Final = 30.0

Json = dict[str, Any]


class CtlError(Exception):
    """What was asked cannot be done; the text is the one line the operator sees."""


class NoBroker(CtlError):
    """There is no broker to talk to."""


class Client:
    """Speaks to the broker that listens on the Unix socket `path`."""

    def __init__(self, path: str, timeout: float = TIMEOUT) -> None:
        self.path = path
        self.timeout = timeout

    def get(self, path: str, **query: object) -> Json:
        """GET below /api/v1; a query item that is None is left out."""
        given = {key: value for key, value in query.items() if value is not None}
        return self.request("GET", f"{path}?{urlencode(given)}" if given else path)

    def request(self, method: str, path: str, body: Json | None = None) -> Json:
        """One request; raises CtlError with the broker's message if it is refused."""
        connection = _UnixConnection(self.path, self.timeout)
        try:
            connection.request(
                method,
                "/api/v1" + path,
                None if body is None else json.dumps(body).encode(),
                {"Content-Type": "application/json", "Connection": "close"},
            )
            response = connection.getresponse()
            status, data = response.status, response.read()
        except (FileNotFoundError, ConnectionRefusedError):
            raise NoBroker(f"no broker is running at {self.path}") from None
        except PermissionError:
            raise CtlError(
                f"no right to open {self.path}: run this as the broker's user, or as root"
            ) from None
        except TimeoutError:
            raise CtlError(
                f"the broker at {self.path} did not answer within {self.timeout:g} s"
            ) from None
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
            raise CtlError(str(answer.get("error", {}).get("message", f"HTTP status {status}")))
        return answer

    def pages(self, path: str, key: str) -> list[Json]:
        """The entries `key` of all pages of a list."""
        found: list[Json] = []
        cursor: str | None = None
        while True:
            answer = self.get(path, limit=1000, cursor=cursor)
            found += answer[key]
            cursor = answer["cursor"]
            if cursor is None:
                return found


class _UnixConnection(http.client.HTTPConnection):
    """An HTTP connection over a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status."""
    from mqttd.admin.ctl_plugins import spelled_out, tell_commands

    given = sys.argv[1:] if argv is None else argv
    parser = _parser()
    known = [name for action in parser._actions for name in action.choices or ()]
    words = spelled_out(given, known)
    if words and words[-1] not in known and _may_be_plugin(words):
        # A plugin's name without a command: say which there are.
        asked, rest = parser.parse_known_args([*words[:-1], "status"])
        if not rest and tell_commands(asked, words[-1]):
            return 2
    options = parser.parse_args(words)
    try:
        run: Callable[[argparse.Namespace], int | None] = options.run
        return run(options) or 0
    except CtlError as error:
        print(f"mqttd-ctl: {printable(str(error))}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader (`| head`) has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


# -- the command line


class _Parser(argparse.ArgumentParser):
    """Where a command is missing, says which there are."""

    def error(self, message: str) -> NoReturn:
        if message.endswith("are required: COMMAND"):
            self.print_help(sys.stderr)
            self.exit(2)
        super().error(message)


def _may_be_plugin(words: Sequence[str]) -> bool:
    """Whether the last word stands where a command would, behind options only."""
    i = 0
    while i < len(words) - 1 and words[i].startswith("-"):
        i += 2 if words[i] in ("--socket", "-c", "--config") else 1
    return i == len(words) - 1 and not words[-1].startswith("-")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="mqttd-ctl", description="Look into a running mqttd, and manage its users."
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--socket", metavar="PATH", help="the broker's Unix socket")
    where.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        help=f"the broker's configuration, which names the socket (default: {DEFAULT_CONFIG})",
    )
    shared = argparse.ArgumentParser(add_help=False)
    # Before or behind the command; the second must not set back what the first has set.
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    shared.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print JSON instead"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(to: Any, name: str, run: Callable[[argparse.Namespace], int | None], text: str) -> Any:
        command = to.add_parser(name, parents=[shared], help=text, description=text)
        command.set_defaults(run=run)
        return command

    def group(name: str, text: str) -> Any:
        made = commands.add_parser(name, help=text, description=text)
        return made.add_subparsers(required=True, metavar="COMMAND")

    add(commands, "status", _status, "Who and where the broker is, and what it holds.")
    add(commands, "metrics", _metrics, "All counters and gauges.")

    clients = group("clients", "Clients, connected or with a session that waits for them.")
    add(clients, "list", _clients_list, "List all clients.")
    for name, run, text in (
        ("show", _clients_show, "Show one client."),
        ("kick", _clients_kick, "End a client's connection."),
    ):
        command = add(clients, name, run, text)
        command.add_argument("client_id", metavar="ID")
    command.add_argument(
        "--reason",
        metavar="CODE",
        default="0x98",
        help="reason code for a 5.0 client: 0x98 administrative action (default), 0x87, ...",
    )

    listing = add(
        group("subscriptions", "Who subscribes to what."),
        "list",
        _subscriptions_list,
        "List subscriptions.",
    )
    listing.add_argument("--client", metavar="ID", help="of this client only")

    from mqttd.admin import ctl_acl

    ctl_acl.add_commands(add, group("acl", "Access rules."))
    add(group("hooks", "Hook points."), "list", _hooks_list, "List hook points with callbacks.")
    alarms = add(commands, "alarms", _alarms, "List the alarms that are raised.")
    alarms.add_argument("--past", action="store_true", help="the last ones that were, too")

    from mqttd.admin import ctl_bans, ctl_events, ctl_listeners, ctl_replay, ctl_users
    from mqttd.admin.ctl_plugins import add_commands

    ctl_events.add_commands(add, group("events", "The event log that Spark reads."))
    ctl_replay.add_command(add, commands)

    ctl_listeners.add_commands(add, group("listeners", "Where clients connect."))
    add_commands(add, group("plugins", "Plugins of the running broker."))

    publish = add(commands, "publish", _publish, "Publish a message as the broker itself.")
    publish.add_argument("topic", metavar="TOPIC")
    publish.add_argument("payload", metavar="PAYLOAD", help="text; - reads standard input")
    publish.add_argument("--qos", type=int, choices=(0, 1, 2), default=0)
    publish.add_argument("--retain", action="store_true")

    ctl_bans.add_commands(add, group("bans", "Who must stay out, whatever it shows."))
    ctl_users.add_commands(
        add,
        group("auth", "Who may connect and do what."),
        group("users", "Users of the password files (auth.username.file, auth.scram.file)."),
    )
    return parser


def config_of(options: argparse.Namespace) -> Config:
    """The broker's configuration, from where the command line says."""
    from mqttd.config.load import ConfigError, load

    path = options.config
    if path is None and os.path.exists(DEFAULT_CONFIG):
        path = DEFAULT_CONFIG
    try:
        return load(path, os.environ)
    except ConfigError as error:
        raise CtlError(f"the configuration has mistakes: {error.mistakes[0]}") from None
    except OSError as error:
        raise CtlError(f"{path}: {error.strerror}") from None


def client_of(options: argparse.Namespace) -> Client:
    """The broker that the command line means."""
    return Client(options.socket or config_of(options).admin.socket)


# -- commands


def _status(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/status")
    if options.json:
        return print_json(answer)
    how = "compiled" if answer["compiled"] else "pure Python"
    print_pairs(
        [
            ("name", answer["name"]),
            ("version", f"{answer['version']} ({how}), Python {answer['python']}"),
            ("pid", answer["pid"]),
            ("uptime", _duration(answer["uptime"])),
            ("who may connect", answer["who_may_connect"]),
            *((name.replace("_", " "), value) for name, value in answer["stats"].items()
              if name != "uptime_seconds"),
        ]
    )  # fmt: skip
    print()
    print_table(
        answer["listeners"],
        ["name", "kind", "host", "port", "transport", "connections", "max_connections"],
    )


def _metrics(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/metrics")
    if options.json:
        return print_json(answer)
    print_pairs([*answer["gauges"].items(), *answer["counters"].items()])


def _clients_list(options: argparse.Namespace) -> None:
    clients = client_of(options).pages("/clients", "clients")
    if options.json:
        return print_json({"clients": clients})
    for client in clients:
        client["peer"] = _peer(client)
    print_table(
        clients,
        ["client_id", "username", "connected", "peer", "listener", "subscriptions", "inflight",
         "mqueue"],
    )  # fmt: skip


def _clients_show(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/clients/" + quote(options.client_id, safe=""))
    if options.json:
        return print_json(answer)
    print_pairs([(name.replace("_", " "), value) for name, value in answer.items()])


def _clients_kick(options: argparse.Namespace) -> None:
    path = "/clients/" + quote(options.client_id, safe="")
    answer = client_of(options).request(
        "DELETE", f"{path}?{urlencode({'reason_code': options.reason})}"
    )
    done(options, answer, f"ended the connection of {options.client_id}")


def _subscriptions_list(options: argparse.Namespace) -> None:
    client = client_of(options)
    if options.client is not None:
        found = client.get("/subscriptions", client_id=options.client)["subscriptions"]
    else:
        found = client.pages("/subscriptions", "subscriptions")
    if options.json:
        return print_json({"subscriptions": found})
    print_table(
        found,
        ["client_id", "topic_filter", "qos", "no_local", "retain_as_published",
         "subscription_identifier"],
    )  # fmt: skip


def _hooks_list(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/hooks")
    if options.json:
        return print_json(answer)
    rows = [
        {"point": point["point"], "errors": point["errors"], **callback}
        for point in answer["hooks"]
        for callback in point["callbacks"]
    ]
    print_table(rows, ["point", "priority", "callback", "owner", "state", "errors"])


def _alarms(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/alarms")
    if options.json:
        return print_json(answer)
    rows = answer["alarms"] + (answer["past"] if options.past else [])
    for row in rows:
        for name in ("raised_at", "cleared_at"):
            if row[name]:
                row[name] = time_text(row[name])
    print_table(rows, ["name", "raised_at", *(["cleared_at"] if options.past else []), "text"])


def _publish(options: argparse.Namespace) -> None:
    if options.payload == "-":
        payload = sys.stdin.buffer.read()
    else:
        payload = os.fsencode(options.payload)
    answer = client_of(options).request(
        "POST",
        "/publish",
        {
            "topic": options.topic,
            "payload_base64": base64.b64encode(payload).decode(),
            "qos": options.qos,
            "retain": options.retain,
        },
    )
    count = answer["receivers"]
    done(options, answer, f"published to {count} receiver{'' if count == 1 else 's'}")


# -- output


def done(options: argparse.Namespace, answer: Json, text: str) -> None:
    """Say that something was done."""
    if options.json:
        print_json(answer)
    else:
        print(printable(text))


def time_text(seconds: float) -> str:
    """Seconds since the epoch as a date and time (ISO 8601, UTC)."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def print_json(value: object) -> None:
    """For ``--json``."""
    print(json.dumps(value, indent=2))


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Names and values, a line each."""
    rows = [(name, _text(value)) for name, value in pairs]
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


def print_table(rows: Sequence[Json], columns: Sequence[str]) -> None:
    """Columns as wide as what is in them; numbers to the right."""
    cells = [[_text(row.get(column)) for column in columns] for row in rows]
    heads = [column.replace("_", " ") for column in columns]
    widths = [max(len(line[i]) for line in [heads, *cells]) for i in range(len(columns))]
    numeric = [
        bool(rows) and all(type(row.get(column)) in (int, float) for row in rows)
        for column in columns
    ]
    for line in [heads, *cells]:
        parts = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ]
        print("  ".join(parts).rstrip())


def _text(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))


def printable(text: str) -> str:
    """`text` with what a terminal would obey (escapes, line ends) made visible."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )


def _peer(client: Json) -> str:
    host = client["peerhost"]
    if not host:
        return ""
    return f"[{host}]:{client['peerport']}" if ":" in host else f"{host}:{client['peerport']}"


def _duration(seconds: int) -> str:
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (rest, "s")]
    shown = [f"{number} {unit}" for number, unit in parts if number]
    return " ".join(shown[:2]) or "0 s"


if __name__ == "__main__":
    # The module the other half imports, not this copy of it.
    from mqttd.admin.ctl import main as run

    sys.exit(run())
