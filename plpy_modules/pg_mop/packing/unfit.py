"""Numbers that a packed column cannot hold: the error that counts the rows and gives the query that finds them."""

from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier

OUT_OF_RANGE = "22003"  # SQLSTATE of a cast that such a number makes fail

# what is true of a number `e` that the type of the buffer cannot hold; NaN is greater than all numbers, and what is
# not above 2^-150 would be 0 as a real, which PostgreSQL refuses
CONDITIONS = {
    "real": "e NOT BETWEEN -3.4028235e38 AND 3.4028235e38 OR e <> 0 AND "
    "e BETWEEN -7.006492321624085e-46 AND 7.006492321624085e-46",
    "smallint": "e NOT BETWEEN -32768 AND 32767 OR e <> floor(e)",
}
NOT_FINITE = "Numbers are packed as float32. One that is not finite makes the weights of all that trains on it NaN."


def query(source, column, element, scalar=False):
    """SQL for the rows of `source` whose arrays (or, `scalar`, numbers) in `column` do not fit the type `element`."""
    return f"SELECT * FROM {source} WHERE EXISTS (SELECT 1 FROM {_unfit(column, element, scalar)})"


def _unfit(column, element, scalar):
    values = f"(SELECT {quote_identifier(column)} AS e)" if scalar else f"unnest({quote_identifier(column)})"
    return f"{values} AS v(e) WHERE {CONDITIONS[element]}"


def _described(text):
    """A number that real cannot hold, as people read it."""
    shown = text if len(text) <= 30 else f"{float(text):g}"
    return f"{shown}, too small for it" if abs(float(text)) < 1 else shown


def check(db, source, column, element, scalar=False, training=None, detail=NOT_FINITE):
    """Raises MopError where `column` of `source` has numbers that do not fit; `detail`: why they must fit type real.

    `training`: the packed training table (quoted) whose type validation rows must have.
    """
    found = query(source, column, element, scalar)
    count = db.value(f"SELECT count(*) FROM ({found}) AS unfit")
    if not count:
        return
    rows = f"{count} row{'s' if count > 1 else ''}"
    if element == "real":
        example = db.value(
            f"SELECT (SELECT e FROM {_unfit(column, element, scalar)} LIMIT 1)::text FROM ({found}) AS unfit LIMIT 1"
        )
        raise MopError(
            f'column "{column}" has NaN, an infinity or a number beyond type real in {rows}',
            detail=f"One is {_described(example)}. {detail}",
            hint=f"{found}; finds them. Leave them out, in a view.",
            sqlstate=OUT_OF_RANGE,
        )
    example = db.value(f"SELECT {quote_identifier(column)}::text FROM ({found}) AS unfit LIMIT 1")
    example = example if len(example) <= 100 else example[:100] + " ..."
    again = f"Training table {training} was packed as int16: pack it again with" if training else "Call with"
    raise MopError(
        f'column "{column}" has fractions, or numbers beyond -32768 to 32767, in {rows}',
        detail=f"Arrays of labels are packed as int16: classes, one-hot. One has {example}.",
        hint=f"{again} dependent_dtype => 'float32' to keep them, as soft labels or for regression. "
        f"{found}; finds them.",
        sqlstate=OUT_OF_RANGE,
    )
