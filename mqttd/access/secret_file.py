"""Files of names and what proves them: read whole, replaced whole, watched for changes.

::

    # comment                               NAME:PROOF lines; what PROOF may be is the reader's
    alice:$argon2id$v=19$m=65536,...        business: a password hash, SCRAM keys, or nothing

`SecretFile` is one such file in a running broker: it is looked at every two seconds and read again
when it has changed, so that users come, go and change their passwords without a restart.

Promise: a wrong line keeps the broker from starting, and a reload that fails (wrong line, no right,
no file descriptor left) keeps what there was; `write` replaces the file at once, mode 0600.
"""

from __future__ import annotations

import os
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread
from twisted.python.failure import Failure

__all__ = [
    "Line",
    "PasswordFileError",
    "PasswordFileWarning",
    "SecretFile",
    "SecretFileModule",
    "check_name",
    "put",
    "read",
    "read_lines",
    "replace",
    "take_out",
    "write",
]

#: Seconds between two looks at a file.
INTERVAL: Final = 2.0
#: Bytes from which a changed file is read in a thread.
LARGE: Final = 64 * 1024

#: Says what was expected of a proof, None if it is fine.
CheckProof: TypeAlias = Callable[[str], str | None]
OnChange: TypeAlias = Callable[[frozenset[str]], None]
OnFault: TypeAlias = Callable[[Exception], None]


class PasswordFileError(ValueError):
    """A line of the file is wrong; the text starts with file and line, and shows no secret."""


class PasswordFileWarning(UserWarning):
    """The file can be read by everybody."""


@dataclass(slots=True, frozen=True)
class Line:
    """One line as it stands in the file; ``name`` is None for comments and empty lines."""

    text: str
    name: str | None = None
    proof: str = ""


def read(path: str | os.PathLike[str], check: CheckProof, optional: bool = False) -> dict[str, str]:
    """Names and proofs of a file; `optional`: a line may be a name alone.

    Warns with `PasswordFileWarning` if everybody may read it.  Raises OSError, or
    `PasswordFileError` with file and line.
    """
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & stat.S_IROTH:
        warnings.warn(
            f"{path}: mode {mode:04o} lets everybody read the password hashes; expected 0600",
            PasswordFileWarning,
            stacklevel=3,
        )
    lines = read_lines(path, check, optional)
    return {line.name: line.proof for line in lines if line.name is not None}


def read_lines(
    path: str | os.PathLike[str], check: CheckProof, optional: bool = False
) -> list[Line]:
    """All lines of a file; raises as `read`."""
    try:
        content = Path(path).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise PasswordFileError(f"{path}: expected UTF-8 text: {error}") from None
    lines: list[Line] = []
    seen: dict[str, int] = {}
    for number, text in enumerate(content.split("\n"), 1):
        text = text.rstrip("\r")
        stripped = text.strip()
        if not stripped or stripped.startswith("#"):
            lines.append(Line(text))
            continue
        name, proof = _split(stripped, optional)
        where = f"{path}:{number}"
        if not name:
            raise PasswordFileError(f"{where}: expected USER:HASH")
        # The proof itself is not shown: error texts end up in logs.
        expected = check(proof) if proof or not optional else None
        if expected is not None:
            raise PasswordFileError(f"{where}: user {name!r}: expected {expected}")
        if name in seen:
            raise PasswordFileError(
                f"{where}: user {name!r} is in line {seen[name]} already; expected one line each"
            )
        seen[name] = number
        lines.append(Line(text, name, proof))
    if lines and not lines[-1].text:
        lines.pop()  # what follows the last line end
    return lines


def _split(line: str, optional: bool) -> tuple[str, str]:
    """Name and proof of a line: a name may hold colons, a SCRAM proof too, a hash begins with $."""
    for mark in (":SCRAM-SHA-256$", ":$"):
        at = line.find(mark)
        if at > 0:
            return line[:at], line[at + 1 :]
    if optional:
        return line, ""
    name, colon, proof = line.rpartition(":")
    return (name, proof) if colon else ("", "")


