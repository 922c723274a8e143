"""The trials of a search that has ended, as its log has them: a replay needs no procedure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pg_mop.search.base import Procedure, TrialNumber


class LoggedTrial(NamedTuple):
    """A trial: `budget`, the iterations that were asked for; `outside`: a user has added it; `place`: as of
    Procedure.place."""

    budget: int
    outside: bool
    place: Sequence[int] | None


def outline(procedure: Procedure) -> list[list[Any]]:
    """The trials of a procedure for the log, as JSON values: [number, budget, outside, place]."""
    return [
        [trial.number, trial.budget, trial.outside, None if trial.outside else procedure.place(trial.number)]
        for trial in procedure.trials.values()
    ]


class LoggedTrials:
    """What the output tables of a search tell of its procedure. `name`: the procedure's; `trials`: {number: LoggedTrial}."""

    def __init__(self, name: str, rows: Iterable[Sequence[Any]]) -> None:
        """`rows`: as `outline` gives them."""
        self.name = name
        self.trials: dict[TrialNumber, LoggedTrial] = {number: LoggedTrial(*row) for number, *row in rows}

    def place(self, trial: TrialNumber) -> Sequence[int] | None:
        """As of Procedure.place."""
        return self.trials[trial].place
