"""Reports about a named model on rows with known targets: measures, tables and curves (docs/tables.md)."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mop_udf.aggregate import Session
from pg_mop.api.common.session import computer_of, with_trainer
from pg_mop.backend.arrays import np
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import sql_function
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.backend.sql_types import NUMBERS
from pg_mop.columns import Column
from pg_mop.columns.features import Feature
from pg_mop.columns.features.category import Category
from pg_mop.columns.features.conversion import number_sql
from pg_mop.inference import importance as permutation
from pg_mop.inference import scores
from pg_mop.inference.importance import main_score
from pg_mop.inference.named_model import NamedModel, RowReader
from pg_mop.inference.row_inputs import PackedInputs, RowInputs

MOST_ROWS = 10_000  # rows that mop_importance permutes
MOST_BYTES = 128 << 20  # of their inputs
MOST_UNKNOWN = 100  # classes without training rows that are told apart
REPEATS, FEW_REPEATS, MANY = 200, 40, 10  # of an interval's bootstrap; classes, beyond which they are few


class Measured:
    """The truth and the outputs of a model for rows with a known target.

    `truth`: class numbers, or numbers; `outputs`: [rows, units] in the target's terms; `labels`: of the units. A class that
    the model does not know (the last `unknown` ones) has a unit of its own with probability 0: its rows are errors. `output`:
    the target's column of the model, which decides. `inputs`: the rows as the model takes them, where the caller keeps them;
    `drawn_of`: of how many rows these are drawn, or None.
    """

    def __init__(
        self, truth: np.ndarray, outputs: np.ndarray, labels: list[str], output: Column, unknown: int = 0
    ) -> None:
        self.truth, self.outputs, self.labels, self.unknown = truth, outputs, labels, unknown
        self.output = output
        self.inputs: list[np.ndarray] = []
        self.drawn_of: int | None = None

    @property
    def absent(self) -> list[str]:
        """The classes that training rows have, and these rows do not."""
        known = self.known_labels
        counts = np.bincount(self.truth, minlength=len(known)) if known else ()
        return [label for label, count in zip(known, counts) if not count]

    @property
    def known_labels(self) -> list[str]:
        """The labels of the classes that the model knows."""
        return self.labels[: len(self.labels) - self.unknown]

    def confusion(self) -> np.ndarray:
        """The number of rows [true class, predicted class]."""
        return scores.confusion(self.truth, self.output.predicted(self.outputs), len(self.labels))

    def measures(self, share: float | None = None) -> dict[str, float]:
        """The measures, by name; `share`: of a quantile, whose loss is one of them."""
        return self._of(self.truth, self.outputs, share)

    def interval(self, name: str, share: float | None = None) -> tuple[float, float] | None:
        """The 95 % interval of a measure; None where it has none, as where all rows agree."""
        if name == "accuracy":
            return scores.interval(self.measures()[name], len(self.truth))
        found = scores.intervals(
            lambda truth, outputs: {name: self._of(truth, outputs, share, name).get(name, math.nan)},
            self.truth,
            self.outputs,
            self.repeats,
        )
        return found.get(name)

    def value(self, name: str, rows: np.ndarray, share: float | None = None) -> float:
        """A measure of some rows, by their numbers; NaN where it is not defined."""
        return self._of(self.truth[rows], self.outputs[rows], share, name).get(name, math.nan)

    @property
    def repeats(self) -> int:
        """How often an interval's bootstrap draws rows."""
        return FEW_REPEATS if len(self.labels) > MANY else REPEATS

    def _of(
        self, truth: np.ndarray, outputs: np.ndarray, share: float | None, only: str | None = None
    ) -> dict[str, float]:
        """The measures; with `only`, of one of them."""
        if not self.labels:
            return scores.regression(truth, outputs[:, 0], share)
        predicted = self.output.predicted(outputs) if only is None or only in scores.OF_PREDICTIONS else None
        return scores.classification(truth, outputs, self.unknown, predicted, only)


