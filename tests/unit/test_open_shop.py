"""Open shops: schedules of configurations on places, and the schedulers that plan them."""

import dataclasses
import itertools
import os
import random
import sys
import time

import pytest

from pg_mop.explain.what_if import Step, Work, compare
from pg_mop.plan.stages import Plan
from pg_mop.run.solver import SolverProcess
from pg_mop.schedule import SCHEDULERS
from pg_mop.schedule.board import Board
from pg_mop.schedule.compared import milp, monte_carlo, vector_rearrangement
from pg_mop.schedule.compared.compact_sums import compact_order, order_of_proof
from pg_mop.schedule.compared.milp import Here, Solution, choices
from pg_mop.schedule.compared.open_shop import Operation, check, loads, longest, longest_first, lower_bound, makespan
from pg_mop.schedule.simulator import makespan as makespan_of
from pg_mop.schedule.simulator import simulate
from support.simulated import assert_nobody_is_idle_for_ever

PLANNED = ["vector-rearrangement", "milp", "monte-carlo"]


def shop_of(seed, jobs, places, ratio=10, missing=0.0):
    """A random shop; `ratio`: of the slowest to the fastest job; `missing`: share of the operations that it lacks."""
    source = random.Random(f"{seed} {jobs} {places} {ratio}")
    cost, speed = (
        [ratio ** source.random() for _ in range(jobs)],
        [source.choice([12.1, 5.6, 11.3]) for _ in range(places)],
    )
    return [{p: cost[j] / speed[p] for p in range(places) if source.random() >= missing} for j in range(jobs)]


def optimum(shop):
    """By trying every order of all operations: for tiny shops."""
    operations = [(job, place) for job, places in enumerate(shop) for place in places]
    return min(makespan(milp.in_order(shop, order)) for order in itertools.permutations(operations))


def heuristics(shop):
    return {
        "longest-first": longest_first(shop),
        "vector": vector_rearrangement.schedule(shop),
        "monte-carlo": monte_carlo.best_of(shop, 1),
    }


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_every_schedule_is_valid_and_not_shorter_than_the_lower_bound(missing):
    for jobs, places in ((1, 3), (5, 1), (3, 3), (16, 8), (7, 12)):
        shop = shop_of(1, jobs, places, 100, missing)
        for schedule in heuristics(shop).values():
            check(shop, schedule)
            assert makespan(schedule) >= lower_bound(shop) - 1e-9


def test_a_schedule_without_needless_idle_time_keeps_the_bound_of_the_paper():
    for seed in range(5):
        shop = shop_of(seed, 6, 4, 10)
        for schedule in heuristics(shop).values():
            assert makespan(schedule) <= lower_bound(shop) + 3 * longest(shop) + 1e-9


def test_vector_rearrangement_is_optimal_for_many_jobs():
    for places in (2, 4):
        shop = shop_of(1, 40 * places, places, 3)
        assert max(loads(shop).values()) >= (places**2 + places - 1) * longest(shop), "the condition of the paper"
        schedule = vector_rearrangement.schedule(shop)
        check(shop, schedule)
        assert makespan(schedule) == pytest.approx(lower_bound(shop))


@pytest.mark.parametrize("order", [compact_order, order_of_proof])
def test_partial_sums_in_compact_order_stay_below_the_steinitz_bound(order):
    import numpy as np

    for count, dimension in ((1, 1), (2, 2), (9, 3), (40, 2), (20, 7)):
        rows = np.random.default_rng(1).random((count, dimension))
        vectors = rows - rows.mean(axis=0)
        found = order(vectors)
        assert sorted(found) == list(range(count))
        norm = lambda v: max(v.max(), 0) - min(v.min(), 0)  # noqa: E731
        worst = max(norm(total) for total in np.cumsum(vectors[found], axis=0))
        assert worst <= dimension * max(map(norm, vectors)) + 1e-6


def test_milp_finds_the_optimum_of_tiny_shops():
    pytest.importorskip("scipy")
    for seed in range(4):
        for jobs, places in ((2, 3), (3, 2), (2, 2)):
            shop = shop_of(seed, jobs, places, 3)
            shop[0] = {place: seconds * random.Random(seed).uniform(0.3, 2) for place, seconds in shop[0].items()}
            solution = milp.solve(shop, 20)
            assert makespan(solution.schedule) == pytest.approx(optimum(shop), rel=1e-3), solution.why
    hard = [{0: 3.0, 1: 4.0, 2: 3.0}, {0: 3.0, 1: 3.0, 2: 4.0}, {0: 4.0, 1: 3.0, 2: 3.0}, {0: 1.0, 1: 1.0, 2: 1.0}]
    assert makespan(milp.solve(hard, 20).schedule) <= makespan(milp.heuristic(hard))


