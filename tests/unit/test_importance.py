"""The permutation importance of a model's inputs."""

import numpy as np
import pytest

from pg_mop.columns import Image
from pg_mop.inference.importance import importance, main_score

ROWS = 200


@pytest.fixture
def arrays():
    random = np.random.default_rng(0)
    return [random.random((ROWS, 3)), random.random((ROWS, 2, 2))]


@pytest.mark.parametrize(
    "most_apart, names",
    [(0, ["vector", "image"]), (2, ["vector", "image"]), (3, ["vector[2]", "vector[1]", "vector[3]", "image"])],
)
def test_what_the_model_reads_loses_and_the_rest_does_not(arrays, most_apart, names):
    columns = [Image("vector", {"shape": [3]}), Image("image", {"shape": [2, 2]})]
    before = [array.copy() for array in arrays]
    truth = arrays[0][:, 1]
    losses = importance(
        columns,
        arrays,
        lambda inputs: inputs[0][:, 1:2],
        lambda outputs: main_score(truth, outputs, True),
        np.random.default_rng(1),
        most_apart,
    )
    assert [name for name, *_ in losses] == names
    assert losses[0][1] > 0.5 and all(row[1:] == (0, 0) for row in losses[1:])
    assert all((array == old).all() for array, old in zip(arrays, before))


def test_the_score_of_classes_counts_a_class_that_the_model_does_not_know_as_an_error():
    assert main_score(np.array([0, 1, -1]), np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]]), False) == pytest.approx(
        2 / 3
    )