def measure(
    db: Database,
    session: Any,
    model: NamedModel,
    source: str | None,
    keeps: Callable[[Column], bool] | None = None,
    most: int | None = None,
) -> Measured:
    """Predict for the rows of a source with a known target. Raises MopError.

    `keeps`: the columns whose inputs are kept; `most`: of more rows, so many are drawn.
    """
    reader = RowReader(db, source, model)
    drawn_of = None if most is None else reader.draw(most)
    truth: list[Any] = []
    outputs = []
    kept: list[list[np.ndarray]] = [[] for column in model.inputs if keeps is not None and keeps(column)]
    with computer_of(db, session, model) as computer:
        for chunk, targets in rows_with_target(reader, model):
            arrays = model.encode(computer, chunk)
            outputs.append(model.outputs_of(computer, arrays))
            truth += targets
            if keeps is not None:
                for own, array in zip(kept, (a for a, column in zip(arrays, model.inputs) if keeps(column))):
                    own.append(array)
    if not truth:
        raise MopError(
            f'no row has a value of target "{model.target}"', hint="A report needs rows whose target is known."
        )
    reader.tell_missing()
    measured = _measured(db, model, truth, np.concatenate(outputs))
    measured.inputs, measured.drawn_of = [np.concatenate(parts) for parts in kept], drawn_of
    return measured


def _measured(db: Database, model: NamedModel, truth: list[Any], together: np.ndarray) -> Measured:
    """The outputs [rows, units] for rows with the targets `truth`, with a unit for each class that the model does not know."""
    if model.regression:
        return Measured(np.array(truth, "f8"), together, [], model.output)
    labels = model.labels(together.shape[1])
    labels_of_training = set(labels)
    unknown = Counter(value for value in truth if value not in labels_of_training)
    if unknown:
        db.warning(
            f"{unknown.total()} rows have a class that training rows did not have: they count as errors",
            detail=f"For instance {', '.join(sorted(unknown)[:5])}.",
        )
    all_labels = [*labels, *(name for name, _ in unknown.most_common(MOST_UNKNOWN))]
    if len(unknown) > MOST_UNKNOWN:
        all_labels.append("(other classes)")
    together = np.pad(together, ((0, 0), (0, len(all_labels) - len(labels))))
    codes = class_numbers(all_labels, truth)
    truth_codes = np.where(codes < 0, len(all_labels) - 1, codes)
    return Measured(truth_codes, together, all_labels, model.output, len(all_labels) - len(labels))


def rows_with_target(reader: RowReader, model: NamedModel) -> Iterator[tuple[list[Any], list[Any]]]:
    """(rows, their targets) of each chunk, without the rows whose target is NULL or no finite number. Raises MopError."""
    for rows in reader.chunks([_target_sql(reader, model)]):
        if usable_rows := [row for row in rows if _is_known(row["e0"])]:
            yield usable_rows, [row["e0"] for row in usable_rows]


def _is_known(target: Any) -> bool:
    return target is not None and (not isinstance(target, float) or math.isfinite(target))


def class_numbers(labels: list[str], truth: list[str]) -> np.ndarray:
    """The number of each class; -1 for a class that is not among the labels."""
    numbers = {label: k for k, label in enumerate(labels)}
    return np.array([numbers.get(value, -1) for value in truth])


def _target_sql(reader: RowReader, model: NamedModel) -> str:
    """SQL: the target of a row. Raises MopError where the rows do not have it."""
    if model.target not in reader.columns:
        raise MopError(
            f'the rows have no column "{model.target}", the target', hint="A report needs rows whose target is known."
        )
    if reader.columns[model.target].endswith("[]"):
        raise MopError(
            f'target "{model.target}" has arrays, and a report needs one class or one number in each row',
            hint=f"Evaluate the model table on a packed table: SELECT {reader.db.extension}.madlib_keras_evaluate(...);",
            sqlstate="42804",
        )
    name, actual = quote_identifier(model.target), reader.columns[model.target]
    if model.regression:
        return number_sql(name, actual) if actual in NUMBERS else f"{name}::double precision"
    return model.output.class_sql(name, actual)


@with_trainer
def mop_evaluate(
    db: Database, session: Session, model: str | None, source: str | None, version: int | None
) -> list[tuple[str, float | None]]:
    """Measures of the model on rows with known targets: [(name, value)]."""
    named = NamedModel.find(db, model, version)
    measurement = measure(db, session, named, source)
    values = {"rows": float(len(measurement.truth)), **measurement.measures()}
    return [(name, None if math.isnan(value) else value) for name, value in values.items()]


def _classes(db: Database, session: Any, model: Any, source: Any, version: Any) -> Measured:
    named = NamedModel.find(db, model, version)
    if named.regression:
        raise MopError(
            f'model "{model}" predicts numbers: it has no classes',
            hint=f"SELECT * FROM {db.extension}.mop_regression_report({quote_literal(model)}, ...);",
        )
    return measure(db, session, named, source)


