"""Rows of a DataFrame, of arrays or of a file into a table, streamed by COPY."""

import io
import json
import re
import warnings
from collections.abc import Iterator
from typing import Any

import numpy
import pandas
import psycopg2
import sqlalchemy
from sqlalchemy import text

from pg_mop_client import reading
from pg_mop_client.database import driver_errors, plain, quote, quote_table
from pg_mop_client.errors import ClientError
from pg_mop_client.reading import ARRAYS, few
from pg_mop_client.tables import text_field

LARGEST = float(numpy.finfo("float32").max)  # of SQL's real
SMALLEST = float(numpy.finfo("float32").smallest_subnormal) / 2  # float32 rounds this and smaller numbers to 0: refused
# pandas' names for columns of Python objects that are numbers
NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal", "boolean")


@driver_errors()
def copy(
    connection: sqlalchemy.Connection,
    data: Any,
    table: str,
    label: str | None = None,
    features: Any = None,
    temporary: bool = False,
    **pictures: Any,
) -> tuple[str | None, str, list[str]]:
    """Write `data` to a new table (id bigint, the features as one array column, the label) in the caller's transaction.

    Returns the names of the label's and the features' columns in the table, and the columns of the data that became
    features.

    `data`: a DataFrame, a pair of arrays (x, y), the path of a .csv, .parquet or .npz file (with x and y), or the path
    of a folder of pictures, with `pictures` as in images.chunks. `label`: the label's column (None: the data have no
    label, for example rows to predict for). `features`: columns of numbers, or a single column of arrays; None: all
    columns of numbers except the label, with a warning about columns that are not used. Raises ClientError.
    """
    label = None if label is None else str(label)
    chunks = reading.chunks(data, label, **pictures)
    first = next(chunks, None)
    if first is None or not len(first):
        raise ClientError("there are no rows")
    if label is None and isinstance(data, tuple):
        label = "y"
    if label is not None and label not in first.columns:
        raise ClientError(f"there is no column {label!r} for the label", hint=f"The columns are {few(first.columns)}.")
    columns, array = _features(first, label, features)
    if "id" in (label, array) or label == array:
        raise ClientError(
            f"the column must not be named {'id' if 'id' in (label, array) else label!r}",
            hint="data.rename(columns={...})",
        )
    sql = quote(table) if temporary else quote_table(table)
    rows = _Rows(first, chunks, columns, label)
    label_sql = f", {quote(label)} {_type(first[label])}" if label is not None else ""
    connection.execute(
        text(
            plain(
                f"CREATE {'TEMPORARY ' if temporary else ''}TABLE {sql} (id bigint PRIMARY KEY, "
                f"{quote(array)} real{'[]' * rows.dimensions}{label_sql})"
            )
        )
    )
    try:
        with _cursor(connection) as cursor:
            cursor.copy_expert(f"COPY {sql} FROM STDIN", rows, 1 << 16)
    except psycopg2.Error as error:
        if rows.error is None and "KeyboardInterrupt" in str(error):  # raised in COPY, outside rows.read
            raise KeyboardInterrupt from None
        raise rows.error or error from None  # (COPY's message for an exception in `read` hides the cause)
    return label, array, columns


def _cursor(connection: sqlalchemy.Connection) -> Any:
    """A cursor of psycopg2's connection."""
    driver: Any = connection.connection.dbapi_connection
    return driver.cursor()


@driver_errors()
def note(connection: sqlalchemy.Connection, packed: str, array: str, columns: list[str]) -> None:
    """Store the names of the features' columns, and the time, in the comment of a packed table's column."""
    column = f"{quote_table(packed)}.{quote(array)}".replace("%", "%%")
    with _cursor(connection) as cursor:
        cursor.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
        comment = json.dumps({"features": columns, "packed_at": cursor.fetchone()[0]})
        cursor.execute(f"COMMENT ON COLUMN {column} IS %s", [comment])


@driver_errors()
def noted(connection: sqlalchemy.Connection, packed: str, array: str) -> tuple[list[str] | None, float | None]:
    """The columns and the time that `note` has stored; (None, None) without such a comment."""
    comment = connection.execute(
        text(
            "SELECT pg_catalog.col_description(attrelid, attnum) FROM pg_catalog.pg_attribute WHERE attrelid = "
            "pg_catalog.to_regclass(:packed) AND attname = :array"
        ),
        {"packed": packed, "array": array},
    ).scalar()
    try:
        read = json.loads(comment or "null")
        columns, when = read["features"], float(read["packed_at"])
    except (TypeError, ValueError, KeyError):
        return None, None
    return (columns, when) if columns and all(isinstance(n, str) for n in columns) else (None, None)


