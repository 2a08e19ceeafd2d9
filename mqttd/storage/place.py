"""A store's place in a data directory: who has it, and a new file put there.

alone(path)        no broker has the directory, and none gets it meanwhile
put_in_place       a finished file gets its name; one that is there is never replaced
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from mqttd.storage.database import StoreError

__all__ = ["alone", "put_in_place", "remove"]


@contextmanager
def alone(path: str) -> Iterator[None]:
    """Hold the data directory of a store as a broker does. Raises StoreError if one runs."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise StoreError(f"{folder}: there is no such directory")
    lock = os.path.join(folder, "mqttd.lock")
    try:
        file = open(lock, "r+")  # noqa: SIM115
    except FileNotFoundError:
        yield
        return
    except OSError as error:
        raise StoreError(f"{lock}: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreError(f"{folder} is in use by a running mqttd: stop it first") from None
        yield


def put_in_place(making: str, path: str) -> None:
    """Give a finished file its name, kept by the disk when this returns.

    Run as root, it goes to who owns the directory: the broker has to open it. Raises StoreError if
    there is a file of this name.
    """
    folder = os.path.dirname(os.path.abspath(path))
    descriptor = os.open(making, os.O_RDONLY)
    try:
        if os.geteuid() == 0:
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
