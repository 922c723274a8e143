"""A DataFrame with columns of all kinds into an ordinary table, by COPY: each column gets the SQL type of its values."""

import datetime
import json
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy
import pandas
import psycopg2
import sqlalchemy
from sqlalchemy import text

from pg_mop_client import images
from pg_mop_client.database import driver_errors, plain, quote, quote_table
from pg_mop_client.errors import ClientError
from pg_mop_client.reading import ARRAYS, CHUNK_ROWS, few, named

Write = Callable[[Any], str]  # a value that is not missing, in COPY's text format
MISSING, QUOTE = "\\N", "'"

# SQL types of columns of Python's objects, by pandas' name for their contents (pandas.api.types.infer_dtype)
OF_OBJECTS = {
    "string": "text",
    "empty": "text",
    "boolean": "boolean",
    "floating": "double precision",
    "mixed-integer-float": "double precision",
    "decimal": "numeric",
    "date": "date",
    "time": "time",
    "timedelta": "interval",
    "bytes": "bytea",
}


@driver_errors()
def copy(
    connection: sqlalchemy.Connection,
    data: Any,
    table: str,
    key: str | None = None,
    numbered: str | None = None,
    temporary: bool = False,
    pictures: Sequence[str] = (),
) -> None:
    """Write a DataFrame to a new table in the caller's transaction, without its index.

    `table`: a name in SQL's syntax, or of a temporary table as it is. `key`: the column of the primary key. `numbered`: the
    name of a further column with the position of each row, from 0. `pictures`: columns with paths of PNG and JPEG files,
    which become bytea. All files are looked at first, and then read one by one. Missing values become NULL. Raises
    ClientError.
    """
    data = checked(data)
    if unknown := [name for name in pictures if name not in data.columns]:
        raise ClientError(f"there is no column {unknown[0]!r} of images", hint=f"The columns are {few(data.columns)}.")
    if key is not None and key not in data.columns:
        raise ClientError(f"there is no column {key!r} for the key", hint=f"The columns are {few(data.columns)}.")
    columns: dict[str, tuple[str, Write | None]] = {
        name: ("bytea", None) if name in pictures else column(name, data[name]) for name in data.columns
    }
    for name in pictures:
        images.check_files(name, data[name])
    described = [f"{quote(name)} {sql_type}" for name, (sql_type, _) in columns.items()]
    if numbered is not None:
        described.append(f"{quote(numbered)} bigint")
    if key is not None:
        described.append(f"PRIMARY KEY ({quote(key)})")
    sql = quote(table) if temporary else quote_table(table)
    connection.execute(text(plain(f"CREATE {'TEMPORARY ' if temporary else ''}TABLE {sql} ({', '.join(described)})")))
    driver: Any = connection.connection.dbapi_connection
    lines = _Lines(data, columns, numbered is not None)
    try:
        with driver.cursor() as cursor:
            cursor.copy_expert(f"COPY {sql} FROM STDIN", lines, 1 << 16)
    except psycopg2.Error as error:
        if lines.error is None and "KeyboardInterrupt" in str(error):  # raised in COPY, outside lines.read
            raise KeyboardInterrupt from None
        raise lines.error or error from None  # (COPY's message for an exception in `read` hides the cause)


@driver_errors()
def query(data: pandas.DataFrame) -> str:
    """A query whose rows are those of a DataFrame of few rows, in its order. Raises ClientError."""
    lists = []
    for name in data.columns:
        sql_type, write = column(name, data[name])
        fields = _fields(data[name], write)
        # (the backslashes of COPY's format are those of such a literal)
        lists.append(
            [f"NULL::{sql_type}" if f == MISSING else f"E'{f.replace(QUOTE, QUOTE * 2)}'::{sql_type}" for f in fields]
        )
    rows = ", ".join(f"({', '.join(row)})" for row in zip(*lists))
    return f"SELECT * FROM (VALUES {rows}) AS t({', '.join(map(quote, data.columns))})"


def checked(data: Any) -> pandas.DataFrame:
    """A DataFrame with rows and columns whose names are texts. Raises ClientError."""
    if not isinstance(data, pandas.DataFrame):
        raise ClientError(
            f"rows are a DataFrame, not {type(data).__name__}", hint="pandas.read_csv(path), pandas.read_parquet(path)"
        )
    data = named(data)
    if not len(data.columns):
        raise ClientError("the DataFrame has no columns")
    if not len(data):
        raise ClientError("there are no rows")
    return data


def typed(data: pandas.DataFrame) -> pandas.DataFrame:
    """The columns whose values have a type: without columns of Python's objects that are all missing."""
    of = pandas.api.types
    return data[[name for name in data.columns if not of.is_object_dtype(data[name].dtype) or data[name].notna().any()]]


def column(name: str, values: pandas.Series) -> tuple[str, Write]:
    """The SQL type of a column, and the function that writes its values. Raises ClientError."""
    of, kind = pandas.api.types, values.dtype
    if isinstance(kind, (pandas.CategoricalDtype, pandas.ArrowDtype)):
        return column(name, values.astype(object))
    if of.is_bool_dtype(kind):
        return "boolean", _boolean
    if of.is_integer_dtype(kind):
        return ("numeric" if "uint64" in str(kind).lower() else "bigint"), _integer
    if of.is_float_dtype(kind):
        if str(kind).lower() in ("float16", "float32"):
            return "real", lambda value: str(numpy.float32(value))
        return "double precision", lambda value: repr(float(value))
    if isinstance(kind, pandas.DatetimeTZDtype):
        return "timestamptz", _moment
    if of.is_datetime64_dtype(kind):
        return "timestamp", _moment
    if of.is_timedelta64_dtype(kind):
        return "interval", _interval
    if isinstance(kind, pandas.StringDtype):
        return "text", text_field
    if of.is_object_dtype(kind):
        return _of_objects(name, values)
    raise ClientError(
        f"column {name!r} has the type {kind}, for which SQL has none", hint=f"data[{name!r}].astype(str)"
    )


