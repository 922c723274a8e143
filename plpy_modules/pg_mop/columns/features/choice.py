"""The choice of a feature for a column: by its type, by its values, or as the user says. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from pg_mop.backend.errors import MopError
from pg_mop.backend.sql_types import NUMBERS, STRINGS
from pg_mop.columns import ALONE
from pg_mop.columns.features.base import ON_NULL, Feature, Source, Statistics
from pg_mop.columns.features.category import MAX_ONE_HOT, MAX_VALUES, CodedCategory, OneHotCategory
from pg_mop.columns.features.conversion import family
from pg_mop.columns.features.moment import TYPES as MOMENTS
from pg_mop.columns.features.moment import Moment
from pg_mop.columns.features.number import MOST, SCALES, Boolean, Number, spread

# kinds of columns: those that a transform may name
WHOLE = {column_type.kind_name: column_type for column_type in ALONE}
KINDS = ("number", "category", "one_hot", "embedding", "text", "time", *WHOLE, "ignore")
OPTIONS = {
    "kind": KINDS,
    "scale": SCALES,
    "on_null": ON_NULL,
    "max_values": int,
    "min_rows": int,
    "length": int,
    "max_tokens": int,
    "zone": str,
    **{name: value_type for column_type in ALONE for name, value_type in column_type.options.items()},
}
OF_KIND: dict[str, type[Feature]] = {
    "number": Number,
    "boolean": Boolean,
    "time": Moment,
}  # those whose wires are numbers
TEXTS = STRINGS | {"citext"}
WORDS_OF_TEXT = 4  # a column whose values have so many words, and mostly differ, is text
DISTINCT_OF_TEXT = 0.5
MIDDLE = 0.01  # deviations that 90 % of the numbers span, or else outliers hide them
FEW_ROWS = 20  # with fewer rows, different values say nothing
ID_NAME = re.compile(r"(^|_)(id|uuid|guid|key|no|nr|number)$|[a-z]ID$|[a-z]Id$")


def read_transform(text: str | None) -> dict[str, dict[str, Any]]:
    """The argument `transform`: {column: {option: value}}. Raises MopError.

    >>> read_transform('{"price": "log", "city": {"kind": "embedding"}}')
    {'price': {'scale': 'log'}, 'city': {'kind': 'embedding'}}
    """
    if text is None or not text.strip():
        return {}
    example = """transform => '{"price": "log", "city": {"kind": "embedding"}}'"""
    try:
        given = json.loads(text, parse_constant=_no_number, object_pairs_hook=_without_doubles)
    except ValueError as error:
        raise MopError(f"transform is not JSON: {error}", hint=f"For instance: {example}") from None
    if not isinstance(given, dict):
        raise MopError("transform must be a JSON object with a key for each column", hint=f"For instance: {example}")
    return {column: _read_options(column, options) for column, options in given.items()}


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{json.dumps(double)} is named twice")
    return found


def _read_options(column: str, options: Any) -> dict[str, Any]:
    if isinstance(options, str):
        options = {"scale" if options in SCALES else "kind": options}
    if not isinstance(options, dict):
        raise MopError(f'transform of column "{column}" must be a word or an object, not {options!r}')
    for name, value in options.items():
        allowed = OPTIONS.get(name)
        if allowed is None:
            raise MopError(
                f'transform of column "{column}" has an unknown option "{name}"',
                hint=f"Options are {', '.join(OPTIONS)}.",
            )
        if isinstance(allowed, tuple) and value not in allowed:
            raise MopError(
                f'transform of column "{column}": {name} must be one of {", ".join(allowed)}, not {value!r}',
                hint=f"A word alone is a scale ({', '.join(SCALES)}) or a kind ({', '.join(KINDS)}).",
            )
        if allowed is str and not (isinstance(value, str) and value.strip()):
            raise MopError(f'transform of column "{column}": {name} must be a text, not {value!r}')
        if allowed in (int, float) and (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not 0 < value < math.inf
            or (allowed is int and value % 1)
        ):
            raise MopError(f'transform of column "{column}": {name} must be a positive number, not {value!r}')
        if name == "max_values" and value > MAX_VALUES:
            raise MopError(
                f'transform of column "{column}": max_values must be at most {MAX_VALUES}, not {value:g}',
                detail="Rarer values share a class of their own.",
                hint=f'transform => \'{{"{column}": {{"max_values": {MAX_VALUES}}}}}\'',
            )
    return dict(options)


def sources(
    columns: Mapping[str, str], left_out: Collection[str], transform: Mapping[str, dict[str, Any]], on_null: str
) -> list[Source]:
    """The sources of features, in the order of the table's columns. Raises MopError.

    `columns`: {name: type}; `left_out`: names that are no features; `transform`: as of `read_transform`, whose keys may be
    paths into JSON columns (`payload->a->b`).
    """
    found = [
        Source(name, name, sql_type, options={"on_null": on_null, **transform.get(name, {})})
        for name, sql_type in columns.items()
        if name not in left_out
    ]
    for key, options in transform.items():
        if key in columns:
            if key in left_out:
                raise MopError(
                    f'transform names column "{key}", which is no feature: it is a target, an id or excluded'
                )
            continue
        column, *path = (part.strip().strip("'") for part in key.split("->"))
        if column in columns and not all(path):
            raise MopError(
                f'transform names "{key}", a field with an empty key',
                hint="A field of a JSON column is written column->key->key.",
            )
        if not path or column not in columns:
            raise MopError(
                f'transform names column "{key}", which does not exist',
                hint="The columns are "
                + ", ".join(columns)
                + ". A field of a JSON column is written column->key->key.",
            )
        if columns[column] not in ("json", "jsonb"):
            raise MopError(f'transform names a field of column "{column}", which is {columns[column]}, not json')
        kind = options.get("kind") or ("number" if "scale" in options else None)
        if kind not in ("number", "category", "one_hot", "embedding", "text"):
            raise MopError(
                f'transform of "{key}" must name the kind of the field',
                hint=f"""For instance: transform => '{{"{key}": "number"}}', or category, one_hot, embedding, text.""",
            )
        if any(other.column == column and other.path == tuple(path) for other in found):
            raise MopError(f'transform names the field "{key}" twice')
        options = {"on_null": on_null, **options, "kind": kind}
        found.append(Source(key, column, "numeric" if kind == "number" else "text", tuple(path), options))
    return found


def kind_of(source: Source, numeric_array: bool, is_enum: bool) -> str | None:
    """The kind by the type: one of KINDS, "boolean", or None for a type that has no features. "category" may yet become
    text. Raises MopError where the user's kind does not suit the type."""
    sql_type, wanted = source.sql_type, source.options.get("kind")
    if "zone" in source.options and family(sql_type) != "moment":
        raise MopError(f'transform: column "{source.name}" has type {sql_type}, which takes no zone', sqlstate="42804")
    by_type = (
        "number"
        if sql_type in NUMBERS
        else "boolean"
        if sql_type == "boolean"
        else "time"
        if sql_type in MOMENTS
        else "array"
        if numeric_array
        else "category"
        if sql_type in TEXTS or is_enum or sql_type in ("uuid", "inet", "cidr", "macaddr")
        else None
    )
    suits = {
        "number": by_type in ("number", "boolean"),
        "time": by_type == "time",
        "text": sql_type in TEXTS,
        "category": by_type not in (None, "array"),
        "one_hot": by_type not in (None, "array"),
        "embedding": by_type not in (None, "array"),
        "ignore": True,
        **{name: column_type.takes in (sql_type, by_type) for name, column_type in WHOLE.items()},
    }
    if wanted is None:
        return by_type
    if not suits[wanted]:
        raise MopError(
            f'transform: column "{source.name}" has type {sql_type}, which cannot be packed as {wanted}',
            hint=f'Cast it in a view, or leave it out: transform => \'{{"{source.name}": "ignore"}}\'.',
            sqlstate="42804",
        )
    return "boolean" if wanted == "number" and by_type == "boolean" else wanted


