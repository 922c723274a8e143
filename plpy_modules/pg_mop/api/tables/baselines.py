"""Simple models that are trained on the same rows as a net, for comparison."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mop_udf.aggregate import Session
from pg_mop.api.common.session import trainer_of, trainer_options, with_trainer
from pg_mop.api.tables import reports
from pg_mop.backend import settings
from pg_mop.backend.arrays import np
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.inference import scores
from pg_mop.inference.named_model import NamedModel, RowReader

MOST_ROWS = 200_000  # that a baseline is trained on
MOST_BYTES = 512 << 20  # of their features
SECONDS = 600.0  # that the baselines of a call of mop_baselines may train


@dataclass
class Contender:
    """A model of the comparison, and its measures on the test rows."""

    name: str
    metrics: dict[str, float]


@with_trainer
def mop_baselines(
    db: Database, session: Session, model: str | None, train: str | None, test: str | None, version: int | None
) -> list[tuple[str, str, float]]:
    """Baselines trained on the rows of `train` and measured on those of `test`: [(contender, metric, value)]."""
    named = NamedModel.find(db, model, version)
    contender_here = Contender("pg_mop", reports.measure(db, session, named, test).measures())
    return [
        (contender.name, metric, value)
        for contender in [contender_here, *contenders(db, session, named, train, test)]
        for metric, value in contender.metrics.items()
    ]


def contenders(
    db: Database,
    session: Any,
    model: NamedModel,
    train: str | None,
    test: str | None,
    seconds: float = SECONDS,
    share: float | None = None,
) -> list[Contender]:
    """The baselines: the majority or the mean, and scikit-learn's models where the trainers have scikit-learn.

    `seconds`: that these may train, on the cores that nobody uses at this moment; `share`: of a quantile that is measured.
    """
    x, y = _read(db, model, train)
    x_test, y_test = _read(db, model, test)
    if not model.regression:
        x, y = x[y >= 0], y[y >= 0]
    if not len(y) or not len(y_test):
        raise MopError("a baseline needs rows with a known target, to train on and to measure")
    if model.regression:
        models = [Contender("mean", scores.regression(y_test, np.full(len(y_test), y.mean()), share))]
    else:
        classes = len(model.labels(model.widths[0]))
        unknown = int((y_test < 0).any())
        if unknown:  # rows of classes without training rows: errors of each contender, as of the model
            y_test, classes = np.where(y_test < 0, classes, y_test), classes + 1
        shares = np.bincount(y, minlength=classes) / len(y)
        majority = np.tile(shares, (len(y_test), 1))
        models = [Contender("majority", scores.classification(y_test, majority, unknown))]
    with trainer_of(session, trainer_options(db, False)) as trainer:
        trainer.send(
            {
                "op": "baselines",
                "regression": model.regression,
                "shapes": [list(x.shape), list(x_test.shape)],
                "seconds": seconds,
                "threads": max(1, settings.cores() - settings.runnable_threads()),
            },
            *(np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in (x, y.astype("<f8"), x_test)),
        )
        header, payloads = trainer.receive()
    for name, columns, payload in zip(header["names"], header["classes"], payloads):
        predicted = np.frombuffer(payload, "<f8").reshape(len(x_test), -1)
        if model.regression:
            models.append(Contender(name, scores.regression(y_test, predicted[:, 0], share)))
        else:
            probabilities = np.zeros((len(x_test), classes))
            probabilities[:, columns] = predicted
            models.append(Contender(name, scores.classification(y_test, probabilities, unknown)))
    return models


def _read(db: Database, model: NamedModel, source: str | None) -> tuple[np.ndarray, np.ndarray]:
    """(features [rows, elements], target) of at most MOST_ROWS rows with a known target; class -1: without training rows.

    Texts and images are left out, and so are rows beyond MOST_BYTES.
    """
    reader = RowReader(db, source, model)
    features, truth = [], []
    width = sum(math.prod(column.shape) for column in model.inputs if column.flat)
    most = min(MOST_ROWS, max(100, MOST_BYTES // (4 * max(1, width))))
    for chunk, targets in reports.rows_with_target(reader, model):
        with model.reading():
            parts = [
                column.encode_for_prediction(values).reshape(len(chunk), -1)
                for column, values in model.values(chunk)
                if column.flat
            ]
        features.append(np.concatenate([*parts, np.zeros((len(chunk), int(not parts)))], 1).astype("<f4"))
        truth += targets
        if len(truth) >= most:
            break
    x = np.concatenate(features) if features else np.zeros((0, 1), "<f4")
    if model.regression:
        return x, np.array(truth, "f8")
    codes = reports.class_numbers(model.labels(model.widths[0]), truth)
    return x, codes
