"""Out-of-fold answers: a model that is trained on the other folds answers for the rows of a fold. Runs in the trainer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

Rows = TypeVar("Rows", bound=Any)  # of a family: `at(mask)` is a part of them
Model = TypeVar("Model")


def of_models(
    rows: Rows,
    folds: np.ndarray,
    models: Sequence[Model],
    answering: Callable[[Rows, Rows], Callable[[Model, float], np.ndarray]],
    until: float,
) -> list[np.ndarray]:
    """The answers of the first models, as many as can be trained before `until` (of time.monotonic): for each the answers [rows
    of the folds from 1 on, width], in the order of the rows.

    `folds` [rows]: the number of each row's fold; the rows of fold 0 train only. `answering`: given the rows to train on and
    the rows to answer for, the function that trains a model, not beyond a moment, and returns its answers.
    """
    answered = np.flatnonzero(folds)
    parts = [(folds[answered] == k, answering(rows.at(folds != k), rows.at(folds == k))) for k in np.unique(folds) if k]
    found: list[np.ndarray] = []
    seconds = 0.0
    for model in models:
        began = time.monotonic()
        if began + seconds > until:
            break
        own = [answer(model, until) for _, answer in parts]
        if time.monotonic() > until:  # the time has cut the training of a fold
            break
        answers = np.empty((len(answered), own[0].shape[1]))
        for (places, _), values in zip(parts, own):
            answers[places] = values
        found.append(answers)
        seconds = max(seconds, time.monotonic() - began)
    return found