def test_milp_is_never_worse_than_the_heuristic_it_starts_from():
    pytest.importorskip("scipy")
    for seed, seconds in ((2, 0.01), (3, 0.5)):
        shop = shop_of(seed, 12, 6, 10)
        solution = milp.solve(shop, seconds)
        check(shop, solution.schedule)
        assert solution.bound - 1e-6 <= makespan(solution.schedule) <= makespan(milp.heuristic(shop)) + 1e-9


def test_too_large_a_shop_is_not_given_to_the_solver():
    shop = shop_of(1, 60, 12, 100)
    shop[0] = {place: 40 * seconds for place, seconds in shop[0].items()}
    shop[1] = {place: 35 * seconds for place, seconds in shop[1].items()}
    assert choices(shop) > milp.MOST_CHOICES
    assert milp.solve(shop, 60).why in ("too large", "optimal")


# --- schedulers that follow a plan -----------------------------------------------------------------------------------
def run(name, costs, speeds, iterations, seed=1, known=True, change=None, **more):
    """The makespan of a run: `costs` by configuration, `speeds` by place; `change(scheduler, board)`: before it begins."""
    plan = Plan()
    for key in range(1, len(costs) + 1):
        plan.ask(key, str(key), lambda iteration, key=key: (str(key), ""), iterations)
    board = Board(plan, range(len(speeds)))
    cost_of = lambda stage: costs[stage.mst_key - 1]  # noqa: E731
    scheduler = SCHEDULERS[name](board, seed, lambda number: plan.stages[number].mst_key, cost_of if known else None)
    if known:
        scheduler.costs.expected_on = lambda stage, segment: cost_of(stage) * speeds[segment]
    if change is not None:
        change(scheduler, board)
    visits = simulate(
        board,
        scheduler,
        lambda unit: cost_of(plan.stages[unit.stage]),
        slowness=lambda unit, worker: speeds[worker],
        **more,
    )
    assert len({(v.unit.stage, v.unit.segment) for v in visits}) == len(visits) == len(plan.stages) * len(speeds)
    for of in (lambda v: v.worker, lambda v: plan.stages[v.unit.stage].mst_key):
        for _, group in itertools.groupby(sorted(visits, key=lambda v: (of(v), v.start)), of):
            assert all(a.end <= b.start + 1e-9 for a, b in itertools.pairwise(group))
    return makespan_of(visits), scheduler


def draw(seed, configurations, places, ratio):
    source = random.Random(seed)
    return (
        [ratio ** source.random() for _ in range(configurations)],
        [12.1 / source.choice([12.1, 5.6, 11.3, 18.7]) for _ in range(places)],
    )


@pytest.mark.parametrize("name", PLANNED)
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("configurations,places,iterations", [(12, 6, 1), (7, 3, 2)])
def test_with_known_times_a_plan_is_never_longer_than_longest_first(
    name, known, configurations, places, iterations, monkeypatch
):
    monkeypatch.setattr(milp, "MOST_SECONDS", 0.2)
    costs, speeds = draw(1, configurations, places, 10)
    planned, _ = run(name, costs, speeds, iterations, 1, known)
    if known:
        assert planned <= run("longest-first", costs, speeds, iterations, 1, known)[0] * (1 + 1e-6)


def test_a_plan_shortens_a_run_that_longest_first_leaves_longer_than_it_must_be():
    costs, speeds = draw(2, 16, 8, 10)
    assert run("monte-carlo", costs, speeds, 1)[0] < 0.99 * run("longest-first", costs, speeds, 1)[0]


class Slow:
    """A solver whose answer comes after some questions."""

    def __init__(self, questions):
        self.questions, self.here = questions, Here()

    def begin(self, shop, seconds):
        self.shop = shop

    def answer(self):
        self.questions -= 1
        if self.questions > 0:
            return None
        return Solution(monte_carlo.best_of(self.shop, 1), 0.0, "time limit")


@pytest.mark.parametrize("questions", [1, 20, 10**9])
def test_a_run_goes_on_while_another_process_solves(questions):
    costs, speeds = draw(2, 16, 8, 10)
    seconds, scheduler = run(
        "milp", costs, speeds, 1, change=lambda scheduler, board: setattr(scheduler, "solver", Slow(questions))
    )
    assert bool(scheduler.positions) == (questions == 1) or questions == 20


