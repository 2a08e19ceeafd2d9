"""The marker that ties a test to its row of the checklist."""

from __future__ import annotations

import pytest

__all__ = ["row"]


def row(number: int, *versions: int) -> pytest.MarkDecorator:
    """Mark a test of checklist row `number`.

    The test runs in the versions in which the row has an identifier, or in `versions` (4 or 5)
    where only one of them is meant, or where the other behaves the same without a number.
    """
    return pytest.mark.row(number, versions)