def is_text(statistics: Statistics) -> bool:
    """Whether the values of a text column are free text, not categories."""
    sample = [value for value in statistics.sample if value is not None]
    if len(sample) < FEW_ROWS:
        return False
    words = sum(len(value.split()) for value in sample) / len(sample)
    return words >= WORDS_OF_TEXT and len(set(sample)) > DISTINCT_OF_TEXT * len(sample)


def why_left_out(kind: str, source: Source, statistics: Statistics) -> str | None:
    """Why a column that the user has not asked for is no feature, or None."""
    known = statistics.rows - statistics.nulls
    if not known:
        return "it is NULL in all rows"
    if kind == "number" and statistics.least is None:
        return f"it has no number up to {MOST:g}"
    width, ends = statistics.deviation, (statistics.least, statistics.most)
    if not (statistics.nulls or statistics.wild) and (
        statistics.distinct == 1
        if kind == "category"
        else statistics.least is not None and not spread(width, source.sql_type, *ends)
    ):
        return "it has one value in all rows"
    if kind == "category" and statistics.distinct == known >= FEW_ROWS:
        return "each row has another value: it looks like an identifier"
    return None


def looks_like_id(source: Source, statistics: Statistics) -> bool:
    """Whether a number may be an identifier: all values differ, and the column has such a name or numbers the rows."""
    if source.sql_type not in ("smallint", "integer", "bigint") or statistics.rows < FEW_ROWS:
        return False
    sample = list(statistics.sample)
    if len(set(sample)) < len(sample):
        return False
    least, most = statistics.least or 0.0, statistics.most or 0.0
    return most - least == statistics.rows - 1 or bool(ID_NAME.search(source.column))


