"""Data from users (a DataFrame, arrays, a file or a folder) as DataFrames of some rows each.

The columns have names, and the same types in all of these DataFrames.
"""

import os
import pathlib
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pandas

from pg_mop_client import images
from pg_mop_client.errors import ClientError, needed

CHUNK_ROWS = 10_000
ARRAYS = (list, tuple, numpy.ndarray)
PATHS = (str, os.PathLike)
OF_OBJECTS = {"integer": "Int64", "boolean": "boolean"}  # contents of a column of Python's objects -> its type


def is_folder(data: Any) -> bool:
    """True if `data` is the path of a folder."""
    return isinstance(data, PATHS) and pathlib.Path(data).is_dir()


def _is_pair(data: Any) -> bool:
    return isinstance(data, tuple) and len(data) == 2


def label_of(data: Any) -> str | None:
    """The label's name in pictures in folders ('label') and in pairs of arrays ('y'); None for other data."""
    if is_folder(data):
        return "label"
    return "y" if _is_pair(data) or isinstance(data, PATHS) and str(data).lower().endswith(".npz") else None


def few(names: Any) -> str:
    """A list of at most 20 names for a message."""
    return ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")


def named(frame: pandas.DataFrame) -> pandas.DataFrame:
    """A DataFrame with column names that are strings. Raises ClientError if two columns have the same name."""
    frame = frame.set_axis(frame.columns.map(str), axis=1)
    if not frame.columns.is_unique:
        raise ClientError(
            f"two columns are named {frame.columns[frame.columns.duplicated()][0]!r}", hint="data.columns = [...]"
        )
    lists: dict[Any, Any] = {
        name: object
        for name, kind in frame.dtypes.items()
        if isinstance(kind, pandas.ArrowDtype) and re.search("list|tensor", str(kind.pyarrow_dtype))
    }
    return frame.astype(lists) if lists else frame


def whole(data: Any, **pictures: Any) -> pandas.DataFrame:
    """The data as one DataFrame; `pictures` as in images.chunks. Raises ClientError."""
    found = pandas.concat(chunks(data, **pictures)) if not isinstance(data, pandas.DataFrame) or pictures else data
    return named(found)


def chunks(data: Any, label: str | None = None, **pictures: Any) -> Iterator[pandas.DataFrame]:
    """The data as DataFrames of some rows each.

    `data` and `pictures` as in packing.copy. `label`: the column of the classes, if the data have one. Raises
    ClientError.
    """
    if is_folder(data):
        return images.chunks(data, **pictures)
    if pictures:
        raise ClientError(f"{next(iter(pictures))} is for a folder of pictures")
    if isinstance(data, pandas.DataFrame):
        data = named(data)
        if label is not None and label in data.columns:
            data = data.assign(**{label: data[label].astype(kind(data[label]))})
        return (data.iloc[at : at + CHUNK_ROWS] for at in range(0, len(data), CHUNK_ROWS))
    if _is_pair(data):
        return _arrays(*data)
    if not isinstance(data, PATHS):
        raise ClientError(f"rows are a DataFrame, a pair of arrays (x, y) or a path, not {type(data).__name__}")
    path = pathlib.Path(data).expanduser()
    if not path.is_file():
        raise ClientError(f"there is no file {str(path)!r}", hint=f"The current directory is {os.getcwd()!r}.")
    name = path.name.lower()
    if name.endswith((".csv", ".csv.gz")):
        return _csv(path, label)
    if name.endswith(".parquet"):
        return _parquet(path, label)
    if name.endswith(".npz"):
        return _arrays(*_npz(path))
    raise ClientError(f"{path.name} is neither a .csv, .parquet or .npz file nor a folder of pictures")


def kind(values: pandas.Series) -> Any:
    """The type of a column of classes, from all of its values. Integers get the smaller type of Int32 and Int64.

    Raises ClientError if a number and a text are written alike, and for integers above 64 bits.
    """
    try:
        return _kind(values)
    except OverflowError:
        raise ClientError(
            "the column of classes has integers of more than 64 bits", hint="data[label].astype(str)"
        ) from None


def _kind(values: pandas.Series) -> Any:
    of = pandas.api.types
    if values.dtype == object:
        inferred = of.infer_dtype(values, skipna=True)
        if inferred.startswith("mixed") and not any(isinstance(value, ARRAYS) for value in values):
            words = pandas.Series(values.dropna().unique()).astype(str)
            if not words.is_unique:
                raise ClientError(
                    f"the column of classes has {words[words.duplicated()].iloc[0]!r} as a number and as a text",
                    hint="data[label].astype(str), or astype(int)",
                )
        if found := OF_OBJECTS.get(inferred):
            values = values.astype(found)
    if of.is_integer_dtype(values):
        low, high = (0, 0) if values.isna().all() else (int(values.min()), int(values.max()))
        for bits in (32, 64):
            if -(2 ** (bits - 1)) <= low and high < 2 ** (bits - 1):
                return f"Int{bits}"
    return values.dtype


