"""What people have, a DataFrame, arrays, a file, as DataFrames of some rows each, whose columns have names and are of
the same types in all of them."""

import os
import pathlib
import re
import warnings
import zipfile
import zlib

import numpy
import pandas

from pg_mop_client import images
from pg_mop_client.errors import ClientError, needed

CHUNK_ROWS = 10_000
ARRAYS = (list, tuple, numpy.ndarray)
PATHS = (str, os.PathLike)
OF_OBJECTS = {"integer": "Int64", "boolean": "boolean"}  # what is in a column of Python's objects -> its type


def is_folder(data):
    """True where data are the path of a folder."""
    return isinstance(data, PATHS) and pathlib.Path(data).is_dir()


def _is_pair(data):
    return isinstance(data, tuple) and len(data) == 2


def label_of(data):
    """The name of the label where the data have one of their own, as pictures in folders and pairs of arrays have."""
    if is_folder(data):
        return "label"
    return "y" if _is_pair(data) or isinstance(data, PATHS) and str(data).lower().endswith(".npz") else None


def few(names):
    """Names for a message."""
    return ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")


def named(frame):
    """A DataFrame whose columns' names are strings. Raises ClientError where two columns have one name."""
    frame = frame.set_axis(frame.columns.map(str), axis=1)
    if not frame.columns.is_unique:
        raise ClientError(
            f"two columns are called {frame.columns[frame.columns.duplicated()][0]!r}", hint="data.columns = [...]"
        )
    lists = {
        name: object
        for name, kind in frame.dtypes.items()
        if isinstance(kind, pandas.ArrowDtype) and re.search("list|tensor", str(kind.pyarrow_dtype))
    }
    return frame.astype(lists) if lists else frame


def whole(data, **pictures):
    """The data as one DataFrame. Raises ClientError."""
    found = pandas.concat(chunks(data, **pictures)) if not isinstance(data, pandas.DataFrame) or pictures else data
    return named(found)


def chunks(data, label=None, **pictures):
    """The data, as packing.copy takes them, as DataFrames of some rows each; `label`: the column of the classes, if
    there is one. Raises ClientError."""
    if is_folder(data):
        return images.chunks(data, **pictures)
    if pictures:
        raise ClientError(f"{next(iter(pictures))} is for a folder of pictures")
    if isinstance(data, pandas.DataFrame):
        data = named(data)
        if label in data.columns:
            data = data.assign(**{label: data[label].astype(kind(data[label]))})
        return (data.iloc[at : at + CHUNK_ROWS] for at in range(0, len(data), CHUNK_ROWS))
    if _is_pair(data):
        return _arrays(*data)
    if not isinstance(data, PATHS):
        raise ClientError(f"rows are a DataFrame, a pair of arrays (x, y) or a path, and not {type(data).__name__}")
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
    raise ClientError(f"{path.name} is no .csv, .parquet or .npz file, and no folder of pictures")


def kind(values):
    """The type of a column of classes, given all of them: for whole numbers Int32 or Int64, the least that has all.
    Raises ClientError where a number and a word would be one class."""
    try:
        return _kind(values)
    except OverflowError:
        raise ClientError(
            "the column of classes has whole numbers of more than 64 bits", hint="data[label].astype(str)"
        ) from None


def _kind(values):
    of = pandas.api.types
    if values.dtype == object:
        inferred = of.infer_dtype(values, skipna=True)
        if inferred.startswith("mixed") and not any(isinstance(value, ARRAYS) for value in values):
            words = pandas.Series(values.dropna().unique()).astype(str)
            if not words.is_unique:
                raise ClientError(
                    f"the column of classes has {words[words.duplicated()].iloc[0]!r} as a number and as a word",
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


def _arrays(x, y):
    for name, given in (("x", x), ("y", y)):
        if isinstance(given, (list, tuple)) and any(hasattr(own, "shape") and len(own.shape) > 1 for own in given):
            raise ClientError(
                f"{name} is a list of arrays: several inputs cannot be packed by pack",
                hint="s.training_preprocessor_dl(table, output_table, label, ['one', 'two']) takes a "
                "table that has a column for each.",
            )
        if numpy.ma.is_masked(given) or isinstance(given, (list, tuple)) and any(map(numpy.ma.is_masked, given)):
            raise ClientError(f"{name} has masked values", hint=f"{name}.filled(...), or the rows that have none")
        if numpy.ndim(given) == 0:
            raise ClientError(f"{name} is no array of rows")
    if len(x) != len(y):
        raise ClientError(f"x has {len(x)} rows and y {len(y)}")
    y = numpy.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:  # as Keras' own data sets have it
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


def _read(path, read, *given, **more):
    """What `read` gives. Raises ClientError, naming the file, where it cannot, or would leave something out."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            return read(*given, **more)
    except UnicodeDecodeError as error:
        raise ClientError(
            f"{str(path)!r} is not UTF-8: {error}",
            hint="pack(pandas.read_csv(path, encoding='latin-1'), ...), or whichever it is",
        ) from None
    except (ValueError, OSError, EOFError, zlib.error, zipfile.BadZipFile, pandas.errors.ParserWarning) as error:
        raise ClientError(f"{str(path)!r} cannot be read: {' '.join(str(error).split())}") from None


def _npz(path):
    arrays = _read(path, numpy.load, path)
    with arrays:
        if not {"x", "y"} <= set(arrays.files):
            raise ClientError(f"{path.name} has no arrays x and y", hint=f"It has {few(arrays.files)}.")
        return _read(path, arrays.__getitem__, "x"), _read(path, arrays.__getitem__, "y")


def _csv(path, label):
    """The classes are read before all else: what a file has in its first rows alone need not be all. A class is as it
    is written: only an empty field is NULL, and 01 is not 1."""
    given, at, classes = {"index_col": False}, 0, None
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


def _numbers(words):
    """A column of words as numbers, or as truth values, where all of them are."""
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
    except OverflowError:  # of more than 64 bits
        return words


def _parquet(path, label):
    """Whole numbers stay whole where some are missing. The classes are read twice, too."""
    arrow = needed("pyarrow", "parquet")
    whole = {
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