@with_trainer
def mop_confusion_matrix(
    db: Database, session: Session, model: str | None, source: str | None, version: int | None
) -> list[tuple[Any, ...]]:
    """[(true class, predicted class, rows)]."""
    m = _classes(db, session, model, source, version)
    table = m.confusion()
    return [(m.labels[i], m.labels[j], int(table[i, j])) for i in range(len(table)) for j in range(len(table))]


@with_trainer
def mop_class_report(
    db: Database, session: Session, model: str | None, source: str | None, version: int | None
) -> list[tuple[Any, ...]]:
    """[(class, precision, recall, f1, support)]."""
    m = _classes(db, session, model, source, version)
    report = scores.class_report(m.confusion())
    return [
        (label, row["precision"], row["recall"], row["f1"], int(row["support"])) for label, row in zip(m.labels, report)
    ]


def _positive(m: Measured, label: str | None) -> tuple[np.ndarray, np.ndarray]:
    """(whether each row is of the class, its probability); by default of the second class. Raises MopError."""
    label_of_interest = m.labels[min(1, len(m.labels) - 1)] if label is None else label
    if label_of_interest not in m.labels:
        raise MopError(f'there is no class "{label_of_interest}"', hint="The classes are " + ", ".join(m.labels) + ".")
    k = m.labels.index(label_of_interest)
    return m.truth == k, m.outputs[:, k]


@with_trainer
def mop_regression_report(
    db: Database, session: Session, model: str | None, source: str | None, version: int | None
) -> list[tuple[Any, ...]]:
    """The errors of the model in ten bands of the target: [(lowest, highest, rows, means, errors)]."""
    named = NamedModel.find(db, model, version)
    if not named.regression:
        raise MopError(
            f'model "{model}" predicts classes, not numbers',
            hint=f"SELECT * FROM {db.extension}.mop_class_report({quote_literal(model)}, ...);",
        )
    measurement = measure(db, session, named, source)
    return [tuple(band.values()) for band in scores.regression_report(measurement.truth, measurement.outputs[:, 0])]


@with_trainer
def mop_roc_curve(
    db: Database, session: Session, model: str | None, source: str | None, label: str | None, version: int | None
) -> list[tuple[float, float, float]]:
    """[(threshold, false positive rate, true positive rate)]; the area below them is the AUC."""
    m = _classes(db, session, model, source, version)
    return scores.roc_curve(*_positive(m, label))


@with_trainer
def mop_calibration(
    db: Database, session: Session, model: str | None, source: str | None, label: str | None, version: int | None
) -> list[tuple[float, float, int]]:
    """[(mean probability, share of the class, rows)] in ten bins."""
    m = _classes(db, session, model, source, version)
    return scores.calibration(*_positive(m, label))


@with_trainer
def mop_importance(
    db: Database, session: Session, model: str | None, source: str | None, version: int | None, seed: int | None
) -> list[tuple[str, float, float]]:
    """What the model's main measure loses where one column is permuted: [(column, loss, deviation)], largest first."""
    return importance(db, session, NamedModel.find(db, model, version), source, seed)


