"""Rows of a DataFrame, of arrays or of a file into a table, streamed by COPY."""

import itertools
import json
import os
import pathlib

import numpy
import pandas
from sqlalchemy import text

from pg_mop_client import images
from pg_mop_client.database import plain, quote, quote_table
from pg_mop_client.errors import ClientError, needed

CHUNK_ROWS = 10_000


def copy(connection, data, table, label=None, features=None, temporary=False, **pictures):
    """Write `data` to a new table (id bigint, the features as one array column, the label); returns the names of the
    label's and the features' columns, and how many rows there were.

    `data`: a DataFrame, a pair of arrays (x, y), the path of a .csv, .parquet or .npz file (with x and y), or that of a
    folder of pictures, of which `pictures` says more (images.chunks). `label`: its column (None: there is none, as of
    rows to predict for). `features`: columns of numbers, or the one column that
    has arrays; None: all columns of numbers but the label. The names of the columns are kept in a comment on the array
    column. Raises ClientError.
    """
    chunks = _chunks(data, **pictures)
    first = next(chunks, None)
    if first is None or not len(first):
        raise ClientError("there are no rows to pack")
    if label is None and isinstance(data, tuple):
        label = "y"
    columns, array = _features(first, label, features)
    if label is not None and label not in first.columns:
        raise ClientError(f"there is no column {label!r} for the label", hint=f"There are {few(first.columns)}.")
    if label in ("id", array):
        raise ClientError(f"the label's column must not be called {label!r}", hint="data.rename(columns={...})")
    sql = quote(table) if temporary else quote_table(table)
    dimensions = "[]" * max(1, numpy.ndim(first[columns[0]].iloc[0]) if len(columns) == 1 else 1)
    label_sql = f", {quote(label)} {_type(first[label])}" if label is not None else ""
    connection.execute(text(plain(f"CREATE {'TEMPORARY ' if temporary else ''}TABLE {sql} (id bigint PRIMARY KEY, "
                                  f"{quote(array)} real{dimensions}{label_sql})")))
    rows = _Rows(itertools.chain([first], chunks), columns, label)
    try:
        with connection.connection.dbapi_connection.cursor() as cursor:
            cursor.copy_expert(f"COPY {sql} FROM STDIN", rows)
    except BaseException:
        connection.execute(text(plain(f"DROP TABLE {sql}")))
        raise
    if columns != [array] and not temporary:
        names = json.dumps(columns).replace("'", "''")
        connection.connection.dbapi_connection.cursor().execute(
            f"COMMENT ON COLUMN {sql}.{quote(array)} IS {_literal(names)}")
    return label, array, rows.count


def _literal(doubled):
    return "E'" + doubled.replace("\\", "\\\\") + "'"


def few(names):
    """Names for a message."""
    return ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")


def is_folder(data):
    """True where data to be packed are the path of a folder."""
    return isinstance(data, (str, os.PathLike)) and pathlib.Path(data).is_dir()


def _chunks(data, **pictures):
    """The data as DataFrames of some rows each. Raises ClientError."""
    if is_folder(data):
        return images.chunks(data, **pictures)
    if pictures:
        raise ClientError(f"{next(iter(pictures))} is for a folder of pictures")
    if isinstance(data, pandas.DataFrame):
        return (data.iloc[at:at + CHUNK_ROWS] for at in range(0, len(data), CHUNK_ROWS))
    if isinstance(data, tuple) and len(data) == 2:
        return _arrays(*data)
    path = pathlib.Path(data)
    if not path.is_file():
        raise ClientError(f"there is no file {str(path)!r}")
    if path.suffix == ".csv":
        return pandas.read_csv(path, chunksize=CHUNK_ROWS)
    if path.suffix == ".parquet":
        return (batch.to_pandas() for batch in needed("pyarrow.parquet", "parquet").ParquetFile(path).iter_batches(
            CHUNK_ROWS))
    if path.suffix == ".npz":
        arrays = numpy.load(path)
        if not {"x", "y"} <= set(arrays.files):
            raise ClientError(f"{path.name} has no arrays x and y", hint=f"It has {few(arrays.files)}.")
        return _arrays(arrays["x"], arrays["y"])
    raise ClientError(f"{path.name} is no .csv, .parquet or .npz file, and no folder of pictures")


def _arrays(x, y):
    if len(x) != len(y):
        raise ClientError(f"x has {len(x)} rows and y {len(y)}")
    return (pandas.DataFrame({"x": list(numpy.asarray(x[at:at + CHUNK_ROWS])), "y": y[at:at + CHUNK_ROWS]})
            for at in range(0, len(x), CHUNK_ROWS))


def _features(first, label, features):
    """The columns of the features, and the name of the array column that is made of them. Raises ClientError."""
    if isinstance(features, str):
        features = [features]
    if features is None:
        features = [name for name in first.columns if name != label and (
            pandas.api.types.is_numeric_dtype(first[name]) or isinstance(first[name].iloc[0], (list, numpy.ndarray)))]
    missing = [name for name in features if name not in first.columns]
    if missing or not features:
        raise ClientError(f"there is no column {missing[0]!r}" if missing else "there are no columns of numbers",
                          hint=f"There are {few(first.columns)}.")
    arrays = [name for name in features if isinstance(first[name].iloc[0], (list, tuple, numpy.ndarray))]
    if arrays and len(features) > 1:
        raise ClientError(f"column {arrays[0]!r} has arrays: it cannot be a feature among others",
                          hint=f"features={arrays[0]!r}")
    if not arrays and (words := [n for n in features if not pandas.api.types.is_numeric_dtype(first[n])]):
        raise ClientError(f"column {words[0]!r} has no numbers", hint="features=[...], without it")
    return list(features), arrays[0] if arrays else "features"


def _type(values):
    if pandas.api.types.is_bool_dtype(values):
        return "boolean"
    if pandas.api.types.is_integer_dtype(values):
        return "bigint" if values.abs().max() > 2**31 - 1 else "integer"
    return "double precision" if pandas.api.types.is_float_dtype(values) else "text"


class _Rows:
    """What COPY reads: the lines of the chunks, made as they are asked for."""

    def __init__(self, chunks, columns, label):
        self.chunks, self.columns, self.label = chunks, columns, label
        self.count, self.buffer = 0, ""

    def read(self, size=8192):
        while len(self.buffer) < size:
            chunk = next(self.chunks, None)
            if chunk is None:
                break
            self.buffer += self._lines(chunk)
        given, self.buffer = self.buffer[:size], self.buffer[size:]
        return given

    def _lines(self, chunk):
        if len(self.columns) > 1 or not isinstance(chunk[self.columns[0]].iloc[0], (list, tuple, numpy.ndarray)):
            arrays = chunk[self.columns].to_numpy(dtype="float64", na_value=numpy.nan).tolist()
        else:
            arrays = [numpy.asarray(value).tolist() for value in chunk[self.columns[0]]]
        written = [str(array).replace("[", "{").replace("]", "}") for array in arrays]
        ids = range(self.count, self.count + len(chunk))
        self.count += len(chunk)
        if self.label is None:
            return "".join(f"{i}\t{array}\n" for i, array in zip(ids, written))
        return "".join(f"{i}\t{array}\t{_field(value)}\n" for i, array, value in zip(ids, written, chunk[self.label]))


def _field(value):
    """A value in COPY's text format."""
    if value is None or value is pandas.NA or isinstance(value, float) and numpy.isnan(value):
        return "\\N"
    for character, code in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        value = str(value).replace(character, code)
    return value
