"""Runs on copies of segments."""

import pytest

from pg_mop.plan.stages import Plan
from pg_mop.schedule import SCHEDULERS
from pg_mop.schedule.board import Board
from pg_mop.schedule.simulator import makespan as makespan_of
from pg_mop.schedule.simulator import simulate


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