def _arrays(x: Any, y: Any) -> Iterator[pandas.DataFrame]:
    for name, given in (("x", x), ("y", y)):
        if isinstance(given, (list, tuple)) and any(hasattr(own, "shape") and len(own.shape) > 1 for own in given):
            raise ClientError(
                f"{name} is a list of arrays, but pack cannot pack several inputs",
                hint="s.training_preprocessor_dl(table, output_table, label, ['one', 'two']) packs a "
                "table with one column for each input.",
            )
        if numpy.ma.is_masked(given) or isinstance(given, (list, tuple)) and any(map(numpy.ma.is_masked, given)):
            raise ClientError(f"{name} has masked values", hint=f"{name}.filled(...), or only the rows without them")
        if numpy.ndim(given) == 0:
            raise ClientError(f"{name} is not an array of rows")
    if len(x) != len(y):
        raise ClientError(f"x has {len(x)} rows and y {len(y)}")
    y = numpy.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:  # as in Keras' own data sets
        y = y[:, 0]
    if y.ndim == 1:
        y = pandas.Series(y)
        y = y.astype(kind(y))
    return (
        pandas.DataFrame(
            {
                "x": list(numpy.asarray(x[at : at + CHUNK_ROWS])),
                "y": y[at : at + CHUNK_ROWS] if y.ndim == 1 else list(y[at : at + CHUNK_ROWS]),
            }
        )
        for at in range(0, len(x), CHUNK_ROWS)
    )


def _read(path: pathlib.Path, read: Callable[..., Any], *given: Any, **more: Any) -> Any:
    """The result of `read`. Raises ClientError with the file's name if `read` fails, or if it would omit data."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            return read(*given, **more)
    except UnicodeDecodeError as error:
        raise ClientError(
            f"{str(path)!r} is not UTF-8: {error}",
            hint="pack(pandas.read_csv(path, encoding='latin-1'), ...), with the encoding of the file",
        ) from None
    except (ValueError, OSError, EOFError, zlib.error, zipfile.BadZipFile, pandas.errors.ParserWarning) as error:
        raise ClientError(f"{str(path)!r} cannot be read: {' '.join(str(error).split())}") from None


def _npz(path: pathlib.Path) -> tuple[Any, Any]:
    arrays = _read(path, numpy.load, path)
    with arrays:
        if not {"x", "y"} <= set(arrays.files):
            raise ClientError(f"{path.name} has no arrays x and y", hint=f"The file has {few(arrays.files)}.")
        return _read(path, arrays.__getitem__, "x"), _read(path, arrays.__getitem__, "y")


def _csv(path: pathlib.Path, label: str | None) -> Iterator[pandas.DataFrame]:
    """The rows of a CSV file.

    The column of classes is read first and whole, because its type depends on all of its values. Classes keep their
    spelling: only an empty field is NULL, and 01 differs from 1.
    """
    given: dict[str, Any] = {"index_col": False}
    at, classes = 0, None
    names = _read(path, pandas.read_csv, path, nrows=0, **given).columns
    if len(names) == 1 and (separator := re.search("[;\t|]", names[0])):
        raise ClientError(
            f"{str(path)!r} has one column, {names[0][:80]!r}",
            hint=f"pack(pandas.read_csv(path, sep={separator[0]!r}), ...)",
        )
    if label in names:
        classes = _read(
            path, pandas.read_csv, path, usecols=[label], dtype=str, keep_default_na=False, na_values=[""], **given
        )[label]
        classes = classes.astype(object).where(classes.notna(), None)
        if not any(re.match(r"[+-]?0\d", word) for word in classes.dropna().unique()):
            classes = _numbers(classes)
        classes = classes.astype(kind(classes))
    with _read(path, pandas.read_csv, path, chunksize=CHUNK_ROWS, **given) as chunks:
        while (chunk := _read(path, next, chunks, None)) is not None:
            if classes is not None:
                chunk[label] = classes.iloc[at : at + len(chunk)].set_axis(chunk.index)
            at += len(chunk)
            yield named(chunk)


def _numbers(words: pandas.Series) -> pandas.Series:
    """A column of texts as numbers or booleans, if all its texts are numbers or all are booleans."""
    truth = {"true": True, "false": False}
    if set(words.dropna().str.lower()) <= truth.keys():
        return words.str.lower().map(truth).astype("boolean")
    try:
        numbers = pandas.to_numeric(words)
    except (TypeError, ValueError):
        return words
    whole = words.isna().any() and not words.dropna().str.contains(r"[.eE]|inf|nan", case=False).any()
    try:
        return (
            pandas.Series([int(w) if isinstance(w, str) else None for w in words], words.index, "Int64")
            if whole
            else numbers
        )
    except OverflowError:  # integers above 64 bits
        return words


def _parquet(path: pathlib.Path, label: str | None) -> Iterator[pandas.DataFrame]:
    """The rows of a Parquet file. Integers stay integers if values are missing. Classes are read first, as in _csv."""
    arrow = needed("pyarrow", "parquet")
    whole: dict[Any, Any] = {
        getattr(arrow, name.lower())(): getattr(pandas, f"{name}Dtype")()
        for name in ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
    }
    whole[arrow.bool_()] = pandas.BooleanDtype()
    file = _read(path, needed("pyarrow.parquet", "parquet").ParquetFile, path)
    types = {}
    if label in file.schema_arrow.names:
        types[label] = kind(_read(path, file.read, [label]).to_pandas(types_mapper=whole.get)[label])
    batches = file.iter_batches(CHUNK_ROWS)
    while (batch := _read(path, next, batches, None)) is not None:
        if batch.num_rows:
            yield named(batch.to_pandas(types_mapper=whole.get)).astype(types)