def test_milp_says_that_a_run_is_too_large_and_follows_a_heuristic():
    told = []
    costs, speeds = draw(3, 60, 12, 100)
    seconds, _ = run("milp", costs, speeds, 1, change=lambda s, board: setattr(s, "on_notice", told.append))
    assert len(told) == 1 and "60 configurations on 12 workers are too large for milp" in told[0]
    assert seconds <= run("longest-first", costs, speeds, 1)[0] * (1 + 1e-9)


def test_short_units_are_not_planned():
    costs, speeds = draw(2, 16, 8, 10)
    _, scheduler = run("monte-carlo", [cost / 1000 for cost in costs], speeds, 2)
    assert not scheduler.positions


@pytest.mark.parametrize("name", PLANNED)
def test_a_plan_survives_workers_that_come_and_go(name, monkeypatch):
    monkeypatch.setattr(milp, "MOST_SECONDS", 0.2)
    costs, speeds = draw(5, 8, 4, 10)

    def change(scheduler, board):
        begun = board.start

        def start(unit):
            begun(unit)
            if len(board.left) in (14, 9):
                board.serve([0, 1, 2] if len(board.left) == 14 else [0, 1, 2, 3])

        board.start = start

    run(name, costs, speeds, 2, change=change)


def test_units_on_a_slow_place_are_expected_to_take_longer():
    costs, speeds = [1.0, 2.0, 3.0, 4.0], [1.0, 3.0]
    _, scheduler = run("longest-first", costs, speeds, 1, known=False)
    assert scheduler.costs.slowness(1) == pytest.approx(3) and scheduler.costs.slowness(0) == pytest.approx(1)
    assert scheduler.costs.on(1, 1) == pytest.approx(3)


# --- copies ----------------------------------------------------------------------------------------------------------
def copied(name, copies, seed, failed=None, slow=4.0, configurations=6):
    """The makespan on 4 servers with a segment each; the second server is `slow` times as slow as the others."""
    plan = Plan()
    for key in range(1, configurations + 1):
        plan.ask(key, str(key), lambda iteration, key=key: (str(key), ""), 2)
    board = Board(plan, range(4), (), {("training", s): f"w{s}" for s in range(4)})
    board.copies = {s: [f"w{(s + k) % 4}" for k in range(1, copies)] for s in range(4)}
    speed = [1.0, slow, 1.0, 1.0]
    scheduler = SCHEDULERS[name](board, seed)
    visits = simulate(board, scheduler, lambda unit: 1.0, slowness=lambda unit, worker: speed[worker])
    for v in visits:
        assert v.worker == v.unit.segment or f"w{v.worker}" in board.copies[v.unit.segment]
    return makespan_of(visits)


@pytest.mark.parametrize("name", ["randomized", "longest-first", "monte-carlo", "vector-rearrangement"])
def test_where_a_segment_has_a_copy_its_units_may_go_there(name):
    means = {copies: sum(copied(name, copies, seed) for seed in range(2)) / 2 for copies in (1, 2, 3)}
    assert means[2] < 0.7 * means[1]
    assert means[3] < means[1]


@pytest.mark.parametrize("name", ["randomized", "longest-first"])
def test_a_chain_of_copies_relieves_a_slow_server_by_all_others(name):
    """A server is three times as slow as the other three: no schedule takes less than 1.2 times as long as without."""
    for seed in range(1):
        even, alone, relieved = (
            copied(name, copies, seed, slow=slow, configurations=16) for copies, slow in ((2, 1.0), (1, 3.0), (2, 3.0))
        )
        assert even == 16 * 2 and alone > 2.9 * even, "copies are no hindrance; without them all wait for the slow one"
        assert 1.2 * even <= relieved < 1.35 * even


def test_the_check_of_a_schedule_finds_what_is_wrong():
    shop = [{0: 1.0, 1: 2.0}, {0: 2.0}]
    good = [Operation(0, 0, 0, 1), Operation(0, 1, 1, 3), Operation(1, 0, 1, 3)]
    check(shop, good)
    for bad in (
        good[1:],
        [*good, good[0]],
        [Operation(0, 0, 0, 1), Operation(0, 1, 0.5, 2.5), Operation(1, 0, 1, 3)],
        [Operation(0, 0, 0, 1), Operation(0, 1, 1, 3), Operation(1, 0, 0.5, 2.5)],
        [Operation(0, 0, 0, 1), Operation(0, 1, 1, 4), Operation(1, 0, 1, 3)],
    ):
        with pytest.raises(ValueError):
            check(shop, bad)


