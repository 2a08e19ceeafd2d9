"""A file of names and proofs in a running broker: watched, and read again when it has changed.

`SecretFile` is one such file (`mqttd.secrets.lines`): it is looked at every two seconds, so that
users come, go and change their passwords without a restart.

Promise: a wrong line keeps the broker from starting, and a reload that fails (wrong line, no right,
no file descriptor left) keeps what there was.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread
from twisted.python.failure import Failure

from mqttd.secrets import lines
from mqttd.secrets.lines import CheckProof
from mqttd.types import AuthError, AuthOk, AuthVerdict

__all__ = ["SecretFile", "SecretFileModule"]

#: Names that are told of a change.
_NAMED: Final = 50
#: Seconds between two looks at a file.
INTERVAL: Final = 2.0
#: Bytes from which a changed file is read in a thread.
LARGE: Final = 64 * 1024

_SERVER_BUSY: Final = 0x89

OnChange: TypeAlias = Callable[[frozenset[str]], None]
OnFault: TypeAlias = Callable[[Exception | None], None]


class SecretFile:
    """The names and proofs of one file, in a running broker.

    `check` and `optional` as for `read`.  ``on_change(names)`` is told which names are gone or have
    another proof after each reading, ``on_fault(error)`` of a changed file that cannot be read,
    ``on_fault(None)`` when that is over.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        check: CheckProof,
        required: bool,
        optional: bool = False,
        on_change: OnChange | None = None,
        on_fault: OnFault | None = None,
        on_diff: Callable[[dict[str, str], dict[str, str]], None] | None = None,
    ) -> None:
        self.path = Path(path)
        self.names: dict[str, str] = {}
        self._check = check
        self._required = required
        self._optional = optional
        self._on_change = on_change
        self._on_fault = on_fault
        #: Told of names and proofs before and after each reading but the first that differs.
        self._on_diff = on_diff
        self._told = self._faulty = False
        self._mark: tuple[int, ...] | None = None
        self._reading = False
        self._call: Any = None
        self._reactor: Any = None

    def reload(self) -> None:
        """Read the file again; on any error what there was stays.

        Raises OSError (also for a missing file that must be there) or `PasswordFileError`.
        """
        mark = self._look()
        names = self._read()
        self._mark = mark
        self._take(names)

    def watch(self, reactor: Any) -> None:
        """Look at the file every two seconds, with the clock of `reactor`."""
        self._reactor = reactor
        self._call = reactor.callLater(INTERVAL, self._watch)

    def close(self) -> None:
        """Stop watching."""
        self._reactor = None
        if self._call is not None and self._call.active():
            self._call.cancel()
        self._call = None
        self._well()

    def _watch(self) -> None:
        self._call = self._reactor.callLater(INTERVAL, self._watch)
        mark = self._look()
        if mark == self._mark or self._reading:
            return
        self._mark = mark  # a file that is wrong is told of once, until it changes again
        if mark is not None and mark[1] >= LARGE:
            self._reading = True
            work: Deferred[dict[str, str]] = deferToThread(self._read)
            work.addCallbacks(self._take, self._failed).addBoth(self._was_read)
            return
        try:
            self._take(self._read())
        except (OSError, ValueError) as error:
            self._fault(error)

    def _was_read(self, result: object) -> None:
        self._reading = False

    def _failed(self, failure: Failure) -> None:
        error = failure.value
        self._fault(error if isinstance(error, Exception) else RuntimeError(str(error)))

    def _fault(self, error: Exception) -> None:
        self._faulty = True
        if self._on_fault is not None:
            self._on_fault(error)

    def _well(self) -> None:
        if self._faulty and self._on_fault is not None:
            self._on_fault(None)
        self._faulty = False

    def _look(self) -> tuple[int, ...] | None:
        """What changes when the file does; None while there is none."""
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return (found.st_ino, found.st_size, found.st_mtime_ns)

    def _read(self) -> dict[str, str]:
        try:
            return lines.read(self.path, self._check, self._optional)
        except FileNotFoundError:
            if self._required:
                raise
            return {}

    def _take(self, names: dict[str, str]) -> None:
        self._well()
        old, self.names = self.names, names
        if self._told and self._on_diff is not None and old != names:
            self._on_diff(old, names)
        self._told = True
        gone = frozenset(name for name, proof in old.items() if names.get(name) != proof)
        if self._on_change is not None:
            self._on_change(gone)


