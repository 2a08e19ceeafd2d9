"""What setup.py says of the modules that are compiled."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

__all__ = ["SETUP", "hot_modules"]

SETUP: Final = Path(__file__).parents[2] / "setup.py"


def hot_modules() -> set[str]:
    """The modules that are compiled: their paths in the tree, without suffix."""
    (found,) = [
        node.value
        for node in ast.parse(SETUP.read_text("utf-8")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "HOT"
    ]
    listed: list[str] = ast.literal_eval(found)
    return {path.removesuffix(".py") for path in listed}