def feature_of(kind: str, source: Source, statistics: Statistics, max_categories: int | None) -> Feature:
    """The fitted feature. `max_categories`: values of a one-hot column. Raises MopError."""
    if kind in ("category", "one_hot", "embedding"):
        most = MAX_ONE_HOT if max_categories is None else max_categories
        fitted = (OneHotCategory if kind == "one_hot" else CodedCategory).fit(source, statistics)
        if kind == "category" and len(fitted.parameters["values"]) <= most:  # type: ignore[union-attr]
            return OneHotCategory(fitted.name, fitted.parameters)
        return fitted
    return OF_KIND[kind].fit(source, statistics)


def has_outlier(statistics: Statistics) -> bool:
    """Whether few numbers are so far from the others that these become almost equal when they are scaled."""
    import numpy as np

    known = np.asarray(statistics.sample, "f8")
    known = known[np.abs(known) <= MOST]
    if len(known) < FEW_ROWS or not statistics.deviation:
        return False
    low, high = np.percentile(known, 5, method="higher"), np.percentile(known, 95, method="lower")
    return bool(0 < high - low < MIDDLE * statistics.deviation)


REPEATED = 0.9  # different values per row of a sample, at most, where values decide the target


def leaks(values: list[Any], targets: list[Any], regression: bool) -> bool:
    """Whether a feature gives the target away, by a sample of both: it is the target, or decides it."""
    pairs = [(v, t) for v, t in zip(values, targets) if v is not None and v == v and t is not None and t == t]
    if len(pairs) < FEW_ROWS:
        return False
    if regression:
        import numpy as np

        if not all(isinstance(v, (int, float)) for pair in pairs for v in pair):
            return False
        x, y = np.array([pair for pair in pairs if max(map(abs, pair)) <= MOST] or [(0, 0)], "f8").T
        if x.std() == 0 or y.std() == 0:
            return False
        return abs(float(np.corrcoef(x, y)[0, 1])) > 0.99999
    decided: dict[Any, Any] = {}
    for value, target in pairs:
        if decided.setdefault(value, target) != target:
            return False
    classes = len(set(decided.values()))  # (a value that occurs once proves nothing)
    return classes > 1 and len(decided) <= min(2 * classes, REPEATED * len(pairs))