def _features(first: pandas.DataFrame, label: str | None, features: Any) -> tuple[list[str], str]:
    """The columns of the features, and the name of the array column made of them. Raises ClientError."""
    if features is None:
        others = [name for name in first.columns if name != label]
        features = [name for name in others if _has_numbers(first[name]) or _has_arrays(first[name])]
        left = [name for name in others if name not in features]
        odd = [name for name in features if re.fullmatch(r"id|index|Unnamed: \d+", name, re.I)]
        if left and features:
            warnings.warn(f"not used as features, because they have no numbers: {few(left)}", stacklevel=4)
        if odd:
            warnings.warn(
                f"used as features, because they have numbers: {few(odd)}; features=[...] excludes them", stacklevel=4
            )
    features = list(map(str, [features] if isinstance(features, (str, int)) else features))
    if label in features or len(set(features)) < len(features):
        twice = label if label in features else next(name for name in features if features.count(name) > 1)
        raise ClientError(f"column {twice!r} is named twice", hint="A column is one feature or the label.")
    missing = [name for name in features if name not in first.columns]
    if missing or not features:
        raise ClientError(
            f"there is no column {missing[0]!r}" if missing else "there are no columns of numbers",
            hint=f"The columns are {few(first.columns)}.",
        )
    arrays = [name for name in features if _has_arrays(first[name])]
    if arrays and len(features) > 1:
        raise ClientError(
            f"column {arrays[0]!r} has arrays: it cannot be a feature among others", hint=f"features={arrays[0]!r}"
        )
    if not arrays and (words := [n for n in features if not _has_numbers(first[n])]):
        raise ClientError(f"column {words[0]!r} has no numbers", hint="features=[...], without it")
    return features, arrays[0] if arrays else "features"


def _sample(values: pandas.Series) -> Any:
    """The first value that is not missing, or None."""
    return next(iter(values.dropna()), None)


def _has_arrays(values: pandas.Series) -> bool:
    return isinstance(_sample(values), ARRAYS)


def _has_numbers(values: pandas.Series) -> bool:
    of = pandas.api.types
    if values.dtype == object:
        return of.infer_dtype(values, skipna=True) in NUMBERS
    return of.is_numeric_dtype(values) and not of.is_complex_dtype(values)


def _type(values: pandas.Series) -> str:
    """The SQL type of a label's column; its pandas type comes from reading.kind."""
    of, sample = pandas.api.types, _sample(values)
    if isinstance(sample, ARRAYS):
        return "real" + "[]" * numpy.ndim(sample)
    if isinstance(values.dtype, pandas.CategoricalDtype):
        categories = values.cat.categories.to_series()
        return _type(categories.astype(reading.kind(categories)))
    if of.is_bool_dtype(values):
        return "boolean"
    if of.is_integer_dtype(values):
        return {"Int32": "integer", "Int64": "bigint"}.get(str(values.dtype), "numeric")
    return "double precision" if of.is_float_dtype(values) else "text"


