"""The board of data-parallel training: an iteration begins when the one before has ended everywhere."""

import random

import pytest

from pg_mop.plan import identity
from pg_mop.plan.stages import Plan
from pg_mop.schedule.randomized import Randomized
from pg_mop.schedule.replicas import Replicas
from pg_mop.schedule.simulator import simulate


def replicas(count, iterations, evaluated=()):
    plan = Plan()
    for k in range(1, count + 1):
        plan.ask(k, identity.root({"replica": k}), lambda iteration: ("", ""), iterations, evaluated)
    return plan


def test_every_replica_stays_on_its_segment_and_no_iteration_begins_early():
    source = random.Random(2)
    board = Replicas(replicas(3, 4, [2, 4]), [7, 8, 9], [7, 8])
    key_of = {number: min(stage.trials) for number, stage in board.plan.stages.items()}
    visits = simulate(board, Randomized(board, 1), lambda unit: source.random())
    train = [v for v in visits if v.unit.kind == "train"]
    assert sorted((v.unit.iteration, key_of[v.unit.stage], v.unit.segment) for v in train) == [
        (i, k, 6 + k) for i in range(1, 5) for k in (1, 2, 3)
    ]
    for iteration in (1, 2, 3):
        ends = max(v.end for v in train if v.unit.iteration == iteration)
        assert all(v.start >= ends for v in train if v.unit.iteration == iteration + 1)
    evaluated = [v for v in visits if v.unit.kind == "evaluate"]
    assert sorted((v.unit.iteration, v.unit.dataset, v.unit.segment) for v in evaluated) == [
        (i, d, s)
        for i in (2, 4)
        for d, s in (("training", 7), ("training", 8), ("training", 9), ("validation", 7), ("validation", 8))
    ]
    for visit in evaluated:
        trained = [v.end for v in train if v.unit.iteration == visit.unit.iteration]
        assert visit.start >= max(trained), "the average of all is evaluated"
        later = [v.end for v in train if v.unit.iteration == visit.unit.iteration + 2]
        assert all(end >= visit.end for end in later), "a state stays until nobody needs it"


def test_one_failed_replica_ends_them_all():
    board = Replicas(replicas(2, 3), [0, 1])
    assert board.fail(2) == {1, 2}
    assert board.done and board.eligible(0) == []


def test_replicas_are_of_one_configuration():
    with pytest.raises(ValueError):
        Replicas(replicas(4, 3), [0, 1])


def test_what_ends_last_ends_them_all():
    board = Replicas(replicas(2, 2), [0, 1])
    first, second = board.eligible(0)[0], board.eligible(1)[0]
    board.start(first)
    assert board.finish(first) == [] and board.eligible(0) == []
    board.start(second)
    assert [stage.iteration for stage in board.finish(second)] == [1, 1]
    again = Replicas(replicas(2, 2), [0, 1])
    again.restore([first, second])
    assert [u.iteration for u in again.eligible(0) + again.eligible(1)] == [2, 2]
