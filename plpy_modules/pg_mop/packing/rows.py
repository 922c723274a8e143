"""The source's rows as packing reads them: one scan, in order; labels arrive as codes of their classes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from pg_mop.backend.database import Database, Table
from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier
from pg_mop.columns import Column, Transform
from pg_mop.columns.numbers import Numbers
from pg_mop.packing.groups import Groups


@contextmanager
def steady_scans(db: Database) -> Iterator[None]:
    """Scan tables in the same order every time: no synchronized and no parallel scans.

    Plans are generic: to plan for particular parameters, the planner would copy a whole buffer, twice. Citus plans for
    particular parameters only.
    """
    wanted = {
        "synchronize_seqscans": "off",
        "max_parallel_workers_per_gather": "0",
        "plan_cache_mode": "force_custom_plan" if db.on_nodes else "force_generic_plan",
    }
    with db.local_settings({name: value for name, value in wanted.items() if db.setting(name) is not None}):
        yield


def scan(
    db: Database,
    source: Table,
    summary: str,
    transform: Transform,
    seed: int | None,
    distributed: bool = False,
    groups: Groups | None = None,
) -> str:
    """SQL for the rows to pack, in order; v<i>_<j> is wire j of column i of the transform.

    `seed` shuffles the rows; None: as they are scanned. `distributed`: rows of `source` are in shards of Citus. With
    `groups`, `place` is the position of the row's segment.
    """
    if distributed:
        return _scan_shards(db, source, summary, transform, seed)
    raw = ["row_number() OVER () AS n"]
    looked_up_values, wires_sql, joins = [], [], []
    for i, column in enumerate(transform.columns):
        parts = column.raw_parts()
        raw += [f"{part} AS v{i}_{j}" for j, part in enumerate(parts)]
        values = [f"s.v{i}_{j}" for j in range(len(parts))]
        if len(parts) == 1:
            join, values[0] = column.lookup(db, summary, values[0], f"c{i}")
            joins += [join] if join else []
        looked_up_values += [f"{value} AS v{i}_{j}" for j, value in enumerate(values)]
        wires = column.wire_parts([f"q.v{i}_{j}" for j in range(len(parts))])
        wires_sql += [f"{wire} AS v{i}_{j}" for j, wire in enumerate(wires)]
    if groups is not None:
        raw.append(f"{groups.key_sql} AS k")
        join, place = groups.lookup("s.k", "g")
        joins += [join] if join else []
        looked_up_values.append(f"{place} AS place")
        wires_sql.append("q.place")
    order = "ORDER BY s.n" if joins else ""  # a join may change the order of the scan
    if seed is not None:
        order = f"ORDER BY hashint8extended(s.n, {int(seed)}), s.n"
    return (
        f"SELECT {', '.join(wires_sql)} FROM (SELECT {', '.join(looked_up_values)} FROM (SELECT {', '.join(raw)} "
        f"FROM {source}) s {' '.join(joins)} {order}) q"
    )


def _scan_shards(db: Database, source: Table, summary: str, transform: Transform, seed: int | None) -> str:
    """As `scan`: a statement that each shard computes alone, whose results are only sorted in the coordinator.

    Citus has no order of rows. The order by `seed` follows from the position and the content of a row: it is the same as
    long as the rows stay in place. Row numbers and joins would make all rows an intermediate result of Citus, which is
    limited to 1 GB.
    """
    wires_sql, hashes = [], []
    if source.kind != "v":  # a view has no such columns
        hashes.append(f"hashtextextended(concat_ws('/', s.tableoid, s.ctid), {int(seed or 0)})")
    for i, column in enumerate(transform.columns):
        values = column.raw_parts()
        if column.in_madlib:
            values = [f"s.{quote_identifier(column.name)}"]
        hashes += [column.hash_sql(value, int(seed or 0)) for value in values]
        if len(values) == 1:
            values = [column.lookup_in_place(db, summary, values[0])]
        wires_sql += [f"{wire} AS v{i}_{j}" for j, wire in enumerate(column.wire_parts(values))]
    order = f"ORDER BY {', '.join(hashes)}" if seed is not None else ""
    return f"SELECT {', '.join(wires_sql)} FROM {source} s {order}"


def refuse(db: Database, source: Table, summary: str, column: Column, training: str | None) -> NoReturn:
    """Raise the MopError for a column with a value that cannot be packed. `training`: see `table.pack`."""
    column.explain_misfit(db, source, summary, training)
    changed(source)


def explain_out_of_range(db: Database, source: Table, summary: str, transform: Transform, training: str | None) -> None:
    """Raise the MopError for the first column with numbers that its packed type cannot hold, if there is one."""
    for column in transform.columns:
        if isinstance(column, Numbers):
            column.explain_misfit(db, source, summary, training)


def changed(source: Table) -> NoReturn:
    """Raise the MopError for a source that has other rows when it is read again."""
    if source.kind == "v":
        raise MopError(
            f"view {source} gave other rows when it was read again",
            sqlstate="55000",
            detail="Its rows are read several times. A view that draws rows by random(), by TABLESAMPLE, or "
            "by LIMIT gives others each time; or somebody writes to its tables.",
            hint=f"Store its rows first: CREATE TABLE {quote_identifier(source.name + '_rows')} AS SELECT * "
            f"FROM {source};",
        )
    raise MopError(
        f"the rows of {source} changed while they were being packed",
        sqlstate="40001",
        hint="Try again, or use BEGIN ISOLATION LEVEL REPEATABLE READ.",
    )
