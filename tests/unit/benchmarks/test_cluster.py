"""The operator of a rolling restart asks a node again that does not answer, until he gives up."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from benchmarks import cluster


class Process:
    """One that ends when it was asked so often."""

    def __init__(self, ends_after: int) -> None:
        self.ends_after = ends_after
        self.count = 0

    def poll(self) -> int | None:
        return 0 if self.count >= self.ends_after else None


class Node:
    def __init__(self, ends_after: int) -> None:
        self.process = Process(ends_after)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Exception | None]:
    """What becomes of each question, the first first; no answer when there are none left."""
    said: list[Exception | None] = []

    def asked(node: Any, *words: str) -> None:
        assert words[:2] == ("cluster", "leave")
        node.process.count += 1
        error = said.pop(0) if said else subprocess.TimeoutExpired("mqttd-ctl", 60)
        if error is not None:
            raise error

    monkeypatch.setattr(cluster, "asked", asked)
    return said


def leave(node: Any) -> int:
    return cluster.leave(node)


def test_a_node_that_does_not_answer_is_asked_again(answers: list[Exception | None]) -> None:
    answers += [subprocess.TimeoutExpired("mqttd-ctl", 60), AssertionError("no answer"), None]
    assert leave(Node(9)) == 2


def test_one_that_has_ended_is_not(answers: list[Exception | None]) -> None:
    assert leave(Node(1)) == 0


def test_one_that_never_ends_is_given_up(answers: list[Exception | None]) -> None:
    with pytest.raises(RuntimeError, match="asked 10 times"):
        leave(Node(99))
