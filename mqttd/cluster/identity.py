"""Which node this is, whatever it is called: an id in its data directory, made where missing."""

from __future__ import annotations

import os
import uuid

__all__ = ["node_id"]


def node_id(data_dir: str) -> str:
    """The id of this data directory, which one process at a time has. Raises OSError."""
    path = os.path.join(data_dir, "node-id")
    try:
        with open(path, encoding="ascii") as file:
            if found := file.read().strip():
                return found
    except FileNotFoundError:
        pass
    made = uuid.uuid4().hex
    with open(path, "w", encoding="ascii") as file:
        file.write(made + "\n")
    return made
