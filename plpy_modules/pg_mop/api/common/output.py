"""The output tables of training calls, and the tables of an earlier call for a warm start."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pg_mop import __version__
from pg_mop.backend import weights
from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError, is_cancel
from pg_mop.backend.quoting import finite_json, quote_identifier, quote_literal
from pg_mop.backend.trusted import companion
from pg_mop.columns import madlib
from pg_mop.packing.packed_table import PackedTable


def insert(db: Database, table: str, columns: Mapping[str, tuple[str, Any]]) -> None:
    """Insert one row into `table` (quoted); `columns`: {name: (SQL type, value)}."""
    names = ", ".join(quote_identifier(n) for n in columns)
    places = ", ".join(f"${i + 1}" for i in range(len(columns)))
    db.execute(
        f"INSERT INTO {table} ({names}) VALUES ({places})",
        [t for t, _ in columns.values()],
        [v for _, v in columns.values()],
    )


Column = tuple[str, str, Any]  # of a summary: name, SQL type, value
LARGE_BYTES = (1 << 29) - 2  # largest value with a text form, for text is limited to 1 GB


def model_tables(db: Database, text: str | None, *suffixes: str) -> list[str]:
    """The names (quoted) of the output tables of a training call, as `Database.output_table` gives them. Raises MopError."""
    names = db.output_table(text, *suffixes)
    weights.check_free(db, str(text))
    return names


def tell_of_large(db: Database, table: str, values: Sequence[bytes]) -> None:
    """Warn if values of `model_weights` in `table` (quoted) are too large for a dump."""
    large = sum(len(value) > LARGE_BYTES for value in values)
    if large:
        db.warning(
            f"{large} of the models in {table} have more than 512 MB of weights",
            detail="PostgreSQL cannot write such a value as text: pg_dump fails at it, and so do most clients.",
            hint="SET pg_mop.weights_value_mb = 511; before the call keeps such weights in parts. To leave them out: "
            f"pg_dump --exclude-table-data={quote_literal(table)}",
        )


def as_json(metrics: Mapping[str, float] | None) -> str | None:
    """{name: value} as JSON text; None without metrics."""
    return finite_json(metrics) if metrics else None


def write_summary(
    db: Database, source: PackedTable, table: str, values: Sequence[Column], after: Iterable[Column] = ()
) -> None:
    """The summary `table` (quoted): `values`, the class values of the packed `source`, then `after`."""
    after = [*after, *madlib.extra(source.transform)]
    selected = [
        madlib.select_list(values),
        madlib.copied_classes(source.transform, source.summary),
        *([madlib.select_list(after)] if after else []),
    ]
    # CREATE TABLE AS takes no parameters
    db.execute(f"CREATE TABLE {table} AS SELECT {', '.join(selected)} FROM {source.summary_table} AS s LIMIT 1")
    db.identify_by_all(table)


def write_models_summary(
    result: Any,
    table: str,
    a: Mapping[str, Any],
    own: Iterable[Column],
    after: Iterable[Column] = (),
    ended: str = "timestamp",
) -> None:
    """The summary `table` (quoted) of the models of a run: the columns of every such summary, then `own` and `after`.

    `own` and `after`: further columns of the calling function; `a`: the function's arguments; `ended`: the SQL type of the
    column of the end time."""
    db, source = result.db, result.source
    write_summary(
        db,
        source,
        table,
        [
            ("source_table", "text", a["source_table"]),
            ("validation_table", "text", a["validation_table"]),
            ("model", "text", a["model_output_table"]),
            ("model_info", "text", db.suffixed(a["model_output_table"], "_info")),
            *madlib.names(source.transform),
            ("model_arch_table", "text", result.spec.tables.get("model_arch_table")),
            *own,
            ("name", "text", a["name"]),
            ("description", "text", a["description"]),
            ("start_training_time", "timestamp", result.started),
            ("end_training_time", "timestamp", db.value(f"SELECT clock_timestamp()::{ended}::text")),
            ("madlib_version", "text", f"pg_mop {__version__}"),
            madlib.num_classes(result.outputs["widths"]),
        ],
        [*madlib.of_model(source.transform), *after, *digests_column(result)],
    )


def note_code(result: Any, summary: str) -> None:
    """Note in the column `object_digests` of a `summary` (quoted) the code of a run that has trained one of its models further.

    A class has no digest there if the models of the table were trained with several versions of it."""
    code, db = result.spec.configurations.code, result.db
    if not code:
        return
    digests = json.loads(db.value(f"SELECT object_digests FROM {summary}") or "{}")
    merged = {
        **digests,
        **{name: digest if digests.get(name, digest) == digest else None for name, digest in code.items()},
    }
    if merged != digests:
        db.execute(f"UPDATE {summary} SET object_digests = $1", ["text"], [json.dumps(merged, sort_keys=True)])


def digests_column(result: Any) -> list[Column]:
    """The column `object_digests` of the summary of a run with custom functions or classes; else no column."""
    code = result.spec.configurations.code
    return [("object_digests", "text", json.dumps(code, sort_keys=True))] if code else []


class Previous:
    """The output tables of an earlier call: a warm start continues from them, and replaces them."""

    wanted: tuple[tuple[str, str, tuple[str, ...]], ...] = ()  # suffix, purpose and required columns of each table

    def __init__(self, db: Database, text: str, lock_timeout: int) -> None:
        """Check the tables `text` and `text`_...; wait for locks at most `lock_timeout` ms. Raises MopError."""
        self.db, self.text = db, text
        if text is None or text.strip().lower() in ("", "null"):
            raise MopError("NULL/empty output table name")
        hint = "A warm start continues from the tables of an earlier call: call with warm_start => FALSE first."
        self.tables: list[Table] = []
        self.aside: list[str] = []  # the old tables, renamed
        for suffix, what, columns in self.wanted:
            if suffix:
                table = companion(db, self.tables[0], db.suffixed(text, suffix), what, hint)
            else:
                table = db.input_table(text, what, hint=hint)
            absent_columns = [c for c in columns if c not in db.columns(table)]
            if absent_columns:
                raise MopError(f'{what} {table} has no column "{absent_columns[0]}"', hint=hint)
            self._check_owner(table)
            self.tables.append(table)
        self.names = [str(table) for table in self.tables]
        self.parts = weights.existing(db, self.names[0], weights.READING)
        if self.parts is not None:
            self._check_owner(self.parts)
            self.tables.append(self.parts)
        self._try_to_replace(lock_timeout)

    def _check_owner(self, table: Table) -> None:
        if not self.db.value(
            "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = $1", ["oid"], [table.oid]
        ):
            raise MopError(f"must be owner of {table}, which a warm start replaces", sqlstate="42501")

    def _try_to_replace(self, lock_timeout: int) -> None:
        """Replace the tables and roll back, to find obstacles before the training."""
        db = self.db
        try:
            with db.undone():
                db.execute(f"SET LOCAL lock_timeout = {lock_timeout}")
                self.set_aside()
                db.execute(f"CREATE TABLE {self.names[0]} ()")
                self.drop()
            self.aside = []
        except db.plpy.SPIError as error:
            if is_cancel(error):
                raise
            raise MopError(
                f"{self.names[0]} and its companions cannot be replaced by a warm start: {error}",
                hint="Drop the dependent objects (views, functions), or base them on a copy of the tables.",
                sqlstate=getattr(error, "sqlstate", None) or "2BP01",
            ) from None

    def set_aside(self) -> None:
        """Rename the old tables, to free their names for the new."""
        self.aside = []
        for table in self.tables:
            name = f"pg_mop_old_{secrets.token_hex(8)}"
            self.db.execute(f"ALTER TABLE {table} RENAME TO {quote_identifier(name)}")
            self.aside.append(f"{quote_identifier(table.schema)}.{quote_identifier(name)}")

    def drop(self) -> None:
        """Drop the renamed old tables."""
        for table in self.aside:
            self.db.execute(f"DROP TABLE {table}")


class PreviousModels(Previous):
    """The output tables of madlib_keras_fit_multiple_model."""

    wanted = (
        ("", "model table", ("mst_key", "model_weights", "model_arch")),
        ("_info", "info table of the model table", ("mst_key", "model_id")),
        ("_summary", "summary of the model table", ()),
    )

    def __init__(self, db: Database, text: str, lock_timeout: int) -> None:
        super().__init__(db, text, lock_timeout)
        self.rows = {
            row["mst_key"]: row
            for row in db.execute(
                f"SELECT m.mst_key, i.model_id, m.model_arch::text AS model_arch, "
                f"{weights.digest_sql('m.model_weights')} "
                f"FROM {self.tables[0]} m LEFT JOIN {self.tables[1]} i USING (mst_key)"
            )
        }

    def keep(self, mst_key: int, model: str) -> None:
        """Copy the earlier weights of a configuration that has failed now into the new table `model` (quoted)."""
        self.db.execute(
            f"INSERT INTO {model} SELECT mst_key, model_weights, model_arch, NULL FROM {self.aside[0]} "
            f"WHERE mst_key = $1",
            ["integer"],
            [mst_key],
        )
        row = self.db.one(
            f"SELECT {weights.reference_sql('model_weights')} AS value FROM {self.aside[0]} WHERE mst_key = $1",
            ["integer"],
            [mst_key],
        )
        if row is not None and (reference := weights.Reference.read(row["value"])) is not None:
            sql = f"SELECT data, part FROM {self.aside[-1]} WHERE digest = '{reference.digest}'"
            what = f'model {mst_key} of "{self.text}"'
            weights.copy(self.db, weights.Source(sql, what, reference, str(self.parts)), model)

    def fill(self, c: dict[str, Any]) -> str | None:
        """Put the earlier run's weights and architecture into configuration `c`. Returns the reason for a failure, or None.

        A new configuration starts from the seed, even if the architecture table has weights.
        """
        before = self.rows.get(c["mst_key"])
        if before is None or before["weights_md5"] is None:
            return None
        if before["model_id"] not in (None, c["model_id"]):
            return (
                f'its model_id is {c["model_id"]}, but {before["model_id"]} in "{self.text}": '
                f"a warm start needs the same architecture"
            )
        key = int(c["mst_key"])
        row = dict(before)
        weights.complete(self.db, self.tables[0], f"mst_key = {key}", row, f'model {key} of "{self.text}"')
        c.update({name: row[name] for name in ("model_arch", "weights_md5", "weights_sql")})
        return None


class PreviousModel(Previous):
    """The output tables of madlib_keras_fit."""

    wanted = (("", "model table", ("model_weights", "model_arch")), ("_summary", "summary of the model table", ()))

    def fill(self, c: dict[str, Any]) -> None:
        """Put the earlier run's weights into configuration `c`, which has this call's architecture."""
        model = self.tables[0]
        if "mst_key" in self.db.columns(model):
            raise MopError(f'model table "{self.text}" holds several models, of madlib_keras_fit_multiple_model')
        c.update(self.db.one(f"SELECT {weights.digest_sql('model_weights')} FROM {model}") or {"weights_md5": None})
        if c["weights_md5"] is None:
            raise MopError(f'model table "{self.text}" has no weights to continue from')
        weights.complete(self.db, model, "", c, f'the model of "{self.text}"')
