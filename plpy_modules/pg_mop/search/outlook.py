"""How much a search procedure will train: it is driven with made-up results, in three orders. Pure Python."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from pg_mop.search.base import STOPPED, Procedure
from pg_mop.search.space import ParameterSet

# each new trial is worse than all before it; the results are random; each new trial is better than all before it
ORDERS = ("worse", "random", "better")


@dataclass
class TrialOutlook:
    """A trial with the iterations that it is trained for, the number of its evaluations, and of a super-net the number of
    members that have scores by its weights."""

    configuration: ParameterSet
    iterations: int
    evaluations: int
    members: int = 0


@dataclass
class Outlook:
    """The trials of a search, in the order of proposal; `whole`: the search came to its end."""

    trials: list[TrialOutlook]
    whole: bool = True


def drive(
    procedure: Procedure,
    order: str,
    seed: int = 0,
    most_trials: int | None = None,
    most: int = 200_000,
    check: Callable[[], None] = lambda: None,
    seconds: float | None = None,
) -> Outlook:
    """The trials of a search whose results come in the order `order` (one of ORDERS).

    `procedure`: new; `most_trials`: no more are begun; `most`: results, and `seconds`: time, after which the drive ends;
    `check`: called often, so that the caller can cancel.
    """
    end = None if seconds is None else time.monotonic() + seconds
    random, level = Random(seed), {}
    found: dict[int, TrialOutlook] = {}
    live: deque[tuple[int, int]] = deque()
    told = 0
    while told < most:
        if end is not None and time.monotonic() > end:
            return Outlook(list(found.values()), False)
        check()
        for proposal in procedure.ask():
            key = proposal.trial
            if key not in found:
                if most_trials is not None and len(found) >= most_trials:
                    procedure.stop(key, "max_trials")
                    continue
                configuration: Any = proposal.configuration or procedure.trials[key].configuration
                found[key] = TrialOutlook(configuration, 0, 0)
                level[key] = random.random() if order == "random" else key / 1e9 * (1 if order == "worse" else -1)
            live.append((key, proposal.budget))
        if not live:
            break
        key, budget = live.popleft()
        trial, own = procedure.trials[key], found[key]
        wanted = procedure.evaluates(key)
        if (members := procedure.candidates(key)) is not None:
            own.iterations, own.members = budget, len(members)
            procedure.take_scores_of_members(key, {model_id: random.random() for model_id in members})
            told += 1
            continue
        for iteration in range(own.iterations + 1, budget + 1):
            if trial.state == STOPPED:
                break
            own.iterations = iteration
            if iteration in wanted:
                own.evaluations += 1
                loss = 1.0 + level[key] + 1e-3 / iteration
                procedure.tell(key, iteration, loss if procedure.goal == "min" else -loss)
                told += 1
    return Outlook(list(found.values()), told < most)
