"""Simple models that are trained on the same rows as a net, for comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mop_udf.aggregate import Session
from pg_mop.api.common.session import trainer_of, trainer_options, with_trainer
from pg_mop.api.tables import reports
from pg_mop.api.tables.reports import Measured
from pg_mop.backend import settings
from pg_mop.backend.arrays import np
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.columns import Column
from pg_mop.columns.words import Words
from pg_mop.inference import scores
from pg_mop.inference.metrics import Metric
from pg_mop.inference.named_model import NamedModel, RowReader
from pg_mop.packing import packed_rows
from pg_mop.packing.packed_table import PackedTable

MOST_ROWS = 200_000  # that baselines are trained on, and that mop_baselines measures
MOST_BYTES = 512 << 20  # of their features
SECONDS = 600.0  # that the baselines of a call of mop_baselines may train
START = 1.5  # seconds in which scikit-learn is imported, on a processor of the year 2024
CELLS_PER_SECOND = 400_000  # elements of training rows, for each second: boosting trains all its rounds
LEAST_ROWS = 5_000  # whatever the time is


@dataclass
class Contender:
    """A model of the comparison, its measures on the test rows, and its outputs there."""

    name: str
    metrics: dict[str, float]
    outputs: np.ndarray | None = field(default=None, repr=False)


@dataclass
class Examples:
    """Training rows as a net takes them. `inputs`: of the columns that baselines take; `truth`: class numbers, or numbers;
    `of`: how many rows these are drawn from."""

    inputs: list[np.ndarray]
    truth: np.ndarray
    of: int


def is_taken(column: Column) -> bool:
    """Whether baselines take a column: images and series are left out."""
    return column.flat or isinstance(column, Words)


@with_trainer
def mop_baselines(
    db: Database, session: Session, model: str | None, train: str | None, test: str | None, version: int | None
) -> list[tuple[str, str, float]]:
    """Baselines trained on the rows of `train` and measured on those of `test`: [(contender, metric, value)]."""
    named = NamedModel.find(db, model, version)
    most = _most_rows(named)
    measured = reports.measure(db, session, named, test, is_taken, most)
    examples = of_rows(db, named, train, most, measured.known_labels)
    for what, rows, drawn_of in (
        ("trained", len(examples.truth), examples.of),
        ("measured", len(measured.truth), measured.drawn_of),
    ):
        if drawn_of is not None and drawn_of > rows:
            db.notice(f"models are {what} on {rows} of {drawn_of} rows, drawn at random")
    here = Contender("pg_mop", measured.measures())
    return [
        (contender.name, metric, value)
        for contender in [here, *contenders(db, session, named, examples, measured)]
        for metric, value in contender.metrics.items()
    ]


def contenders(
    db: Database,
    session: Any,
    model: NamedModel,
    train: Examples,
    measured: Measured,
    seconds: float | None = SECONDS,
    share: float | None = None,
) -> list[Contender]:
    """The baselines: the majority or the mean, and scikit-learn's models where the trainers have scikit-learn.

    `measured`: the test rows, with their inputs; `seconds`: that the baselines may train, on the cores that nobody uses at
    this moment; None: scikit-learn's are left out; `share`: of a quantile that is measured.
    """
    known = np.ones(len(train.truth), bool) if model.regression else train.truth >= 0
    y, truth = train.truth[known], measured.truth
    if not len(y):
        raise MopError("a baseline needs rows with a known target, to train on and to measure")

    def contender(name: str, outputs: np.ndarray) -> Contender:
        return Contender(name, _measures(measured, truth, outputs, share), outputs)

    if model.regression:
        models = [contender("mean", np.full((len(truth), 1), y.mean()))]
    else:  # (classes without training rows have 0: rows of theirs are errors of each contender, as of the model)
        shares = np.bincount(y, minlength=measured.outputs.shape[1]) / len(y)
        models = [contender("majority", np.tile(shares, (len(truth), 1)))]
    if seconds is None:
        return models
    columns = [column for column in model.inputs if is_taken(column)]
    x = _elements(columns, [array[known] for array in train.inputs])
    others = _elements(columns, measured.inputs)
    words = [
        array
        for column, own, of_others in zip(columns, train.inputs, measured.inputs)
        if not column.flat
        for array in (own[known], of_others)
    ]
    with trainer_of(session, trainer_options(db, False)) as trainer:
        trainer.send(
            {
                "op": "baselines",
                "regression": model.regression,
                "shapes": [list(x.shape), list(others.shape)],
                "words": [list(array.shape) for array in words],
                "seconds": seconds,
                "threads": settings.free_cores(),
            },
            *(
                np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                for array in (x, y.astype("<f8"), others, *(own.astype("<f4") for own in words))
            ),
        )
        header, payloads = trainer.receive()
    for name, places, payload in zip(header["names"], header["classes"], payloads):
        outputs = np.zeros(measured.outputs.shape)
        outputs[:, places or [0]] = np.frombuffer(payload, "<f8").reshape(len(truth), -1)
        models.append(contender(name, outputs))
    return models


def _elements(columns: Sequence[Column], inputs: Sequence[np.ndarray]) -> np.ndarray:
    """The elements of flat columns [rows, elements]."""
    parts = [array.reshape(len(array), -1) for column, array in zip(columns, inputs) if column.flat]
    rows = len(inputs[0]) if inputs else 0
    return np.concatenate([*parts, np.zeros((rows, 0))], 1).astype("<f4")


def most_rows_in(model: NamedModel, seconds: float) -> int:
    """How many rows baselines can be trained on in so many seconds."""
    trees = 1 if model.regression or model.widths[0] < 3 else model.widths[0]
    return min(_most_rows(model), max(LEAST_ROWS, int(seconds * CELLS_PER_SECOND / (_width(model) * trees))))


def _width(model: NamedModel) -> int:
    return max(1, sum(math.prod(column.shape) for column in model.inputs if is_taken(column)))


def _most_rows(model: NamedModel) -> int:
    return min(MOST_ROWS, max(100, MOST_BYTES // (4 * _width(model))))


def of_packed(db: Database, model: NamedModel, text: str, most: int) -> Examples:
    """At most so many rows of the packed table that a model was trained on: packing has shuffled them."""
    with db.undone():  # (a lock would hinder the owner of a step's table from dropping it)
        packed = PackedTable(db, text, "packed table of baselines")
        count = packed_rows.count(db, packed)
        arrays = packed_rows.read(db, packed, most, MOST_BYTES)
    truth = arrays[len(packed.inputs)].reshape(len(arrays[0]), -1)
    inputs = [array for column, array in zip(packed.shaped.inputs, arrays) if is_taken(column)]
    if not model.regression:
        return Examples(inputs, truth.argmax(1), count)
    _, numbers = model.output.decode(truth.astype("f8"))
    return Examples(inputs, numbers[:, 0], count)


def of_rows(db: Database, model: NamedModel, source: str | None, most: int, labels: list[str]) -> Examples:
    """At most so many rows of a source with a known target, drawn at random; class -1: a class that `labels` lack."""
    reader = RowReader(db, source, model)
    drawn_of = reader.draw(most)
    truth: list[Any] = []
    columns = [column for column in model.inputs if is_taken(column)]
    parts: list[list[np.ndarray]] = [[] for _ in columns]
    for chunk, targets in reports.rows_with_target(reader, model):
        with model.reading():
            values = [own for own in model.values(chunk) if is_taken(own[0])]
            for part, (column, wires) in zip(parts, values):
                part.append(column.encode_for_prediction(wires))
        truth += targets
    if not truth:
        raise MopError("a baseline needs rows with a known target, to train on and to measure")
    inputs = [np.concatenate(part) for part in parts]
    if model.regression:
        return Examples(inputs, np.array(truth, "f8"), drawn_of or len(truth))
    return Examples(inputs, reports.class_numbers(labels, truth), drawn_of or len(truth))


def _measures(
    measured: Measured, truth: np.ndarray, outputs: np.ndarray, share: float | None, only: str | None = None
) -> dict[str, float]:
    """The measures of a contender's outputs, whose most probable class is its decision; with `only`, of one of them."""
    if not measured.labels:
        return scores.regression(truth, outputs[:, 0], share)
    return scores.classification(truth, outputs, measured.unknown, None, only)


def better(measured: Measured, own: dict[str, float], others: Sequence[Contender], metric: Metric) -> str | None:
    """A sentence about the contender that is ahead of the model, whose measures are `own`, on the same rows, if one is."""
    known = {other.name: other.metrics[metric.name] for other in others if metric.name in other.metrics}
    if not known or not metric.is_better(known[name := metric.best(known)], own.get(metric.name, math.nan)):
        return None
    outputs = next(other.outputs for other in others if other.name == name)
    assert outputs is not None

    def of_other(rows: np.ndarray) -> float:
        own = _measures(measured, measured.truth[rows], outputs[rows], metric.share, metric.name)
        return own.get(metric.name, math.nan)

    low, high = scores.paired_interval(
        of_other, lambda rows: measured.value(metric.name, rows, metric.share), len(measured.truth), measured.repeats
    )
    if metric.is_loss:
        low, high = -high, -low
    if low > 0:
        return f"On these rows, {name} is better: in {metric.name} by {low:.3g} to {high:.3g} (95 %). Consider it."
    return f"On these rows, {name} is ahead by no more than chance (in {metric.name} by {low:.3g} to {high:.3g}, 95 %)."
