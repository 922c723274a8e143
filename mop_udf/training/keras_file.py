"""Export and import of models as files in Keras' format (.keras).

Keras' loader imports any module that a file names. Therefore this module takes the file apart: its JSON goes through
the allow-list, and of its weights only arrays inside the file are read.
"""

import io
import json
import os
import tempfile
import warnings
import zipfile
import zlib
from typing import Any

import h5py
import keras
import numpy as np

from mop_udf import state
from mop_udf.architecture import architecture
from mop_udf.errors import first_line
from mop_udf.training import models

# The weights' file may also hold names, and an optimizer's variables in wider numbers.
MORE_BYTES, TIMES = 16 << 20, 8
CONFIG, WEIGHTS = "config.json", "model.weights.h5"


class FileError(ValueError):
    """The bytes are not a model file that may be loaded."""


def save(model: keras.Model, described: dict[str, Any]) -> bytes:
    """The bytes of a .keras file of `model`, not compiled: it can predict, and train after `compile`.

    `described`: its architecture as models.normalise gives it. The file's inputs and outputs are dictionaries where the
    architecture has dictionaries.
    """
    ends = [described["config"].get(key) for key in ("input_layers", "output_layers")]
    if any(isinstance(own, dict) for own in ends):
        taken, given = (
            dict(zip(sorted(own), tensors)) if isinstance(own, dict) else tensors if len(tensors) > 1 else tensors[0]
            for own, tensors in zip(ends, (model.inputs, model.outputs))
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # (Keras expects the tensors' names to equal the dictionary's keys)
            model = keras.Model(taken, given, name=model.name)
    return written(model)


def written(model: keras.Model) -> bytes:
    """The bytes of a .keras file of a model."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        with open(path, "rb") as file:
            return file.read()


def load(data: bytes | bytearray) -> tuple[str, bytes]:
    """The bytes of a .keras file -> (architecture JSON text, float32 bytes of the weights).

    Raises FileError where the bytes are not such a file, ConfigurationError where the architecture may not be loaded.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            for name in file.namelist():
                if name not in (CONFIG, WEIGHTS, "metadata.json"):
                    raise FileError(f"it holds {name!r}, which is not part of a model")
            text = _member(file, CONFIG, architecture.MOST_CHARACTERS).decode()
            json.loads(text)
            model = models.build(models.normalise(text), 0)
            most = TIMES * sum(np.asarray(w).nbytes for w in model.weights) + MORE_BYTES
            weights = _member(file, WEIGHTS, most)
    except (
        zipfile.BadZipFile,
        UnicodeDecodeError,
        json.JSONDecodeError,
        RuntimeError,
        NotImplementedError,
        EOFError,
        zlib.error,
    ) as error:
        raise FileError(f"it is not a .keras file: {error}") from error
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, WEIGHTS)
        with open(path, "wb") as file:
            file.write(weights)
        _check(path, most)
        try:
            model.load_weights(path)
        except Exception as error:
            raise FileError(f"its weights do not fit its architecture: {first_line(error)}") from error
    return text, state.weights_to_bytes([np.asarray(w) for w in model.weights])


def _member(file: Any, name: str, most: int) -> Any:
    """The bytes of the file `name` in an archive, up to `most`."""
    try:
        info = file.getinfo(name)
    except KeyError:
        raise FileError(f"it has no {name}") from None
    # other methods unpack without bounds, and Keras does not use them
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise FileError(f"its {name} is compressed by method {info.compress_type}, which Keras does not use")
    if info.file_size > most:
        raise FileError(f"its {name} has {info.file_size} bytes, at most {most} are plausible")
    return file.read(info)


def _check(path: str, most: int) -> None:
    """Refuse HDF5 that refers to other files (links, external or virtual storage), or unpacks to more than `most`
    bytes.
    """
    total = 0

    def walk(group: Any) -> None:
        nonlocal total
        for name in group:
            link = group.get(name, getlink=True)
            if not isinstance(link, h5py.HardLink):
                raise FileError(f"its weights hold a link, {name!r}")
            item = group[name]
            if isinstance(item, h5py.Group):
                walk(item)
            elif not isinstance(item, h5py.Dataset) or item.external or item.is_virtual:
                raise FileError(f"its weights hold {name!r}, which is stored elsewhere")
            else:
                if item.dtype.hasobject:
                    raise FileError(f"its weights hold {name!r}, which is of Python objects or texts")
                total += item.nbytes
                if total > most:
                    raise FileError(f"its weights have {total} bytes, at most {most} are plausible")

    try:
        with h5py.File(path, "r") as file:
            walk(file)
    except (OSError, RecursionError, KeyError, RuntimeError) as error:
        raise FileError(f"its weights cannot be read: {error}") from error
