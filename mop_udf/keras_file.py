"""Models as files of Keras' own format (.keras): out of the database and into it.

Keras' loader imports what a file names, so a file is taken apart here: its JSON goes through the allow-list, and of
its weights only arrays that lie in the file itself are read.
"""

import io
import json
import os
import tempfile
import zipfile

import h5py
import numpy as np

from mop_udf import models, state

MOST_BYTES = 4 << 30  # of a file's contents, unpacked
CONFIG, WEIGHTS = "config.json", "model.weights.h5"


class FileError(ValueError):
    """The bytes are no model file that may be loaded."""


def save(model):
    """The bytes of a .keras file of `model`, which is not compiled: it predicts, and is trained after `compile`."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        with open(path, "rb") as file:
            return file.read()


def load(data):
    """The bytes of a .keras file -> (architecture JSON text, float32 bytes of the weights).

    Raises FileError where they are none, ConfigurationError where the architecture may not be loaded.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            names = {info.filename: info.file_size for info in file.infolist()}
            if CONFIG not in names or WEIGHTS not in names:
                raise FileError(f"it has no {CONFIG} or no {WEIGHTS}")
            if sum(names.values()) > MOST_BYTES:
                raise FileError(f"its contents have more than {MOST_BYTES} bytes")
            text, weights = file.read(CONFIG).decode(), file.read(WEIGHTS)
        json.loads(text)
    except (zipfile.BadZipFile, UnicodeDecodeError, json.JSONDecodeError, RuntimeError, NotImplementedError,
            EOFError) as error:
        raise FileError(f"it is no .keras file: {error}") from error
    model = models.build(models.normalise(text), 0)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, WEIGHTS)
        with open(path, "wb") as file:
            file.write(weights)
        _check_links(path)
        try:
            model.load_weights(path)
        except Exception as error:
            raise FileError(f"its weights do not fit its architecture: {models.first_line(error)}") from error
    return text, state.weights_to_bytes([np.asarray(w) for w in model.weights])


def _check_links(path):
    """Refuse HDF5 that reads other files: external and soft links, external and virtual storage."""
    def walk(group):
        for name in group:
            link = group.get(name, getlink=True)
            if not isinstance(link, h5py.HardLink):
                raise FileError(f"its weights hold a link, {name!r}")
            item = group[name]
            if isinstance(item, h5py.Group):
                walk(item)
            elif not isinstance(item, h5py.Dataset) or item.external or item.is_virtual:
                raise FileError(f"its weights hold {name!r}, which is stored elsewhere")
    try:
        with h5py.File(path, "r") as file:
            walk(file)
    except (OSError, RecursionError, KeyError, RuntimeError) as error:
        raise FileError(f"its weights cannot be read: {error}") from error
