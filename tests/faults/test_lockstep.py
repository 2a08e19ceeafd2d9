"""The short form of `python -m fuzz.lockstep`: clients of random sequences see what the model says.

And what a fuzzer has to show: that a wrong rule is found, reduced and told with its seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fuzz.lockstep import model, session
from fuzz.lockstep.__main__ import main
from fuzz.lockstep.clients import DEADLINE
from fuzz.lockstep.generating import generate
from fuzz.lockstep.homes import Home
from fuzz.lockstep.profiles import PROFILES
from fuzz.lockstep.running import AT_ONCE, BRIEFLY, play, report
from fuzz.lockstep.steps import Connect, Publish, Sequence, Write

pytestmark = pytest.mark.slow

EACH = 3


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    made = Home(tmp_path_factory.mktemp("lockstep"))
    yield made
    made.close()


def differing(sequences: list[Sequence], home: Home, patience: float = DEADLINE) -> list[str]:
    """What is told of those that differ."""
    told = []
    for begin in range(0, len(sequences), AT_ONCE):
        for duel in play(sequences[begin : begin + AT_ONCE], home, patience):
            if duel.difference is not None:
                told.append("\n".join([duel.difference.kind, *report(duel)]))
    return told


def test_mqttd_is_as_the_model(home: Home) -> None:
    sequences = [generate(seed, name) for name in PROFILES for seed in range(EACH)]
    told = differing(sequences, home) + home.complaints()
    assert not told, "\n".join(told)


def test_what_was_acknowledged_is_there_after_a_kill(tmp_path: Path) -> None:
    names = [name for name in PROFILES if name != "time"]
    sequences = [generate(seed, name, kill=True) for seed in (1, 2) for name in names]
    home = Home(tmp_path, "sqlite")
    try:
        told = differing(sequences, home) + home.complaints()
    finally:
        home.close()
    assert not told, "\n".join(told)
    assert home.kills == 2


def without_parents(topic_filter: str, topic: str) -> bool:
    """4.7.1.2 forgotten: `a/#` matches `a`, too."""
    return MATCHES(topic_filter, topic) and not topic_filter.removesuffix("/#") == topic


MATCHES = model.matches
WRONG: dict[str, tuple[str, str, Any]] = {
    "parents": ("retained", "model.matches", without_parents),
    "wills": ("wills", "model.Model.publish_will", lambda *_: None),
    "window": ("deep", "session.Session.has_room", lambda _: True),
    "resending": ("by-hand", "session.Session.send_again", lambda *_: None),
    "order": ("bursts", "session.Session.put", lambda self, message: put_first(self, message)),
}


def put_first(mine: session.Session, message: Any) -> None:
    """4.6 turned round: what is new goes first."""
    mine.queue.insert(0, message)
    mine.send()


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_found(name: str, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    profile, rule, wrong = WRONG[name]
    monkeypatch.setattr(f"fuzz.lockstep.{rule}", wrong)
    assert differing([generate(seed, profile) for seed in range(AT_ONCE)], home, BRIEFLY)


def test_what_differs_is_reduced_and_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fuzz.lockstep.session.Subscription.no_local", False)
    monkeypatch.setattr("fuzz.lockstep.__main__.SHOWN", 1)
    assert main(["12", "--seed", "3", "--profile", "retained"]) == 1
    told = capsys.readouterr().out
    assert "DIFFERS: 1 --seed " in told and " differ, " in told
    first = told.split("DIFFERS: ")[1]
    assert first.count("  Write(") <= 4, first
    assert "      model " in first and "      mqttd " in first


def test_the_same_seed_makes_the_same_sequence() -> None:
    for name in PROFILES:
        assert generate(7, name) == generate(7, name) != generate(8, name)


def test_a_step_can_be_pasted() -> None:
    step = Write(1, (Connect(client_id=1, by_hand=True), Publish("~/a", "m", 1, 5)))
    assert eval(repr(step)) == step  # noqa: S307
