"""mop_pack: any table, view or query with ordinary columns becomes a packed table (docs/tables.md)."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from mop_udf.aggregate import Session
from pg_mop.api.common.model_table import StoredModel
from pg_mop.api.common.session import trainer_of, trainer_options, with_trainer
from pg_mop.api.tables.named_models import with_shapes
from pg_mop.backend import settings
from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError, without_nul
from pg_mop.backend.quoting import quote_identifier, quote_literal, split_names
from pg_mop.backend.sql_types import NUMBERS, column_kind, plain_types
from pg_mop.columns import (
    Column,
    Identity,
    OneHot,
    Request,
    SoftLabels,
    SourceColumn,
    TargetNumber,
    Transform,
    Weight,
    fitting,
)
from pg_mop.columns.base import first_dimensions
from pg_mop.columns.features import choice
from pg_mop.columns.features.base import ON_NULL
from pg_mop.columns.features.conversion import as_trained, family
from pg_mop.columns.target_number import LOG, STANDARD
from pg_mop.inference.named_model import NamedModel, is_named
from pg_mop.packing import summary, table
from pg_mop.packing.groups import Groups
from pg_mop.packing.placement import ServerPlacement
from pg_mop.packing.row_source import columns_named, is_query, rows_of, rows_where, rows_with_values
from pg_mop.packing.rows import steady_scans
from pg_mop.packing.shards import Placement, placement_of
from pg_mop.packing.source_columns import SourceNames
from pg_mop.packing.training import Training

KINDS = ("classification", "regression")
FEW_VALUES = 10  # an integer target with so many values has classes
MAX_COUNTED = 40_000  # values of a target that are counted
FEW_ROWS = 20
SHOWN = 5  # classes in a message
VECTORS = ("vector", "halfvec")  # types of pgvector, which PostgreSQL casts to arrays


@with_trainer
def mop_pack(
    db: Database,
    session: Session,
    source: str | None,
    output: str | None,
    target: str | None,
    id: str | None,
    exclude: str | None,
    kind: str | None,
    transform: str | None,
    fitted_on: str | None,
    max_categories: int | None,
    on_null: str | None,
    buffer_size: int | None,
    weight: str | None,
    grouped_by: str | None,
) -> None:
    """Pack the rows of `source` with the transform fitted on them, or with that of `fitted_on`.

    `fitted_on`: a packed table, whose validation rows these are; or a named model, which is to be trained further on them.
    `grouped_by`: a column; rows with the same value are packed into one segment.
    """
    if buffer_size is not None and buffer_size <= 0:
        raise MopError(f"buffer_size must be positive or NULL, not {buffer_size}")
    options = Options.read(kind, transform, max_categories, on_null)
    fitted_table = None if fitted_on is None else db.find_table(fitted_on)
    model = None
    if fitted_table is not None and is_named(db, fitted_table):
        named = NamedModel.find(db, fitted_on)
        model = ModelTransform(named.transform, named.table)
    if weight is not None and fitted_on is not None and model is None:
        raise MopError(
            "weight must not be given with fitted_on",
            detail="The weights are in the column that the training rows have them in.",
            hint="Leave weight out.",
        )
    db.check_engine("mop_pack")
    config = settings.load(db)
    packed_table, summary_table = db.output_table(output, "_summary")
    json_columns = [key.partition("->")[0].strip() for key in options.transform if "->" in key]
    with steady_scans(db), without_nul(db, json_columns):
        training = model or (None if fitted_on is None else Training(db, fitted_on))
        if training is not None and target is None:
            target = ", ".join(quote_identifier(column.name) for column in training.transform.outputs)
        with rows_of(db, source, known=_single(target)) as source_rows:
            if training is not None:
                columns = like_training(db, source_rows, training, _targets(db, source_rows, target), weight)
                casts = _casts(db, source_rows, columns)
            else:
                columns, casts = fit(db, source_rows, target, id, exclude, options, weight), {}
            seed = config["seed"] if config["seed"] is not None else secrets.randbits(31)
            grouped = columns_named(db, source_rows, "grouped_by", split_names(grouped_by))
            if len(grouped) > 1:
                raise MopError(
                    "grouped_by must be one column", hint="Join them in a view: SELECT *, (a, b)::text AS both."
                )
            db.check_readable(source_rows, grouped)
            needed = [*(name for c in columns.columns for name in c.sources), *grouped]
            learnt = (
                nullcontext(source_rows) if training is None or model else rows_of_classes(db, source_rows, columns)
            )
            if training is None or model:
                count_classes(db, source_rows, columns)
            with learnt as source_rows, rows_with_values(db, source_rows, casts, needed) as rows:
                placement = placement_of(db, rows, config)
                groups = None
                if grouped:
                    if placement.distributed:
                        raise MopError("grouped_by is not supported for rows that Citus distributes", sqlstate="0A000")
                    groups = Groups.of(db, rows, grouped[0], len(placement.keys))
                into = Target(str(source), str(output), packed_table, summary_table, placement, buffer_size, groups)
                shuffled = seed if training is None or model else None
                write(db, session, rows, columns, into, shuffled, None if training is None else str(training.packed))


@contextmanager
def rows_of_classes(db: Database, rows: Table, columns: Transform) -> Iterator[Table]:
    """The rows whose targets are classes of the training rows; a WARNING tells of others. Of none, all rows."""
    strange: list[tuple[OneHot, list[str]]] = []
    for column in columns.outputs:
        if isinstance(column, OneHot) and (labels_and_counts := column.strangers(db, rows)):
            strange.append((column, [label for label, _ in labels_and_counts]))
            total = sum(number for _, number in labels_and_counts)
            names = ", ".join(label for label, _ in labels_and_counts[:SHOWN])
            db.warning(
                f'{total} row{"s are" if total > 1 else " is"} left out: training rows have no such class of "{column.name}"',
                detail=f"{'They have' if total > 1 else 'It has'} {names}{', ...' if len(labels_and_counts) > SHOWN else ''}.",
                hint="Rare classes need rows in the training part: mop_split(method => 'stratified'), or folds.",
            )
    condition = " AND ".join(f"NOT {column.is_one_sql(db, labels)}" for column, labels in strange)
    if not strange or db.one(f"SELECT 1 AS x FROM {rows} t WHERE {condition} LIMIT 1") is None:
        yield rows
        return
    with rows_where(db, rows, condition) as usable_rows:
        yield usable_rows


def count_classes(db: Database, rows: Table, columns: Transform) -> None:
    """Note in the columns of classes how many rows each class has."""
    for column in columns.outputs:
        if isinstance(column, OneHot):
            column.parameters["counts"] = column.counts(db, rows)


@dataclass
class Target:
    """Where rows are packed to. `source`, `output`: as the caller calls them; `packed`, `summary`: tables, quoted."""

    source: str
    output: str
    packed: str
    summary: str
    placement: Placement
    buffer_size: int | None = None
    groups: Groups | None = None


def write(
    db: Database, session: Any, rows: Table, columns: Transform, target: Target, seed: int | None, training: str | None
) -> None:
    """Write the packed table and its summary. `seed`, `training`: as of `packing.table.pack`. Raises MopError."""
    inputs = len(columns.inputs)
    names = SourceNames([c.name for c in columns.inputs], [c.name for c in columns.columns[inputs:]]).packed_names()
    summary.write(db, target.summary, target.source, target.output, columns, target.placement)
    with _trainer_for(db, session, columns):
        table.pack(
            db,
            rows,
            target.packed,
            target.summary,
            columns,
            names,
            target.buffer_size,
            target.placement,
            [column.shape[-1] for column in columns.outputs],
            seed,
            training,
            target.groups,
        )


def is_raw(db: Database, source: str | None) -> bool:
    """Whether the caller names rows that are not packed: a query, a view, or a table without buffers."""
    if db.has_segments or source is None or not source.strip():
        return False
    if is_query(source):
        return True
    table = db.find_table(source)
    return table is not None and "buffer_id" not in db.columns(table)


@contextmanager
def packed_for(db: Database, session: Any, model: StoredModel, source: str | None) -> Iterator[str]:
    """A temporary packed table of raw rows, with the transform of a trained model. Raises MopError."""
    name = f"pg_temp.mop_packed_{secrets.token_hex(6)}"
    model_transform = ModelTransform(with_shapes(model), model.summary_table)
    targets = ", ".join(quote_identifier(column.name) for column in model_transform.transform.outputs)
    with steady_scans(db), rows_of(db, source, "test table", known=_single(targets)) as source_rows:
        columns = like_training(db, source_rows, model_transform, _targets(db, source_rows, targets))
        needed = [column for c in columns.columns for column in c.sources]
        with rows_with_values(db, source_rows, _casts(db, source_rows, columns), needed) as rows:
            target = Target(str(source), name, name, f"{name}_summary", ServerPlacement(db, None, 1, 1))
            write(db, session, rows, columns, target, None, str(model.summary_table))
    yield name
    db.execute(f"DROP TABLE {name}, {name}_summary")


@contextmanager
def _trainer_for(db: Database, session: Any, columns: Transform) -> Iterator[None]:
    """The session's trainer for the columns that need one to encode."""
    needing = [column for column in columns.columns if column.needs_trainer]
    if not needing:
        yield
        return
    with trainer_of(session, trainer_options(db, False)) as trainer:
        for column in needing:
            column.decoded_by(trainer)
        yield