def check_name(name: str) -> None:
    """Raises ValueError for a name that the file cannot hold."""
    if not name or name != name.strip() or name.startswith("#") or "\n" in name or "\r" in name:
        raise ValueError(
            f"user name {name!r}: expected text of one line, not empty, not starting with '#',"
            " without space at either end"
        )
    if ":$" in name or ":SCRAM-SHA-256$" in name:
        raise ValueError(f"user name {name!r}: the file cannot hold ':$' in a name")


def replace(lines: Iterable[Line], proofs: dict[str, str]) -> list[str]:
    """The texts of the lines with new proofs in them; names that were not there come last."""
    left = dict(proofs)
    texts = []
    for line in lines:
        proof = left.pop(line.name, None) if line.name is not None else None
        texts.append(line.text if proof is None else f"{line.name}:{proof}")
    return texts + [f"{name}:{proof}" for name, proof in left.items()]


def put(path: str | os.PathLike[str], check: CheckProof, name: str, proof: str) -> bool:
    """Add a name or give it a new proof; True if it is new.

    The file is replaced as a whole, with mode 0600; comments and other lines stay.  Raises as
    `read`.
    """
    lines = read_lines(path, check) if os.path.exists(path) else []
    write(path, replace(lines, {name: proof}))
    return all(line.name != name for line in lines)


def take_out(path: str | os.PathLike[str], check: CheckProof, name: str) -> bool:
    """Take a name out of the file; False if it was not there.  Raises as `read`."""
    lines = read_lines(path, check)
    rest = [line.text for line in lines if line.name != name]
    if len(rest) == len(lines):
        return False
    write(path, rest)
    return True


def write(path: str | os.PathLike[str], lines: list[str]) -> None:
    """Replace the file: the old one or the new one is there at any time, never half of one."""
    path = Path(os.path.realpath(path))
    # mkstemp makes the file with mode 0600
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        _keep_owner(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _keep_owner(path: Path, temporary: str) -> None:
    """Run as root, the file stays with who owned it: the broker has to read it."""
    if os.geteuid() == 0 and path.exists():
        had = path.stat()
        os.chown(temporary, had.st_uid, had.st_gid)


class SecretFile:
    """The names and proofs of one file, in a running broker.

    `check` and `optional` as for `read`.  ``on_change(names)`` is told which names are gone or have
    another proof after each reading, ``on_fault(error)`` of a changed file that cannot be read.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        check: CheckProof,
        required: bool,
        optional: bool = False,
        on_change: OnChange | None = None,
        on_fault: OnFault | None = None,
    ) -> None:
        self.path = Path(path)
        self.names: dict[str, str] = {}
        self._check = check
        self._required = required
        self._optional = optional
        self._on_change = on_change
        self._on_fault = on_fault
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
        if self._on_fault is not None:
            self._on_fault(error)

    def _look(self) -> tuple[int, ...] | None:
        """What changes when the file does; None while there is none."""
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return (found.st_ino, found.st_size, found.st_mtime_ns)

    def _read(self) -> dict[str, str]:
        try:
            return read(self.path, self._check, self._optional)
        except FileNotFoundError:
            if self._required:
                raise
            return {}

    def _take(self, names: dict[str, str]) -> None:
        old, self.names = self.names, names
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
        )
        self._file.reload()

    def watch(self) -> None:
        """Read the file again whenever it changes."""
        self._file.watch(self._reactor)

    def reload(self) -> None:
        """Read the file again; on any error what there was stays."""
        self._file.reload()

    def close(self) -> None:
        """Stop watching the file."""
        self._file.close()

    def _changed(self, gone: frozenset[str]) -> None:
        if self._on_gone is not None:
            self._on_gone(self._name, gone)

    def _fault(self, error: Exception) -> None:
        if self._on_event is not None:
            self._on_event("user file not taken", {"module": self._name, "error": str(error)})
