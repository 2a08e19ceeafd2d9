"""The process that looks at rules which somebody has sent: python -P -m mqttd.access.child CPU

    a line of JSON, what to do --> here, at low priority --> a line of JSON

The other half is `mqttd.access.process`, which says what may be asked. Promise: CPU seconds of a
core for a line and `MOST_MEMORY` bytes, where the system can hold a process to that (it is
killed); it ends with its input.
"""

from __future__ import annotations

import math
import os
import sys
import time
from typing import Any, Final

import msgspec

from mqttd.access.acl.conf import AclSyntaxError
from mqttd.access.acl.lint import lint
from mqttd.access.acl.rules import AclRules
from mqttd.access.diff import Difference
from mqttd.types import ClientInfo

try:
    import resource
except ImportError:  # not on this system
    resource = None  # type: ignore[assignment]

__all__ = ["Looking", "main"]

MOST_MEMORY: Final = 1 << 30

Json = dict[str, Any]


class Looking:
    """Answers what `mqttd.access.process` asks."""

    def __init__(self) -> None:
        self.difference: Difference | None = None

    def answer(self, asked: Json) -> Json:
        """What is asked for under the key ``do``; raises `AclSyntaxError`."""
        return getattr(self, f"_{asked.pop('do')}")(**asked)  # type: ignore[no-any-return]

    def _lint(self, text: str, name: str, nomatch: str) -> Json:
        found = lint(AclRules.from_text(text, name), nomatch)
        return {"findings": [finding.shown() for finding in found]}

    def _compare(self, old: tuple[str, str], new: tuple[str, str]) -> Json:
        self.difference = Difference(AclRules.from_text(*old), AclRules.from_text(*new))
        return {"added": self.difference.added, "removed": self.difference.removed}

    def _clients(self, clients: list[tuple[Json, list[tuple[str, int]], list[str]]]) -> Json:
        assert self.difference is not None
        return {
            "clients": [
                self.difference.asked(ClientInfo(**client), subscriptions, topics)
                for client, subscriptions, topics in clients
            ]
        }


def _hold() -> None:
    """Stand back behind the broker, and take no more memory than is promised."""
    os.nice(10)
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))


def _begin(cpu: int) -> None:
    """From now on no more seconds of a core than one line may take."""
    if resource is not None:
        most = math.ceil(time.process_time()) + cpu
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))


def main() -> None:
    """Answer line by line."""
    _hold()
    cpu = int(sys.argv[1])
    looking = Looking()
    for line in sys.stdin.buffer:
        _begin(cpu)
        try:
            found = looking.answer(msgspec.json.decode(line))
        except AclSyntaxError as error:
            found = {"mistake": str(error)}
        sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
