"""An operator, who changes what is nothing to a crowd: keys, users, roles, rules, bans; reloads.

    act          one change, by the dice, and its answer
    meanwhile    one while something else goes on, which may come to nothing

It takes nothing from the crowd, whenever it comes: after kill -9, when no client of the sessions
that were kept is back, as in the midst of load. What the crowd may is by address (`ACL`), as in the
rules that are shipped: nobody knows that of who is not back.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from mqttd.admin.ctl.client import Client, CtlError

__all__ = ["ACL", "Operator", "complaints"]

ACL: Final = '{allow, {ipaddr, "127.0.0.1"}}.\n'
_KINDS: Final = ("hang_up", "apply", "key", "user", "role", "rule", "ban")
#: Who is none of the crowd, and what nobody says.
_NAME: Final = "bystander"
_TOPIC: Final = "idle"
#: What a log says where a change has taken something from somebody, or has not been made.
_WRONG: Final = (
    "subscription revoked", "reload held back", "reload failed", "not reloaded", "internal error",
)  # fmt: skip
#: What is answered while the disk fails.
_NOT_KEPT: Final = "the disk takes no more", "cannot be kept: ", "cannot be written, "


def complaints(output: str) -> list[str]:
    """The lines of a log that must not be there, whatever was changed."""
    return [line for line in output.splitlines() if any(text in line for text in _WRONG)]


class Operator:
    """Has a broker's directory and its own dice; `faults` is what was wrong with what it did."""

    def __init__(self, folder: Path, seed: object, disk_fails: bool = False) -> None:
        self.dice = random.Random(f"operator {seed}")
        self.etc = folder / "etc"
        self.control = Client(str(folder / "data" / "mqttd.sock"))
        #: Whether the broker may say that nothing can be kept.
        self.disk_fails = disk_fails
        #: How often each was done.
        self.done: Counter[str] = Counter()
        self.faults: list[str] = []
        self._number = 0
        self._pid = 0

    def maybe(self, pid: int) -> None:
        """As `act`, every other time."""
        if self.dice.random() < 0.5:
            self.act(pid)

    def act(self, pid: int) -> None:
        """One change of the broker whose process this is. Raises CtlError."""
        self._pid = pid
        self._number += 1
        kind = self.dice.choice(_KINDS)
        try:
            getattr(self, f"_{kind}")()
        except CtlError as error:
            if not self.disk_fails or not any(text in str(error) for text in _NOT_KEPT):
                raise
        else:
            self.done[kind] += 1

    @contextmanager
    def meanwhile(self, pid: int, late: float = 0.0) -> Iterator[bool]:
        """As `maybe`, within `late` seconds, while something else goes on, such as an end."""

        def act() -> None:
            time.sleep(self.dice.uniform(0.0, late))
            with suppress(CtlError):
                self.act(pid)

        busy = self.dice.random() < 0.5
        thread = threading.Thread(target=act)
        if busy:
            thread.start()
        try:
            yield busy
        finally:
            if busy:
                thread.join()

    def gone(self, wanted: set[tuple[str, str]]) -> list[str]:
        """Those of these subscriptions, each of a client id, that the broker has not."""
        found = self.control.pages("/subscriptions", "subscriptions")
        has = {(one["client_id"], one["topic_filter"]) for one in found}
        return [f"{who} has no subscription to {what}" for who, what in sorted(wanted - has)]

    # -- changes -------------------------------------------------------------------------------

    def _hang_up(self) -> None:
        """SIGHUP, with the file as it is or another one."""
        if self.dice.random() < 0.5:
            self._differ()
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGHUP)

    def _apply(self) -> None:
        """`mqttd-ctl reload`; after SIGHUP, when that is done."""
        while True:
            try:
                told = self.control.request("POST", "/config/apply", {})
            except CtlError as error:
                if "under way" not in str(error):
                    raise
            else:
                break
        if told["warnings"] or not told["applied"]:
            self.faults.append(f"not applied: {told}")

    def _key(self) -> None:
        """A key that is nothing to clients."""
        self._differ()
        self._apply()

    def _user(self) -> None:
        """A user, or a new password for one, or one less."""
        there = self.control.get("/users")["users"]
        if there and self.dice.random() < 0.5:
            self.control.request("DELETE", f"/users/{there[0]}")
        else:
            name = self.dice.choice((_NAME, "another"))
            self.control.request("POST", "/users", {"username": name, "password": "known"})

    def _role(self) -> None:
        """A role, and who has it."""
        self.control.request("POST", "/roles", {"name": "idle", "rules": self._rules()})
        self.control.request("POST", "/members", {"username": _NAME, "roles": ["idle"]})

    def _rule(self) -> None:
        """A rule about a topic that nobody uses, before all others."""
        self._put("acl.conf", _TOPIC, self._rules())
        if self.dice.random() < 0.5:
            self._apply()
        else:
            self.control.request("POST", "/acl/reload", {})

    def _ban(self) -> None:
        """Somebody is kept out, for ever or a moment, or is not any more."""
        if any(ban["until"] is None for ban in self.control.get("/bans")["bans"]):
            self.control.request("DELETE", f"/bans?kind=client_id&value={_NAME}")
        else:
            ban = {"kind": "client_id", "value": _NAME, "seconds": self.dice.choice((None, 0.1))}
            self.control.request("POST", "/bans", ban)

    def _rules(self) -> str:
        return f'{{deny, all, pubsub, ["{_TOPIC}/{self._number}"]}}.'

    def _differ(self) -> None:
        self._put("mqttd.conf", "sys.interval", f'sys.interval = "{60 + self._number}s"')

    def _put(self, name: str, mark: str, line: str) -> None:
        """Have a file begin with a line, in the place of the one with `mark`."""
        path = self.etc / name
        rest = [each for each in path.read_text().splitlines() if mark not in each]
        written = path.with_name(f"{name}.new")
        written.write_text("\n".join((line, *rest, "")))
        written.chmod(path.stat().st_mode)
        written.replace(path)
