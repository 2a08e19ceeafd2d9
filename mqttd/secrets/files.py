"""Files that are replaced whole: the old one or the new one is there, never half of one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["replace_file"]


def replace_file(path: str | os.PathLike[str], text: str, like: str | None = None) -> None:
    """Replace a file (that of a symbolic link) by `text`, kept by the disk when this returns.

    With mode 0600, or with that of the file `like`. Raises OSError.
    """
    path = Path(os.path.realpath(path))
    # mkstemp makes the file with mode 0600
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if like is not None:
            os.chmod(temporary, os.stat(like).st_mode & 0o777)
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
    """Run as root, the file stays with who owned it: the broker has to read it.

    A new one is of whoever owns its directory.
    """
    if os.geteuid() == 0:
        had = (path if path.exists() else path.parent).stat()
        os.chown(temporary, had.st_uid, had.st_gid)
