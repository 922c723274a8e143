"""mop_split: parts of a table as views, without a copy."""

from __future__ import annotations

from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import sql_function
from pg_mop.backend.quoting import quote_identifier, quote_literal, split_names
from pg_mop.backend.sql_types import column_kind, plain_types, stable_text
from pg_mop.packing.row_source import columns_named, in_brackets, is_query, rows_of

METHODS = ("random", "stratified", "group", "time", "column")
TRAIN, VALID, TEST = "train", "valid", "test"
UNIT = 1 << 30  # a hash becomes one of so many positions
# types whose hashes depend on no setting
HASHED = (
    "smallint",
    "integer",
    "bigint",
    "numeric",
    "real",
    "double precision",
    "boolean",
    "text",
    "character varying",
    "character",
    "uuid",
    "date",
    "timestamp without time zone",
    "timestamp with time zone",
)


@sql_function
def mop_split(db, source, output, valid, test, method, by, id, seed):
    """Make the views <output>_train, _valid and _test; returns (part, view, rows) of each."""
    made = _split(db, source, output, valid, test, method, by, id, seed, None)
    return [(part, view, rows) for part, view, rows, _ in made]


@sql_function
def mop_split_for(db, source, output, valid, test, method, by, id, remark):
    """mop_split, with a comment for the views; returns (part, rows, query) of each."""
    made = _split(db, source, output, valid, test, method, by, id, None, remark)
    return [(part, rows, query) for part, _, rows, query in made]


def _split(
    db: Database,
    source: str,
    output: str,
    valid: float | None,
    test: float | None,
    method: str | None,
    by: str | None,
    id: str | None,
    seed: int | None,
    remark: str | None,
) -> list[tuple[str, str, int, str]]:
    """Make the views; returns (part, view, rows, query) of each. Raises MopError.

    A query keeps the names of its tables, not the tables themselves: it reads the table that has the name at that time.
    """
    db.check_engine("mop_split")
    valid, test = (0.2 if share is None else share for share in (valid, test))
    method = (method or "random").strip().lower()
    if method not in METHODS:
        raise MopError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    for name, share in (("valid", valid), ("test", test)):
        if not 0 <= share < 1:
            raise MopError(f"{name} must be a share from 0 to 1, not {share:g}", hint=f"For instance: {name} => 0.2.")
    if method != "column" and not 0 < valid + test < 1:
        raise MopError(f"valid and test together must be between 0 and 1, not {valid + test:g}")
    seed = seed or 0
    with rows_of(db, source) as rows:
        if method != "random" and by is None:
            raise MopError(f"method '{method}' needs a column", hint="by => 'column'")
        (column,) = columns_named(db, rows, "by", split_names(by)[:1]) if by is not None else (None,)
        ids = columns_named(db, rows, "id", split_names(id))
        conditions, extra = _conditions(db, rows, method, column, ids, valid, test, seed)
        db.check_readable(rows, db.columns(rows))
        columns = ", ".join(f"t.{quote_identifier(name)}" for name in db.columns(rows)) if extra else "t.*"
        # (PostgreSQL's text of the query has qualified names, so our functions are looked up by the pinned search_path)
        origin = str(rows)
        if is_query(source):
            origin = in_brackets(db.value("SELECT pg_get_viewdef($1::oid)", ["oid"], [rows.oid]))
    made = []
    names = {part: db.suffixed(output, f"_{part}") for part in conditions}
    views = {part: db.output_table(name) for part, name in names.items()}
    inner = f"(SELECT t.*{extra} FROM {origin} t)" if extra else origin
    for part, condition in conditions.items():
        query = f"SELECT {columns} FROM {inner} t WHERE {condition}"
        db.execute(f"CREATE VIEW {views[part]} AS {query}")
        said = (
            remark or f"the {part} part of {source.strip()[:200]}, by mop_split; to remove it: DROP VIEW {views[part]};"
        )
        db.execute(f"COMMENT ON VIEW {views[part]} IS {quote_literal(said)}")
        count = db.value(f"SELECT count(*) FROM {views[part]}")
        if not count:
            raise MopError(
                f'part "{part}" would have no rows',
                hint="Give larger shares, or another method." if method != "column" else _VALUES,
            )
        made.append((part, names[part], count, query))
    return made


