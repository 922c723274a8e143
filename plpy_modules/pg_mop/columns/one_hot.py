"""Classes as one-hot vectors: dependent columns, with MADlib's class values."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.backend.sql_types import NUMBERS, STRINGS, Kind, column_kind, equality, kind_of
from pg_mop.columns.base import Column, Request, SourceColumn, WantedOutput
from pg_mop.columns.decision import Decision
from pg_mop.columns.features.conversion import TIMES, UTC, WHOLE, as_trained, family

if TYPE_CHECKING:
    import numpy

MAX_WIDTH = 32_767  # classes of one column
SHOWN = 5  # unknown classes in an error


def class_column(name: str) -> str:
    """The summary column with the class values of the dependent column `name`."""
    return name + "_class_values"


@dataclass
class OneHot(Column):
    """Parameters: `classes`, the class values as text, None for NULL; of a version, `decision` (columns/decision.py).

    A NULL label is a class: the first one. NULLs at the end fill the vectors up to the requested width. Packing compares
    labels with class values in SQL, by their own type: the summary has them as an array of that type.
    """

    type_name = "one_hot"
    in_madlib = True

    class_kind: Kind | None = field(default=None, repr=False, compare=False)  # the SQL type of the class values
    classes_sql: str | None = field(default=None, repr=False, compare=False)  # for the summary's array of class values

    @classmethod
    def fit(cls, source: SourceColumn, request: Request) -> OneHot:
        db, kind, width = source.db, source.kind, request.width
        _check_kind(source)
        found = db.one(
            f"SELECT cardinality(c.a) AS width, CASE WHEN cardinality(c.a) <= {MAX_WIDTH} THEN c.a::text END AS written, "
            f"CASE WHEN cardinality(c.a) <= {MAX_WIDTH} THEN c.a::text[] END AS classes "
            f"FROM (SELECT {_distinct(source, width)} AS a OFFSET 0) c"  # OFFSET 0: PostgreSQL computes the array once
        )
        assert found is not None  # an aggregate gives one row
        if width is not None and found["width"] > width:
            raise MopError(
                f'num_classes value too small: {width} for column "{source.name}", which has {found["width"]} classes',
                hint=f"Give {found['width']} or more, or NULL.",
            )
        if found["width"] > MAX_WIDTH:
            raise MopError(
                f'column "{source.name}" has {found["width"]} classes, more than {MAX_WIDTH}',
                detail="Labels are encoded one-hot: every distinct value is a class.",
                hint="An identifier is no target. Name a coarser column, or one that a query makes: "
                f"SELECT *, left({quote_identifier(source.name)}::text, 3) AS class FROM ...",
            )
        parameters = {"classes": found["classes"], "sql_type": kind.shown}
        return cls(source.name, parameters, kind, kind, f"{quote_literal(found['written'])}::{kind.sql}[]")

    @classmethod
    def fit_like(cls, source: SourceColumn, request: Request, trained: Column, summary: Table) -> OneHot:
        _check_kind(source)
        if trained.classes is None:
            raise no_such_vectors(source, source.kind.shown, trained)
        trained_kind = kind_of_classes(source.db, summary, trained)
        if not source.kind.like(trained_kind):
            raise no_such_classes(source, trained, trained_kind)
        column = quote_identifier(class_column(trained.name))
        counts = {name: trained.parameters[name] for name in ("counts",) if name in trained.parameters}
        return cls(
            source.name,
            {"classes": trained.classes, "sql_type": source.kind.shown, **counts},
            source.kind,
            trained_kind,
            f"(SELECT t.{column} FROM {summary} t WHERE t.{column} IS NOT NULL LIMIT 1)",
        )

    @classmethod
    def of_classes(cls, source: SourceColumn, trained: OneHot) -> OneHot:
        """The column for new rows with the classes of a named model, which has no summary. Raises MopError."""
        _check_kind(source)
        own = {source.kind.shown, trained.sql_type}
        if len(own) > 1 and not (own <= NUMBERS or own <= STRINGS):
            raise MopError(
                f'target "{source.name}" has type {source.kind.shown}, but the model was trained on {trained.sql_type}',
                hint=f"Cast it: SELECT ..., {quote_identifier(source.name)}::{trained.sql_type} FROM ...",
                sqlstate="42804",
            )
        if source.kind.typtype == "e":
            _check_labels(source, trained)
        values = ", ".join("NULL" if value is None else quote_literal(value) for value in trained.classes)
        sql = f"ARRAY[{values}]::text[]::{source.kind.sql}[]"
        parameters = {"classes": trained.classes, "sql_type": source.kind.shown}
        return cls(source.name, parameters, source.kind, source.kind, sql)

    @property
    def dtype(self) -> str:
        return "<i2"

    @property
    def wire(self) -> str:
        return "smallint"

    @property
    def classes(self) -> list[str | None]:
        return self.parameters["classes"]

    @property
    def shape(self) -> list[int]:
        return [len(self.classes)]

    @property
    def null_code(self) -> int:
        """The code of NULL labels; -1: NULL is no class."""
        return 0 if self.classes[0] is None else -1

    # --- the labels of rows ---

    def counts(self, db: Database, rows: Table) -> list[int]:
        """The number of rows of each class, in the order of the classes."""
        found = db.execute(
            f"SELECT u.o::integer - 1 AS code, d.n FROM unnest({self.classes_sql}) WITH ORDINALITY AS u(v, o) "
            f"JOIN {self._labels(rows)} d ON {self._equals(db, 'd.v', 'u.v')}"
        )
        numbers = {row["code"]: row["n"] for row in found}
        return [numbers.get(code, 0) for code in range(len(self.classes))]

    def strangers(self, db: Database, rows: Table) -> list[tuple[str, int]]:
        """(label, rows) of the labels that are no class, most frequent first."""
        found = db.execute(
            f"SELECT d.v::text AS v, d.n FROM {self._labels(rows)} d WHERE NOT EXISTS (SELECT 1 FROM "
            f"unnest({self.classes_sql}) AS u(v) WHERE {self._equals(db, 'd.v', 'u.v')}) ORDER BY d.n DESC, 1"
        )
        return [(row["v"], row["n"]) for row in found]

    def is_one_sql(self, db: Database, labels: Sequence[str]) -> str:
        """SQL: whether the label of a row `t` is one of `labels`."""
        assert self.kind is not None
        own = replace(self, class_kind=self.kind)
        listed = ", ".join(map(quote_literal, labels))
        equals = own._equals(db, f"t.{quote_identifier(self.name)}::{self.kind.sql}", "u.v")
        return f"EXISTS (SELECT 1 FROM unnest(ARRAY[{listed}]::text[]::{self.kind.sql}[]) AS u(v) WHERE {equals})"

    def _labels(self, rows: Table) -> str:
        """SQL: the labels of rows except NULL as `v`, with the number of their rows as `n`."""
        assert self.kind is not None
        name = f"s.{quote_identifier(self.name)}"
        label = self.kind.collated(f"{name}::{self.kind.sql}")
        return f"(SELECT {label} AS v, count(*) AS n FROM {rows} s WHERE {name} IS NOT NULL GROUP BY 1)"

    # --- labels to codes, in SQL ---

    def lookup(self, db: Database, summary: str, value: str, alias: str) -> tuple[str, str]:
        join = f"LEFT JOIN {self._numbered(summary)} {alias} ON {self._equals(db, value, f'{alias}.v')}"
        return join, f"CASE WHEN {value} IS NULL THEN {self.null_code} ELSE coalesce({alias}.code, -1) END"

    def lookup_in_place(self, db: Database, summary: str, value: str) -> str:
        assert self.kind is not None
        common, collatable = self._common_type()
        label = f"{value}::{self.kind.sql}::{common}" + (' COLLATE pg_catalog."C"' if collatable else "")
        column = quote_identifier(class_column(self.name))
        classes = quote_literal(db.value(f"SELECT {column}::text FROM {summary}"))
        return (
            f"CASE WHEN {value} IS NULL THEN {self.null_code} ELSE "
            f"coalesce(array_position({classes}::{common}[], {label}) - 1, -1) END"
        )

    def wire_sql(self, value: str) -> str:
        return value

    def segment_sql(self, value: str, schema: str) -> str:
        return f"{schema}.mop_one_hot(array_agg({value} ORDER BY n), {len(self.classes)})"

    def _numbered(self, summary: str) -> str:
        """SQL: the class values except NULL as `v`, with their codes."""
        column = quote_identifier(class_column(self.name))
        return (
            f"(SELECT u.v, u.o::integer - 1 AS code FROM unnest((SELECT {column} FROM {summary})) "
            "WITH ORDINALITY AS u(v, o) WHERE u.v IS NOT NULL)"
        )

    def _equals(self, db: Database, label: str, value: str) -> str:
        """SQL: a label of the source equals a class value, independent of the operators in the caller's search path."""
        assert self.kind is not None and self.class_kind is not None
        equals = equality(db, self.kind) if self.kind.oid == self.class_kind.oid else "OPERATOR(pg_catalog.=)"
        return f"{self.kind.collated(label)} {equals} {self.class_kind.collated(value)}"

    def _common_type(self) -> tuple[str, bool]:
        """SQL for the type of the comparison between labels and class values; whether that type is collatable."""
        assert self.kind is not None and self.class_kind is not None
        if self.kind.oid == self.class_kind.oid:
            return self.kind.sql, self.kind.collatable
        types = {self.kind.shown, self.class_kind.shown}
        if types <= STRINGS:
            return "text", True
        return "double precision" if types & {"real", "double precision"} else "numeric", False

    # --- codes to vectors ---

    def encode(self, values: list[Any]) -> numpy.ndarray | None:
        from pg_mop.columns import binary

        codes = binary.np.array(values, binary.np.int64)
        return binary.one_hot(codes, len(self.classes)) if codes.min() >= 0 else None

    def explain_misfit(self, db: Database, source: Table, summary: str, training: str | None) -> None:
        if training is None:  # the classes were read from these very rows: the rows have changed
            return
        assert self.kind is not None
        label = f"s.{quote_identifier(self.name)}::{self.kind.sql}"
        null = "false" if self.null_code == 0 else f"{label} IS NULL"
        rows = db.execute(
            f"SELECT DISTINCT coalesce({label}::text, 'NULL') AS v FROM {source} s WHERE {null} OR ({label} IS NOT NULL "
            f"AND NOT EXISTS (SELECT 1 FROM {self._numbered(summary)} c WHERE {self._equals(db, label, 'c.v')})) "
            f"ORDER BY 1 LIMIT {SHOWN + 1}"
        )
        if rows:
            values = [row["v"] for row in rows]
            raise MopError(
                f'the classes of column "{self.name}" are no subset of those of training',
                detail=f"Training has no class {', '.join(values[:SHOWN])}{', ...' if len(values) > SHOWN else '.'}",
                hint="Leave their rows out; or train anew on all classes (mop_retrain without warm).",
            )

    # --- predictions ---

    def labels(self, width: int) -> list[str | None]:
        if self.classes == [None]:  # MADlib's summary of a model whose labels were one-hot vectors already
            return super().labels(width)
        if width == 1 and len(self.classes) == 2:  # (see decode)
            return list(self.classes)
        return (self.classes + [None] * width)[:width]

    def wanted_output(self, width: int) -> WantedOutput:
        return WantedOutput(width, "classes", width == 2 == len(self.classes))

    def decode(self, outputs: numpy.ndarray) -> tuple[list[str | None], numpy.ndarray]:
        from pg_mop.columns.binary import np

        if outputs.shape[1] == 1 and len(self.classes) == 2:  # one unit: the probability of the second class
            outputs = np.concatenate([1 - outputs, outputs], 1)
        if self._decision is not None:
            outputs = self._decision.probabilities(outputs)
        return self.labels(outputs.shape[1]), outputs

    @functools.cached_property
    def _decision(self) -> Decision | None:
        return Decision.read(self.parameters)

    def predicted(self, probabilities: numpy.ndarray) -> numpy.ndarray:
        return super().predicted(probabilities if self._decision is None else self._decision.weighted(probabilities))

    def to_keras(self) -> dict[str, Any] | None:
        """A layer that turns the number of the most probable unit into its class value."""
        classes = list(self.classes)
        while len(classes) > 1 and classes[-1] is None:  # they fill up the width
            classes.pop()
        null = free_name("NULL", classes)
        config: dict[str, Any] = {"vocabulary": classes, "mask_token": None, "num_oov_indices": 0, "invert": True}
        if classes[0] is None:
            config.update(vocabulary=classes[1:], mask_token=null)
        decision = None if self._decision is None else self._decision.to_keras(len(self.classes))
        return {"class_name": "StringLookup", "config": config, "decision": decision}

    # --- reports ---

    def class_sql(self, value: str, actual: str) -> str:
        """The text of the class that equals a value, else the text of the value.

        Values of some types are equal, but differ as text: 1.0 and 1.00, a time in two time zones, citext.
        """
        trained = str(self.sql_type)
        trained = "citext" if trained.rpartition(".")[2] == "citext" else trained
        sql_type, as_type = None, f"{value}::{trained}"
        if actual in NUMBERS and trained in NUMBERS and not {actual, trained}.issubset(WHOLE):
            sql_type = trained
            if actual != trained:
                sql_type, as_type = "numeric", f"{value}::text::numeric"
        elif "moment" == family(actual) == family(trained) or (actual == trained and trained in TIMES):
            sql_type, as_type = trained, as_trained(value, actual, trained, UTC)
        elif trained == "citext" and family(actual) == "text":
            sql_type, as_type = "text", f"lower({value}::text)"
        if sql_type is None:
            return f"{value}::text"
        texts = ", ".join("NULL" if c is None else quote_literal(c) for c in self.classes)
        keys = f"ARRAY[{texts}]::{sql_type}[]"
        if trained == "citext":
            lowered = ("NULL" if c is None else f"lower({quote_literal(c)}::text)" for c in self.classes)
            keys = f"ARRAY[{', '.join(lowered)}]::text[]"
        return f"coalesce((ARRAY[{texts}]::text[])[pg_catalog.array_position({keys}, {as_type})], {value}::text)"

    def target_sql(self, value: str, actual: str) -> str | None:
        return self.class_sql(value, actual) if "counts" in self.parameters and not actual.endswith("[]") else None

    def shares(self, targets: list[Any]) -> tuple[Sequence[float], Sequence[float]]:
        """Classes that are new are one class."""
        then, now = self.parameters["counts"], Counter(targets)
        numbers = [*(now.pop(label, 0) for label in self.classes), now.total()]
        return [n / max(1, sum(then)) for n in [*then, 0]], [n / len(targets) for n in numbers]

    def difference(self, other: Column) -> str | None:
        if other.classes is None or self.classes == other.classes:
            return None
        return f'for "{self.name}" the classes {_some(self.classes)}, not {_some(other.classes)}'

    def summary_sql(self) -> str | None:
        return self.classes_sql

    def class_type(self) -> str:
        return "text" if self.class_kind is None else self.class_kind.sql


