"""Arrays in PostgreSQL's binary form, and numbers as the elements of a buffer. Pure: numpy alone, no database."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from pg_mop.backend.arrays import np
from pg_mop.backend.errors import MopError

# SQL type of an array's elements -> (big-endian dtype in PostgreSQL's binary form, dtype in a buffer)
# PostgreSQL's type: the dtype of its binary form, and of a buffer
WIRE: dict[str, tuple[str, np.dtype[Any]]] = {
    "real": (">f4", np.dtype("<f4")),
    "smallint": (">i2", np.dtype("<i2")),
    "double precision": (">f8", np.dtype("<f8")),
}

MOST_OF_ONE = 1000  # elements of an array that is read alone, by struct: numpy takes ten times as long for so few


def dimensions(wire: bytes | None, column: str) -> tuple[int, ...]:
    """The dimensions of one array in PostgreSQL's binary form (array_send).

    Raises MopError, naming `column`, for a NULL or an empty array.
    """
    if wire is None:
        raise MopError(
            f'column "{column}" has NULL instead of an array in some row',
            hint=f'Leave such rows out: SELECT ... WHERE "{column}" IS NOT NULL.',
        )
    count = struct.unpack_from(">i", wire)[0]
    dims = tuple(struct.unpack_from(">i", wire, 12 + 8 * i)[0] for i in range(count))
    if 0 in dims or not dims:
        raise MopError(
            f'column "{column}" has an empty array in some row',
            hint=f'Leave such rows out: SELECT ... WHERE cardinality("{column}") > 0.',
        )
    return dims


def read(wires: Sequence[bytes | None], dims: Sequence[int], element: str, column: str) -> np.ndarray:
    """Arrays in binary form, all of dimensions `dims` -> an array of shape (rows, elements of dims).

    `element` is a key of WIRE. Raises MopError, naming `column`, for a NULL, an array of other dimensions, or an
    array with a NULL element.
    """
    wire_type, kept = WIRE[element]
    if len(wires) == 1 and wires[0] is not None and math.prod(dims) <= MOST_OF_ONE:
        one, fixed = _one(wire_type, tuple(dims))
        if len(wires[0]) == one.size:
            fields, first = one.unpack(wires[0]), 3 + 2 * len(dims)
            if (fields[0], *fields[3:first:2], *fields[first::2]) == fixed:
                return np.array([fields[first + 1 :: 2]], kept)
    layout = _layout(wire_type, len(dims), math.prod(dims))
    if any(wire is None or len(wire) != layout.itemsize for wire in wires):
        _complain(wires, dims, column)
    rows = np.frombuffer(b"".join(wires), layout)  # type: ignore[arg-type]
    if not (
        (rows["header"][:, 0] == len(dims)).all()
        and (rows["dims"][:, :, 0] == dims).all()
        and (rows["elements"]["length"] == np.dtype(wire_type).itemsize).all()
    ):
        _complain(wires, dims, column)
    return rows["elements"]["value"].astype(kept)


@functools.lru_cache(64)
def _layout(wire_type: str, axes: int, count: int) -> np.dtype[Any]:
    """The binary form of an array with `count` elements."""
    elements = [("length", ">i4"), ("value", wire_type)]
    return np.dtype([("header", ">i4", 3), ("dims", ">i4", (axes, 2)), ("elements", elements, (count,))])


@functools.lru_cache(64)
def _one(wire_type: str, dims: tuple[int, ...]) -> tuple[struct.Struct, tuple[int, ...]]:
    """The binary form of an array of `dims`, and its fields that are known: the number of axes, dims, lengths of elements."""
    value, count = np.dtype(wire_type), math.prod(dims)
    layout = struct.Struct(">iii" + "ii" * len(dims) + f"i{value.char}" * count)
    return layout, (len(dims), *dims, *[value.itemsize] * count)


def _complain(wires: Sequence[bytes | None], dims: Sequence[int], column: str) -> None:
    """Raise the MopError that describes the first bad array among `wires`."""
    for wire in wires:
        found = dimensions(wire, column)
        if found != tuple(dims):
            raise MopError(
                f'column "{column}" has arrays of different dimensions',
                detail=f"The first row has {braces(dims)}, another row has {braces(found)}.",
            )
    raise MopError(
        f'column "{column}" has an array with a NULL element',
        hint="Replace NULL elements (array_replace) or leave such rows out.",
    )


def braces(values: Iterable[Any]) -> str:
    """Numbers as PostgreSQL prints an array of them."""
    return "{" + ",".join(map(str, values)) + "}"


def packable(numbers: np.ndarray, element: str, factor: float | None, column: str) -> np.ndarray | None:
    """Numbers as elements of a buffer, multiplied by `factor`; None where a number is not finite or not an int16."""
    if element == "smallint":
        return whole(numbers)
    if not np.isfinite(numbers).all():
        return None
    return numbers if factor is None else scale(numbers, np.float32(factor), column)


def whole(values: np.ndarray) -> np.ndarray | None:
    """float64 numbers as int16; None where the conversion would change a number."""
    with np.errstate(invalid="ignore"):
        kept = values.astype("<i2")
    return kept if (kept == values).all() else None


def scale(values: np.ndarray, factor: np.float32, column: str) -> np.ndarray:
    """`values` (float32) times `factor`, in place. Raises MopError where a finite value would become infinite."""
    try:
        with np.errstate(over="raise"):
            values *= factor
    except FloatingPointError:
        raise MopError(
            f'a value of column "{column}" divided by the normalizing constant is out of range for type real',
            sqlstate="22003",
        ) from None
    return values


def reciprocal(constant: float | None) -> np.float32 | None:
    """The float32 factor that normalizes by `constant`; None where nothing needs scaling.

    Raises MopError unless the constant is positive and its reciprocal is a finite float32.
    """
    if constant is None or abs(constant - 1.0) < 1e-6:
        return None
    if not 0 < constant < float("inf"):
        raise MopError(f"normalizing constant must be positive or NULL, not {constant:g}")
    with np.errstate(over="ignore"):
        factor = np.float32(1.0 / constant)
    if not np.isfinite(factor):
        raise MopError(f"normalizing constant {constant:g} is too small: its reciprocal is no real number")
    return factor


def one_hot(codes: np.ndarray, width: int) -> np.ndarray:
    """Class codes -> int16 rows of `width` with a single 1 each."""
    vectors = np.zeros((len(codes), width), "<i2")
    vectors[np.arange(len(codes)), codes] = 1
    return vectors
