"""`mqttd-ctl plugins ...`, and `mqttd-ctl NAME COMMAND ...` for the commands of plugins.

    plugins list|info|load|unload|reload   --HTTP over the Unix socket-->  the broker
    plugins new NAME                       --> a project of your own (mqttd.admin.ctl.new_plugin)
    NAME COMMAND ARGUMENTS                 --HTTP-->  the broker  -->  the plugin's own function

Part of `mqttd.admin.ctl.main`, whose promises hold here too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, TextIO
from urllib.parse import quote

from mqttd.admin.ctl.client import CtlError, client_of, of_node
from mqttd.admin.ctl.printing import (
    done,
    print_json,
    print_pairs,
    print_table,
    time_text,
)
from mqttd.printable import printable

__all__ = [
    "WITH_VALUE",
    "add_commands",
    "commands_text",
    "place_of_command",
    "spelled_out",
    "tell_commands",
]

Json = dict[str, Any]

#: Options of mqttd-ctl that take a value, which is no command.
WITH_VALUE: Final = ("--socket", "-c", "--config", "--url", "--token-file", "--ca-file", "--node")


def add_commands(add: Callable[..., Any], plugins: Any) -> None:
    """Add the commands to the group `plugins`, with `add` of `mqttd.admin.ctl.main`."""
    text = "List all plugins that are installed, and those that failed."
    of_node(add(plugins, "list", _list, text))
    for name, run, text in (
        ("info", _info, "Show one plugin: what it has registered, and what it used."),
        ("load", _change, "Load a plugin; it is loaded again when the broker starts next."),
        ("unload", _change, "Unload a plugin, with everything it has registered."),
        ("reload", _change, "Load a plugin anew from its files; with a mistake the old one stays."),
    ):
        command = add(plugins, name, run, text)
        command.add_argument("name", metavar="NAME")
        command.set_defaults(operation=name)
    run = add(plugins, "run", _run, "Run a command of a plugin (short: mqttd-ctl NAME COMMAND).")
    run.add_argument("name", metavar="NAME")
    run.add_argument("command", metavar="COMMAND")
    run.add_argument("argv", metavar="ARGUMENT", nargs=argparse.REMAINDER)
    new = add(plugins, "new", _new, "Write a project for a plugin of your own.")
    new.add_argument("name", metavar="NAME")
    new.add_argument("--directory", metavar="PATH", help="where (default: mqttd-NAME)")


def place_of_command(words: Sequence[str]) -> int:
    """Where the first word is that is no option and no option's value; the length without one."""
    i = 0
    while i < len(words) and words[i].startswith("-"):
        i += 2 if words[i] in WITH_VALUE else 1
    return min(i, len(words))


def spelled_out(argv: Sequence[str], known: Sequence[str]) -> list[str]:
    """`argv`, with ``plugins run`` before the name of a plugin that stands for a command.

    >>> spelled_out(["--json", "acme", "show", "x"], ["status", "plugins"])
    ['--json', 'plugins', 'run', 'acme', 'show', 'x']
    """
    words = list(argv)
    i = place_of_command(words)
    if i + 1 < len(words) and words[i] not in known and not words[i + 1].startswith("-"):
        words[i:i] = ["plugins", "run"]
    return words


def commands_text(options: argparse.Namespace, known: Sequence[str]) -> str:
    """The commands of loaded plugins, for the end of the help; empty without a broker.

    A plugin whose name is one of the `known` commands has no short form.
    """
    try:
        plugins = client_of(options).get("/plugins")["plugins"]
    except CtlError:
        return ""
    lines = [
        f"  {'plugins run ' * (plugin['name'] in known)}{plugin['name']} {command:<16}  {text}"
        for plugin in plugins
        for command, text in sorted(plugin.get("commands", {}).items())
    ]
    return "\n".join(["commands of loaded plugins:", *map(printable, lines)]) if lines else ""


def tell_commands(
    options: argparse.Namespace, name: str, command: str = "", out: TextIO | None = None
) -> bool:
    """Print what ``mqttd-ctl NAME`` can be followed by, or what `command` of it does.

    False if that is no plugin's name, or no broker answers.
    """
    try:
        info = client_of(options).get("/plugins/" + quote(name, safe=""))
    except CtlError:
        return False
    commands: dict[str, str] = info.get("registered", {}).get("commands", {})
    lines = [f"  {one:<20}  {text}".rstrip() for one, text in sorted(commands.items())]
    if command in commands:
        lines = [commands[command]]
    elif "registered" not in info:
        state = info.get("state", "not loaded")
        lines = [f"plugin {name} is {state}: mqttd-ctl plugins load {name}"]
    elif not commands:
        lines = [f"plugin {name} has no commands"]
    asked = f"{command} [ARGUMENT ...]" if command in commands else "COMMAND ..."
    for line in (f"usage: mqttd-ctl {name} {asked}", *lines):
        print(printable(line), file=out or sys.stderr)
    return True


def _list(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/plugins")
    if options.json:
        return print_json(answer)
    print_table(
        answer["plugins"], ["name", "version", "state", "configured", "description", "error"]
    )


def _info(options: argparse.Namespace) -> None:
    answer = client_of(options).get("/plugins/" + quote(options.name, safe=""))
    if options.json:
        return print_json(answer)
    registered: Json = answer.pop("registered", {})
    if registered:
        answer.pop("commands", None)  # they are among these
    budget: Json = answer.pop("budget", {})
    limits: Json = budget.pop("limits", {})
    if "loaded_at" in answer:
        answer["loaded_at"] = time_text(answer["loaded_at"])
    print_pairs(
        [(name.replace("_", " "), value) for name, value in answer.items()]
        + [("hook", _hook_text(hook)) for hook in registered.pop("hooks", ())]
        + [(name.replace("_", " "), _shown(value)) for name, value in registered.items()]
        + [(f"budget {name.replace('_', ' ')}", _shown(value)) for name, value in budget.items()]
        + [(f"limit {name.replace('_', ' ')}", value) for name, value in limits.items()]
    )


def _hook_text(hook: Json) -> str:
    filters = [f"{name}={text}" for name in ("topic_filter", "client") for text in hook[name]]
    return "  ".join((hook["point"], hook["callback"], *filters))


def _change(options: argparse.Namespace) -> None:
    path = f"/plugins/{quote(options.name, safe='')}/{options.operation}"
    answer = client_of(options).request("POST", path)
    done(options, answer, f"plugin {options.name} is {answer['state']}")


def _run(options: argparse.Namespace) -> None:
    name, command = quote(options.name, safe=""), quote(options.command, safe="")
    answer = client_of(options).request(
        "POST", f"/plugins/{name}/commands/{command}", {"argv": options.argv}
    )
    if options.json:
        return print_json(answer)
    for line in answer["output"].splitlines():
        print(printable(line))


def _new(options: argparse.Namespace) -> None:
    from mqttd.admin.ctl.new_plugin import write_project

    directory = options.directory or f"mqttd-{options.name.replace('_', '-')}"
    try:
        files = write_project(options.name, directory)
    except ValueError as error:
        raise CtlError(str(error)) from None
    except OSError as error:
        raise CtlError(f"{error.filename or directory}: {error.strerror}") from None
    if options.json:
        return print_json({"directory": directory, "files": files})
    for file in files:
        print(file)
    print(f"next: cd {directory} && pip install -e . && mqttd-ctl plugins load {options.name}")


def _shown(value: object) -> object:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {item}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    return value