def test_the_solver_process_answers_and_ends():
    pytest.importorskip("scipy")
    shop = [{0: 3.0, 1: 4.0, 2: 3.0}, {0: 3.0, 1: 3.0, 2: 4.0}, {0: 4.0, 1: 3.0, 2: 3.0}, {0: 1.0, 1: 1.0, 2: 1.0}]
    solver = SolverProcess(sys.prefix)
    for begun in (shop, shop_of(2, 4, 3)):
        solver.begin(begun, 60)
        until = time.monotonic() + 180
        while (solution := solver.answer()) is None and time.monotonic() < until:
            time.sleep(0.05)
        assert solution.why == "optimal"
        check(begun, solution.schedule)
    assert solver.process is None and solver.life is None
    solver.begin(shop_of(2, 16, 8), 60)
    pid = solver.process.pid
    solver.close()
    assert not os.path.exists(f"/proc/{pid}")


def test_a_solver_process_that_cannot_start_leaves_the_heuristic():
    solver, shop = SolverProcess("/nonexistent"), shop_of(2, 4, 3)
    solver.begin(shop, 5)
    solution = solver.answer()
    assert makespan(solution.schedule) == makespan(milp.heuristic(shop)) and "could not be started" in solution.why


# --- what if -----------------------------------------------------------------------------------------------------------
def work_of(costs, segments, iterations, evaluated=(), held_out=None):
    steps, seconds = [], {}
    for key, cost in enumerate(costs, 1):
        parent = None
        for iteration in range(1, iterations + 1):
            steps.append(Step(len(steps) + 1, parent, iteration, key, iteration in evaluated))
            parent = len(steps)
            seconds.update({("train", parent, "training", s): cost for s in range(segments)})
            seconds["evaluate", parent, "training", 0] = cost / 10
    return Work(steps, range(segments), (), seconds, held_out or {})


def test_a_workload_is_simulated_with_every_scheduler_and_number_of_sessions():
    work = work_of([1.0, 2.0, 3.0, 4.0, 5.0], 4, 2, evaluated=[2])
    names = [name for name in SCHEDULERS if name != "milp"]
    rows = list(compare(work, [1, 2, 4], names, 7))
    assert [(row.scheduler, row.sessions) for row in rows] == [(name, count) for count in (1, 2, 4) for name in names]
    whole = 15 * 4 * 2 * (1 + 0.1 / 2)
    for row in rows:
        assert row.makespan >= row.lower_bound - 1e-9 and 0 < row.utilization <= 1 + 1e-9
        assert row.utilization * row.sessions * row.makespan == pytest.approx(whole)
        if row.sessions == 1:
            assert row.makespan == pytest.approx(row.lower_bound) == pytest.approx(whole)
    assert {round(row.lower_bound, 6) for row in rows if row.sessions == 4} == {5 * 4 * 2.0}


def test_folds_are_simulated_on_the_segments_that_they_visit():
    work = work_of([1.0, 1.0], 3, 1, held_out={1: {0}, 2: {1}})
    (row,) = compare(work, [1], ["longest-first"], 1)
    assert row.makespan == 4.0


def dealt_work(speedup=2.0):
    """A short configuration and a long one, whose last iteration had two threads; two cores."""
    work = work_of([1.0, 10.0], 2, 3)
    last = [step.number for step in work.steps if step.mst_key == 2][-1]
    threads = {key: 2 if key[1] == last else 1 for key in work.seconds}
    seconds = {key: value / speedup if key[1] == last else value for key, value in work.seconds.items()}
    return dataclasses.replace(work, seconds=seconds, threads=threads)


def test_cores_that_a_run_dealt_are_dealt_anew():
    work = dealt_work()
    assert work.deals and not dataclasses.replace(work, threads=dict.fromkeys(work.threads, 1)).deals
    (row,) = compare(work, [2], ["longest-first"], 1)
    fixed = 3 * 2 * 10.0  # the long configuration with one thread
    assert row.lower_bound == pytest.approx(fixed / 2) and row.lower_bound <= row.makespan < 0.9 * fixed
    assert 0 < row.utilization < 1
    (alone,) = compare(work, [1], ["longest-first"], 1)
    assert alone.makespan == pytest.approx(3 * 2 * (10.0 / 2 + 1.0)), "one session has all cores from the begin on"
    (slow,) = compare(dealt_work(speedup=1.02), [2], ["longest-first"], 1)
    assert slow.makespan == pytest.approx(fixed), "more threads are hardly worth it"


@pytest.mark.parametrize("name", ["monte-carlo", "vector-rearrangement"])
def test_whatever_happens_a_plan_leaves_nobody_idle_for_ever(name):
    assert_nobody_is_idle_for_ever(name, range(10))
