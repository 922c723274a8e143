"""The board of data-parallel training: an iteration begins when the one before has ended everywhere."""

import random

import pytest

from pg_mop.schedule.randomized import Randomized
from pg_mop.schedule.replicas import Replicas
from pg_mop.schedule.simulator import simulate


def test_every_replica_stays_on_its_segment_and_no_iteration_begins_early():
    source = random.Random(2)
    board = Replicas([1], [7, 8, 9], 4, metrics_iterations=[2, 4], validation_segments=[7, 8])
    visits = simulate(board, Randomized(board, 1), lambda unit: source.random())
    train = [v for v in visits if v.unit.kind == "train"]
    assert sorted((v.unit.iteration, v.unit.mst_key, v.unit.segment) for v in train) == [
        (i, k, 6 + k) for i in range(1, 5) for k in (1, 2, 3)]
    for iteration in (1, 2, 3):
        ends = max(v.end for v in train if v.unit.iteration == iteration)
        assert all(v.start >= ends for v in train if v.unit.iteration == iteration + 1)
    evaluated = [v for v in visits if v.unit.kind == "evaluate"]
    assert sorted((v.unit.iteration, v.unit.dataset, v.unit.segment) for v in evaluated) == [
        (i, d, s) for i in (2, 4) for d, s in (("training", 7), ("training", 8), ("training", 9), ("validation", 7),
                                               ("validation", 8))]
    for visit in evaluated:
        trained = [v.end for v in train if v.unit.iteration == visit.unit.iteration]
        assert visit.start >= max(trained), "the average of all is evaluated"
        later = [v.end for v in train if v.unit.iteration == visit.unit.iteration + 2]
        assert all(end >= visit.end for end in later), "a state stays until nobody needs it"


def test_one_failed_replica_ends_them_all():
    board = Replicas([1], [0, 1], 3)
    board.drop(2)
    assert board.done and board.eligible(0) == []


def test_replicas_are_of_one_configuration():
    with pytest.raises(ValueError):
        Replicas([1, 2], [0, 1], 3)
