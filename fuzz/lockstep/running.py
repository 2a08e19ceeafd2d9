"""Plays many sequences at once, and tells of a difference all that is to be told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from secrets import token_hex
from typing import Final

from fuzz.lockstep.clients import DEADLINE
from fuzz.lockstep.homes import Home
from fuzz.lockstep.playing import BrokerStage, Difference, Duel
from fuzz.lockstep.reducing import AT_ONCE, reduce
from fuzz.lockstep.steps import Kill, Sequence
from fuzz.lockstep.writing import Names

__all__ = ["AT_ONCE", "BRIEFLY", "play", "reduced", "report"]

#: Seconds that a sequence which is known to differ waits for what does not come.
BRIEFLY: Final = 0.5


def play(sequences: Iterable[Sequence], home: Home, patience: float = DEADLINE) -> list[Duel]:
    """Play these at the same time, at most `AT_ONCE`; those with a kill have it in common."""
    duels = [Duel(sequence, home.address, patience) for sequence in sequences]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(Duel.play, duels))
        waiting = [duel for duel in duels if duel.waits]
        if waiting:
            home.kill()
            for duel in waiting:
                duel.killed()
            list(pool.map(Duel.play, waiting))
    return duels


def reduced(sequence: Sequence, found: Difference, home: Home, seconds: float) -> Sequence:
    """The shortest sequence with the same kind of difference."""

    def shows(candidates: list[Sequence]) -> list[bool]:
        answers = []
        for begin in range(0, len(candidates), AT_ONCE):
            duels = play(candidates[begin : begin + AT_ONCE], home, BRIEFLY)
            answers += [d.difference is not None and d.difference.kind == found.kind for d in duels]
        return answers

    steps = sequence.steps[: found.at + 1]
    return reduce(Sequence(sequence.clients, steps), shows, seconds)


def report(duel: Duel, beside: Callable[[], tuple[str, int]] | None = None) -> list[str]:
    """The steps of a duel and what was seen, by another broker, too; that knows of no kills."""
    third = None
    if beside is not None and not any(isinstance(step, Kill) for step in duel.sequence.steps):
        third = BrokerStage(duel.sequence.clients, Names(token_hex(6)), beside)
    lines = []
    for step, expected, seen in duel.told:
        lines.append(f"  {step!r}")
        sights = {"model": expected, "mqttd": seen}
        if third:
            sights["other"] = third.play(step, expected)
        alike = all(sight == expected for sight in sights.values())
        shown = {"all": expected} if alike else sights
        for who, sight in shown.items():
            if sight is None or sight or not alike:
                lines.append(f"      {who:5} {'not done' if sight is None else sight}")
    if third:
        third.close()
    return lines
