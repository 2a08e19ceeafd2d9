"""A refusal that holds until rules, users, bans or hooks change: it need not be decided again.

    decided, told with its rule --> kept with the connection --> counted each time it is met

Promise: who counts decisions counts each of them, also those that are only met again.
"""

from __future__ import annotations

__all__ = ["Refusal"]


class Refusal:
    """What a refusal was decided by."""

    __slots__ = ()

    def again(self) -> None:
        """It was met once more: count it where it was counted first."""
        raise NotImplementedError
