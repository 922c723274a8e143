"""mop_architecture: nets for a packed table, as rows of an architecture table."""

from __future__ import annotations

from collections.abc import Sequence

from pg_mop.api.madlib.architectures import append
from pg_mop.backend.arrays import np
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import sql_function
from pg_mop.backend.quoting import split_names
from pg_mop.columns import Column, Features, Series, SoftLabels, Words
from pg_mop.columns.features import Number
from pg_mop.columns.series import PADDING
from pg_mop.packing.training import Training
from pg_mop.plan import nets

ALL = (0.0, 1.0)  # the one piece of an element that is 0 or 1


@sql_function
def mop_architecture(db: Database, arch_table: str | None, packed_table: str | None, layers: str | None) -> list[int]:
    """Append nets that fit `packed_table` to `arch_table`; returns their model_ids."""
    names = layer_names(layers)
    transform = Training(db, packed_table).transform
    inputs = [_input(column) for column in transform.inputs]
    if not names:
        in_pieces = any(given.pieces for given in inputs) and _rows(transform.inputs) >= nets.ROWS_FOR_PIECES
        names = [name for name in nets.DEFAULT if in_pieces or not nets.BODIES[name].pieces]
    outputs = [_output(column) for column in transform.outputs]
    return [
        append(
            db,
            arch_table,
            nets.architecture(inputs, outputs, nets.BODIES.get(name.lower()) or nets.Body(_units(name) or ()), "net"),
            None,
            name,
            f"for {packed_table}",
        )
        for name in names
    ]


def layer_names(layers: str | None) -> list[str]:
    """The names in the argument `layers`; none: the default. Raises MopError."""
    names = split_names(layers)
    for name in names:
        if name.lower() not in nets.BODIES and not _units(name):
            raise MopError(
                f'layers has "{name}", which is no net that pg_mop knows',
                hint=f"Name one or several of {', '.join(nets.BODIES)}, or units of dense layers: '128x64'.",
            )
    return names


def _units(text: str) -> tuple[int, ...] | None:
    """The units of dense layers, as in '128x64'; None for another text."""
    parts = text.lower().split("x")
    if not all(part.strip().isdigit() and 0 < int(part) <= 100_000 for part in parts):
        return None
    return tuple(int(part) for part in parts)


def _rows(inputs: Sequence[Column]) -> int:
    """The training rows that the features of packed columns have seen."""
    features = (feature for column in inputs if isinstance(column, Features) for feature in column.features)
    return max((feature.parameters["rows"] for feature in features), default=0)


def _output(column: Column) -> nets.Output:
    """A target as an output of a net."""
    if column.classes is not None or isinstance(column, SoftLabels):
        return nets.Output(column.name, column.shape[0])
    return nets.Output(column.name, numbers=column.shape[0])


def _input(column: Column) -> nets.Input:
    """A packed column as an input of a net."""
    shape = tuple(column.shape)
    if isinstance(column, Words):
        return nets.Input(column.name, shape, "words", column.tokens)
    if isinstance(column, Series):
        return nets.Input(column.name, shape, "series", padding=PADDING)
    if isinstance(column, Features) and column.codes:
        return nets.Input(column.name, shape, "codes", column.codes, columns=len(column.features))
    return nets.Input(column.name, shape, pieces=_pieces(column) if isinstance(column, Features) else None)


def _pieces(column: Features) -> nets.Pieces | None:
    """The pieces between the deciles of each number, in the scale of packed elements; None where there are no numbers.

    Numbers come first in a packed column (columns/fitting.py).
    """
    edges: list[tuple[float, ...]] = []
    for feature in column.features:
        if not isinstance(feature, Number):
            break
        values = feature.parameters
        raw = sorted({values["least"], *values["edges"], values["most"]} - {None})
        scaled = sorted(set(feature.encode(np.array(raw, "f8"))[:, 0].tolist()))
        edges.append(tuple(scaled) if len(scaled) > 1 else ALL)
        edges += [ALL] * (len(feature.elements) - 1)  # the element that says that the number is NULL
    return nets.Pieces(0, tuple(edges)) if edges else None
