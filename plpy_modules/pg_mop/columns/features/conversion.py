"""SQL that makes a column's value, of any type that it has now, one of the type of training.

Rows of a table have the types of the table; a single row comes as JSON, which has numbers and texts alone. Both must become
the same value. So the rules depend on the value as it is written: 0.1 of type real is the double 0.1, and 1.50 equals 1.5.
No setting of the session changes the result: PINNED (backend/caller.py) has those of the texts, and a transform stores the
time zone in which moments without one are taken.
"""

from __future__ import annotations

from pg_mop.backend.quoting import quote_literal
from pg_mop.backend.sql_types import NUMBERS

TIMES = ("time without time zone", "time with time zone", "interval")
MOMENTS = ("date", "timestamp without time zone", "timestamp with time zone")
WHOLE = ("smallint", "integer", "bigint")
INEXACT = ("real", "double precision")
# the types that the values of a JSON row are read as; no type of a user's, whose functions would run as the caller
JSON_TYPES = {
    **dict.fromkeys((*NUMBERS, "numeric"), "numeric"),
    **{name: name for name in ("boolean", "bytea", "json", *TIMES)},
    "jsonb": "json",  # (a field that no jsonb can have matters only where it is read)
}
HUGE = "1e300"  # numbers beyond are infinite
TINY = "1e-300"  # and those within are 0: double precision ends at 1e-308
UTC = "UTC"
LAST = "'294276-12-01'::date"  # later dates are beyond the range of timestamps


def family(sql_type: str) -> str:
    """Types of one family may stand for one another once the features are fitted."""
    if sql_type in NUMBERS:
        return "number"
    if sql_type in MOMENTS:
        return "moment"
    if sql_type in ("json", "jsonb"):
        return "json"
    if sql_type.endswith("[]"):
        return "array"
    return sql_type if sql_type in ("boolean", "bytea", *TIMES) else "text"


def number_sql(raw: str, sql_type: str, is_field: bool = False) -> str:
    """SQL: a raw number as double precision; NULL for NaN, infinity where double precision ends.

    A field of a JSON column that is no number is NULL.
    """
    if is_field:
        number = r"^\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,3})?\s*$"
        raw, sql_type = f"(CASE WHEN {raw} ~ {quote_literal(number)} THEN {raw}::numeric END)", "numeric"
    if sql_type == "numeric":
        return (
            f"(CASE WHEN {raw} = 'NaN' THEN NULL WHEN abs({raw}) < {TINY} THEN 0::double precision "
            f"WHEN abs({raw}) < {HUGE} THEN {raw}::double precision "
            f"WHEN {raw} IS NOT NULL THEN sign({raw})::double precision * 'Infinity' END)"
        )
    if sql_type in INEXACT:
        return f"nullif({raw}::double precision, 'NaN')"
    return f"{raw}::double precision"


def category_sql(raw: str, sql_type: str, zone: str = UTC) -> str:
    """SQL: a value of the type of training as the text of a category; equal values have equal texts.

    Blanks at the end do not count, capitals of citext do not, and neither do zeros at the end of numbers.
    """
    if sql_type == "timestamp with time zone":
        return f"{local_sql(raw, zone)}::text"
    text = f"{raw}::text"
    if sql_type == "numeric" or sql_type in WHOLE:
        point = f"pg_catalog.strpos({text}, '.'::text) > 0"
        return (
            f"(CASE WHEN {point} THEN pg_catalog.rtrim(pg_catalog.rtrim({text}, '0'::text), '.'::text) ELSE {text} END)"
        )
    if family(sql_type) != "text":
        return text
    if sql_type == "inet":  # PostgreSQL casts a single address to text with its mask, and writes it without
        single = quote_literal(r"^([0-9.]+)/32$|^([0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)/128$")
        text = (
            f"pg_catalog.regexp_replace({text}, {single}::text, {quote_literal(chr(92) + '1' + chr(92) + '2')}::text)"
        )
    text = f"pg_catalog.rtrim({text}, ' '::text)"
    return f"pg_catalog.lower({text})" if sql_type == "citext" else text


def local_sql(raw: str, zone: str) -> str:
    """SQL: a moment with a time zone as the time that clocks of `zone` show; a time of such a clock as the moment."""
    return f"({raw} AT TIME ZONE {quote_literal(zone)}::text)"


def as_trained(value: str, actual: str, trained: str, zone: str) -> str:
    """SQL: a column's value, of its present type or as JSON has it, as a value of the type of training.

    Both types are of one family. Where training had whole numbers, the value is numeric, since it may have a fraction now.
    """
    if trained == actual:
        return value
    kind = family(trained)
    if kind == "moment":
        return _moment_as_trained(value, actual, trained, zone)
    if kind == "number":
        return _number_as_trained(value, actual, trained)
    if kind == "array" and trained == "real[]":
        return f"{value}::real[]"
    if kind == "array" and actual == "real[]":
        return f"{value}::text::double precision[]"
    return value


def json_type(trained: str) -> str:
    """The SQL type that a value of a JSON row is read as, for a column that had the type `trained` in training."""
    if trained.endswith("[]"):
        return "real[]" if trained == "real[]" else "double precision[]"
    return JSON_TYPES.get(trained, "text")


def null_sql(trained: str) -> str:
    """SQL: NULL as a value of a column that is missing now."""
    return f"NULL::{trained if trained in MOMENTS else json_type(trained)}"


def _moment_as_trained(value: str, actual: str, trained: str, zone: str) -> str:
    if actual == trained:
        return value
    day, plain, zoned = MOMENTS
    if actual == "text":
        cases = [_moment_as_trained(f"{value}::{own}", own, trained, zone) for own in MOMENTS]
        is_day, has_zone = f"{value} !~ ':'::text", f"{value} ~ ':.*([-+]|Z)'::text"
        return f"(CASE WHEN {is_day} THEN {cases[0]} WHEN {has_zone} THEN {cases[2]} ELSE {cases[1]} END)"
    if actual == zoned:
        return f"{local_sql(value, zone)}::{trained}"
    if trained == day:
        return f"{value}::date"
    if actual == day:
        value = (
            f"(CASE WHEN {value} <= {LAST} THEN {value}::{plain} WHEN {value} IS NOT NULL THEN 'infinity'::{plain} END)"
        )
    return value if trained == plain else local_sql(value, zone)


def _number_as_trained(value: str, actual: str, trained: str) -> str:
    if trained == "real":
        return _real_sql(number_sql(value, actual))
    if trained == "double precision":
        return f"{value}::text::double precision" if actual == "real" else number_sql(value, actual)
    if actual in WHOLE:
        return f"{value}::numeric" if trained == "numeric" else value
    exact, limit, least = f"{value}::text::numeric", f"'{HUGE}'::double precision", "'NaN'::double precision"
    if actual == "numeric":
        exact, limit, least = value, HUGE, "'NaN'::numeric"
    else:
        value = f"{value}::double precision"  # (there is no sign(real), and another role may have made one)
    return (
        f"(CASE WHEN {value} = {least} THEN NULL WHEN abs({value}) < {limit} THEN {exact} "
        f"WHEN {value} IS NOT NULL THEN sign({value})::numeric * {HUGE} END)"
    )


def _real_sql(double: str) -> str:
    """SQL: a double as a real; infinity and 0 where the range of real ends."""
    return (
        f"(CASE WHEN abs({double}) > '3.4028235e38'::double precision THEN (sign({double}) * 'Infinity')::real "
        f"WHEN abs({double}) < '1e-45'::double precision THEN '0'::real ELSE ({double})::real END)"
    )
