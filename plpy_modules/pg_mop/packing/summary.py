"""The summary of a packed table: one row with the arguments, the transform and the segments."""

from __future__ import annotations

import json
from typing import Any

from pg_mop.backend.database import Database
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier
from pg_mop.columns import Transform, madlib
from pg_mop.engines.base import COPIES


def write(
    db: Database, summary: str, source_table: str, output_table: str, transform: Transform, placement: Any
) -> None:
    """Create the table `summary` (quoted) with its row, except for the values that `complete` adds."""
    rules = "text" if isinstance(placement.rules, str) else "integer[]"

    def literals(*entries: tuple[str, str, Any]) -> list[tuple[str, str, str]]:
        return [(name, sql_type, madlib.literal(sql_type, value)) for name, sql_type, value in entries]

    columns = [
        *literals(("source_table", "text", source_table), ("output_table", "text", output_table)),
        *literals(*madlib.names(transform), *madlib.sql_types(transform)),
        *madlib.of_packed_table(transform),
        *literals(("buffer_size", "integer", None), *madlib.constant(transform), ("num_classes", "integer[]", None)),
        *literals(("distribution_rules", rules, placement.rules)),
        *literals(("__internal_gpu_config__", rules, placement.gpu_config)),
        *literals(*madlib.extra(transform)),
        *literals(*[(COPIES, "text", None)] * any(placement.copies)),
    ]
    db.execute(f"CREATE TABLE {summary} ({', '.join(f'{quote_identifier(name)} {kind}' for name, kind, _ in columns)})")
    db.identify_by_all(summary)
    db.execute(f"INSERT INTO {summary} SELECT {', '.join(value for _, _, value in columns)}")


def complete(db: Database, summary: str, buffer_size: int, num_classes: list[int], copies: list[Any]) -> None:
    """Write the values that are known once the rows are packed. `copies`: see COPIES."""
    db.execute(
        f"UPDATE {summary} SET buffer_size = $1, num_classes = $2", ["int4", "int4[]"], [buffer_size, num_classes]
    )
    if copies:
        db.execute(f"UPDATE {summary} SET {COPIES} = $1", ["text"], [json.dumps(copies)])


def copies_in(row: dict[str, Any] | None, table: Any) -> list[tuple[int, str | None, str]]:
    """[(segment, server, quoted table there), ...]: the copies of segments in a summary's row.

    The server is None for copies on the coordinator's server. `table`: the summary, quoted. Raises MopError.
    """
    try:
        return [
            (
                int(key),
                server if server is None else str(server),
                f"{quote_identifier(str(schema))}.{quote_identifier(str(name))}",
            )
            for key, server, schema, name in json.loads((row or {}).get(COPIES) or "[]")
        ]
    except (ValueError, TypeError):
        raise MopError(
            f'column "{COPIES}" of {table} is not what a preprocessor writes',
            hint=f"UPDATE {table} SET {COPIES} = NULL; gives the copies up.",
        ) from None
