"""Fitting the features of a table: the statistics of its columns, read by few scans, and the columns to pack.

Scans: one computes the statistics of all numbers; one reads a sample of evenly spaced rows; one counts the values of all
categories; one reads the words of texts, where there are texts.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier, quote_literal, written
from pg_mop.backend.sql_types import column_kind
from pg_mop.columns import words
from pg_mop.columns.base import Column, SourceColumn
from pg_mop.columns.features import CodedCategory, Feature, Source, Statistics, choice
from pg_mop.columns.features.base import raw_sql
from pg_mop.columns.features.category import Category
from pg_mop.columns.features.number import MOST, Number
from pg_mop.columns.features_column import Features
from pg_mop.columns.words import Words

SAMPLE = 10_000  # rows of the sample
AT_ONCE = 150  # columns whose statistics one statement computes: PostgreSQL's select lists end at 1664 entries
MAX_COUNTED = 20_000  # values of a category that are read
NAN = "'NaN'"  # SQL
CHUNK = 5_000  # texts read at a time
FEATURES, CODES = "features", "codes"  # packed columns


@dataclass
class Fitted:
    """The columns to pack, and what the user should know: `left_out` {column: reason}, `warnings` [(text, hint)]."""

    inputs: list[Column] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    warnings: list[tuple[str, str | None]] = field(default_factory=list)


@dataclass
class _Candidate:
    """A column that may become a feature."""

    source: Source
    kind: str
    statistics: Statistics = field(default_factory=Statistics)

    @property
    def is_number(self) -> bool:
        return self.kind in choice.OF_KIND

    def wire_sql(self) -> str:
        """SQL: the value as a feature of this kind reads it."""
        return choice.OF_KIND.get(self.kind, Category).wire_of(self.source)

    def spread_sql(self) -> str:
        """SQL: the number whose mean and deviation count."""
        wire = self.wire_sql()
        return f"(sign({wire}) * ln(1 + abs({wire})))" if self.source.options.get("scale") == "log" else wire


def fit(
    db: Database,
    table: Table,
    sources: Sequence[Source],
    max_categories: int | None,
    target: str | None = None,
    regression: bool = False,
    reserved: Sequence[str] = (),
) -> Fitted:
    """Fit the features of `table`. `target`: its column, for warnings of leaks; `reserved`: names of other packed columns.

    Raises MopError.
    """
    fitted = Fitted()
    _check_zones(db, sources)
    candidates, alone = _candidates(db, table, sources, fitted)
    _read_numbers(db, table, candidates)
    targets = _read_sample(db, table, candidates, target, regression)
    for c in candidates:
        if c.kind == "category" and c.source.options.get("kind") is None and choice.is_text(c.statistics):
            c.kind = "text"
    _read_values(db, table, [c for c in candidates if c.kind in ("category", "one_hot", "embedding")])
    features: list[Feature] = []
    texts: list[_Candidate] = []
    for c in candidates:
        _check_magnitude(fitted, c)
        reason = None
        if c.source.options.get("kind") is None and "scale" not in c.source.options:
            reason = choice.why_left_out("category" if c.kind == "category" else c.kind, c.source, c.statistics)
        if reason:
            fitted.left_out[c.source.name] = reason
        elif c.kind == "text":
            texts.append(c)
        else:
            features.append(choice.feature_of(c.kind, c.source, c.statistics, max_categories))
            _warn(fitted, c, targets, regression)
    names = _Names(reserved)
    own = _read_words(db, table, texts, names)
    for source, column in alone:
        own.append(column.with_parameters(names.take(source.column), sql_type=source.sql_type))
    fitted.inputs = [*_feature_columns(features, names), *own]  # (the names of the features' columns are free ones)
    return fitted


def _check_zones(db: Database, sources: Sequence[Source]) -> None:
    """Raises MopError for a time zone that PostgreSQL does not know."""
    for source in sources:
        if "zone" in source.options:
            try:
                with db.undone():
                    db.value("SELECT now() AT TIME ZONE $1", ["text"], [source.zone])
            except db.plpy.SPIError as error:
                if error.sqlstate != "22023":
                    raise
                raise MopError(
                    f'transform of column "{source.name}": there is no time zone "{source.zone}"',
                    hint="SELECT name FROM pg_timezone_names;",
                    sqlstate="22023",
                ) from None


def _alone(source: SourceColumn, options: Mapping[str, Any]) -> Column | None:
    """The column of arrays of one shape, of series, or of images; None for other values."""
    types = [
        column_type
        for name, column_type in choice.WHOLE.items()
        if options.get("kind") in (None, name) and column_type.takes(source.kind.shown, source.kind.numeric_array)
    ]
    return next(filter(None, (column_type.of_table(source, options) for column_type in types)), None)


class _Names:
    """Names of packed columns. Each takes two: a column's, and that of its shapes."""

    def __init__(self, reserved: Sequence[str]) -> None:
        self.taken = {name for own in reserved for name in _both(own)}

    def take(self, name: str) -> str:
        if not self.taken.isdisjoint(_both(name)):
            raise MopError(
                f'the packed table would have two columns "{name}"', hint="Rename the source column in a view."
            )
        self.taken.update(_both(name))
        return name

    def free(self, name: str) -> str:
        while not self.taken.isdisjoint(_both(name)):
            name += "_"
        return self.take(name)


