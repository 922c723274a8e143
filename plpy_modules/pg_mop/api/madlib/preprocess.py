"""training_preprocessor_dl and validation_preprocessor_dl: source rows to packed, partitioned buffers.

See docs/contract/preprocess.md.
"""

from __future__ import annotations

import secrets
from typing import Any

from mop_udf.errors import raise_error
from pg_mop.api.madlib import packing_warnings
from pg_mop.backend import settings
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import sql_function
from pg_mop.columns import Request, one_hot, scale
from pg_mop.columns.identity import DTYPES
from pg_mop.packing import buffers, summary, table
from pg_mop.packing.rows import steady_scans
from pg_mop.packing.shards import placement_of
from pg_mop.packing.source_columns import SourceNames
from pg_mop.packing.training import Training


@sql_function
def training_preprocessor_dl(
    db: Database,
    source_table: str | None,
    output_table: str | None,
    dependent_varname: str | None,
    independent_varname: str | None,
    buffer_size: int | None,
    normalizing_const: float | None,
    num_classes: list[int | None] | None,
    distribution_rules: str | None,
    dependent_dtype: str | None = None,
) -> None:
    """Pack `source_table`, shuffled by the seed, and write its classes to the summary."""
    dtype = (dependent_dtype or "int16").strip().lower()
    if dtype not in DTYPES:
        raise MopError(f"dependent_dtype must be 'int16' or 'float32', not {dependent_dtype!r}")
    if dtype == "float32" and num_classes is not None:
        raise MopError("num_classes must be NULL where dependent_dtype is 'float32': numbers have no classes")
    config = settings.load(db)
    source = db.input_table(source_table)
    target, summary_table = db.output_table(output_table, "_summary")
    _check_request(db, buffer_size, distribution_rules)
    constant = scale.stored(normalizing_const)
    placement = placement_of(db, source, config, distribution_rules)
    with steady_scans(db):
        names = SourceNames.of(db, source, independent_varname, dependent_varname)
        widths = _check_num_classes(num_classes, len(names.outputs))
        transform = names.fit(db, source, [Request(constant, dtype, width) for width in widths])
        packed_names = names.packed_names()
        summary.write(db, summary_table, str(source_table), str(output_table), transform, placement)
        has_classes = num_classes is not None or any(column.classes for column in transform.outputs)
        seed = config["seed"] if config["seed"] is not None else secrets.randbits(31)
        table.pack(
            db,
            source,
            target,
            summary_table,
            transform,
            packed_names,
            buffer_size,
            placement,
            [column.shape[-1] for column in transform.outputs] if has_classes else [],
            seed,
        )
        packing_warnings.warn(db, source, transform)


@sql_function
def validation_preprocessor_dl(
    db: Database,
    source_table: str | None,
    output_table: str | None,
    dependent_varname: str | None,
    independent_varname: str | None,
    training_preprocessor_table: str | None,
    buffer_size: int | None,
    distribution_rules: str | None,
) -> None:
    """Pack `source_table` in scan order with the transform of a packed training table."""
    config = settings.load(db)
    source = db.input_table(source_table)
    target, summary_table = db.output_table(output_table, "_summary")
    _check_request(db, buffer_size, distribution_rules)
    training = Training(db, training_preprocessor_table)
    placement = placement_of(db, source, config, distribution_rules)
    with steady_scans(db):
        names = SourceNames.of(db, source, independent_varname, dependent_varname)
        transform = names.fit_like(db, source, training.request, training.transform, training.summary)
        packed_names = names.packed_names()
        summary.write(db, summary_table, str(source_table), str(output_table), transform, placement)
        table.pack(
            db,
            source,
            target,
            summary_table,
            transform,
            packed_names,
            buffer_size,
            placement,
            training.num_classes,
            None,
            str(training.packed),
        )


def _check_request(db: Database, buffer_size: int | None, distribution_rules: str | None) -> None:
    if buffer_size is not None and buffer_size <= 0:
        raise MopError(f"buffer size must be positive or NULL, not {buffer_size}")
    if not db.has_segments and (distribution_rules or "").strip().lower() not in ("", "all_segments"):
        db.notice(
            f'distribution_rules "{distribution_rules}" is ignored',
            detail="Plain PostgreSQL has no segments of its own to choose from: pg_mop makes one partition per "
            "segment.",
            hint="Choose their number: SET pg_mop.segments = 4;",
        )


def _check_num_classes(num_classes: list[int | None] | None, outputs: int) -> list[int | None]:
    """The requested width of each of the `outputs` dependent columns, None where the data decide. Raises MopError."""
    if num_classes is None:
        return [None] * outputs
    if len(num_classes) != outputs:
        raise MopError(
            f"num_classes has {len(num_classes)} elements, but dependent_varname names {outputs} columns",
            hint="Give one number per dependent column, NULL to count its classes.",
        )
    for value in num_classes:
        if isinstance(value, list) or (value is not None and not 1 <= value <= one_hot.MAX_WIDTH):
            raise MopError(f"invalid num_classes: {value} is no number of classes from 1 to {one_hot.MAX_WIDTH}")
    return num_classes


def convert_array_to_bytea(plpy: Any, values: list[Any], element: str) -> bytes | None:
    try:
        return buffers.to_bytes(values, element)
    except MopError as error:
        problem = error
    raise_error(plpy, f"convert_array_to_bytea: {problem.message}", problem.sqlstate, hint=problem.hint)
    return None


def convert_bytea_to_array(plpy: Any, packed: bytes, element: str) -> list[float] | None:
    try:
        return buffers.from_bytes(packed, element)
    except MopError as error:
        problem = error
    raise_error(plpy, f"convert_bytea_to_{element}_array: {problem.message}", problem.sqlstate)
    return None
