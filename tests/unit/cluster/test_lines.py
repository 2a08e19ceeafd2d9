"""What a node writes about its links: each once."""

from __future__ import annotations

import pytest
from twisted.logger import Logger, formatEvent

from mqttd.cluster.links.lines import Lines


@pytest.fixture
def written() -> list[str]:
    return []


@pytest.fixture
def lines(written: list[str]) -> Lines:
    return Lines(Logger(observer=lambda event: written.append(formatEvent(event))))


def test_a_link_that_is_made_anew_is_told_when_its_end_was(
    lines: Lines, written: list[str]
) -> None:
    lines.linked("b", 5)
    lines.linked("b", 5)
    assert written == ["node b is linked"]
    lines.unlinked("b", "cut")
    lines.linked("b", 5)
    assert written[1:] == ["the link to node b is gone: cut", "node b is linked"]
    lines.unlinked("b", "cut")  # so soon that it is not said again
    lines.linked("b", 5)
    assert written[3:] == ["node b is linked"]


def test_a_node_that_has_begun_anew_is_linked_anew(lines: Lines, written: list[str]) -> None:
    for node, epoch in (("b", 5), ("c", 6), ("b", 7)):
        lines.linked(node, epoch)
    assert written == ["node b is linked", "node c is linked", "node b is linked"]


def test_17_what_a_node_that_is_gone_takes_along_is_said_if_it_is_something(
    lines: Lines, written: list[str]
) -> None:
    for lost in (0, 1, 2):
        lines.gone("b", lost, bad=False)
        lines.given_up("b", lost)
    assert written == [
        "node b is gone",
        "node b is not awaited any more",
        "node b is gone, and with it 1 message that waited for it",
        "node b is not awaited any more, 1 message for it is lost",
        "node b is gone, and with it 2 messages that waited for it",
        "node b is not awaited any more, 2 messages for it are lost",
    ]


def test_the_end_of_what_was_said_is_said(lines: Lines, written: list[str]) -> None:
    lines.over("watch", "etcd is watched again, at {at}", at="there")
    lines.say("watch", "etcd is not watched: {error}", error="cut")
    for _ in range(2):
        lines.over("watch", "etcd is watched again, at {at}", at="there")
    assert written == ["etcd is not watched: cut", "etcd is watched again, at there"]


def test_who_is_awaited_no_longer_is_said_once(lines: Lines, written: list[str]) -> None:
    lines.gone("b", 0, bad=False)
    for lost in (0, 0, 2):
        lines.given_up("b", lost)
    lines.gone("b", 0, bad=False)
    lines.given_up("b", 0)
    assert written == [
        "node b is gone",
        "node b is not awaited any more",
        "node b is not awaited any more, 2 messages for it are lost",
        "node b is gone",
        "node b is not awaited any more",
    ]