class Options:
    """The arguments of mop_pack that decide about features."""

    def __init__(self, kind: str | None, transform: dict[str, Any], max_categories: int | None, on_null: str) -> None:
        self.kind, self.transform, self.max_categories, self.on_null = kind, transform, max_categories, on_null

    @classmethod
    def read(cls, kind: Any, transform: Any, max_categories: Any, on_null: Any) -> Options:
        """Raises MopError."""
        kind = kind and kind.strip().lower()
        if kind is not None and kind not in KINDS:
            raise MopError(f"kind must be 'classification' or 'regression', not {kind!r}")
        on_null = (on_null or "indicator").strip().lower()
        if on_null not in ON_NULL:
            raise MopError(f"on_null must be one of {', '.join(ON_NULL)}, not {on_null!r}")
        if max_categories is not None and (max_categories < 1 or max_categories != int(max_categories)):
            raise MopError(f"max_categories must be an integer of at least 1, not {max_categories:g}")
        return cls(
            kind, choice.read_transform(transform), None if max_categories is None else int(max_categories), on_null
        )


def fit(
    db: Database,
    rows: Table,
    target: str | None,
    id: str | None,
    exclude: str | None,
    options: Options,
    weight: str | None = None,
) -> Transform:
    """Fit the transform of a table on its rows, and tell the caller which columns are left out. Raises MopError."""
    columns = plain_types(db, rows)
    targets = _targets(db, rows, target)
    ids = columns_named(db, rows, "id", split_names(id))
    excluded = columns_named(db, rows, "exclude", split_names(exclude))
    if weight == "balanced" and weight not in columns:
        raise MopError(
            "weight => 'balanced' is for mop_train",
            detail="Balanced weights are no column: training derives them from the classes.",
            hint="Train with fit_params of class_weight='balanced'.",
        )
    weights = columns_named(db, rows, "weight", split_names(weight))
    if len(weights) > 1 or set(weights) & set(targets):
        raise MopError("weight must be one column, and no target")
    scales = {name: options.transform[name] for name in targets if name in options.transform}
    outputs = [fit_target(db, rows, name, options.kind, scales.get(name)) for name in targets]
    weighted = fit_weight(db, rows, weights[0]) if weights else None
    of_features = {name: own for name, own in options.transform.items() if name not in scales}
    sources = choice.sources(columns, {*targets, *ids, *excluded, *weights}, of_features, options.on_null)
    db.check_readable(rows, [*targets, *weights, *(source.column for source in sources)])
    found = fitting.fit(
        db,
        rows,
        sources,
        options.max_categories,
        targets[0],
        isinstance(outputs[0], TargetNumber),
        [*targets, *weights, "__dist_key__", "buffer_id"],
    )
    for text, hint in found.warnings:
        db.warning(text, hint=hint)
    if found.left_out:
        db.notice(
            f"{len(found.left_out)} column{'s are' if len(found.left_out) > 1 else ' is'} left out",
            detail="; ".join(f"{name}: {reason}" for name, reason in found.left_out.items()) + ".",
            hint=_hint_to_pack(found.left_out),
        )
    if not found.inputs:
        raise MopError(
            "no column is left to predict from",
            detail="; ".join(f"{name}: {reason}" for name, reason in found.left_out.items()) or None,
            hint="A table needs a column besides target, id and excluded columns.",
        )
    return Transform(found.inputs, outputs, weighted)