_VALUES = (
    "The column of the parts has 'train', 'valid' or 'test', or true for rows to train on and false for test rows."
)


def _conditions(
    db: Database, rows: Table, method: str, column: str | None, ids: list[str], valid: float, test: float, seed: int
) -> tuple[dict[str, str], str]:
    """({part: SQL condition on a row t}, SQL of a further column of t that conditions use)."""
    name = column and f"t.{quote_identifier(column)}"
    if method == "column":
        if plain_types(db, rows)[column] == "boolean":
            return {TRAIN: f"{name}", TEST: f"NOT {name}"}, ""
        counts = {
            row["v"]: row["n"]
            for row in db.execute(
                f"SELECT v, count(*) AS n FROM (SELECT CASE WHEN {name}::text IN ('{TRAIN}', '{VALID}', '{TEST}') THEN "
                f"{name}::text END AS v FROM {rows} t) t GROUP BY 1"
            )
        }
        other, found = counts.pop(None, 0), set(counts)
        if TRAIN not in found:
            raise MopError(f"column \"{column}\" has no row with the value 'train'", hint=_VALUES)
        if other:
            db.notice(f'{other} rows are in no part: column "{column}" has another value there', hint=_VALUES)
        return {part: f"{name}::text = {quote_literal(part)}" for part in (TRAIN, VALID, TEST) if part in found}, ""
    if method == "time":
        sql_type = column_kind(db, rows, column).sql
        cuts = db.one(
            "SELECT percentile_disc($1) WITHIN GROUP (ORDER BY v)::text AS valid, "
            f"percentile_disc($2) WITHIN GROUP (ORDER BY v)::text AS test FROM (SELECT {name} AS v FROM {rows} t) t",
            ["float8", "float8"],
            [1 - test - valid, 1 - test],
        )
        first, second = (f"{quote_literal(cuts[part])}::{sql_type}" for part in (VALID, TEST))
        parts = {TRAIN: f"({name} < {first if valid else second} OR {name} IS NULL)"}
        if valid:
            parts[VALID] = f"{name} >= {first}" + (f" AND {name} < {second}" if test else "")
        if test:
            parts[TEST] = f"{name} >= {second}"
        return parts, ""
    types = plain_types(db, rows)
    if method == "group":
        hashed = f"hashtextextended({stable_text(types[column], name)}, {seed})"
    else:
        hashed = _row_hash(db, rows, types, ids, seed)
    position, extra = f"({hashed} & {UNIT - 1})", ""
    if method == "stratified":
        # rows of one hash get one rank, and so one part: no order decides between them
        extra = (
            f", ((rank() OVER (PARTITION BY {name} ORDER BY {hashed}) - 0.5) / count(*) OVER (PARTITION BY {name}) "
            f"* {UNIT})::bigint AS __mop_position"
        )
        position = "t.__mop_position"
    first, second = int(test * UNIT), int((test + valid) * UNIT)
    parts = {TRAIN: f"{position} >= {second}"}
    if valid:
        parts[VALID] = f"{position} >= {first} AND {position} < {second}"
    if test:
        parts[TEST] = f"{position} < {first}"
    return parts, extra


def _row_hash(db: Database, rows: Table, types: dict[str, str], ids: list[str], seed: int) -> str:
    """SQL: a hash of a row t by its id, its primary key or, without one, its values; no setting changes it. Raises
    MopError."""
    if not ids:
        key = db.execute(
            "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) "
            "WHERE i.indrelid = $1 AND i.indisprimary ORDER BY a.attnum",
            ["oid"],
            [rows.oid],
        )
        ids = [row["attname"] for row in key]
    if ids:
        texts = ", ".join(stable_text(types[name], f"t.{quote_identifier(name)}") for name in ids)
        return f"hashtextextended(concat_ws('/', {texts}), {seed})"
    values = [name for name, sql_type in types.items() if sql_type in HASHED]
    if not values or not db.has("hash_record_extended", "record, int8"):
        raise MopError(
            "the rows have no primary key",
            detail="A split by views needs a value that stays with each row.",
            hint="id => 'column', a column that tells the rows apart.",
        )
    return f"hash_record_extended(ROW({', '.join(f't.{quote_identifier(name)}' for name in values)}), {seed})"