def _both(name: str) -> tuple[str, str]:
    return name, f"{name}_shape"


def _candidates(
    db: Database, table: Table, sources: Sequence[Source], fitted: Fitted
) -> tuple[list[_Candidate], list[tuple[Source, Column]]]:
    candidates, alone = [], []
    for source in sources:
        kind = column_kind(db, table, source.column)
        chosen = choice.kind_of(source, kind.numeric_array, kind.typtype == "e")
        if chosen is None or chosen in choice.WHOLE:
            if column := _alone(SourceColumn(db, table, source.column, kind), source.options):
                alone.append((source, column))
            elif not any(other.column == source.column and other.path for other in sources):
                hint = " (name its fields in transform)" if source.sql_type in ("json", "jsonb") else ""
                fitted.left_out[source.name] = f"type {source.sql_type} has no features{hint}"
        elif chosen != "ignore":
            candidates.append(_Candidate(source, chosen))
    return candidates, alone


def _read_numbers(db: Database, table: Table, candidates: Sequence[_Candidate]) -> None:
    """The number of rows and of NULLs of all columns, and the statistics of numbers."""
    for first in range(0, max(1, len(candidates)), AT_ONCE):
        group = candidates[first : first + AT_ONCE]
        wires, aggregates = [], ["count(*) AS n"]
        for i, c in enumerate(group):
            wires.append(f"{c.wire_sql()} AS w{i}")
            aggregates.append(f"count(w{i}) AS known{i}")
            if c.is_number:
                wires.append(f"{c.spread_sql()} AS s{i}")
                fits = f"FILTER (WHERE abs(w{i}) <= {MOST})"
                aggregates += [
                    f"min(w{i}) {fits} AS least{i}",
                    f"max(w{i}) {fits} AS most{i}",
                    f"count(*) FILTER (WHERE abs(w{i}) > {MOST}) AS wild{i}",
                    f"avg(s{i}) {fits} AS mean{i}",
                    f"stddev_pop(s{i}) {fits} AS deviation{i}",
                ]
        row = db.one(f"SELECT {', '.join(aggregates)} FROM (SELECT {', '.join(wires) or '1'} FROM {table}) t")
        assert row is not None
        for i, c in enumerate(group):
            c.statistics = Statistics(
                rows=row["n"],
                nulls=row["n"] - row[f"known{i}"],
                mean=row.get(f"mean{i}"),
                deviation=row.get(f"deviation{i}"),
                least=row.get(f"least{i}"),
                most=row.get(f"most{i}"),
                wild=row.get(f"wild{i}") or 0,
            )


def _check_magnitude(fitted: Fitted, c: _Candidate) -> None:
    """Warn of numbers that are cut, here as in answers, and of those that hide others. Raises MopError where a column that
    the user asks for has no other number."""
    s, name = c.statistics, c.source.name
    if c.kind != "number":
        return
    if s.wild and s.least is None and c.source.options.keys() & {"kind", "scale"}:
        raise MopError(
            f'column "{name}" has no number up to {MOST:g}',
            detail="Numbers are packed as float32, and their squares must be double precision.",
            hint=f"Leave it out: transform => {quote_literal(json.dumps({name: 'ignore'}))}.",
            sqlstate="22003",
        )
    if s.wild and s.least is not None:
        raw = raw_sql(c.source.column, c.source.path) + "::numeric" * bool(c.source.path)
        fitted.warnings.append(
            (
                f'column "{name}" has {s.wild} number{"s that are" if s.wild > 1 else " that is"} infinite or beyond '
                f"{MOST:g}: the scale cuts such numbers, here and in answers",
                f"To leave such rows out: SELECT * FROM ... WHERE abs({raw}) <= {MOST:g}.",
            )
        )
    scale = c.source.options.get("scale", "standard")
    if scale in ("standard", "minmax") and choice.has_outlier(s):
        assert s.least is not None and s.most is not None and s.mean is not None
        far = s.most if s.most - s.mean > s.mean - s.least else s.least
        robust = quote_literal(json.dumps({name: "robust"}))
        fitted.warnings.append(
            (
                f'column "{name}" has {far:g}, so far from other numbers that these become almost equal',
                f"Call with transform => {robust}, or leave such rows out.",
            )
        )