def _hint_to_pack(left_out: dict[str, str]) -> str:
    """How a user packs one of the columns that are left out."""
    for name, reason in left_out.items():
        if "json" in reason:
            return (
                "To pack a field, name it: transform => " + quote_literal(json.dumps({f"{name}->key": "number"})) + "."
            )
        if reason.split(" has no features")[0].rpartition(".")[2] in VECTORS:
            return (
                f"Cast it: SELECT *, {quote_identifier(name)}::real[] AS {quote_identifier(name + '_array')} FROM ..."
            )
        if "type" not in reason:
            return "To pack one, name it: transform => " + quote_literal(json.dumps({name: "category"})) + "."
    return "Cast a column to a number or text in a view to pack it."


def fit_weight(db: Database, rows: Table, name: str) -> Weight:
    """The column of sample weights. Raises MopError for weights that are NULL, negative or all 0."""
    column = Weight.fit(SourceColumn(db, rows, name, column_kind(db, rows, name)), Request())
    quoted = quote_identifier(name)
    row = db.one(f"SELECT count(*) - count({quoted}) AS nulls, max({quoted}) AS most FROM {rows}")
    assert row is not None
    if row["nulls"]:
        raise MopError(
            f'column "{name}" of sample weights is NULL in {row["nulls"]} rows',
            hint=f"SELECT ..., coalesce({quoted}, 1) AS {quoted} FROM ...",
            sqlstate="22004",
        )
    if not row["most"]:
        raise MopError(f'column "{name}" of sample weights is 0 in all rows', hint="Leave weight out.")
    return column