def free_name(name: str, taken: Collection[str | None]) -> str:
    """`name`, in brackets as long as a class has this name.

    >>> free_name("NULL", ["a", "NULL"])
    '[NULL]'
    """
    while name in taken:
        name = f"[{name}]"
    return name


def _check_kind(source: SourceColumn) -> None:
    """Raises MopError where the values of the source's type cannot be compared and ordered."""
    kind = source.kind
    if kind.element is not None or kind.typtype not in "ber" or not kind.has_array or not equality(source.db, kind):
        raise MopError(
            f'invalid dependent_varname: column "{source.name}" has type {kind.shown}, '
            "whose values cannot be ordered as classes",
            hint=f'Cast it: SELECT ..., "{source.name}"::text FROM ...',
        )


def _check_labels(source: SourceColumn, trained: Column) -> None:
    """Raises MopError where a class of training is no label of the source's enum any more."""
    labels = source.db.execute(
        "SELECT enumlabel::text AS v FROM pg_enum WHERE enumtypid = $1", ["oid"], [source.kind.oid]
    )
    lost = sorted(
        {value for value in trained.classes or () if value is not None}.difference(row["v"] for row in labels)
    )
    if lost:
        raise MopError(
            f'type {source.kind.shown} of target "{source.name}" has no label {lost[0]}, which is a class of the model',
            detail="The label has been renamed since, or the type is another one.",
            hint="Train anew on the labels of today: mop_retrain without warm. Or rename the label back: "
            f"ALTER TYPE {source.kind.sql} RENAME VALUE '...' TO {quote_literal(lost[0])};",
            sqlstate="22P02",
        )


