"""Column types: how a column is packed, trained on, predicted with and exported.

To add a type, write a subclass of :class:`~pg_mop.columns.base.Column` in a file of its own and put the class into
INDEPENDENT or DEPENDENT below, before the types that would accept the same columns. (Independent columns are arrays of
numbers: inference/raw_table.py checks that of a test table.) Sample weights have a type of their own, Weight.
"""

from __future__ import annotations

import json
from typing import Any

from pg_mop.backend.errors import MopError
from pg_mop.columns.base import Column, Request, SourceColumn
from pg_mop.columns.features_column import Features
from pg_mop.columns.identity import Identity
from pg_mop.columns.image import Image
from pg_mop.columns.one_hot import OneHot
from pg_mop.columns.scale import Scale
from pg_mop.columns.series import Series
from pg_mop.columns.soft_labels import SoftLabels
from pg_mop.columns.target_number import TargetNumber
from pg_mop.columns.transform import Transform
from pg_mop.columns.weight import Weight
from pg_mop.columns.words import Words

INDEPENDENT: list[type[Column]] = [Scale]
DEPENDENT: list[type[Column]] = [Identity, OneHot]
OF_TABLES: list[type[Column]] = [
    Image,
    Series,
    Features,
    Words,
    TargetNumber,
    SoftLabels,
    Weight,
]  # which mop_pack makes (columns/fitting.py)
# those that one column of an ordinary table becomes, without others
ALONE = [column_type for column_type in (*OF_TABLES, *INDEPENDENT) if column_type.kind_name]


def type_of(source: SourceColumn, request: Request, types: list[type[Column]]) -> type[Column]:
    """The first of `types` that accepts a column of the source. Raises MopError."""
    for column_type in types:
        if column_type.accepts(source.kind, request):
            return column_type
    raise MopError(f'column "{source.name}" has type {source.kind.shown}, which no column type accepts')


def from_json(data: dict[str, Any]) -> Column:
    """The column that `Column.to_json` describes. Raises MopError for an unknown type."""
    for column_type in (*INDEPENDENT, *DEPENDENT, *OF_TABLES):
        if column_type.type_name == data["type"]:
            return column_type(data["name"], data["parameters"])
    raise MopError(f'there is no column type "{data["type"]}"')


def transform_from_json(data: dict[str, Any]) -> Transform:
    """The transform that `Transform.to_json` describes. Raises MopError, or an error of Python, for anything else."""
    json.dumps(
        data, ensure_ascii=False
    ).encode()  # (half of a character, as JSON may have it, is no text of PostgreSQL)
    weight = data.get("weight")
    return Transform(
        [from_json(column) for column in data["inputs"]],
        [from_json(column) for column in data["outputs"]],
        None if weight is None else from_json(weight),
    )
