"""A store's place in a data directory: who has it, and a new file put there.

alone(path)        no broker has the directory, and none gets it meanwhile
put_in_place       a finished file gets its name; one that is there is never replaced
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from mqttd.storage.database import StoreError

__all__ = ["alone", "close_to_others", "put_in_place", "remove"]


@contextmanager
def alone(path: str) -> Iterator[None]:
    """Hold the data directory of a store as a broker does; no other tool has it meanwhile.

    Raises StoreError if a broker runs, or such a tool.
    """
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise StoreError(
            f"{folder}: there is no such directory; make it (mkdir -m 700) for the user that the"
            " broker runs as"
        )
    with ExitStack() as held:
        # The directory itself, for tools: a lock file of theirs might not be the broker's to open.
        _hold(held, folder, os.O_DIRECTORY, f"another mqttd-ctl works in {folder}: wait for it")
        lock = os.path.join(folder, "mqttd.lock")
        with suppress(FileNotFoundError):
            _hold(held, lock, 0, f"{folder} is in use by a running mqttd: stop it first")
        yield


def _hold(held: ExitStack, path: str, flags: int, otherwise: str) -> None:
    """Lock a file until `held` ends. Raises StoreError, with this text where somebody else has."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from None
    held.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StoreError(otherwise) from None
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from None


def put_in_place(making: str, path: str, give: bool = True) -> None:
    """Give a finished file its name, kept by the disk when this returns.

    give: run as root, it goes to who owns the directory: the broker has to open it. Raises
    StoreError if there is a file of this name, OSError that names it where it cannot be done.
    """
    try:
        _put(making, path, give)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def _put(making: str, path: str, give: bool) -> None:
    folder = os.path.dirname(os.path.abspath(path))
    descriptor = os.open(making, os.O_RDONLY)
    try:
        if give and os.geteuid() == 0:
            owner = os.stat(folder)
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        # Never in place of another file, whoever has made one meanwhile.
        os.link(making, path)
    except FileExistsError:
        raise StoreError(f"{path} is there already; move it away first") from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        os.rename(making, path)  # a file system without links
    remove(making)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(making: str) -> None:
    """Take away a file that was not finished, with what SQLite has put beside it."""
    for end in ("", "-wal", "-shm", "-journal"):
        with suppress(FileNotFoundError):
            os.unlink(making + end)


def close_to_others(path: str) -> None:
    """Take the rights of others away from a file that was copied here with them."""
    for name in (path, f"{path}-wal"):
        try:
            if os.stat(name).st_mode & 0o077:
                os.chmod(name, 0o600)
        except OSError:
            pass  # there is none, or it is somebody else's: `connect` says so