def _distinct(source: SourceColumn, width: int | None) -> str:
    """SQL for the distinct labels as an array: NULL first, ascending, padded with NULL up to `width`."""
    kind = source.kind
    value, ordered = kind.collated(f"s.{quote_identifier(source.name)}::{kind.sql}"), kind.collated("d.v")
    classes = (
        f"(SELECT array_agg(d.v ORDER BY {ordered} NULLS FIRST) AS a "
        f"FROM (SELECT DISTINCT {value} AS v FROM {source.table} s) d)"
    )
    if width is None:
        return f"(SELECT c.a::{kind.sql}[] FROM {classes} c)"
    return (
        f"(SELECT c.a::{kind.sql}[] || array_fill(NULL::{kind.sql}, ARRAY[greatest({int(width)} - "
        f"cardinality(c.a), 0)]) FROM {classes} c)"
    )


def kind_of_classes(db: Database, summary: Table, trained: Column) -> Kind:
    """The SQL type of a training column's class values."""
    return kind_of(db, column_kind(db, summary, class_column(trained.name)).element_oid)


def no_such_vectors(source: SourceColumn, found: str, trained: Column) -> MopError:
    """The error for labels that do not match the vectors of the training column."""
    return MopError(
        f'the labels of column "{source.name}" ({found}) are no subset of those of training '
        f'column "{trained.name}", which are vectors of {trained.shape[-1]} ({trained.sql_type})'
    )


def no_such_classes(source: SourceColumn, trained: Column, trained_kind: Kind) -> MopError:
    """The error for labels of a type that does not match the classes of the training column."""
    return MopError(
        f'the classes of column "{source.name}" ({source.kind.shown}) are no subset of those of '
        f'training column "{trained.name}", which are of type {trained_kind.shown}',
        hint=f"Cast the column to {trained_kind.shown}.",
    )


def _some(values: list[str | None]) -> str:
    """The first class values, as an error shows them."""
    shown = ", ".join("NULL" if v is None else v for v in values[:8])
    return f"{{{shown}{', ...' if len(values) > 8 else ''}}}"
