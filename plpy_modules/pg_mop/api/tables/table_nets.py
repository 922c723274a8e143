"""mop_architecture: nets for a packed table, as rows of an architecture table."""

from __future__ import annotations

from pg_mop.api.madlib.architectures import append
from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.functions import sql_function
from pg_mop.backend.quoting import split_names
from pg_mop.packing.training import Training
from pg_mop.plan import nets


@sql_function
def mop_architecture(db: Database, arch_table: str | None, packed_table: str | None, layers: str | None) -> list[int]:
    """Append nets that fit `packed_table` to `arch_table`; returns their model_ids."""
    names = layer_names(layers)
    transform = Training(db, packed_table).transform
    inputs = [column.net_input() for column in transform.inputs]
    if not names:
        rows = max((f.parameters["rows"] for column in transform.inputs for f in column.features), default=0)
        in_pieces = any(given.pieces for given in inputs) and rows >= nets.ROWS_FOR_PIECES
        names = [name for name in nets.DEFAULT if in_pieces or not nets.BODIES[name].pieces]
    outputs = [column.net_output() for column in transform.outputs]
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
