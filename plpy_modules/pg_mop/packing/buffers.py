"""Rows to packed buffers: sizes, PostgreSQL's binary arrays, one-hot vectors. Pure: numpy only, no database."""

import io
import struct

from pg_mop.backend.arrays import np
from pg_mop.backend.errors import MopError

MAX_ELEMENTS = 75_000_000  # independent elements that a computed buffer holds at most (300 MB of float32)
MAX_PACKED_BYTES = 1_000_000_000  # all values of one packed row together; PostgreSQL's limit is 1 GiB per row

# element types of arrays on the wire -> (big-endian dtype on the wire, dtype in a buffer)
WIRE = {
    "real": (">f4", np.dtype("<f4")),
    "smallint": (">i2", np.dtype("<i2")),
    "double precision": (">f8", np.dtype("<f8")),
}


def buffer_rows(rows, segments, requested, elements, row_bytes=0):
    """Rows per buffer: every segment gets the same number of whole buffers, as far as `rows` allow.

    `requested` None means as large as segments and MAX_ELEMENTS allow; `elements` are those of one row, per input.
    A packed row never exceeds MAX_PACKED_BYTES, whatever is requested.
    """
    wanted = [rows]
    for count in elements:
        if requested is not None:
            wanted.append(requested)
        else:
            wanted.append(min(_ceil(MAX_ELEMENTS, count), _ceil(rows, segments)))
    if row_bytes:
        wanted.append(MAX_PACKED_BYTES // row_bytes)
    size = min(wanted)
    buffers = segments * _ceil(rows, size * segments)
    return _ceil(rows, buffers)


def _ceil(a, b):
    return -(-a // b)


def reciprocal(constant):
    """The float32 factor that normalises by `constant`; None when nothing needs scaling.

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


def dimensions(wire, column):
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
        raise MopError(f'column "{column}" has an empty array in some row')
    return dims


def decode(wires, dims, element, column):
    """Arrays in binary form, all of dimensions `dims` -> one array of shape (rows, elements of dims).

    `element` is a key of WIRE. Raises MopError, naming `column`, for a NULL, an array of other dimensions, or an
    array with a NULL element.
    """
    wire_type, kept = WIRE[element]
    count = int(np.prod(dims))
    layout = np.dtype(
        [
            ("header", ">i4", 3),
            ("dims", ">i4", (len(dims), 2)),
            ("elements", [("length", ">i4"), ("value", wire_type)], (count,)),
        ]
    )
    if any(wire is None or len(wire) != layout.itemsize for wire in wires):
        _complain(wires, dims, column)
    rows = np.frombuffer(b"".join(wires), layout)
    if not (
        (rows["header"][:, 0] == len(dims)).all()
        and (rows["dims"][:, :, 0] == dims).all()
        and (rows["elements"]["length"] == np.dtype(wire_type).itemsize).all()
    ):
        _complain(wires, dims, column)
    return rows["elements"]["value"].astype(kept)


def _complain(wires, dims, column):
    """Say what is wrong with the first bad array among `wires`."""
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


def braces(values):
    """Numbers as PostgreSQL prints an array of them."""
    return "{" + ",".join(map(str, values)) + "}"


def fitting(numbers, element, factor, column):
    """Numbers as the bytes of a buffer of `element`, times `factor`; None where one does not fit."""
    if element == "smallint":
        kept = whole(numbers)
    elif not np.isfinite(numbers).all():
        return None
    else:
        kept = numbers if factor is None else scale(numbers, np.float32(factor), column)
    return kept if kept is None else kept.tobytes()


def whole(values):
    """float64 numbers as int16; None where that would change one."""
    with np.errstate(invalid="ignore"):
        kept = values.astype("<i2")
    return kept if (kept == values).all() else None


def scale(values, factor, column):
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


def one_hot(codes, width):
    """Class codes -> int16 rows of `width` with a single 1 each."""
    vectors = np.zeros((len(codes), width), "<i2")
    vectors[np.arange(len(codes)), codes] = 1
    return vectors


class Buffers:
    """Collects rows of several columns and hands out whole buffers of `size` rows.

    The bytes of a buffer are gathered where they stay: a full one is handed over without a copy.
    """

    def __init__(self, size, columns):
        self.size, self.rows = size, 0
        self.streams = [io.BytesIO() for _ in range(columns)]

    def add(self, arrays):
        """Add the same rows of every column; yields (rows, [bytes per column]) for each buffer that fills up."""
        start, count = 0, len(arrays[0])
        while start < count:
            end = min(count, start + self.size - self.rows)
            for stream, array in zip(self.streams, arrays):
                stream.write(memoryview(np.ascontiguousarray(array[start:end])).cast("B"))
            self.rows += end - start
            start = end
            if self.rows == self.size:
                yield self.take()

    def take(self):
        """(rows, [bytes per column]) of what is gathered, leaving nothing."""
        rows, full = self.rows, self.streams
        self.rows, self.streams = 0, [io.BytesIO() for _ in full]
        return rows, [stream.getvalue() for stream in full]


def to_bytes(values, element):
    """A (nested) list of numbers -> the bytes of a buffer. Raises MopError for a NULL element."""
    array = np.asarray(values)
    if array.dtype == object:
        raise MopError("the array has a NULL element", hint="Bytes of a buffer have no place for NULL.")
    return array.astype(WIRE[element][1]).tobytes()


def from_bytes(packed, element):
    """The bytes of a buffer -> a flat list of numbers. Raises MopError where they are no whole elements."""
    kept = WIRE[element][1]
    if len(packed) % kept.itemsize:
        raise MopError(f"{len(packed)} bytes are no whole number of {element} elements of {kept.itemsize} bytes")
    return np.frombuffer(packed, kept).tolist()