def _of_objects(name: str, values: pandas.Series) -> tuple[str, Write]:
    """`column` for a column of Python's objects."""
    contents = pandas.api.types.infer_dtype(values, skipna=True)
    known = values.dropna()
    sample = next(iter(known), None)
    if contents == "integer":
        fits = min(known) >= -(1 << 63) and max(known) < 1 << 63
        return ("bigint" if fits else "numeric"), _integer
    if contents in ("datetime", "datetime64"):
        return ("timestamptz" if getattr(sample, "tzinfo", None) else "timestamp"), _moment
    if contents in OF_OBJECTS:
        writers: dict[str, Write] = {"boolean": _boolean, "interval": _interval, "bytea": _bytes, "text": text_field}
        writers["double precision"] = lambda value: repr(float(value))
        return OF_OBJECTS[contents], writers.get(OF_OBJECTS[contents], str)
    for kind, sql_type, write in (
        (ARRAYS, "double precision[]", _array),
        (dict, "jsonb", lambda value: text_field(json.dumps(value))),
        (uuid.UUID, "uuid", str),
    ):
        if isinstance(sample, kind):
            if strange := next((v for v in known if not isinstance(v, kind)), None):
                raise ClientError(f"column {name!r} has both {type(sample).__name__} and {type(strange).__name__}")
            return sql_type, write
    raise ClientError(
        f"column {name!r} has values of several types, or of a type that SQL has not: {contents}",
        hint=f"data[{name!r}].astype(str)",
    )


def _boolean(value: Any) -> str:
    return "true" if value else "false"


def _integer(value: Any) -> str:
    return str(int(value))


def _moment(value: datetime.datetime) -> str:
    return value.isoformat(sep=" ")


def _interval(value: Any) -> str:
    return f"{pandas.Timedelta(value).total_seconds():.6f} seconds"


def _bytes(value: bytes) -> str:
    return "\\\\x" + bytes(value).hex()


def _array(value: Any) -> str:
    try:
        numbers = numpy.asarray(value, "float64")
    except (TypeError, ValueError):
        raise ClientError(
            f"an array has values that are not numbers, or rows of several lengths: {str(value)[:60]}"
        ) from None
    return str(numbers.tolist()).replace("[", "{").replace("]", "}")


def text_field(value: str, what: str = "text", column: str = "column") -> str:
    """A text in COPY's format. `what` and `column`: the names of the text and of its column in errors. Raises ClientError."""
    if "\0" in value:
        raise ClientError(
            f"a {what} has a NUL character, {value[:20]!r}", hint=rf"data[{column}].str.replace('\0', '')"
        )
    if re.search("[\ud800-\udfff]", value):
        raise ClientError(
            f"a {what} has half of a character (a lone surrogate), {value[:20]!r}",
            hint=f"data[{column}].str.encode('utf-8', 'replace').str.decode('utf-8')",
        )
    for character, code in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        value = value.replace(character, code)
    return value


class _Lines:
    """A file object for COPY, with the lines of a DataFrame, made on demand. `error`: the exception of `read`, or None.

    A column without a function has paths of images, which are read one by one.
    """

    def __init__(self, data: pandas.DataFrame, columns: dict[str, tuple[str, Write | None]], numbered: bool) -> None:
        self.error: BaseException | None = None
        self.pieces = self._pieces(data, columns, numbered)
        self.piece, self.at = "", 0

    def read(self, size: int) -> str:
        try:
            if self.at >= len(self.piece):
                self.piece, self.at = next(self.pieces, ""), 0
        except BaseException as error:
            self.error = error
            raise
        self.at += size
        return self.piece[self.at - size : self.at]

    @staticmethod
    def _pieces(data: pandas.DataFrame, columns: dict[str, tuple[str, Write | None]], numbered: bool) -> Iterator[str]:
        whole = all(write is not None for _, write in columns.values())
        for at in range(0, len(data), CHUNK_ROWS):
            chunk = data.iloc[at : at + CHUNK_ROWS]
            fields: list[Any] = [
                _files(name, chunk[name], at) if write is None else _fields(chunk[name], write)
                for name, (_, write) in columns.items()
            ]
            if numbered:
                fields.append(map(str, range(at, at + len(chunk))))
            lines = ("\t".join(line) + "\n" for line in zip(*fields))
            if whole:
                yield "".join(lines)
            else:  # (one line in memory at a time)
                yield from lines


def _fields(values: pandas.Series, write: Write) -> list[str]:
    """The fields of a column in COPY's text format."""
    return [MISSING if missing else write(value) for value, missing in zip(values.astype(object), values.isna())]


def _files(name: str, values: pandas.Series, at: int) -> Iterator[str]:
    """The fields of a column of paths; `at`: the position of the first row."""
    for row, (value, missing) in enumerate(zip(values.astype(object), values.isna()), at):
        yield MISSING if missing else _bytes(images.read_file(name, row, value))