def _read_sample(
    db: Database, table: Table, candidates: Sequence[_Candidate], target: str | None, regression: bool
) -> list[Any]:
    """The sample of each column; returns that of the target."""
    from pg_mop.columns import binary

    rows = candidates[0].statistics.rows if candidates else 0
    step = max(1, math.ceil(rows / SAMPLE))
    numbers = [c for c in candidates if c.is_number]
    texts = [c for c in candidates if not c.is_number]
    sent = [
        f"array_send(ARRAY[{', '.join(f'coalesce({c.wire_sql()}, {NAN})' for c in numbers)}]::double precision[]) AS n",
        f"ARRAY[{', '.join(c.wire_sql() for c in texts)}]::text[] AS t",
        f"{quote_identifier(target) if target else 'NULL'}::{'double precision' if regression else 'text'} AS y",
    ]
    if not candidates:
        return []
    # (the columns that are read, no others: the caller may lack the right to read those)
    used = dict.fromkeys([c.source.column for c in candidates] + ([target] if target else []))
    read = ", ".join(map(quote_identifier, used))
    found = db.execute(
        f"SELECT {', '.join(sent if numbers else sent[1:])} FROM (SELECT {read}, row_number() OVER () AS __mop_n "
        f"FROM {table}) s WHERE __mop_n % {step} = 0"
    )
    if numbers:
        matrix = binary.read([row["n"] for row in found], [len(numbers)], "double precision", FEATURES)
        for i, c in enumerate(numbers):
            c.statistics = replace(c.statistics, sample=tuple(matrix[:, i].tolist()))
    for i, c in enumerate(texts):
        c.statistics = replace(c.statistics, sample=tuple(row["t"][i] for row in found))
    return [row["y"] for row in found]


def _read_values(db: Database, table: Table, candidates: Sequence[_Candidate]) -> None:
    """The most frequent values of categories, by one scan."""
    if not candidates:
        return
    entries = ", ".join(f"({i}, {c.wire_sql()})" for i, c in enumerate(candidates))
    rows = db.plpy.cursor(
        f"SELECT g, v, n, d FROM (SELECT g, v, n, count(*) OVER (PARTITION BY g) AS d, row_number() OVER "
        f'(PARTITION BY g ORDER BY n DESC, v COLLATE pg_catalog."C") AS r FROM (SELECT x.g, x.v, count(*) AS n '
        f"FROM {table} s, LATERAL (VALUES {entries}) AS x(g, v) WHERE x.v IS NOT NULL GROUP BY 1, 2) c) c "
        f"WHERE r <= {MAX_COUNTED} ORDER BY g, r"
    )
    values: list[list[tuple[str, int]]] = [[] for _ in candidates]
    distinct = [0] * len(candidates)
    while fetched := rows.fetch(CHUNK):
        db.check_cancel()
        for row in fetched:
            values[row["g"]].append((row["v"], row["n"]))
            distinct[row["g"]] = row["d"]
    rows.close()
    for i, c in enumerate(candidates):
        c.statistics = replace(c.statistics, values=tuple(values[i]), distinct=distinct[i])


def _read_words(db: Database, table: Table, candidates: Sequence[_Candidate], names: _Names) -> list[Column]:
    """The columns of texts, with the words of the training rows."""
    if not candidates:
        return []
    counts: list[tuple[Counter[str], Counter[int]]] = [(Counter(), Counter()) for _ in candidates]
    cursor = db.plpy.cursor(
        f"SELECT {', '.join(f'{c.wire_sql()} AS t{i}' for i, c in enumerate(candidates))} FROM {table}"
    )
    while rows := cursor.fetch(CHUNK):
        db.check_cancel()
        for i, (found, lengths) in enumerate(counts):
            words.count((row[f"t{i}"] for row in rows), found, lengths)
    cursor.close()
    columns: list[Column] = []
    for c, (found, lengths) in zip(candidates, counts):
        more = {"column": c.source.column, "sql_type": c.source.sql_type, "nulls": c.statistics.nulls}
        if c.source.path:
            more["path"] = list(c.source.path)
        columns.append(
            Words.of(names.take(c.source.name), found, lengths, c.source.options, **more, rows=c.statistics.rows)
        )
    return columns


def _feature_columns(features: Sequence[Feature], names: _Names) -> list[Column]:
    """The packed columns of the features: numbers (those of number columns come first), and codes for embeddings."""
    numbers = [feature for feature in features if not feature.is_code]
    numbers.sort(key=lambda feature: not isinstance(feature, Number))
    codes = [feature for feature in features if feature.is_code]
    offset = 0
    for feature in codes:
        assert isinstance(feature, CodedCategory)
        feature.parameters["offset"] = offset
        offset += len(feature.classes)
    columns: list[Column] = []
    if numbers:
        columns.append(Features.of(names.free(FEATURES), numbers))
    if codes:
        columns.append(Features.of(names.free(CODES), codes))
    return columns


def _warn(fitted: Fitted, c: _Candidate, targets: list[Any], regression: bool) -> None:
    exclude = f"exclude => {quote_literal(written(c.source.column))}"
    if choice.looks_like_id(c.source, c.statistics):
        fitted.warnings.append(
            (f'column "{c.source.name}" looks like an identifier: its values number the rows', f"Call with {exclude}.")
        )
    if targets and choice.leaks(list(c.statistics.sample), targets, regression):
        fitted.warnings.append(
            (
                f'column "{c.source.name}" gives the target away: in a sample, its value decides the target',
                f"Call with {exclude}, unless it is known when predictions are made.",
            )
        )