def _scale_of_target(name: str, options: dict[str, Any] | None) -> str:
    """The scale of a target with numbers. Raises MopError."""
    if options is None:
        return STANDARD
    scale = options.get("scale")
    if len(options) > 1 or scale not in (STANDARD, LOG):
        raise MopError(
            f'transform of target "{name}" must be its scale: {STANDARD} or {LOG}',
            detail=f"{LOG}: ln(1 + number) is trained, and undone in answers.",
            hint="transform => " + quote_literal(json.dumps({name: LOG})),
        )
    return str(scale)


def fit_target(db: Database, rows: Table, name: str, kind: str | None, options: dict[str, Any] | None = None) -> Column:
    """The column type of a target: classes or numbers. `options`: of the argument transform. Raises MopError for a target that
    cannot be learnt."""
    sql_kind = column_kind(db, rows, name)
    source, quoted = SourceColumn(db, rows, name, sql_kind), quote_identifier(name)
    count = db.value(f"SELECT count({quoted}) FROM {rows}")
    if not count:
        raise MopError(f'target "{name}" is NULL in all rows', sqlstate="22004")
    if sql_kind.numeric_array:
        return _fit_vectors(db, source, kind)
    is_number = sql_kind.shown in NUMBERS
    comparable = f"{quoted}::text" if sql_kind.shown in ("json", "point", "xml") else quoted
    values = db.value(
        f"SELECT count(*) FROM (SELECT DISTINCT {comparable} FROM {rows} WHERE {quoted} IS NOT NULL LIMIT {MAX_COUNTED}) d"
    )
    if values == 1:
        raise MopError(
            f'target "{name}" has the same value in all {count} rows',
            hint="There is nothing to learn: choose another target.",
        )
    kind_of_target = kind
    if kind_of_target is None:
        whole = sql_kind.shown in ("smallint", "integer", "bigint")
        kind_of_target = "regression" if is_number and not (whole and values <= FEW_VALUES) else "classification"
        if is_number and values > 2:
            other = "classification" if kind_of_target == "regression" else "regression"
            db.notice(
                f'target "{name}" ({sql_kind.shown}, {values} values) is taken as '
                + ("numbers: regression" if kind_of_target == "regression" else "classes: classification"),
                hint=f"For {other}: kind => '{other}'.",
            )
    if kind_of_target == "regression":
        return TargetNumber.scaled(source, _scale_of_target(name, options))
    if options is not None:
        raise MopError(
            f'transform names target "{name}", which has classes',
            detail="It may give the scale of a target with numbers, which metric => 'rmsle' does.",
            hint="To take numbers as such: kind => 'regression'.",
        )
    if values == count >= FEW_ROWS:
        raise MopError(
            f'target "{name}" has another value in each of {count} rows',
            hint="It is an identifier, not a class. "
            + ("To predict numbers: kind => 'regression'." if is_number else "Choose another target."),
        )
    column = OneHot.fit(source, Request())
    if is_number and values > 100:
        db.warning(
            f'target "{name}" has {values} values, and each becomes a class',
            hint="To predict numbers: kind => 'regression'.",
        )
    return column


