"""The source's rows as packing reads them: one scan, in order, labels as codes of their classes."""

from contextlib import contextmanager

from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier, quote_literal
from pg_mop.backend.sql_types import STRINGS, equality
from pg_mop.packing import unfit


@contextmanager
def steady_scans(db):
    """Scan tables in the same order every time: no synchronized and no parallel scans.

    Nor are plans made for particular parameters: the planner would copy a whole buffer, twice. (Citus makes no
    others.)
    """
    wanted = {
        "synchronize_seqscans": "off",
        "max_parallel_workers_per_gather": "0",
        "plan_cache_mode": "force_custom_plan" if db.on_nodes else "force_generic_plan",
    }
    before = {name: value for name in wanted if (value := db.setting(name)) is not None}

    def apply(values):
        for name, value in values.items():
            db.execute("SELECT set_config($1, $2, true)", ["text", "text"], [name, value])

    apply({name: wanted[name] for name in before})
    try:
        yield
    finally:
        apply(before)


def scan(db, source, summary, inputs, outputs, seed, distributed=False):
    """SQL for the rows to pack, in order: x0.. and array labels in binary form, class codes (-1: none) else.
    `distributed`: rows of `source` are in shards of Citus."""
    if distributed:
        return _scan_shards(db, source, summary, inputs, outputs, seed)
    raw = ["row_number() OVER () AS n"]
    ordered, sent, joins = [], [], []
    for i, column in enumerate(inputs):
        raw.append(f"{quote_identifier(column.name)} AS x{i}")
        ordered.append(f"s.x{i}")
        sent.append(f"array_send(q.x{i}::real[]) AS x{i}")
    for i, output in enumerate(outputs):
        raw.append(f"{quote_identifier(output.name)}::{output.kind.sql} AS y{i}")
        if output.encoded:
            joins.append(f"LEFT JOIN {classes(summary, output)} c{i} ON {same(db, output, f's.y{i}', f'c{i}.v')}")
            ordered.append(f"CASE WHEN s.y{i} IS NULL THEN {output.null_code} ELSE coalesce(c{i}.code, -1) END AS y{i}")
            sent.append(f"q.y{i}")
        else:
            ordered.append(f"s.y{i}")
            array = f"ARRAY[q.y{i}]" if output.scalar else f"q.y{i}"
            sent.append(f"array_send({array}::{output.wire}[]) AS y{i}")
    order = "ORDER BY s.n" if joins else ""  # a join may change the order of the scan
    if seed is not None:
        order = f"ORDER BY hashint8extended(s.n, {int(seed)}), s.n"
    return (
        f"SELECT {', '.join(sent)} FROM (SELECT {', '.join(ordered)} FROM (SELECT {', '.join(raw)} "
        f"FROM {source}) s {' '.join(joins)} {order}) q"
    )


def _scan_shards(db, source, summary, inputs, outputs, seed):
    """As `scan`: a statement that each shard does by itself, whose results only need to be sorted here.

    Citus has no order of its rows. That of the seed is by where a row is and by what is in it: the same as long as the
    rows stay where they are. With row numbers and joins all rows would be an intermediate result of Citus, of which
    1 GB are allowed.
    """
    sent, mixed = [], []
    if source.kind != "v":  # (a view has no such columns)
        mixed.append(f"hashtextextended(concat_ws('/', s.tableoid, s.ctid), {int(seed or 0)})")
    for i, column in enumerate(inputs):
        value = f"s.{quote_identifier(column.name)}"
        sent.append(f"array_send({value}::real[]) AS x{i}")
        mixed.append(f"hash_array_extended({value}, {int(seed or 0)})")
    for i, output in enumerate(outputs):
        value = f"s.{quote_identifier(output.name)}"
        mixed.append(f'hashtextextended({value}::text COLLATE pg_catalog."C", {int(seed or 0)})')
        if output.encoded:
            kind, collated = _common(output)
            label = f"{value}::{output.kind.sql}::{kind}" + (' COLLATE pg_catalog."C"' if collated else "")
            classes = quote_literal(db.value(f"SELECT {output.class_column}::text FROM {summary}"))
            sent.append(
                f"CASE WHEN {value} IS NULL THEN {output.null_code} ELSE "
                f"coalesce(array_position({classes}::{kind}[], {label}) - 1, -1) END AS y{i}"
            )
        else:
            sent.append(f"array_send({f'ARRAY[{value}]' if output.scalar else value}::{output.wire}[]) AS y{i}")
    order = f"ORDER BY {', '.join(mixed)}" if seed is not None else ""
    return f"SELECT {', '.join(sent)} FROM {source} s {order}"


def _common(output):
    """SQL for a type in which labels of the source and class values may be compared, as PostgreSQL's own operators do;
    whether it has collations."""
    if output.kind.oid == output.class_kind.oid:
        return output.kind.sql, output.kind.collatable
    types = {output.kind.shown, output.class_kind.shown}
    if types <= STRINGS:
        return "text", True
    return "double precision" if types & {"real", "double precision"} else "numeric", False


def unknown_class(db, source, summary, output, seed):
    """Raise the MopError that says which labels are no classes."""
    if seed is not None:  # the classes were read from these very rows
        changed(source)
    label = f"s.{quote_identifier(output.name)}::{output.kind.sql}"
    null = "false" if output.null_code == 0 else f"{label} IS NULL"
    rows = db.execute(
        f"SELECT DISTINCT coalesce({label}::text, 'NULL') AS v FROM {source} s WHERE {null} OR ({label} IS NOT NULL "
        f"AND NOT EXISTS (SELECT 1 FROM {classes(summary, output)} c WHERE {same(db, output, label, 'c.v')})) "
        "ORDER BY 1 LIMIT 6"
    )
    values = [row["v"] for row in rows]
    raise MopError(
        f'the classes of column "{output.name}" are no subset of those of training',
        detail="Training has no class " + ", ".join(values[:5]) + (", ..." if len(values) > 5 else "."),
    )


def refuse(db, source, summary, column, seed, training):
    """Raise the MopError for a column with a label that is no class, or a number that does not fit. `training`: see
    `table.pack`."""
    if column.encoded:
        unknown_class(db, source, summary, column, seed)
    explain(db, source, [column], training)
    changed(source)


def explain(db, source, columns, training):
    """Raise the MopError for the first of `columns` whose numbers do not fit its type in a buffer, if there is one."""
    for column in columns:
        if not column.encoded:
            unfit.check(db, source, column.name, column.element, column.scalar, training)


def changed(source):
    """Raise the MopError of a source whose rows are others when they are read again."""
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


def classes(summary, output):
    """SQL: the classes of an output, but NULL, with their codes."""
    return (
        f"(SELECT u.v, u.o::integer - 1 AS code FROM unnest((SELECT {output.class_column} FROM {summary})) "
        "WITH ORDINALITY AS u(v, o) WHERE u.v IS NOT NULL)"
    )


def same(db, output, label, value):
    """SQL: a label of the source equals a class value, whatever the caller's operators."""
    equals = equality(db, output.kind) if output.kind.oid == output.class_kind.oid else "OPERATOR(pg_catalog.=)"
    return f"{output.kind.collated(label)} {equals} {output.class_kind.collated(value)}"
