"""mop_architecture: nets for a packed table, as rows of an architecture table."""

from __future__ import annotations

from pg_mop.api.architectures import append
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import sql_function
from pg_mop.backend.quoting import split_names
from pg_mop.columns import Column, Features, Series, Words
from pg_mop.columns.series import PADDING
from pg_mop.packing.training import Training
from pg_mop.plan import nets


@sql_function
def mop_architecture(db, arch_table, packed_table, layers):
    """Append nets that fit `packed_table` to `arch_table`; returns their model_ids."""
    names = split_names(layers) or list(nets.DEFAULT)
    for name in names:
        if name.lower() not in nets.BODIES and not _units(name):
            raise MopError(
                f'layers has "{name}", which is no net that pg_mop knows',
                hint=f"Name one or several of {', '.join(nets.BODIES)}, or units of dense layers: '128x64'.",
            )
    transform = Training(db, packed_table).transform
    inputs = [_input(column) for column in transform.inputs]
    outputs = [nets.Output(c.name, 0 if c.classes is None else c.shape[0]) for c in transform.outputs]
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


def _units(text: str) -> tuple[int, ...] | None:
    """The units of dense layers, as in '128x64'; None for another text."""
    parts = text.lower().split("x")
    if not all(part.strip().isdigit() and 0 < int(part) <= 100_000 for part in parts):
        return None
    return tuple(int(part) for part in parts)


def _input(column: Column) -> nets.Input:
    """A packed column as an input of a net."""
    shape = tuple(column.shape)
    if isinstance(column, Words):
        return nets.Input(column.name, shape, "words", column.tokens)
    if isinstance(column, Series):
        return nets.Input(column.name, shape, "series", padding=PADDING)
    if isinstance(column, Features) and column.codes:
        return nets.Input(column.name, shape, "codes", column.codes, columns=len(column.features))
    return nets.Input(column.name, shape)