class _Rows:
    """A file object for COPY, with the lines of the chunks, made on demand. `error`: the exception of `read`, or None."""

    def __init__(
        self, first: pandas.DataFrame, chunks: Iterator[pandas.DataFrame], columns: list[str], label: str | None
    ) -> None:
        """`first`: the first chunk; `chunks`: the other chunks."""
        self.chunks, self.columns, self.label = chunks, columns, label
        self.count = 0
        self.error: BaseException | None = None
        self.has_arrays = len(columns) == 1 and _has_arrays(first[columns[0]])
        self.dimensions = self._array(_sample(first[columns[0]]), "its first rows").ndim if self.has_arrays else 1
        self.has_vectors = label is not None and _has_arrays(first[label])
        self.buffer = self._lines(first)

    def read(self, size: int) -> str:
        try:
            while not (given := self.buffer.read(size)):
                chunk = next(self.chunks, None)
                if chunk is None:
                    break
                self.buffer = self._lines(chunk)
            return given
        except BaseException as error:
            self.error = error
            raise

    def _lines(self, chunk: pandas.DataFrame) -> io.StringIO:
        """The lines of a chunk. Raises ClientError."""
        written = [
            str(array).replace("[", "{").replace("]", "}")
            for array in (self._arrays(chunk[self.columns[0]]) if self.has_arrays else self._numbers(chunk))
        ]
        ids = range(self.count, self.count + len(chunk))
        self.count += len(chunk)
        if (
            self.label is not None
            and chunk[self.label].notna().any()
            and (_has_arrays(chunk[self.label]) != self.has_vectors)
        ):
            raise ClientError(
                f"column {self.label!r} has vectors in some rows but not in others",
                hint=f"data.dropna(subset=[{self.label!r}])",
            )
        ends = [""] * len(chunk) if self.label is None else [f"\t{_field(value)}" for value in chunk[self.label]]
        return io.StringIO("".join(f"{i}\t{array}{end}\n" for i, array, end in zip(ids, written, ends)), newline="")

    def _numbers(self, chunk: pandas.DataFrame) -> list[list[float]]:
        """A list of numbers for each row of columns of numbers. Raises ClientError."""
        for name in self.columns:
            if name not in chunk.columns or not _has_numbers(chunk[name]):
                raise ClientError(f"column {name!r} has a value that is not a number, after row {self.count}")
        numbers = chunk[self.columns].to_numpy(dtype="float64", na_value=numpy.nan)
        if (odd := _odd(numbers)).any():
            row = int(odd.any(axis=1).argmax())
            column = int(odd[row].argmax())
            raise ClientError(
                f"column {self.columns[column]!r} has {_oddity(numbers[row, column])} in row {self.count + row}",
                hint="data.dropna(), or fillna(...)"
                if numpy.isnan(numbers[row, column])
                else "replace(...) or clip(...), or exclude the column",
            )
        return numbers.tolist()

    def _arrays(self, values: pandas.Series) -> Iterator[list[Any]]:
        """A nested list of numbers for each row of a column of arrays. Raises ClientError."""
        for number, value in enumerate(values, self.count):
            array = self._array(value, f"row {number}")
            if array.ndim != self.dimensions:
                raise ClientError(
                    f"column {self.columns[0]!r} has {array.ndim} dimensions in row {number}, and "
                    f"{self.dimensions} in its first rows"
                )
            if array.dtype.kind == "f" and (odd := _odd(array)).any():
                raise ClientError(f"column {self.columns[0]!r} has {_oddity(array[odd][0])} in row {number}")
            yield array.tolist()

    def _array(self, value: Any, where: str) -> numpy.ndarray:
        if numpy.ma.is_masked(value):
            raise ClientError(f"column {self.columns[0]!r} has masked values in {where}", hint="x.filled(...)")
        try:
            array = _nested(value)
            if array.dtype.kind in "cmM":  # (numpy would convert complex numbers and times to other numbers)
                raise TypeError
            return array if array.dtype.kind in "iuf" else array.astype("float64")
        except (TypeError, ValueError):
            raise ClientError(f"column {self.columns[0]!r} has no array of numbers in {where}") from None


def _odd(numbers: numpy.ndarray) -> numpy.ndarray:
    """True for each number that SQL's real cannot hold as a finite number, or would round to 0."""
    sizes = numpy.abs(numbers)
    return ~((sizes <= LARGEST) & ((sizes > SMALLEST) | (sizes == 0)))


def _oddity(number: Any) -> str:
    """A description of a number that cannot be a feature."""
    if numpy.isnan(number):
        return "no number"
    if numpy.isinf(number):
        return "an infinity"
    return f"{number:g}, {'beyond' if abs(number) > 1 else 'too small for'} real"


def _nested(value: Any) -> numpy.ndarray:
    """One array from nested arrays, such as those that Parquet files give."""
    array = numpy.asarray(value)
    if array.dtype == object and array.ndim == 1 and len(array) and isinstance(array[0], ARRAYS):
        return numpy.stack([_nested(part) for part in array])
    return array


def _field(value: Any) -> str:
    """A value in COPY's text format."""
    if isinstance(value, ARRAYS):
        if numpy.ma.is_masked(value):
            raise ClientError("a class has masked values", hint="y.filled(...)")
        return str(numpy.asarray(value, "float64").tolist()).replace("[", "{").replace("]", "}")
    if pandas.isna(value):
        return "\\N"
    if isinstance(value, bytes):
        raise ClientError(f"a class is bytes, {value[:20]!r}", hint="data[label].str.decode('utf-8')")
    return text_field(str(value), "class", "label")
