"""`mqttd-ctl drain`: take a broker out of service.

Part of `mqttd.admin.ctl.main`, whose promises hold here too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from mqttd.admin.ctl.client import CtlError, NoBroker, client_of
from mqttd.admin.ctl.printing import done, print_json

__all__ = ["add_command"]


def add_command(add: Callable[..., Any], commands: Any) -> None:
    """Add `drain`, with `add` of `mqttd.admin.ctl.main`."""
    command = add(
        commands,
        "drain",
        _drain,
        "Let nobody in, send clients elsewhere at a rate, then end the broker.",
    )
    command.add_argument(
        "--rate", metavar="N/s", default="100/s", help="clients a second (default: 100/s)"
    )
    command.add_argument("--to", metavar="HOST", default="", help="where to: host or host:port")
    command.add_argument("--moved", action="store_true", help="for ever: 0x9D in place of 0x9C")
    command.add_argument("--stay", action="store_true", help="do not end the broker after it")
    command.add_argument("--cancel", action="store_true", help="let clients in again")
    command.add_argument("--no-wait", action="store_true", help="do not wait until it is done")


def _drain(options: argparse.Namespace) -> None:
    client = client_of(options)
    if options.cancel:
        answer = client.request("DELETE", "/drain")
        return done(options, answer, f"clients are let in again; {answer['ended']} were sent away")
    text = options.rate.removesuffix("/s")
    try:
        rate = float(text)
    except ValueError:
        raise CtlError(f"--rate {options.rate}: expected clients a second, such as 50/s") from None
    body = {"rate": rate, "to": options.to, "moved": options.moved, "exit": not options.stay}
    answer = client.request("POST", "/drain", body)
    while not options.no_wait and answer["left"]:
        if not options.json:
            print(f"{answer['ended']} sent away, {answer['left']} left", flush=True)
        time.sleep(1)
        try:
            answer = client.get("/drain")
        except NoBroker:
            answer = {**answer, "left": 0}
        except CtlError:
            if options.stay:
                raise
            answer = {**answer, "left": 0}
    if options.json:
        return print_json(answer)
    if not answer["left"] and options.stay:
        print("nobody is left; nobody is let in until `mqttd-ctl drain --cancel`")
    elif not answer["left"]:
        print("nobody is left; the broker ends")
