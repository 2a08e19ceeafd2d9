"""`mqttd-ctl init`: a directory to start a broker from. Part of `mqttd.admin.ctl.main`.

Promise: what is there already is never written over.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

from mqttd.admin.ctl.client import CtlError
from mqttd.admin.ctl.printing import print_json
from mqttd.config.files import find, initialize
from mqttd.printable import printable

__all__ = ["add_command"]


def add_command(add: Callable[..., Any], commands: Any) -> None:
    """Add `init`, with `add` of `mqttd.admin.ctl.main`."""
    init = add(
        commands, "init", _init, "Write a commented configuration, rules and a data directory."
    )
    init.add_argument("directory", metavar="DIR")
    init.add_argument(
        "--data",
        metavar="PATH",
        help="the data directory; the configuration then stands in DIR itself, not in DIR/etc",
    )


def _init(options: argparse.Namespace) -> None:
    try:
        fresh, kept = initialize(options.directory, options.data)
    except OSError as error:
        raise CtlError(f"{error.filename}: {error.strerror}") from None
    if options.json:
        return print_json({"written": fresh, "kept": kept})
    for path in fresh:
        print(printable(f"made {path}"))
    for path in kept:
        print(printable(f"kept {path}, which was there"))
    folder = options.directory if options.data else os.path.join(options.directory, "etc")
    config = os.path.normpath(os.path.join(folder, "mqttd.conf"))
    found = find(os.environ)
    named = "" if found and os.path.samefile(found, config) else f" --config {config}"
    print(printable(f"start it:  mqttd{named}"))
