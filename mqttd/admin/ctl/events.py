"""`mqttd-ctl events ...`: the event log on disk, with or without a running broker.

Part of `mqttd.admin.ctl.main`, whose promises hold here too; what the commands do is in
`mqttd.pipeline.log.tools`.
"""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Callable
from typing import Any

from mqttd.admin.ctl.client import CtlError, config_of
from mqttd.pipeline.log.tools import LogToolError, add_arguments
from mqttd.pipeline.log.tools import run as run_tool

__all__ = ["add_commands", "log_directory"]


def add_commands(add: Callable[..., Any], events: Any) -> None:
    """Add the commands to the group `events`, with `add` of `mqttd.admin.ctl.main`."""

    def one(name: str, text: str) -> Any:
        command = add(events, name, _run, text)
        command.set_defaults(events_command=name)
        command.add_argument(
            "--path", metavar="DIRECTORY", help="the log (default: the broker's, data/events)"
        )
        return command

    add_arguments(one)


def _run(options: argparse.Namespace) -> int:
    try:
        return run_tool(options, options.path or log_directory(options))
    except LogToolError as error:
        raise CtlError(str(error)) from None


def log_directory(options: argparse.Namespace) -> str:
    """Where the broker of this configuration writes its event log."""
    config = config_of(options)
    base = os.path.dirname(config.path) if config.path else os.path.abspath("etc")
    folder = os.path.join(base, "plugins")
    name = os.path.join(folder, "spark.conf")
    path = ""
    try:
        with open(name, "rb") as file:
            path = str(tomllib.load(file).get("path", ""))
    except FileNotFoundError:
        pass
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise CtlError(f"{name}: {error}") from None
    return os.path.abspath(os.path.join(folder, path) if path else f"{config.node.data_dir}/events")
