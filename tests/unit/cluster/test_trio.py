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
        ((100680, 101608), False, False, False),
        ((2, 15, 29, 86, 90, 20051, 20116, 20269, 20304, 20361, 50216, 40048), True, True, False),
        ((7, 14, 19, 24, 30, 30210, 30303), False, True, True),
        ((30071, 30374), False, False, False),
        ((30239, 30051, 30113, 50182, 20261, 30079), True, False, True),
        ((30068, 30202, 30098, 30361, 50012, 30280, 30312, 30352, 40232), False, False, True),
        (
            (30099, 30134, 30179, 30329, 40119, 40329, 20082, 30018, 50208, 30014, 20004),
            True,
            True,
            True,
        ),
    ],
    ids=["answers", "more answers", "leases", "kills", "brief", "both", "brief kills", "all"],
)
def test_17_its_session_is_at_one_node_and_the_last_it_knows(
    seeds: tuple[int, ...], lasts: bool, expires: bool, kills: bool
) -> None:
    wrong = {seed: Trio(seed, lasts, expires, kills).run() for seed in seeds}
    assert not any(wrong.values()), wrong


def test_17_so_it_is_where_links_are_cut() -> None:
    wrong = {seed: Trio(seed, False, False, True, True).run() for seed in (60045, 60305)}
    assert not any(wrong.values()), wrong


def test_17_and_where_leases_end_then_as_well() -> None:
    seeds = (70040, 70094, 70194, 110055, 110175, 110190, 110212, 110762, 111105)
    wrong = {seed: Trio(seed, False, True, True, True).run() for seed in seeds}
    assert not any(wrong.values()), wrong


def test_17_what_two_clients_that_do_more_were_acknowledged_comes_once() -> None:
    wrong = {
        seed: Trio(seed, lasts, True, True, True, None, True).run()
        for lasts in (False, True)
        for seed in (1, 2, 3, 4, 5)
    }
    assert not any(wrong.values()), wrong


def test_17_what_is_had_back_late_is_not_an_older_one() -> None:
    assert not Trio(420341, True, True, True).run()


def test_17_what_two_clients_have_goes_on_and_is_lost_nowhere() -> None:
    seeds = ((420648, False), (422226, True), (422270, True), (422590, True), (432358, True),
             (436060, True))  # fmt: skip
    wrong = {seed: Trio(seed, lasts, True, True, True, None, True).run() for seed, lasts in seeds}
    assert not any(wrong.values()), wrong


def test_17_nor_do_all_nodes_wait_for_what_none_has() -> None:
    assert not Trio(434550, False, True, False, True, None, True).run()


def test_17_nor_does_one_stay_where_it_has_come_and_nobody_waits_for_it() -> None:
    assert not Trio(437380, True, True, True, True, None, True, True).run()
    assert not Trio(441522, True, False, True, True, None, True, True).run()
