"""A client that goes from node to node while etcd's answers are lost and leases end: its session.

`python -m tests.support.trio` does as many as are wanted. These went wrong, each in its way: lost,
an older one, at two nodes, or waited for without end.
"""

from __future__ import annotations

import pytest

from tests.support.trio import Trio

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("seeds", "lasts", "expires", "kills"),
    [
        ((7, 21, 63, 69), True, False, False),
        ((2, 15, 29, 86, 90), True, True, False),
        ((7, 14, 19, 24, 30), False, True, True),
    ],
    ids=["answers", "leases", "kills"],
)
def test_17_its_session_is_at_one_node_and_the_last_it_knows(
    seeds: tuple[int, ...], lasts: bool, expires: bool, kills: bool
) -> None:
    wrong = {seed: Trio(seed, lasts, expires, kills).run() for seed in seeds}
    assert not any(wrong.values()), wrong
