"""The file of user names and password hashes, for whoever changes it: `mqttd-ctl users`."""

from __future__ import annotations

import os

from mqttd.secrets import lines
from mqttd.secrets.passwords import Cost, expects, hash_password

__all__ = [
    "add_user",
    "delete_user",
    "import_users",
    "put_proofs",
    "read_users",
    "sifted_users",
]


def read_users(path: str | os.PathLike[str]) -> dict[str, str]:
    """User names and hashes of a password file.

    Warns with `PasswordFileWarning` if everybody may read it.  Raises OSError, or
    `PasswordFileError` with file and line.
    """
    return lines.read(path, expects)


def sifted_users(content: str, path: str) -> tuple[str, list[str]]:
    """What of a password file's text can be used; and of its other lines what is wrong."""
    right, wrong = lines.sifted(content, path, expects)
    return "".join(f"{line.text}\n" for line in right), wrong


def add_user(
    path: str | os.PathLike[str], user: str, password: str | bytes, cost: Cost | None = None
) -> bool:
    """Add `user` or give it a new password; True if it is new.

    The file is replaced as a whole, with mode 0600; comments and other lines stay.
    Raises ValueError for a user name the file cannot hold, else as `read_users`.
    """
    lines.check_name(user)
    return lines.put(path, expects, user, hash_password(password, cost))


def delete_user(path: str | os.PathLike[str], user: str) -> bool:
    """Take `user` out of the file; False if it was not there.  Raises as `read_users`."""
    return lines.take_out(path, expects, user)


def import_users(
    path: str | os.PathLike[str], source: str | os.PathLike[str], overwrite: bool = False
) -> tuple[list[str], list[str]]:
    """Take the users of another password file over, hashes as they are.

    `source` may be mosquitto_passwd's.  Users that are there already stay as they are unless
    `overwrite`.  Returns the names taken and the names left.  Raises as `read_users`.
    """
    found = {
        line.name: line.proof for line in lines.read_lines(source, expects) if line.name is not None
    }
    return put_proofs(path, found, overwrite)


def put_proofs(
    path: str | os.PathLike[str], found: dict[str, str], overwrite: bool = False
) -> tuple[list[str], list[str]]:
    """Put users with the hashes of their passwords into the file, as `import_users`."""
    there = lines.read_lines(path, expects) if os.path.exists(path) else []
    had = {line.name for line in there}
    left = [] if overwrite else [name for name in found if name in had]
    taken = {name: proof for name, proof in found.items() if name not in left}
    for name, proof in taken.items():
        lines.check_name(name)
        if wrong := expects(proof):
            raise ValueError(f"user {name}: expected {wrong}")
    if taken:
        lines.write(path, lines.replace(there, taken))
    return list(taken), left
