"""benchmarks/papers: the parts of the page that follow from formulas, and small runs of the others."""

import random
import sys
from collections import Counter

from pg_mop.schedule.board import Board
from pg_mop.schedule.simulator import makespan, simulate
from support.cluster import ROOT
from support.conformance import SchedulerConformance
from support.conformance.schedulers import tree

sys.path.append(str(ROOT / "benchmarks"))

from papers.schedulers import OF_PAPERS, SCHEDULERS  # noqa: E402


class TestSchedulersOfPapers(SchedulerConformance):
    cases = registered = OF_PAPERS
    without_chance = ("breadth-first", "most-children-first")


def test_the_longest_path_first_takes_no_longer_than_level_by_level():
    """TreeML's comparison (thesis 2021, section 6.3), simulated; and the default takes no longer either."""
    spans = Counter()
    for draw in range(4):
        for name in ("longest-first", "breadth-first", "randomized"):
            plan = tree(random.Random(draw), 12, 8)
            board, model_of = Board(plan, range(2)), lambda number, p=plan: p.stages[number].parameters[1]
            seconds = lambda unit, of=model_of: (  # noqa: E731
                (8 if of(unit.stage) == "large" else 1) + random.Random(repr(unit)).random() / 10
            )
            spans[name] += makespan(simulate(board, SCHEDULERS[name](board, draw, model_of), seconds))
    assert spans["longest-first"] < spans["breadth-first"]
    assert spans["randomized"] < 1.01 * spans["longest-first"]


def test_the_formulas_give_the_figures_of_the_paper():
    from papers import cerebro

    text = cerebro.table_2()
    for row in ("4 TB | 4.02 TB", "10 TB | 10.02 TB", "400 TB | 400.02 TB", "8 TB | 8.00 TB", "80 PB | 80.00 PB"):
        assert row in text
    assert len(cerebro.FLOPS) == 35 and min(cerebro.FLOPS) == 360 and max(cerebro.FLOPS) == 21000
    assert "| 1 | 1.00 | 0.12 | 0.25 | 0.50 |" in cerebro.half()


def test_sharing_saves_a_grid_its_merge_rate_and_early_stopping_more():
    from papers.treeml import ITERATIONS, schedules, study

    values = schedules(40, 1)
    grid = {"iterations": ITERATIONS, "trials": 40}
    units, requested, _ = study("grid", values, **grid)
    apart, asked, _ = study("grid", values, shared=False, **grid)
    distinct = len({tuple(v[:i]) for v in values.values() for i in range(1, ITERATIONS + 1)})
    assert (units, requested, apart, asked) == (distinct, 40 * ITERATIONS, 40 * ITERATIONS, 40 * ITERATIONS)
    halving = {**grid, "least": 4, "reduction": 4}
    early = (
        study("successive-halving", values, shared=False, **halving)[0]
        / study("successive-halving", values, **halving)[0]
    )
    assert early > apart / units
