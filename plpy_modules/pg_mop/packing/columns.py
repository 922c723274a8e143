"""The source columns that are packed: independent ones, and dependent ones as classes or numbers."""

from pg_mop.backend.arrays import np
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier, split_names
from pg_mop.backend.sql_types import NUMBERS, column_kind, equality
from pg_mop.packing import buffers

AS_NUMBER = "Give it as a number: CREATE VIEW numbered AS SELECT *, {0}::integer AS label FROM {1};"


class Input:
    """An independent column: numeric arrays of the same dimensions in every row."""

    element, wire, scalar, encoded = "real", "real", False, False  # as an Output's

    def __init__(self, name, dims):
        self.name, self.dims = name, dims
        self.elements = int(np.prod(dims))
        self.wire_bytes, self.packed_bytes = 20 + 8 * self.elements, 4 * self.elements

    @property
    def shape(self):
        return list(self.dims)

    def decode(self, values, factor):
        """Fetched values -> rows of numbers, times `factor`; None where one is not finite."""
        numbers = buffers.decode(values, self.dims, "real", self.name)
        if not np.isfinite(numbers).all():
            return None
        return numbers if factor is None else buffers.scale(numbers, factor, self.name)


class Output:
    """A dependent column: classes to encode one-hot, or (`encoded` False) numbers that are packed as they are.

    Those are numeric arrays of `width` elements or, for regression, single numbers (`scalar`); `element` is their type
    in the buffer, a key of buffers.WIRE.
    """

    def __init__(self, name, kind, encoded, width=None, element="smallint", scalar=False):
        self.name, self.kind, self.encoded, self.width = name, kind, encoded, width
        self.element, self.scalar = element, scalar
        self.class_kind = kind  # type of the class values
        self.null_code = -1  # code of NULL labels; -1: NULL is no class

    @property
    def shape(self):
        return [self.width]

    @property
    def packed_bytes(self):
        return buffers.WIRE[self.element][1].itemsize * self.width

    @property
    def wire(self):
        """The type in which numbers are fetched: a key of buffers.WIRE. One that shows what int16 cannot hold."""
        return "double precision" if self.element == "smallint" else self.element

    @property
    def wire_bytes(self):
        return 20 + (4 + buffers.WIRE[self.element if self.encoded else self.wire][1].itemsize) * self.width

    def decode(self, values):
        """Fetched values -> rows of numbers; None where a label is no known class, or a number does not fit."""
        if not self.encoded:
            numbers = buffers.decode(values, (self.width,), self.wire, self.name)
            if self.element == "smallint":
                return buffers.whole(numbers)
            return numbers if np.isfinite(numbers).all() else None
        codes = np.array(values, np.int64)
        return buffers.one_hot(codes, self.width) if codes.min() >= 0 else None

    @property
    def class_column(self):
        return quote_identifier(self.name + "_class_values")


def independent(db, source, text):
    """The independent columns of `source` that the comma list `text` names. Raises MopError."""
    inputs = []
    for name in _names(db, source, text, "independent_varname"):
        kind = column_kind(db, source, name)
        if not kind.numeric_array:
            raise MopError(
                f'invalid independent_varname: column "{name}" has type {kind.shown}, not an array of numbers',
                hint="Give a column of type real[], integer[] or the like.",
            )
        inputs.append(Input(name, _first_dims(db, source, name)))
    return inputs


def dependent(db, source, text, element):
    """The dependent columns. `element`: smallint for classes, real for the numbers of regression. Raises MopError."""
    outputs = []
    for name in _names(db, source, text, "dependent_varname"):
        kind = column_kind(db, source, name)
        if kind.numeric_array:
            dims = _first_dims(db, source, name)
            if len(dims) != 1:
                raise MopError(
                    f'column "{name}" has arrays of {len(dims)} dimensions',
                    detail="A dependent column of arrays has vectors, one for each row: one dimension.",
                )
            outputs.append(Output(name, kind, False, dims[0], element))
            continue
        if element == "real":
            if kind.shown not in NUMBERS:
                raise MopError(
                    f'invalid dependent_varname: column "{name}" has type {kind.shown}, '
                    "neither a number nor an array of numbers",
                    hint=AS_NUMBER.format(quote_identifier(name), source)
                    if kind.shown == "boolean"
                    else "Leave out dependent_dtype => 'float32' to have its values as classes.",
                )
            outputs.append(Output(name, kind, False, 1, element, scalar=True))
            continue
        if kind.element is not None or kind.typtype not in "ber" or not kind.has_array or not equality(db, kind):
            raise MopError(
                f'invalid dependent_varname: column "{name}" has type {kind.shown}, '
                "whose values cannot be ordered as classes",
                hint=f'Cast it: SELECT ..., "{name}"::text FROM ...',
            )
        outputs.append(Output(name, kind, True))
    return outputs


def _names(db, table, text, what):
    """The existing columns of `table` that the comma list `text` names."""
    columns = db.columns(table)
    wanted = split_names(text)
    if not wanted:
        raise MopError(f"invalid {what}: no column is named", hint="Name one column, or several with commas between.")
    found = []
    for name in wanted:
        column = db.find_column(columns, name)
        if column is None:
            raise MopError(
                f'invalid {what}: column "{name}" does not exist in {table}',
                hint="Its columns are " + ", ".join(columns) + ".",
            )
        found.append(column)
    db.check_readable(table, found)
    return found


def _first_dims(db, source, column):
    """The dimensions of the array in the first row; NULL and empty arrays are errors."""
    wire = db.value(f"SELECT array_send({quote_identifier(column)}) AS a FROM {source} LIMIT 1")
    return buffers.dimensions(wire, column)
