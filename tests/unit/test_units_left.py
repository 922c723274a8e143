"""The number of units that a run has left is known without a count: it follows the board at every event."""

import random

import pytest

from pg_mop.plan.stages import Plan
from pg_mop.schedule.board import Board
from pg_mop.schedule.units_left import UnitsLeft

SEGMENTS = range(3)


def made(trials=4, iterations=3, validation=(), evaluated=(3,), held_out=None):
    plan = Plan()
    for key in range(1, trials + 1):
        # (the first two trials share their first iteration)
        plan.ask(
            key, f"root {max(2, key)}", lambda i, key=key: (f"lr={key if i > 1 else 0}", "x"), iterations, evaluated
        )
    return plan, Board(plan, SEGMENTS, validation, held_out=held_out)


def truth(board):
    return sum(board.units_left(stage) for stage in board.left.values())


def work(board, left, rng, most=10**9):
    """Do units in a random order, some of them twice; compare after each. Returns how many have counted."""
    done = 0
    board.serve(board.workers)
    while done < most:
        units = [unit for worker in board.workers for unit in board.eligible(worker)]
        if not units:
            return done
        unit = rng.choice(units)
        board.start(unit)
        assert left.uncertain or left.count == truth(board)
        if rng.random() < 0.2:
            board.release(unit)
            continue
        left.finishes(unit)
        board.finish(unit)
        done += 1
        assert left.uncertain or left.count == truth(board)
    return done


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("validation", [(), (0, 1)])
def test_the_count_follows_every_unit_to_zero(seed, validation):
    plan, board = made(validation=validation)
    left = UnitsLeft(board)
    # 4 trials x 3 iterations - 1 shared iteration, on 3 segments; the last iterations are evaluated
    assert left.count == 11 * 3 + 4 * (3 + len(validation))
    assert work(board, left, random.Random(seed)) == 11 * 3 + 4 * (3 + len(validation))
    assert left.count == 0 and not left.uncertain and board.done


@pytest.mark.parametrize("seed", range(4))
def test_new_trials_add_their_units_at_once(seed):
    plan, board = made(trials=2, iterations=1, evaluated=(1,))
    left, rng = UnitsLeft(board), random.Random(seed)
    work(board, left, rng, 4)
    before = left.count
    board.add(plan.ask(9, "root 9", lambda i: ("lr=9", "x"), 2, (2,)))
    assert left.count == before + 2 * 3 + 3 == truth(board) and not left.uncertain
    work(board, left, rng)
    assert left.count == 0


@pytest.mark.parametrize("seed", range(6))
def test_a_count_after_a_stop_or_a_failure_is_that_of_the_board(seed):
    plan, board = made(trials=6, iterations=4, evaluated=(2, 4))
    left, rng = UnitsLeft(board), random.Random(seed)
    work(board, left, rng, 9)
    before = left.count
    board.withdraw(5)
    assert left.uncertain
    left.recount()
    assert left.count == truth(board) < before and not left.uncertain
    work(board, left, rng, 3)
    board.fail(next(number for number, stage in plan.stages.items() if 6 in stage.trials and not stage.trained))
    left.recount()
    work(board, left, rng)
    left.recount()
    assert left.count == 0 == truth(board) and board.done


def test_a_count_finds_metrics_that_a_trial_wants_later_of_a_stage():
    plan, board = made(trials=1, iterations=2, evaluated=(2,))
    left = UnitsLeft(board)
    before = left.count
    board.add(plan.ask(9, "root 2", lambda i: (f"lr={1 if i > 1 else 0}", "x"), 1, (1,)))
    left.recount()
    assert left.count == before + 3 == truth(board)


def test_folds_leave_out_what_they_are_evaluated_on():
    plan, board = made(trials=3, iterations=1, evaluated=(1,), held_out=lambda stage: (0,))
    left = UnitsLeft(board)
    assert left.count == truth(board) == len(board.left) * (2 + 1)
