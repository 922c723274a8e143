"""Makespans of the schedulers against the lower bound: unequal units, failures, stragglers."""

import random

from papers.common import bound, seconds, span, table, telling

SCHEDULERS = ("randomized", "longest-first", "vector-rearrangement", "monte-carlo")


def disturbed(costs, slow, iterations, seed, name):
    """The makespan where 2 % of the units take twice as long (they fail at their end and are done again), and 2 % three
    times as long; and the bound for these times."""
    from papers.common import plan_of
    from papers.schedulers import SCHEDULERS as KINDS
    from pg_mop.schedule.board import Board
    from pg_mop.schedule.simulator import makespan, simulate

    plan = plan_of(len(costs), iterations)
    board = Board(plan, range(len(slow)))
    cost = lambda stage: costs[stage.mst_key - 1]  # noqa: E731
    scheduler = KINDS[name](board, seed, lambda number: plan.stages[number].mst_key, cost)
    source = random.Random(f"disturbed {seed}")
    factor = {}
    for number in sorted(plan.stages):
        for segment in board.segments:
            luck = source.random()
            factor[number, segment] = 3.0 if luck < 0.02 else 2.0 if luck < 0.04 else 1.0
    taken = lambda unit: cost(plan.stages[unit.stage]) * factor[unit.stage, unit.segment]  # noqa: E731
    places, paths = [0.0] * len(slow), [0.0] * len(costs)
    for (number, segment), value in factor.items():
        stage = plan.stages[number]
        places[segment] += cost(stage) * value
        paths[stage.mst_key - 1] += cost(stage) * value
    return makespan(simulate(board, scheduler, taken)) / max(*places, *paths)


def sections():
    """The section of the page."""
    rows = []
    for ratio in (10, 100):
        for configurations, places in ((16, 8), (64, 8), (20, 16)):
            found = {name: ([], []) for name in SCHEDULERS}
            for draw in range(3):
                source = random.Random(f"{draw} {ratio} {configurations} {places}")
                costs = [ratio ** source.random() for _ in range(configurations)]
                slow = [1.0] * places
                for name, (plain, disturbances) in found.items():
                    plain.append(seconds(name, costs, slow, 3, draw) / bound(costs, slow, 3))
                    disturbances.append(disturbed(costs, slow, 3, draw, name))
            for kind, at in (("none", 0), ("failures, stragglers", 1)):
                rows.append(
                    [f"{ratio} x", configurations, places, kind, *(span(found[name][at]) for name in SCHEDULERS)]
                )
    text = table(["units differ by", "configurations", "places", "disturbance", *SCHEDULERS], telling(rows))
    return [
        f"""## Makespans against the lower bound

No paper has this table. 3 iterations, mean of 3 draws (least-most), as ratios to the lower bound: the work of the place that
has most, or the units of the configuration that has most. Those of 64 configurations on 8 places are all at most 1.002, and
left out. "Failures, stragglers": 2 % of the units take twice as long, since
they fail at their end and are done again, and 2 % take three times as long; the bound counts these times.

{text}
A plan that is followed strictly comes nearest to the bound where units take the time that is expected. It is given up with the
first unit that is late, and then the longest go first.
"""
    ]
