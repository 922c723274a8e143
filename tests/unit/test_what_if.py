"""Runs on copies of segments, and past or given work with other schedulers and numbers of sessions."""

import dataclasses

import pytest

from pg_mop.explain.what_if import Step, Work, compare
from pg_mop.plan.stages import Plan
from pg_mop.schedule import SCHEDULERS
from pg_mop.schedule.board import Board
from pg_mop.schedule.simulator import makespan as makespan_of
from pg_mop.schedule.simulator import simulate


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


@pytest.mark.parametrize("name", ["randomized", "longest-first"])
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
    names = list(SCHEDULERS)
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
