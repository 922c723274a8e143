"""mop_split: parts of a table as views, without a copy."""

from __future__ import annotations

from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import sql_function
from pg_mop.backend.quoting import quote_identifier, quote_literal, split_names
from pg_mop.backend.sql_types import NUMBERS, column_kind, plain_types, stable_text
from pg_mop.columns.features.conversion import MOMENTS
from pg_mop.packing.row_source import columns_named, in_brackets, is_query, rows_of

METHODS = ("random", "stratified", "group", "time", "column")
TRAIN, VALID, TEST = "train", "valid", "test"
SHARE = 0.2  # the default share of the validation part, and of the test part (sql/22_tables.sql, sql/64_train.sql)
MANY = 100_000  # rows: the shares of the parts may be off by a row
UNIT = 1 << 30  # a hash becomes one of so many positions
# the columns of the primary key of a table $1
PRIMARY_KEY = (
    "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) "
    "WHERE i.indrelid = $1 AND i.indisprimary ORDER BY a.attnum"
)
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
def mop_split(
    db: Database,
    source: str | None,
    output: str | None,
    valid: float | None,
    test: float | None,
    method: str | None,
    by: str | None,
    id: str | None,
    seed: int | None,
) -> list[tuple[str, str, int]]:
    """Make the views <output>_train, _valid and _test; returns (part, view, rows) of each."""
    parts = _split(db, source, output, valid, test, method, by, id, seed, None)
    return [(part, view, rows) for part, view, rows, _ in parts]


@sql_function
def mop_split_for(
    db: Database,
    source: str | None,
    output: str | None,
    valid: float | None,
    test: float | None,
    method: str | None,
    by: str | None,
    id: str | None,
    remark: str,
) -> list[tuple[str, int, str]]:
    """mop_split, with a comment for the views; returns (part, rows, query) of each."""
    parts = _split(db, source, output, valid, test, method, by, id, None, remark)
    return [(part, rows, query) for part, _, rows, query in parts]


