"""`mqttd-ctl`: look into a running broker, and manage its users, from a shell.

    mqttd-ctl  --HTTP over the Unix socket-->  the broker (mqttd.admin.api)
        |
        +-- users ...  --->  the password file itself, with or without a broker

A program of its own: it runs no reactor, finds the socket by the configuration file, and needs
the right to open it (the broker's user, or root).

Promise: one request per page of a list; exit status 0 when done, 1 with one line on standard
error when not, 2 for a wrong command line. Text that came from clients is printed with its
control characters escaped. What only a broker is made of is imported by the commands that need it:
a command takes a fifth of a second. See docs/reference/ctl.md.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from mqttd import __version__
from mqttd.admin.ctl import acl as ctl_acl
from mqttd.admin.ctl import api_users as ctl_api_users
from mqttd.admin.ctl import bans as ctl_bans
from mqttd.admin.ctl import cluster as ctl_cluster
from mqttd.admin.ctl import completion as ctl_completion
from mqttd.admin.ctl import config as ctl_config
from mqttd.admin.ctl import drain as ctl_drain
from mqttd.admin.ctl import events as ctl_events
from mqttd.admin.ctl import importing as ctl_import
from mqttd.admin.ctl import init as ctl_init
from mqttd.admin.ctl import listeners as ctl_listeners
from mqttd.admin.ctl import log as ctl_log
from mqttd.admin.ctl import plugins as ctl_plugins
from mqttd.admin.ctl import replay as ctl_replay
from mqttd.admin.ctl import roles as ctl_roles
from mqttd.admin.ctl import sessions as ctl_sessions
from mqttd.admin.ctl import show as ctl_show
from mqttd.admin.ctl import store as ctl_store
from mqttd.admin.ctl import top as ctl_top
from mqttd.admin.ctl import users as ctl_users
from mqttd.admin.ctl import watch as ctl_watch
from mqttd.admin.ctl import why as ctl_why
from mqttd.admin.ctl.client import Client, CtlError
from mqttd.config.files import places
from mqttd.hints import like
from mqttd.printable import printable

__all__ = ["Client", "CtlError", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status."""
    given = _helped(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    known = [name for action in parser._actions for name in action.choices or ()]
    at = ctl_plugins.place_of_command(given)
    helped = bool(given) and given[-1] in _HELP
    if at == len(given) and (helped or not given):
        options, _ = parser.parse_known_args([*given[:-1], "status"])
        parser.epilog = ctl_plugins.commands_text(options, known)
    elif at < len(given) and given[at] not in known and (helped or at == len(given) - 1):
        # A plugin's name: say which commands it has, or what this one does.
        asked, rest = parser.parse_known_args([*given[:at], "status"])
        command = given[at + 1] if at + 1 < len(given) - 1 else ""
        out = sys.stdout if helped else None
        if not rest and ctl_plugins.tell_commands(asked, given[at], command, out):
            return 0 if helped else 2
    words = ctl_plugins.spelled_out(given, known)
    options, unknown = parser.parse_known_args(words)
    named = options.of_node is not None and not hasattr(options, "asks_nodes")
    if named or unknown and unknown[0].partition("=")[0] == "--node":
        has_own = "--node" in options.parser._option_string_actions
        options.parser.error(_OWN_NODE if has_own else _NO_NODE)
    if unknown:
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    options.misses = _tell_missing
    try:
        run: Callable[[argparse.Namespace], int | None] = options.run
        return run(options) or 0
    except CtlError as error:
        # Who has mistyped a command has named a plugin.
        meant = like(given[at], known) if len(words) > len(given) else ""
        print(f"mqttd-ctl: {printable(f'{error}{meant}')}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader (`| head`) has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


_HELP: Final = ("-h", "--help")

#: Said where a node is named to a command that asks none by its name.
_NO_NODE: Final = (
    "--node: this command asks the broker that --config, --socket or --url names, and no other"
)
_OWN_NODE: Final = "--node: here it says something else, and stands behind the command"


def _tell_missing(one: dict[str, Any]) -> None:
    """A node of the cluster has not answered: what is shown is without what it has."""
    text = f"mqttd-ctl: this is without node {one['node']}: {one['reason']}"
    print(printable(text), file=sys.stderr)


# -- the command line


def _helped(given: Sequence[str]) -> Sequence[str]:
    """`help` and `help COMMAND`, as they are asked for with --help."""
    i = ctl_plugins.place_of_command(given)
    if i < len(given) and given[i] == "help":
        return [*given[:i], *given[i + 1 :], "--help"]
    return given


class _Parser(argparse.ArgumentParser):
    """Where a command is missing, says which there are; where it is not known, which was meant."""

    def error(self, message: str) -> NoReturn:
        if message.endswith("are required: COMMAND"):
            self.print_help(sys.stderr)
            self.exit(2)
        if (found := _INVALID.search(message)) is not None:
            known = _WORD.findall(found[2])
            meant = _ELSEWHERE.get(found[1], "")
            message += like(meant if meant in known else found[1], known)
        super().error(message)


#: As argparse says it.
_INVALID: Final = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")
_WORD: Final = re.compile(r"[\w-]+")
#: What other brokers' tools call our commands.
_ELSEWHERE: Final = {"enable": "load", "disable": "unload", "delete": "del", "remove": "del"}


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="mqttd-ctl",
        description="Look into a running mqttd, and manage its users.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--socket", metavar="PATH", help="the broker's Unix socket")
    where.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        help="the broker's configuration, which names the socket (default: the first that is"
        f" there of {', '.join(places({'HOME': '~'}))})",
    )
    where.add_argument(
        "--url", metavar="URL", help="the broker's HTTP interface over TCP, https://host:port"
    )
    parser.add_argument("--token-file", metavar="FILE", help="with --url: a file with a token")
    parser.add_argument("--ca-file", metavar="FILE", help="with --url: whom to trust (PEM)")
    text = "of a cluster, the node that status, clients list and others are about"
    parser.add_argument("--node", dest="of_node", metavar="NODE", help=text)
    parser.add_argument("--version", action="version", version=f"mqttd-ctl {__version__}")
    shared = argparse.ArgumentParser(add_help=False)
    # Before or behind the command; the second must not set back what the first has set.
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    shared.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print JSON instead"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(to: Any, name: str, run: Callable[[argparse.Namespace], int | None], text: str) -> Any:
        command = to.add_parser(name, parents=[shared], help=text, description=text)
        command.set_defaults(run=run, parser=command)
        return command

    def group(name: str, text: str) -> Any:
        made = commands.add_parser(name, help=text, description=text)
        return made.add_subparsers(required=True, metavar="COMMAND")

    ctl_init.add_command(add, commands)
    ctl_import.add_command(add, commands)
    ctl_show.add_clients(add, group, commands)
    ctl_top.add_command(add, commands)
    ctl_sessions.add_commands(add, group)
    ctl_acl.add_commands(add, group("acl", "Access rules."))
    ctl_show.add_hooks(add, group)
    ctl_watch.add_commands(add, commands)
    ctl_events.add_commands(add, group("events", "The event log that Spark reads."))
    ctl_replay.add_command(add, commands)

    ctl_config.add_commands(add, group, commands)
    ctl_cluster.add_commands(add, group("cluster", "Several brokers as one."))
    ctl_drain.add_command(add, commands)
    ctl_listeners.add_commands(add, group("listeners", "Where clients connect."))
    ctl_plugins.add_commands(add, group("plugins", "Plugins of the running broker."))

    ctl_why.add_commands(add, group, commands)
    ctl_log.add_commands(add, group("log", "The log: its levels, and what became of its lines."))
    ctl_show.add_publish(add, commands)
    ctl_store.add_backup(add, commands)
    ctl_store.add_commands(add, group("store", "What is kept on disk."))
    ctl_bans.add_commands(add, group("bans", "Who must stay out, whatever it shows."))
    ctl_users.add_commands(
        add,
        group("auth", "Who may connect and do what."),
        group("users", "Users of the password files (auth.username.file, auth.scram.file)."),
    )
    ctl_roles.add_commands(add, group("roles", "Roles with rules, and which users have them."))
    ctl_api_users.add_commands(add, group("api-users", "Who may use the HTTP interface."))
    ctl_completion.add_command(add, commands, parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
