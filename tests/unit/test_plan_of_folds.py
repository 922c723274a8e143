"""Segments as folds: their keys, what is left of them, and their means (visits: tests/support/conformance/schedulers.py)."""

import pytest

from pg_mop.call import metrics
from pg_mop.plan import folds
from pg_mop.schedule import SCHEDULERS
from pg_mop.schedule.simulator import simulate
from support.conformance.schedulers import with_folds


def test_a_board_goes_on_with_folds_where_an_earlier_one_stopped():
    board, held_out = with_folds()
    visits = simulate(board, SCHEDULERS["longest-first"](board, 5), lambda unit: 1.0)
    begun, rest = visits[:20], visits[20:]
    again, _ = with_folds()
    again.restore(visit.unit for visit in begun)
    left = simulate(again, SCHEDULERS["longest-first"](again, 5), lambda unit: 1.0)
    assert {visit.unit for visit in left} == {visit.unit for visit in rest}


def test_the_keys_of_folds_are_above_all_others():
    made = folds.trials([{"mst_key": 7}, {"mst_key": 3}], [[0], [1], [2]])
    assert [(c["mst_key"], c["fold_of"], c["fold"], c["held_out"]) for c in made] == [
        (8 + 3 * at + fold, key, fold + 1, [fold]) for at, key in enumerate((7, 3)) for fold in range(3)
    ]
    with pytest.raises(OverflowError):
        folds.trials([{"mst_key": folds.MOST_KEY}], [[0], [1]])


def test_the_keys_of_a_searchs_folds_meet_no_other_trial():
    made = [folds.trials_of_search({"mst_key": key}, folds.deal(range(5), 2)) for key in (1, 2, 999_999)]
    assert [[(c["mst_key"], c["fold_of"], c["fold"]) for c in its] for its in made] == [
        [(10_000_001, 1, 1), (20_000_001, 1, 2)],
        [(10_000_002, 2, 1), (20_000_002, 2, 2)],
        [(10_999_999, 999_999, 1), (20_999_999, 999_999, 2)],
    ]
    assert folds.MOST_IN_SEARCH * folds.STEP + folds.STEP <= folds.MOST_KEY


def test_folds_that_stop_together_end_with_the_iteration_that_the_furthest_has_begun():
    board, _ = with_folds()
    for iteration in (1, 2):  # of fold 1 of configuration 1: it has begun iteration 2
        number = board.plan.path(3)[iteration - 1].number
        for segment in (1, 3) if iteration == 1 else (1,):
            unit = board.unit(number, "train", "training", segment)
            board.start(unit)
            board.finish(unit)
    for key in (4, 3, 1):
        board.withdraw(key, beside=(1, 3, 4))
    assert [len(board.plan.path(key)) for key in (1, 3, 4)] == [2, 2, 2]
    assert len(board.plan.path(2)) == 3
    simulate(board, SCHEDULERS["longest-first"](board, 5), lambda unit: 1.0)
    assert board.done and all(stage.scored for key in (1, 3, 4) for stage in board.plan.path(key)[1:])


def test_folds_that_end_after_a_given_iteration_end_with_it_unless_one_is_in_the_next():
    for begun, end in ((False, 1), (True, 2)):
        board, _ = with_folds()
        visits = [(1, 0, s) for s in range(5)] + [(3, 0, 1), (3, 0, 3), (3, 1, 1), (3, 1, 3)]
        visits += [(4, 0, 0), (4, 0, 2), (4, 0, 4), *([(4, 1, 2)] if begun else [])]
        for key, iteration, segment in visits:
            unit = board.unit(board.plan.path(key)[iteration].number, "train", "training", segment)
            board.start(unit)
            board.finish(unit)
        for key in (4, 3, 1):
            board.withdraw(key, 1, (1, 3, 4))
        assert [len(board.plan.path(key)) for key in (1, 3, 4)] == [end] * 3


class Folded(dict):
    folds = 2

    def own_key(self, mst_key):
        return self[mst_key].get("fold_of", mst_key)


def test_the_lines_of_an_iteration_have_the_mean_over_folds():
    configurations = Folded(
        {1: {}, 2: {}, 3: {"fold": 1, "fold_of": 1}, 4: {"fold": 2, "fold_of": 1}, 5: {"fold": 1, "fold_of": 2}}
    )
    rows = [
        {"mst_key": key, "iteration": 1, "stage": key, "dataset": "training", "loss": loss, "took": 1.0}
        for key, loss in ((1, 0.1), (2, 0.2), (3, 1.0), (4, 3.0), (5, 9.0))
    ]
    rows = [{**row, "metrics": {"accuracy": row["loss"] / 2}} for row in rows]
    found = metrics.with_folds(rows, configurations)
    assert [(r["mst_key"], r["dataset"], r["loss"]) for r in found] == [
        (1, "training", 0.1),
        (1, "held-out", 2.0),
        (2, "training", 0.2),
    ], "a configuration whose folds have not all been evaluated has no mean"
    assert "  1: accuracy=0.05, loss=0.1; held-out accuracy=1, loss=2" in metrics.lines(
        1, 1, 1.0, found, lambda key: f"{key}: "
    )
