"""How much a search will train, and what that takes: for its explanation, and for the row of its run. The procedure is driven
with made-up results (search/outlook.py); of a long search only the first trials are, and the others count as these."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pg_mop.call.spec import RunSpec, Search
from pg_mop.plan.arithmetic import Arithmetic
from pg_mop.plan.estimates import Estimates, FixedCosts, in_commands
from pg_mop.plan.planner import Planner
from pg_mop.plan.stages import Stage
from pg_mop.search import outlook
from pg_mop.search.outlook import Outlook, TrialOutlook

LOOKED_AT = 60  # trials of a search whose nets give the seconds of all
MOST_TRIALS = 1000  # that the procedure is driven with
SECONDS = 1.0  # of a search procedure with made-up results, in each order
# the same while a run begins
STORED_LOOKED_AT, STORED_TRIALS, STORED_SECONDS = 12, 100, 0.03

CASES = dict(zip(("least", "expected", "most"), outlook.ORDERS))


@dataclass(frozen=True)
class Costs:
    """Session seconds of a search: `iteration` of a trial, and `evaluation`, on all segments; `ready`: of all nets; `scoring`:
    of a member by the weights of a super-net, on all rows of the search's dataset.

    `times`: paths of a trial; `visits`: training units of an iteration; `limit`: seconds after which nothing is begun; `size`:
    bytes of a state.
    """

    times: int
    visits: int
    sessions: int
    iteration: float
    evaluation: float
    ready: float
    limit: float | None
    fixed: FixedCosts
    size: float = 1 << 16
    scoring: float = 0.0


@dataclass
class Driven:
    """A search driven in each order of outlook.ORDERS. `scale`: trials of the search, as a multiple of those driven."""

    name: str
    driven: dict[str, Outlook]
    scale: float

    @property
    def whole(self) -> bool:
        """True where each drive came to its end."""
        return all(one.whole for one in self.driven.values())

    def cases(self, costs: Costs) -> dict[str, dict[str, Any]]:
        """What the search takes, by the names of CASES."""
        return {name: case(self.driven[order].trials, self.scale, costs) for name, order in CASES.items()}


def drive(
    search: Search,
    seed: int,
    segments: int,
    check: Callable[[], None] = lambda: None,
    most_trials: int = MOST_TRIALS,
    seconds: float = SECONDS,
) -> Driven:
    """Drive the procedure of a search with made-up results, with at most so many trials and seconds in each order.

    Where the first order takes all its seconds, nothing is learned from the others: its trials count for them.
    """
    procedure = search.procedure(seed, segments)
    wanted = getattr(procedure.settings, "trials", None)
    if wanted is not None and search.most_trials is not None:
        wanted = min(wanted, search.most_trials)
    fewer = most_trials if wanted is not None and wanted > most_trials else None
    found: dict[str, Outlook] = {}
    for order in outlook.ORDERS:
        before = next(iter(found.values()), None)
        if before is not None and not before.whole:
            found[order] = before
            continue
        procedure = search.procedure(seed, segments, fewer)
        if search.known:
            procedure.begin_with(search.known)
        models = procedure.space.models
        with models.drafts() if models is not None else contextlib.nullcontext():
            found[order] = outlook.drive(procedure, order, seed, search.most_trials, check=check, seconds=seconds)
    return Driven(procedure.name, found, wanted / fewer if wanted is not None and fewer is not None else 1.0)


def scoring(
    search: Search, planner: Planner, estimates: Estimates, sampled: Sequence[tuple[TrialOutlook, Stage]]
) -> float:
    """Session seconds of a member's score by the weights of a super-net, as Costs has them. `sampled`: trials, each with a
    stage of it."""
    stages = [stage for one, stage in sampled if one.members]
    rows = sum(s.rows for (dataset, _), s in planner.workload.segments.items() if dataset == search.dataset)
    return sum(estimates.evaluation(stage, rows) for stage in stages) / len(stages) if stages else 0.0


def sample(trials: Sequence[TrialOutlook], count: int) -> Sequence[TrialOutlook]:
    """About so many of the trials, at equal distances."""
    return trials[:: max(1, len(trials) // count)] or trials


def case(trials: Sequence[TrialOutlook], scale: float, costs: Costs) -> dict[str, Any]:
    """What a search takes whose trials are trained for given iterations; `scale`: times as many trials as these."""
    fixed, times = costs.fixed, costs.times
    total, longest = scale * sum(t.iterations for t in trials), max((t.iterations for t in trials), default=0)
    evaluations = scale * sum(t.evaluations for t in trials)
    members = round(scale * sum(t.members for t in trials))
    scoring = members * costs.scoring  # by the calling session, while no unit is trained
    work = times * (total * costs.iteration + evaluations * costs.evaluation) + costs.ready
    # about a command for each iteration
    around = sum(
        in_commands(fixed, total * times * costs.visits, evaluations * times, costs.visits, costs.size).values()
    )
    makespan = max((work + around) / max(1, costs.sessions), longest * costs.iteration)
    seconds, limit = fixed.start + makespan + scoring + fixed.end, costs.limit
    return {
        "trials": round(scale * len(trials)),
        "iterations": round(total),
        "longest": longest,
        "training_units": round(total * times * costs.visits),
        "members": members,
        "scoring_seconds": scoring,
        "session_seconds": work + around + scoring,
        "seconds": seconds if limit is None else min(seconds, limit + max(costs.iteration, fixed.end)),
        "ends_by_limit": limit is not None and seconds > limit,
    }


def outline(
    spec: RunSpec,
    planner: Planner,
    seed: int,
    estimates_of: Callable[[Planner, Callable[[int], Arithmetic | None]], Estimates],
    check: Callable[[], None] = lambda: None,
) -> dict[str, Any] | None:
    """What a search is expected to take, for its row in the catalog: as schedule.predicted.in_brief, with `search`: the
    cases. None where no trial can be looked at.

    `planner`: of the run, which stays as it is; `estimates_of(planner, arithmetic)`: the seconds of units of another one.
    """
    search = spec.search
    assert search is not None
    looked = drive(search, seed, len(planner.workload.keys("training")), check, STORED_TRIALS, STORED_SECONDS)
    own = Planner(planner.workload, [], planner.history)
    found: dict[int, Any] = {}
    sampled = sample(looked.driven["random"].trials, STORED_LOOKED_AT)
    for number, one in enumerate(sampled, 1):
        c = spec.configurations.make(number, one.configuration)
        if spec.configurations.problem(c, max(1, one.iterations)) or spec.configurations.misfit(c):
            continue
        own.register(c)
        own.ask(c, max(1, one.iterations), {max(1, one.iterations)})
        found[number] = c
    if not found:
        return None
    estimates = estimates_of(own, lambda key: Arithmetic.find(found[key]["architecture"]) if key in found else None)
    sessions, fixed = estimates.sessions, estimates.fixed
    stages = [own.plan.path(number)[0] for number in found]
    rows = sum(segment.rows for segment in planner.workload.segments.values())
    iteration = sum(own.visits(stage) * estimates.unit(stage) for stage in stages) / len(stages)
    evaluation = sum(estimates.evaluation(stage, rows) for stage in stages) / len(stages)
    models = {own.sharing.key(stage): stage for stage in stages}
    ready = sum(map(estimates.ready, models.values()))
    times = 1 + len(search.held_out)
    visits = len(planner.workload.keys("training"))
    score = scoring(search, planner, estimates, [(sampled[n - 1], stage) for n, stage in zip(found, stages)])
    cases = looked.cases(
        Costs(times, visits, sessions, iteration, evaluation, ready, search.seconds, fixed, scoring=score)
    )
    low, high = estimates.spread(stages)
    span = {name: max(0.0, one["seconds"] - fixed.start - fixed.end) for name, one in cases.items()}
    expected = cases["expected"]
    train = times * expected["iterations"] * iteration
    return {
        "seconds": expected["seconds"],
        "makespan": span["expected"],
        "makespan_low": min(span.values()) * low * 0.95,
        "makespan_high": max(span.values()) * high * 1.1,
        "start_seconds": fixed.start,
        "end_seconds": fixed.end,
        "sessions": sessions,
        "training_units": expected["training_units"],
        "session_seconds": {
            "train": train,
            "ready": ready,
            "other": max(0.0, expected["session_seconds"] - train - ready),
        },
        "sources": sorted({estimates.net(stage).source for stage in stages}),
        "search": {**cases, "whole": looked.whole, "time_limit": search.seconds},
    }
