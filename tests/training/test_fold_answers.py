"""Answers of models for rows that they were not trained on."""

import functools
import time

import numpy as np
import pytest

from mop_udf.training import fold_answers, linear
from mop_udf.training.linear import Rows

pytest.importorskip("scipy", reason="not run: SciPy is not installed (pip install scipy)")
RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(60, 3)).astype("f4")
ROWS = Rows(X, [], X @ [1.0, -2.0, 0.5] + RANDOM.normal(0, 0.3, 60), None)
FOLDS = RANDOM.permutation(np.arange(60) % 4)
ANSWERING = functools.partial(linear.answering, codes=[], pieces=None, classes=0)
MODELS = [("plain", 1.0), ("plain", 30.0), ("plain", 0.1)]


def test_each_fold_is_answered_by_a_model_of_the_other_rows():
    found = fold_answers.of_models(ROWS, FOLDS, MODELS, ANSWERING, time.monotonic() + 60)
    for (_, penalty), answers in zip(MODELS, found, strict=True):
        expected = np.zeros(60)
        for fold in (1, 2, 3):
            others = np.column_stack([X, np.ones(60)])[fold != FOLDS]
            ridge = others.T @ others + np.diag([penalty / 2] * 3 + [0])  # the loss is the square without a half
            weights = np.linalg.solve(ridge, others.T @ ROWS.targets[fold != FOLDS])
            expected[fold == FOLDS] = X[fold == FOLDS] @ weights[:3] + weights[3]
        assert np.allclose(answers[:, 0], expected[FOLDS > 0], atol=1e-3)


def test_what_has_no_time_has_no_answers():
    assert fold_answers.of_models(ROWS, FOLDS, MODELS, ANSWERING, time.monotonic()) == []