def _split(
    db: Database,
    source: str | None,
    output: str | None,
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
    method = (method or "random").strip().lower()
    if method not in METHODS:
        raise MopError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    valid, test = read_shares(valid, test, method)
    seed = seed or 0
    with rows_of(db, source) as rows:
        if method != "random" and by is None:
            raise MopError(f"method '{method}' needs a column", hint="by => 'column'")
        (column,) = columns_named(db, rows, "by", split_names(by)[:1]) if by is not None else (None,)
        ids = columns_named(db, rows, "id", split_names(id))
        conditions, extra = _conditions(db, rows, method, column, ids, valid, test, seed)
        db.check_readable(rows, db.columns(rows))
        columns = ", ".join(f"t.{quote_identifier(name)}" for name in db.columns(rows)) if extra else "t.*"
        # PostgreSQL's text of the query has qualified names, so our functions are looked up by the pinned search_path
        origin = str(rows)
        if is_query(source):
            origin = in_brackets(db.value("SELECT pg_get_viewdef($1::oid)", ["oid"], [rows.oid]))
    parts_made = []
    names = {part: db.suffixed(str(output), f"_{part}") for part in conditions}
    views = {part: db.output_table(name) for part, name in names.items()}
    inner = f"(SELECT t.*{extra} FROM {origin} t)" if extra else origin
    for part, condition in conditions.items():
        query = f"SELECT {columns} FROM {inner} t WHERE {condition}"
        db.execute(f"CREATE VIEW {views[part]} AS {query}")
        said = (
            remark
            or f"the {part} part of {str(source).strip()[:200]}, by mop_split; to remove it: DROP VIEW {views[part]};"
        )
        db.execute(f"COMMENT ON VIEW {views[part]} IS {quote_literal(said)}")
        count = db.value(f"SELECT count(*) FROM {views[part]}")
        if not count:
            raise MopError(
                f'part "{part}" would have no rows',
                hint="Give larger shares, or another method." if method != "column" else _VALUES,
            )
        parts_made.append((part, names[part], count, query))
    return parts_made


def read_shares(valid: float | None, test: float | None, method: str) -> tuple[float, float]:
    """The shares of the validation and test parts that a caller gives. Raises MopError."""
    valid, test = (SHARE if share is None else share for share in (valid, test))
    for name, share in (("valid", valid), ("test", test)):
        if not 0 <= share < 1:  # or NaN
            raise MopError(f"{name} must be a share from 0 to 1, not {share:g}", hint=f"For instance: {name} => 0.2.")
    if method != "column" and not 0 < valid + test < 1:
        raise MopError(f"valid and test together must be between 0 and 1, not {valid + test:g}")
    return valid, test


_VALUES = (
    "The column of the parts has 'train', 'valid' or 'test', or true for rows to train on and false for test rows."
)


def _conditions(
    db: Database, rows: Table, method: str, column: str | None, ids: list[str], valid: float, test: float, seed: int
) -> tuple[dict[str, str], str]:
    """({part: SQL condition on a row t}, SQL of a further column of t that conditions use)."""
    column = column or ""  # the methods that need one have been checked
    name = f"t.{quote_identifier(column)}"
    types = plain_types(db, rows)
    if method == "column":
        if types[column] == "boolean":
            _tell_left_out(db, rows, f"{name} IS NULL", f'column "{column}" is NULL there', _VALUES)
            return {TRAIN: f"{name}", TEST: f"NOT {name}"}, ""
        value = f"CASE WHEN {name}::text IN ('{TRAIN}', '{VALID}', '{TEST}') THEN {name}::text END"
        values = {row["v"] for row in db.execute(f"SELECT DISTINCT {value} AS v FROM {rows} t")}
        if TRAIN not in values:
            raise MopError(f"column \"{column}\" has no row with the value 'train'", hint=_VALUES)
        _tell_left_out(db, rows, f"({value}) IS NULL", f'column "{column}" has another value there', _VALUES)
        return {part: f"{name}::text = {quote_literal(part)}" for part in (TRAIN, VALID, TEST) if part in values}, ""
    if method == "time":
        usable = _with_time(db, rows, types[column], column, name)
        cuts = _cuts(db, rows, name, usable, valid, test, f'column "{column}"')
        return _parts(name, f"::{column_kind(db, rows, column).sql}", cuts, f" AND {usable}"), ""
    if method == "group":
        is_null = f"{name} IS NULL"
        quoted = quote_identifier(column)
        hint = f"SELECT *, coalesce({quoted}::text, 'row ' || ...) AS grp FROM ...; makes a group of each such row."
        _tell_left_out(db, rows, is_null, f'column "{column}" is NULL there', hint)
        hashed = f"hashtextextended({stable_text(types[column], name)}, {seed})"
        position, usable, what = _position(hashed), f"{name} IS NOT NULL", f'column "{column}"'
        return _parts(position, "", _cuts(db, rows, position, usable, valid, test, what), f" AND {usable}"), ""
    hashed = _row_hash(db, rows, types, ids, seed)
    if method == "random":
        position = _position(hashed)
        many = _cuts_of_many(db, rows, position, valid, test)
        what = "what tells the rows apart"
        return _parts(position, "", many or _cuts(db, rows, position, "true", valid, test, what)), ""
    # rows of one hash get one rank, and so one part: no order decides between them
    extra = (
        f", ((rank() OVER (PARTITION BY {name} ORDER BY {hashed}) - 0.5) / count(*) OVER (PARTITION BY {name}) "
        f"* {UNIT})::bigint AS __mop_position"
    )
    cuts = {VALID: f"{UNIT - int((valid + test) * UNIT)}", TEST: f"{UNIT - int(test * UNIT)}"}
    return _parts(f"({UNIT} - t.__mop_position)", "", {part: cuts[part] for part in _later(valid, test)}), extra


def _position(hashed: str) -> str:
    """SQL: a position for a hash."""
    return f"({UNIT - 1} - ({hashed} & {UNIT - 1}))"


def _later(valid: float, test: float) -> list[str]:
    """The parts besides the training part, in the order of their values."""
    return [part for part, share in ((VALID, valid), (TEST, test)) if share]


def _parts(value: str, cast: str, cuts: dict[str, str], usable: str = "") -> dict[str, str]:
    """The condition of each part; `cuts`: {part: the least of its values}, in the order of the values."""
    bounds = [f"{quote_literal(cut)}{cast}" for cut in cuts.values()]
    conditions = {TRAIN: f"{value} < {bounds[0]}{usable}"}
    for i, part in enumerate(cuts):
        below = f" AND {value} < {bounds[i + 1]}" if i + 1 < len(bounds) else ""
        conditions[part] = f"{value} >= {bounds[i]}{below}{usable}"
    return conditions


def _cuts(db: Database, rows: Table, value: str, usable: str, valid: float, test: float, what: str) -> dict[str, str]:
    """{part: its least value}: parts of whole values whose shares of the rows are as near as can be to those wanted.

    Each part gets at least one value. `what`: how an error calls the values' source. Raises MopError if there are fewer
    values than parts.
    """
    later = _later(valid, test)
    row = db.one(
        f"WITH g AS (SELECT {value} AS v, count(*) AS n FROM {rows} t WHERE {usable} GROUP BY 1), "
        "c AS (SELECT v, row_number() OVER (ORDER BY v) AS place, sum(n) OVER (ORDER BY v DESC) AS rows, "
        "sum(n) OVER () AS of, count(*) OVER () AS known FROM g), "
        f"test AS (SELECT v, place, rows FROM c WHERE {'true' if test else 'false'} AND place > {len(later)} "
        f"ORDER BY abs(rows - {test!r} * of), v DESC LIMIT 1), "
        "valid AS (SELECT v FROM c WHERE place > 1 AND place < coalesce((SELECT place FROM test), known + 1) "
        f"ORDER BY abs(rows - coalesce((SELECT rows FROM test), 0) - {valid!r} * of), v DESC LIMIT 1) "
        "SELECT (SELECT v::text FROM valid) AS valid, (SELECT v::text FROM test) AS test, (SELECT count(*) FROM g) AS known"
    )
    assert row is not None
    if row["known"] <= len(later):
        raise MopError(
            f"{what} has {row['known']} different value{'s' * (row['known'] != 1)}, too few for {len(later) + 1} parts",
            detail="Rows with the same value are in the same part.",
            hint="Call with valid => 0." if row["known"] == 2 else None,
        )
    return {part: row[part] for part in later}


def _cuts_of_many(db: Database, rows: Table, position: str, valid: float, test: float) -> dict[str, str] | None:
    """The cuts of many rows by their positions, which hardly any two of them share; None for few rows, or for equal ones."""
    shares = {part: share for part, share in ((VALID, valid + test), (TEST, test)) if part in _later(valid, test)}
    wanted = ", ".join(f"{1 - share!r}" for share in (1, *shares.values()))
    if not db.value(f"SELECT count(*) > {MANY} FROM (SELECT 1 FROM {rows} LIMIT {MANY + 1}) t"):
        return None
    values = db.value(
        f"SELECT percentile_disc(ARRAY[{wanted}]::float8[]) WITHIN GROUP (ORDER BY {position}) FROM {rows} t"
    )
    return dict(zip(shares, map(str, values[1:]))) if len(set(values)) == len(values) else None


def _with_time(db: Database, rows: Table, sql_type: str, column: str, name: str) -> str:
    """SQL: whether a row has a time. Raises MopError for a type whose order is not that of time."""
    if sql_type in NUMBERS:
        limit = f" AND abs({name}) < 'Infinity'" if sql_type in ("real", "double precision", "numeric") else ""
        usable = f"{name} IS NOT NULL{limit}"
    elif sql_type in MOMENTS:
        usable = f"{name} IS NOT NULL AND isfinite({name})"
    else:
        raise MopError(
            f'column "{column}" has type {sql_type}: its order is not that of time',
            hint=f"Cast it in a query: SELECT *, {quote_identifier(column)}::date AS day FROM ...",
            sqlstate="42804",
        )
    why = f'column "{column}" is NULL there, or no finite time'
    _tell_left_out(db, rows, f"({usable}) IS NOT TRUE", why, "They are neither earlier nor later than others.")
    return usable


def _tell_left_out(db: Database, rows: Table, condition: str, why: str, hint: str) -> None:
    """Tell the caller of rows that are in no part."""
    if count := db.value(f"SELECT count(*) FROM {rows} t WHERE {condition}"):
        db.warning(f"{count} row{'s are' if count > 1 else ' is'} in no part: {why}", hint=hint)


def _row_hash(db: Database, rows: Table, types: dict[str, str], ids: list[str], seed: int) -> str:
    """SQL: a hash of a row t by its id, its primary key or, without one, its values; no setting changes it. Raises
    MopError."""
    if not ids:
        ids = [row["attname"] for row in db.execute(PRIMARY_KEY, ["oid"], [rows.oid])]
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
