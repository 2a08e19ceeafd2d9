"""What mypyc is told of a class.

The compiler sees `mypy_extensions.mypyc_attr` here; when the code runs there is nothing to tell,
and no package to depend on. This module itself is not compiled: a branch for the type checker
alone would be none.

``acyclic`` keeps a class from the garbage collector, ``free_list_len`` keeps the last one that was
let go for the next: both for what lives as long as one message, refers to nothing that could refer
to it, and is made a million times a second. ``acyclic`` is also for what there are many of, whose
circles are broken by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["mypyc_attr"]

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**attributes):
        """The class as it is."""
        return lambda made: made
