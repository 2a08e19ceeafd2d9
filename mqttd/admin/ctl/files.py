"""The files of users, as lines that travel with a store (`mqttd-ctl store export|import`).

    auth.username.file, auth.scram.file, auth.clientid.file <--> {"type": "user", "of": ...}

Promise: hashes travel as they are, nobody's password is known here; a user that is there already
with another proof keeps an import from happening, and one that fails later is undone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress

from mqttd.config.schema import Config
from mqttd.secrets import lines, passwords, scram
from mqttd.secrets.files import replace_file
from mqttd.storage.database import StoreError
from mqttd.storage.lines import UserLine

__all__ = ["export_users", "take_users"]


def _files(config: Config) -> dict[str, tuple[str, lines.CheckProof, bool]]:
    """Where the users of each kind are, what their proofs look like, whether one may be missing."""
    auth = config.auth
    return {
        "username": (auth.username.file, passwords.expects, False),
        "scram": (auth.scram.file, scram.expects, False),
        "clientid": (auth.clientid.file, passwords.expects, True),
    }


def export_users(config: Config) -> Iterator[UserLine]:
    """The users of all files there are. Raises StoreError for one that cannot be read."""
    for of, (path, check, optional) in _files(config).items():
        for name, proof in _read(path, check, optional).items():
            yield UserLine(of=of, name=name, proof=proof)  # type: ignore[arg-type]


def take_users(config: Config) -> Callable[[list[UserLine]], Callable[[], None]]:
    """What adds users to the files, and gives what takes them out again."""

    def take(users: list[UserLine]) -> Callable[[], None]:
        changes: list[tuple[str, list[str], str | None]] = []
        for of, (path, check, optional) in _files(config).items():
            mine = {user.name: user.proof for user in users if user.of == of}
            there = _read(path, check, optional)
            for name, proof in mine.items():
                _check(of, name, proof, check, optional)
                if there.get(name, proof) != proof:
                    raise StoreError(f"{path}: user {name!r} is there already, and differs")
            fresh = {name: proof for name, proof in mine.items() if name not in there}
            if fresh:
                old = lines.read_lines(path, check, optional) if os.path.exists(path) else []
                texts = [line.text for line in old]
                texts += [f"{name}:{proof}" if proof else name for name, proof in fresh.items()]
                changes.append((path, texts, _text(path)))
        done: list[tuple[str, str | None]] = []

        def undo() -> None:
            for path, before in done:
                if before is None:
                    with suppress(FileNotFoundError):
                        os.unlink(path)
                else:
                    replace_file(path, before)

        try:
            for path, texts, before in changes:
                done.append((path, before))
                lines.write(path, texts)
        except BaseException:
            undo()
            raise
        return undo

    return take


def _check(of: str, name: str, proof: str, check: lines.CheckProof, optional: bool) -> None:
    try:
        lines.check_name(name)
    except ValueError as error:
        raise StoreError(str(error)) from None
    expected = check(proof) if proof or not optional else None
    if expected is not None:
        raise StoreError(f"user {name!r} of {of}: expected {expected}")


def _read(path: str, check: lines.CheckProof, optional: bool) -> dict[str, str]:
    if not os.path.exists(path):
        return {}
    try:
        return lines.read(path, check, optional)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise StoreError(str(error)) from None


def _text(path: str) -> str | None:
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return file.read()
