"""benchmarks/papers: the parts of the page that follow from formulas, and small runs of the others."""

import random
import sys
from collections import Counter

import pytest

from pg_mop.schedule.board import Board
from pg_mop.schedule.simulator import makespan, simulate
from support.cluster import ROOT
from support.conformance import SchedulerConformance
from support.conformance.schedulers import board_of, tree

sys.path.append(str(ROOT / "benchmarks"))

from papers.schedulers import OF_PAPERS, SCHEDULERS  # noqa: E402
from papers.transport import Transport  # noqa: E402


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


def test_fifo_gives_every_task_to_the_first_idle_worker():
    from papers.cerebro import fifo

    assert fifo([1, 1, 1, 3], 2) == 4 and fifo([3, 1, 1, 1], 2) == 3


def test_a_lost_server_delays_an_iteration_and_stops_nothing():
    from papers import cerebro

    row = next(line for line in cerebro.figure_8b().splitlines() if line.startswith("| 16 |"))
    first, second, third, *_ = map(float, row.split("|")[2:-1])
    assert first == 1 and 1 < second < third <= 2


def test_a_server_that_joins_shortens_the_run_by_its_part():
    from papers import cerebro

    rows = [line.split("|")[2:-1] for line in cerebro.figure_8b_joined().splitlines() if line.startswith("| 64 |")]
    *iterations, sooner = map(float, rows[0])
    assert iterations[0] == 1 and iterations[2:] == pytest.approx([8 / 9] * 3, abs=0.01)
    assert sooner == pytest.approx(5 / (1.5 + 3.5 * 8 / 9), abs=0.01)


@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("configurations", [1, 3, 4, 8])
def test_dealt_places_need_no_rule_of_half_as_many_configurations(configurations, factor):
    from papers.cerebro import dealt_seconds

    alone, all_places = 1.0, configurations / 8 * factor
    assert (
        0.99 * min(alone, all_places)
        <= dealt_seconds(configurations, 8, factor)
        <= 1.01 * max(0.41, min(alone, 2 * all_places))
    )


def test_places_dealt_anew_are_better_than_places_dealt_once():
    from papers.fluid import StaticFluid, study
    from pg_mop.schedule.dealing import Dealer

    (alone, used), (static, _), (dynamic, dealt) = (
        study("asha", 8, dealing, 1) for dealing in (None, StaticFluid, Dealer)
    )
    assert dynamic < static < alone and used < dealt > 0.9


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


def test_carrying_and_the_coordinators_work_take_time():
    def span(**transport):
        board = board_of(8, 4, 3)
        given = Transport(board, **{"bytes": 1e8, "network": 1e8, "disk": 1e9, "coordinator": 0.0, **transport})
        return makespan(simulate(board, SCHEDULERS["randomized"](board, 1), lambda unit: 1.0, around=given))

    free = makespan(simulate(board := board_of(8, 4, 3), SCHEDULERS["randomized"](board, 1), lambda unit: 1.0))
    assert span(bytes=0) == pytest.approx(free)
    assert free < span(direct=True) < span() and span(bytes=0, coordinator=1.0) >= 8 * 4 * 3
