"""Numbers that a packed column cannot hold: the error that counts their rows and has the query that finds them."""

from __future__ import annotations

from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier

OUT_OF_RANGE = "22003"  # SQLSTATE of a cast that fails for such a number

# SQL: a number `e` does not fit the type of the buffer. NaN is greater than all numbers; PostgreSQL refuses to cast numbers
# of at most 2^-150, which would become 0 as real.
CONDITIONS = {
    "real": "e NOT BETWEEN -3.4028235e38 AND 3.4028235e38 OR e <> 0 AND "
    "e BETWEEN -7.006492321624085e-46 AND 7.006492321624085e-46",
    "smallint": "e NOT BETWEEN -32768 AND 32767 OR e <> floor(e)",
}
NOT_FINITE = "Numbers are packed as float32. One that is not finite makes the weights of all that trains on it NaN."
MAX_EXAMPLE = 100  # characters of a value in an error


def query(source: str | Table, column: str, element: str, scalar: bool = False) -> str:
    """SQL for the rows of `source` with numbers in `column` that do not fit the type `element`.

    The column has arrays of numbers or, `scalar`, single numbers.
    """
    return f"SELECT * FROM {source} WHERE EXISTS (SELECT 1 FROM {_misfits(column, element, scalar)})"


def _misfits(column: str, element: str, scalar: bool) -> str:
    values = f"(SELECT {quote_identifier(column)} AS e)" if scalar else f"unnest({quote_identifier(column)})"
    return f"{values} AS v(e) WHERE {CONDITIONS[element]}"


def _described(text: str) -> str:
    """A number that real cannot hold, in few digits."""
    shown = text if len(text) <= 30 else f"{float(text):g}"
    return f"{shown}, too small for it" if abs(float(text)) < 1 else shown


def check(
    db: Database,
    source: str | Table,
    column: str,
    element: str,
    scalar: bool = False,
    training: str | None = None,
    detail: str = NOT_FINITE,
) -> None:
    """Raises MopError where `column` of `source` has numbers that do not fit; `detail`: why they must fit type real.

    `training`: the packed training table (quoted) that decides the type of validation rows.
    """
    found = query(source, column, element, scalar)
    count = db.value(f"SELECT count(*) FROM ({found}) AS misfits")
    if not count:
        return
    rows = f"{count} row{'s' if count > 1 else ''}"
    if element == "real":
        example = db.value(
            f"SELECT (SELECT e FROM {_misfits(column, element, scalar)} LIMIT 1)::text FROM ({found}) AS misfits LIMIT 1"
        )
        raise MopError(
            f'column "{column}" has NaN, an infinity or a number beyond type real in {rows}',
            detail=f"One is {_described(example)}. {detail}",
            hint=f"{found}; finds them. Leave them out, in a view.",
            sqlstate=OUT_OF_RANGE,
        )
    example = db.value(f"SELECT {quote_identifier(column)}::text FROM ({found}) AS misfits LIMIT 1")
    example = example if len(example) <= MAX_EXAMPLE else example[:MAX_EXAMPLE] + " ..."
    again = f"Training table {training} was packed as int16: pack it again with" if training else "Call with"
    raise MopError(
        f'column "{column}" has fractions, or numbers beyond -32768 to 32767, in {rows}',
        detail=f"Arrays of labels are packed as int16: classes, one-hot. One has {example}.",
        hint=f"{again} dependent_dtype => 'float32' to keep them, as soft labels or for regression. "
        f"{found}; finds them.",
        sqlstate=OUT_OF_RANGE,
    )
