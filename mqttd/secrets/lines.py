"""Files of names and what proves them, as text: read whole, replaced whole.

::

    # comment                               NAME:PROOF lines; what PROOF may be is the reader's
    alice:$argon2id$v=19$m=65536,...        business: a password hash, SCRAM keys, or nothing

Promise: a wrong line is told with file and number and shows no secret; `write` replaces the file at
once, mode 0600. A running broker reads and watches such a file as `mqttd.access.auth.secret_file`
does.
"""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from mqttd.secrets.files import replace_file

__all__ = [
    "CheckProof",
    "Line",
    "PasswordFileError",
    "PasswordFileWarning",
    "check_name",
    "put",
    "read",
    "read_lines",
    "replace",
    "sifted",
    "take_out",
    "write",
]

#: Says what was expected of a proof, None if it is fine.
CheckProof: TypeAlias = Callable[[str], str | None]

#: Mistakes that are told of one file.
_TOLD: Final = 20


class PasswordFileError(ValueError):
    """A file of users cannot be used; `mistakes` say file, line and what was expected, one each."""

    def __init__(self, *mistakes: str) -> None:
        super().__init__("; ".join(mistakes))
        self.mistakes = mistakes


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

    Warns with `PasswordFileWarning` if everybody may read or change it.  Raises OSError, or
    `PasswordFileError` with file and line.
    """
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        may = "add users" if mode & stat.S_IWOTH else "read the password hashes"
        warnings.warn(
            f"{path}: mode {mode:04o} lets everybody {may}; expected 0600",
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
    lines, wrong = sifted(content, str(path), check, optional)
    if len(wrong) > _TOLD:
        wrong[_TOLD:] = [f"{path}: {len(wrong) - _TOLD} more mistakes"]
    if wrong:
        raise PasswordFileError(*wrong)
    return lines


def sifted(
    content: str, path: str, check: CheckProof, optional: bool = False
) -> tuple[list[Line], list[str]]:
    """The lines of a file that are right; and of the others what is wrong, with file and line."""
    lines: list[Line] = []
    wrong: list[str] = []
    seen: dict[str, int] = {}
    for number, text in enumerate(content.split("\n"), 1):
        text = text.rstrip("\r")
        stripped = text.strip()
        if not stripped or stripped.startswith("#"):
            lines.append(Line(text))
            continue
        name, proof = _split(stripped, optional)
        # The proof itself is not shown: error texts end up in logs.
        expected = check(proof) if name and (proof or not optional) else None
        if not name:
            wrong.append(f"{path}:{number}: expected USER:HASH")
        elif expected is not None:
            wrong.append(f"{path}:{number}: user {name!r}: expected {expected}")
        elif name in seen:
            wrong.append(
                f"{path}:{number}: user {name!r} is in line {seen[name]} already;"
                " expected one line each"
            )
        else:
            seen[name] = number
            lines.append(Line(text, name, proof))
    if lines and not lines[-1].text:
        lines.pop()  # what follows the last line end
    return lines, wrong


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
    """Replace the file, as `mqttd.secrets.files.replace_file`."""
    replace_file(path, "".join(f"{line}\n" for line in lines))
