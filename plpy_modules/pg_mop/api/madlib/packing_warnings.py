"""Warnings about columns that can be packed, but probably not as their user wants: numbers as classes, uneven scales."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pg_mop.backend.database import Database, Table
from pg_mop.backend.quoting import quote_identifier
from pg_mop.backend.sql_types import NUMBERS
from pg_mop.columns import Column, Transform
from pg_mop.columns.numbers import Numbers
from pg_mop.columns.one_hot import OneHot

MANY_CLASSES, MANY_FRACTIONS, DISTINCT = 100, 10, 0.05  # more numbers, and a larger share of the rows, are no classes
RATIO = 1000  # between the largest absolute values of two elements
SAMPLED_ROWS, SAMPLED_NUMBERS = 10_000, 1_000_000  # at most
SHOWN = 5  # elements in a warning


def warn(db: Database, source: Table, transform: Transform) -> None:
    """Warn the caller about columns of a Transform. The rows of the table `source` have been packed with it."""
    for column in transform.outputs:
        if isinstance(column, OneHot) and column.kind is not None and column.kind.shown in NUMBERS:
            _warn_of_classes(db, source, column)
    for column in transform.inputs:
        if isinstance(column, Numbers) and len(column.shape) == 1:
            _warn_of_scales(db, source, column)


def _warn_of_classes(db: Database, source: Table, column: OneHot) -> None:
    count = len([label for label in column.classes if label is not None])
    fractions = any(re.search(r"\.\d*[1-9]|\de-", label) for label in column.classes if label is not None)
    if fractions:
        unlikely = count > MANY_FRACTIONS
    else:
        unlikely = count > MANY_CLASSES and count > DISTINCT * db.value(f"SELECT count(*) FROM {source}")
    if unlikely:
        assert column.kind is not None
        db.warning(
            f'column "{column.name}" of type {column.kind.shown} is packed as {count} classes',
            detail="Each distinct number is a class, without an order or a distance between classes.",
            hint="To keep the numbers, for regression: dependent_dtype => 'float32'.",
        )


def _warn_of_scales(db: Database, source: Table, column: Column) -> None:
    import numpy as np

    from pg_mop.columns import binary

    rows = min(SAMPLED_ROWS, max(1, SAMPLED_NUMBERS // max(1, column.shape[0])))
    name = quote_identifier(column.name)
    values = db.execute(f"SELECT {column.wire_sql(name)} AS row FROM {source} WHERE {name} IS NOT NULL LIMIT {rows}")
    numbers = binary.read([row["row"] for row in values], column.shape, column.wire, column.name)
    with np.errstate(invalid="ignore"):
        largest = np.abs(np.where(np.isfinite(numbers), numbers, 0).astype("f8")).max(axis=0, initial=0)
    elements = np.flatnonzero(largest)  # an element that is always 0 has no scale
    if not len(elements) or largest[elements].max() <= RATIO * largest[elements].min():
        return
    order = elements[np.argsort(largest[elements], kind="stable")]
    small = [i for i in order[:SHOWN] if largest[order[-1]] > RATIO * largest[i]]
    large = [i for i in order[::-1][:SHOWN] if largest[i] > RATIO * largest[order[0]]]
    db.warning(
        f'elements of column "{column.name}" differ in scale by more than {RATIO} times',
        detail=f"The largest absolute values in {len(values)} rows: {_listed(large, largest)}; "
        f"{_listed(small, largest)}.",
        hint="Standardise the elements before packing: subtract an element's mean, and divide by its standard deviation.",
    )


def _listed(elements: Iterable[int], largest: Sequence[float]) -> str:
    return ", ".join(f"{largest[i]:.4g} of element {i + 1}" for i in elements)