def _fit_vectors(db: Database, source: SourceColumn, kind: str | None) -> Column:
    """The column type of a target of arrays: soft labels of classes, or several numbers. Raises MopError."""
    if len(shape := first_dimensions(source)) > 1:
        raise MopError(
            f'target "{source.name}" has arrays of {len(shape)} dimensions: mop_pack takes vectors',
            hint=f"Targets of several steps: SELECT {db.extension}.training_preprocessor_dl(...) packs them from arrays.",
        )
    others = 0 if kind == "regression" else SoftLabels.others(source)
    if kind == "regression" or kind is None and others:
        column: Column = Identity.fit(source, Request(dependent_dtype="float32"))
        what = "numbers: regression"
    else:
        column = SoftLabels.of(source, others)
        what = "probabilities of classes: classification"
    if kind is None:
        db.notice(f'target "{source.name}" (vectors of {column.shape[0]}) is taken as {what}')
    return column


class ModelTransform:
    """The transform of a model, as `Training` has that of a packed table. `packed`: the table that has the transform."""

    def __init__(self, transform: Transform, table: Table) -> None:
        self.transform, self.packed = transform, table

    def output_like(self, source: SourceColumn, trained: Column) -> Column:
        """A target of other rows with the parameters of the model's target. Raises MopError."""
        if isinstance(trained, OneHot):
            return OneHot.of_classes(source, trained)
        request = Request(dependent_dtype="float32" if trained.is_numbers else "int16")
        return type(trained).fit_like(source, request, trained, self.packed)


def like_training(
    db: Database, rows: Table, training: Training | ModelTransform, targets: list[str], weight: str | None = None
) -> Transform:
    """The transform of training rows for other rows, which need the same columns. Raises MopError."""
    inputs = training.transform.inputs
    check_columns(db, rows, inputs)
    if len(targets) != len(training.transform.outputs):
        raise MopError(
            f"{len(targets)} targets are named, but training has {len(training.transform.outputs)}",
            detail="Those of training are " + ", ".join(c.name for c in training.transform.outputs) + ".",
        )
    outputs = []
    for name, trained_column in zip(targets, training.transform.outputs):
        source = SourceColumn(db, rows, name, column_kind(db, rows, name))
        outputs.append(training.output_like(source, trained_column))
    weighted = training.transform.weight
    names = split_names(weight)
    if weighted is not None and not names:
        names = [weighted.name]
    if names:
        (name,) = columns_named(db, rows, "weight", names[:1])
        weighted = fit_weight(db, rows, name)
    return Transform(inputs, outputs, weighted)


def _casts(db: Database, rows: Table, columns: Transform) -> dict[str, str]:
    """{column: SQL for its value as one of the type of training} of the columns that have other types now."""
    types = plain_types(db, rows)
    casts = {}
    for column in columns.inputs:
        for feature in getattr(column, "features", ()):
            if not feature.parameters.get("path"):
                name = quote_identifier(feature.column)
                value = as_trained(name, types[feature.column], feature.sql_type, feature.zone)
                if value != name:
                    casts[feature.column] = value
    return casts


def check_columns(db: Database, rows: Table, inputs: Any) -> None:
    """Raises MopError where rows lack columns of the inputs, or have them with types that do not suit."""
    types = plain_types(db, rows)
    for column in inputs:
        absent_columns = [name for name in column.sources if name not in types]
        if absent_columns:
            raise MopError(
                f'column "{absent_columns[0]}" of the training rows does not exist in {rows}',
                hint="Add it in a view: SELECT *, NULL::... AS " + quote_identifier(absent_columns[0]) + " FROM ...",
                sqlstate="42703",
            )
        trained_types = {
            feature.column: feature.sql_type
            for feature in getattr(column, "features", ())
            if not feature.parameters.get("path")
        }
        if column.sql_type and not column.parameters.get("path"):
            trained_types[column.sources[0]] = column.sql_type
        for name, sql_type in trained_types.items():
            if family(types[name]) != family(sql_type):
                raise MopError(
                    f'column "{name}" has type {types[name]}, but training had {sql_type}',
                    hint=f"Cast it in a view: {quote_identifier(name)}::{sql_type}.",
                    sqlstate="42804",
                )
        db.check_readable(rows, column.sources)


def _targets(db: Database, rows: Table, target: str | None) -> list[str]:
    names = split_names(target)
    if not names:
        raise MopError(
            "no target is named", hint="target => 'column', the column to predict; several with commas between."
        )
    columns = columns_named(db, rows, "target", names)
    for name in columns:
        if columns.count(name) > 1:
            raise MopError(f'target "{name}" is named twice')
    return columns


def _single(target: str | None) -> str | None:
    names = split_names(target)
    return names[0] if len(names) == 1 else None
