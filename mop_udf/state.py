r"""The format of model states in bytes, with a version, and of the plain float32 weights that users see.

Layout: ``b"pg_mop\0" | u8 version | u32 header length | JSON header | arrays``. The header lists dtype (numpy's, or one
of SHORT_FLOATS) and shape of the arrays, in order, in three groups: weights (`model.get_weights()` order), seeds
(seed-generator states) and optimizer (`optimizer.variables` order: iterations, learning rate, moments). All arrays are
little-endian, row-major and unpadded. If the optimizer keeps moving averages of weights (`use_ema`), the header lists
them under "averages": [position in the weights, position in the optimizer's arrays].
"""

from __future__ import annotations

import functools
import json
import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

MAGIC = b"pg_mop\0"
VERSION = 1
SHORT_FLOATS = ("bfloat16", "float8_e4m3fn", "float8_e5m2")  # numpy needs the package ml_dtypes for these
GROUPS = ("weights", "seeds", "optimizer")
Groups = dict[str, list[np.ndarray]]


class StateError(ValueError):
    """The bytes are not a model state, or have an unknown version."""


def pack(groups: dict[str, list[np.ndarray]], averages: Sequence[tuple[int, int]] = ()) -> list[Any]:
    """{"weights": [array, ...], "seeds": [...], "optimizer": [...]} -> list of buffers to be written in order.

    `averages`: [(position in the weights, position in the optimizer's arrays), ...] of moving averages of weights.
    """
    header: dict[str, list[list[Any]]] = {
        name: [[_dtype_name(a.dtype), list(a.shape)] for a in groups[name]] for name in GROUPS
    }
    if averages:
        header["averages"] = [list(pair) for pair in averages]
    text = json.dumps(header).encode()
    arrays = [np.ascontiguousarray(a) for name in GROUPS for a in groups[name]]
    return [
        MAGIC + bytes([VERSION]) + struct.pack("<I", len(text)) + text,
        *(a.reshape(-1).view(np.uint8) for a in arrays),
    ]


def values(variables: Iterable[Any]) -> list[np.ndarray]:
    """Copies of the values of Keras variables, as arrays."""
    # np.array(variable) would ask the variable for a copy, and not every variable can make one
    return [np.array(np.asarray(v)) for v in variables]


def parts(buffers: Iterable[Any], size: int) -> Iterator[list[memoryview]]:
    """Buffers -> lists of buffers with `size` bytes in total, the last list excepted; nothing is copied."""
    part, free = [], size
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        while view.nbytes:
            piece = view[:free]
            part.append(piece)
            view, free = view[piece.nbytes :], free - piece.nbytes
            if not free:
                yield part
                part, free = [], size
    if part:
        yield part


def unpack(data: Any) -> dict[str, list[np.ndarray]]:
    """Bytes-like -> {"weights": [array, ...], ...}; the arrays are views of `data`. Raises StateError."""
    return _unpack(data)[0]


def weights(data: Any) -> list[np.ndarray]:
    """Bytes-like -> the weights to continue training with: arrays, views of `data`. Raises StateError."""
    return unpack(data)["weights"]


def output_weights(data: Any) -> list[np.ndarray]:
    """Bytes-like -> the users' weights: arrays, views of `data`. Raises StateError.

    If the optimizer keeps moving averages of weights, these are the result, as at the end of Keras' `fit`; training
    continues with the weights.
    """
    groups, averages = _unpack(data)
    for weight, average_ in averages:
        groups["weights"][weight] = groups["optimizer"][average_]
    return groups["weights"]