def importance(
    db: Database, session: Any, found: NamedModel, source: str | None, seed: int | None = 0
) -> list[tuple[str, float, float]]:
    """What the main measure of a model loses where one column is permuted: [(column, loss, deviation)], largest first."""
    reader = RowReader(db, source, found)
    truth: list[Any] = []
    chunks = []
    row_bytes = 4 * sum(math.prod(column.shape) for column in found.inputs)
    most = min(MOST_ROWS, max(100, MOST_BYTES // row_bytes))
    with computer_of(db, session, found) as computer:
        for chunk, targets in rows_with_target(reader, found):
            rows_left = most - len(truth)
            chunks.append(found.encode(computer, chunk[:rows_left]))
            truth += targets[:rows_left]
            if len(truth) >= most:
                break
        if not truth:
            raise MopError(f'no row has a value of target "{found.target}"')
        arrays = [np.concatenate(parts) for parts in zip(*chunks)]

        def score(outputs: np.ndarray) -> float:
            if found.regression:
                return main_score(np.array(truth, "f8"), outputs, True)
            codes = class_numbers(found.labels(outputs.shape[1]), truth)
            return main_score(codes, outputs, False, found.output.predicted(outputs))

        return permutation.importance(
            found.inputs,
            arrays,
            lambda inputs: found.outputs_of(computer, inputs),
            score,
            np.random.default_rng(abs(seed or 0)),
        )


@sql_function
def mop_feature_info(db: Database, model: str | None, version: int | None) -> list[tuple[Any, ...]]:
    """What became of each column: of a named model, or of a packed table."""
    packed_inputs = PackedInputs.find(db, model)
    found: RowInputs = NamedModel.find(db, model, version) if packed_inputs is None else packed_inputs
    with found.reading():
        return _columns(found.inputs if packed_inputs is None else packed_inputs.all_inputs)


def _columns(inputs: Sequence[Column]) -> list[Any]:
    rows: list[Any] = []
    for column in inputs:
        if column.features:
            rows += [_described(feature) for feature in column.features]
        else:
            p = column.parameters
            share = p["nulls"] / p["rows"] if p.get("nulls") is not None and p.get("rows") else None
            rows.append((column.name, column.sql_type, column.described(), None, share, None, None, None, None, None))
    return rows


def _described(feature: Feature) -> tuple[Any, ...]:
    p = feature.parameters
    values = None
    if isinstance(feature, Category):
        values = json.dumps(dict(zip(p["values"][:20], p["counts"][:20])))
    known = [p.get(name) for name in ("mean", "deviation", "least", "most")]
    numbers = [None if value is None else float(value) for value in known]
    return (
        feature.name,
        feature.sql_type,
        feature.described(),
        len(feature.elements),
        p["nulls"] / p["rows"] if p["rows"] else None,
        *numbers,
        values,
    )


@sql_function
def mop_drift(
    db: Database, model: str | None, source: str | None, version: int | None
) -> list[tuple[str, float, float, float, str]]:
    """How far the rows' columns are from those of training: [(column, stability index, NULL shares, verdict)]. `model`: a named
    model, or a packed table."""
    packed_inputs = PackedInputs.find(db, model)
    if packed_inputs is None:
        return drift(db, NamedModel.find(db, model, version), source)
    if not packed_inputs.inputs:
        raise MopError(
            f'"{model}" has no columns that rows can be compared with',
            detail="A table of mop_pack keeps how the values of numbers, categories and dates are distributed.",
            hint=f"SELECT * FROM {db.extension}.mop_feature_info({quote_literal(model)}); shows its columns.",
            sqlstate="55000",
        )
    return drift(db, packed_inputs, source)


def drift(db: Database, found: RowInputs, source: str | None) -> list[tuple[str, float, float, float, str]]:
    """How far columns are from those of training: [(column, stability index, NULL share then, now, verdict)].

    Raises MopError."""
    with found.reading():
        return _drift(db, found, source)


def _drift(db: Database, found: RowInputs, source: str | None) -> list[tuple[str, float, float, float, str]]:
    reader = RowReader(db, source, found, answers=False)
    counts: dict[str, np.ndarray] = {}
    nulls: dict[str, int] = {}
    count = 0
    features = {f.name: f for column in found.inputs for f in column.features}
    output = found.output
    actual = None if output is None else reader.columns.get(output.name)
    target = None if output is None or actual is None else output.target_sql(quote_identifier(output.name), actual)
    targets: list[Any] = []
    for rows in reader.chunks([] if target is None else [target]):
        count += len(rows)
        targets += [row["e0"] for row in rows if row["e0"] is not None] if target is not None else []
        for column, values in found.values(rows):
            for name, wires in column.wires(values).items():
                counts[name] = counts.get(name, 0) + features[name].counts(wires)
                nulls[name] = nulls.get(name, 0) + features[name].nulls(wires)
    if not count:
        raise MopError("there are no rows")
    reader.tell_missing()
    result = []
    for name, feature in features.items():
        p, now = feature.parameters, counts[name]
        index = scores.stability(feature.trained_shares(), (now / max(1, now.sum())).tolist())
        result.append((name, index, p["nulls"] / max(1, p["rows"]), nulls[name] / count, _verdict(index)))
    if targets and output is not None:
        index = scores.stability(*output.shares(targets))
        result.append((output.name, index, 0.0, 1 - len(targets) / count, _verdict(index)))
    return sorted(result, key=lambda row: -row[1])


def _verdict(index: float) -> str:
    return "stable" if index < 0.1 else "changed" if index < 0.25 else "drifted"