class SecretFileModule:
    """What authentication modules with a `SecretFile` share: it is opened, reloaded and watched.

    `name` is the module's; `check` and `optional` as for `read`; `required` is what holds where the
    option of that name is not given.  ``on_gone(name, names)`` is told which names are gone or have
    another proof, ``on_event(event, fields)`` of a changed file that is not taken.
    """

    def __init__(
        self,
        name: str,
        check: CheckProof,
        required: bool,
        reactor: Any,
        on_gone: Callable[[str, frozenset[str]], None] | None,
        on_event: Callable[[str, dict[str, object]], None] | None,
        optional: bool = False,
    ) -> None:
        self._name = name
        self._check = check
        self._required = required
        self._optional = optional
        self._reactor = reactor
        self._on_gone = on_gone
        self._on_event = on_event
        self._file = SecretFile("", check, False, optional)

    def init(self, opts: Mapping[str, object]) -> None:
        """Read the file; `PasswordFileError` or OSError if that is not possible."""
        self._file = SecretFile(
            str(opts["file"]),
            self._check,
            bool(opts.get("required", self._required)),
            self._optional,
            on_change=self._changed,
            on_fault=self._fault,
            on_diff=self._differs,
        )
        self._file.reload()

    def _differs(self, before: dict[str, str], after: dict[str, str]) -> None:
        """Tell who came, who is gone, who has another proof; never which."""
        if self._on_event is None:
            return
        added = sorted(after.keys() - before.keys())
        removed = sorted(before.keys() - after.keys())
        changed = sorted(name for name, proof in before.items() if after.get(name, proof) != proof)
        fields: dict[str, object] = {"module": self._name, "users": len(after)}
        for what, names in (("added", added), ("removed", removed), ("changed", changed)):
            fields[what] = names[:_NAMED] if len(names) <= _NAMED else [*names[:_NAMED], "..."]
        self._on_event("users changed", fields)

    def watch(self) -> None:
        """Read the file again whenever it changes."""
        self._file.watch(self._reactor)

    def reload(self) -> None:
        """Read the file again; on any error what there was stays."""
        self._file.reload()

    @property
    def size(self) -> int:
        """How many names the file holds."""
        return len(self._file.names)

    def held(self) -> tuple[str, dict[str, str]]:
        """The path of the file, and the names and proofs that are in force."""
        return str(self._file.path), self._file.names

    def follow(self, before: SecretFileModule) -> None:
        """Take the place of another module: tell of its users that are not the same here."""
        names = self._file.names
        old = before._file.names
        self._changed(frozenset(name for name in old if names.get(name) != old[name]))

    def close(self) -> None:
        """Stop watching the file."""
        self._file.close()

    def _if_still(
        self, verdict: AuthVerdict | Deferred[AuthVerdict], name: str
    ) -> AuthVerdict | Deferred[AuthVerdict]:
        """A verdict about `name`, no yes if its line has changed by the time that it comes."""
        if isinstance(verdict, Deferred):
            verdict.addCallback(self._still, name, self._file.names.get(name))
        return verdict

    def _still(self, verdict: AuthVerdict, name: str, proof: str | None) -> AuthVerdict:
        if isinstance(verdict, AuthOk) and self._file.names.get(name) != proof:
            return AuthError("the users have changed meanwhile", _SERVER_BUSY)
        return verdict

    def _changed(self, gone: frozenset[str]) -> None:
        if self._on_gone is not None:
            self._on_gone(self._name, gone)

    def _fault(self, error: Exception | None) -> None:
        if self._on_event is None:
            return
        if error is None:
            self._on_event("user file taken again", {"module": self._name})
        else:
            self._on_event("user file not taken", {"module": self._name, "error": str(error)})
