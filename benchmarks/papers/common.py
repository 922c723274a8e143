"""Open shops in the simulator, and tables in Markdown."""

import re
from statistics import mean

from papers.schedulers import SCHEDULERS
from pg_mop.plan.stages import Plan
from pg_mop.schedule.board import Board
from pg_mop.schedule.simulator import makespan, simulate


def plan_of(configurations, iterations):
    """Configurations from 1 that share nothing; a stage's `mst_key` is its configuration."""
    plan = Plan()
    for key in range(1, configurations + 1):
        plan.ask(key, str(key), lambda iteration, key=key: (str(key), ""), iterations)
    return plan


def run(name, costs, slowness, iterations, seed, known=True, transport=None, prepare=None):
    """The visits of a run: a place has one segment. `costs`: of configurations; `slowness`: of places; `known`: the
    scheduler knows the times in advance; `transport(board)`: a Transport; `prepare(scheduler, board)`."""
    plan = plan_of(len(costs), iterations)
    board = Board(plan, range(len(slowness)))
    cost = lambda stage: costs[stage.mst_key - 1]  # noqa: E731
    known = known and name != "randomized"  # (Cerebro's does not ask for them)
    scheduler = SCHEDULERS[name](board, seed, lambda number: plan.stages[number].mst_key, cost if known else None)
    if known and hasattr(scheduler, "costs"):
        scheduler.costs.expected_on = lambda stage, segment: cost(stage) * slowness[segment]
    if prepare is not None:
        prepare(scheduler, board)
    return simulate(
        board,
        scheduler,
        lambda unit: cost(plan.stages[unit.stage]),
        slowness=lambda unit, worker: slowness[unit.segment],
        around=transport and transport(board),
    )


def seconds(*arguments, **more):
    """The makespan of `run`."""
    return makespan(run(*arguments, **more))


def bound(costs, slowness, iterations=1):
    """No schedule is shorter."""
    return iterations * max(sum(costs) * max(slowness), max(costs) * sum(slowness))


def table(head, rows):
    """A table in Markdown."""
    first, *others = ("| " + " | ".join(map(str, line)) + " |" for line in (head, *rows))
    return "\n".join([first, "|" + "---|" * len(head), *others]) + "\n"


def span(values, digits=3):
    """'mean (least-most)'."""
    low, middle, high = (f"{value:.{digits}f}" for value in (min(values), mean(values), max(values)))
    return middle if low == high else f"{middle} ({low}-{high})"


def telling(rows):
    """The rows whose ratios are not all within 0.2 % of 1."""
    return [
        row
        for row in rows
        if any(abs(float(r) - 1) > 0.0021 for r in re.findall(r"\d\.\d{3}", " ".join(map(str, row))))
    ]