def _unpack(data: Any) -> tuple[Groups, list[tuple[int, int]]]:
    """Bytes-like -> (the groups of arrays, the positions of moving averages)."""
    view = memoryview(data)
    fixed = len(MAGIC) + 5
    if len(view) < fixed or bytes(view[: len(MAGIC)]) != MAGIC:
        raise StateError("not a model state")
    if view[len(MAGIC)] != VERSION:
        raise StateError(f"model state of version {view[len(MAGIC)]}, this software reads version {VERSION}")
    size = struct.unpack("<I", view[len(MAGIC) + 1 : fixed])[0]
    try:
        header = json.loads(bytes(view[fixed : fixed + size]))
        offset = fixed + size
        groups: Groups = {}
        for name in GROUPS:
            groups[name] = []
            for kind, shape in header[name]:
                if not isinstance(shape, list) or not all(type(length) is int and length >= 0 for length in shape):
                    raise StateError(f"damaged model state: an array of the shape {shape}")
                kind, count = dtype(kind), math.prod(shape)
                if kind.hasobject:
                    raise StateError("model state with Python objects")
                array = np.frombuffer(view, kind, count, offset)
                groups[name].append(array.reshape(shape))
                offset += array.nbytes
        averages = [(int(weight), int(average_)) for weight, average_ in header.get("averages", ())]
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError, SyntaxError) as error:
        raise StateError(f"damaged model state: {error}") from None
    if offset != len(view):
        raise StateError(f"damaged model state: {len(view)} bytes, not {offset}")
    if any(
        not 0 <= weight < len(groups["weights"])
        or not 0 <= average_ < len(groups["optimizer"])
        or groups["weights"][weight].shape != groups["optimizer"][average_].shape
        for weight, average_ in averages
    ):
        raise StateError("damaged model state: averages of other arrays")
    return groups, averages


@functools.lru_cache(100)  # (numpy is slow to find a name)
def _dtype_name(dtype: np.dtype) -> str:
    return dtype.name if dtype.name in SHORT_FLOATS else dtype.str


def dtype(name: str) -> np.dtype:
    """numpy's dtype with the name of Keras or of the header."""
    if name not in SHORT_FLOATS:
        return np.dtype(name)
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name))


def weights_to_bytes(arrays: Iterable[np.ndarray]) -> bytes:
    """Arrays in get_weights() order -> concatenated float32 bytes (docs/contract/serialization.md, section 1)."""
    return b"".join(np.ascontiguousarray(a, dtype="<f4").tobytes() for a in arrays)


def weights_in_parts(arrays: Iterable[np.ndarray], size: int) -> Iterator[bytes]:
    """The same bytes in parts of `size` bytes, the last one excepted; only one part is copied at a time."""
    for part in parts((np.ascontiguousarray(a, dtype="<f4").reshape(-1).view(np.uint8) for a in arrays), size):
        yield b"".join(part)


def weights_from_bytes(data: Any, shapes: Iterable[Sequence[int]]) -> list[np.ndarray]:
    """Concatenated float32 bytes -> arrays of `shapes`. Raises StateError with both counts where they differ."""
    wanted, given = sum(math.prod(s) for s in shapes), len(data) / 4
    if given != wanted:
        raise StateError(f"model weights have {given:g} elements, the architecture needs {wanted}")
    flat, arrays = np.frombuffer(data, "<f4"), []
    for shape in shapes:
        arrays.append(flat[: math.prod(shape)].reshape(shape))
        flat = flat[math.prod(shape) :]
    return arrays


def average(models: Iterable[list[np.ndarray]], rows: Sequence[int]) -> list[np.ndarray]:
    """The mean of several models' arrays, weighted by `rows`. `models`: an iterable of lists of arrays.

    Sums are in float64; each result has the dtype of the first model's array.
    """
    total = sum(rows)
    sums: list[np.ndarray] = []
    kinds: list[np.dtype] = []
    for arrays, count in zip(models, rows):
        if not kinds:
            kinds, sums = [a.dtype for a in arrays], [np.zeros(a.shape, np.float64) for a in arrays]
        for sum_, array in zip(sums, arrays):
            sum_ += np.multiply(array, count, dtype=np.float64)
    return [(sum_ / total).astype(kind) for sum_, kind in zip(sums, kinds)]
