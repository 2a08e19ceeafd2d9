"""Peers that are measured now and then: aedes on Node, amqtt on Python."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from benchmarks.running import Broker, StartError, program, said

__all__ = ["Aedes", "Amqtt"]


class Aedes(Broker):
    """aedes on Node, storage in memory; found where `node` finds it from here, or in $AEDES."""

    name = "aedes"
    cuts = dict.fromkeys(("fanout-q0", "fanout-q0-1k", "fanout-q1"), ("--window", "16"))

    SERVER = """\
import { createServer } from 'node:net'
import { pathToFileURL } from 'node:url'
import { createRequire } from 'node:module'
const from = createRequire(process.argv[3] + '/')
const { Aedes } = await import(pathToFileURL(from.resolve('aedes')))
const broker = await Aedes.createBroker()
createServer({ noDelay: true }, broker.handle).listen(Number(process.argv[2]), '127.0.0.1')
"""

    def __init__(self) -> None:
        self.home = os.environ.get("AEDES", os.getcwd())

    def configuration(self, port: int | str) -> Mapping[str, str]:
        return {"server.mjs": self.SERVER}

    def command(self, directory: Path, port: int) -> list[str]:
        return [program("node", "apt install nodejs"), str(directory / "server.mjs"), str(port),
                self.home]  # fmt: skip

    def version(self) -> str:
        node = program("node", "apt install nodejs")
        code = (  # newer ones do not export their package.json
            "const path = require('path'), home = path.dirname(require.resolve('aedes'));"
            "console.log(require(path.join(home, 'package.json')).version, process.version)"
        )
        try:
            told = said([node, "-e", code], self.home)
        except subprocess.CalledProcessError:
            hint = "npm install aedes; $AEDES names the directory"
            raise StartError(f"no aedes in {self.home}: {hint}") from None
        version, _, on = told.strip().partition(" ")
        return f"aedes {version}, Node {on}"


class Amqtt(Broker):
    """amqtt, on the interpreter that $AMQTT names or that its `amqtt` command belongs to."""

    name = "amqtt"
    _short = ("--window", "16")
    _few = ("--window", "2")
    cuts = {
        **dict.fromkeys(("p2p-q0", "p2p-q0-1k", "p2p-q1", "p2p-q2", "fanin-q0",
                         "fanin-q1", "batch1-q0", "batch1-q1"), _short),
        **dict.fromkeys(("fanout-q0", "fanout-q0-1k", "fanout-q1"), _few),
        "wildcard": (*_short, "--filters", "2000"),
        "trickle-q1": ("--rate", "500"),
        "idle": ("--conns", "5000"),
        "idle-sub": ("--conns", "5000"),
        "idle-echo": ("--conns", "5000"),
        "connstorm": ("--conns", "2000"),
        "retained": ("--count", "5000"),
    }  # fmt: skip

    def configuration(self, port: int | str) -> Mapping[str, str]:
        return {
            "amqtt.yaml": "listeners:\n"
            "  default:\n"
            "    type: tcp\n"
            f"    bind: 127.0.0.1:{port}\n"
            "plugins:\n"
            "  amqtt.plugins.authentication.AnonymousAuthPlugin:\n"
            "    allow_anonymous: true\n"
        }

    def command(self, directory: Path, port: int) -> list[str]:
        return [self._amqtt(), "-c", str(directory / "amqtt.yaml")]

    def version(self) -> str:
        return f"amqtt {said([self._amqtt(), '--version']).strip()}"

    def _amqtt(self) -> str:
        return os.environ.get("AMQTT") or program("amqtt", "pip install amqtt")
