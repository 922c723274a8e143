"""The source's rows as packing reads them: one scan, in order, labels as codes of their classes."""

from contextlib import contextmanager

from pg_mop.database import MopError, quote_identifier
from pg_mop.kinds import equality


@contextmanager
def steady_scans(db):
    """Scan tables in the same order every time: no synchronized and no parallel scans.

    Nor are plans made for particular parameters: the planner would copy a whole buffer, twice.
    """
    wanted = {"synchronize_seqscans": "off", "max_parallel_workers_per_gather": "0",
              "plan_cache_mode": "force_generic_plan"}
    before = {name: value for name in wanted if (value := db.setting(name)) is not None}

    def apply(values):
        for name, value in values.items():
            db.execute("SELECT set_config($1, $2, true)", ["text", "text"], [name, value])

    apply({name: wanted[name] for name in before})
    try:
        yield
    finally:
        apply(before)


def scan(db, source, summary, inputs, outputs, seed):
    """SQL for the rows to pack, in order: x0.. and array labels in binary form, class codes (-1: none) else."""
    raw = ["row_number() OVER () AS n"]
    ordered, sent, joins = [], [], []
    for i, column in enumerate(inputs):
        raw.append(f"{quote_identifier(column.name)} AS x{i}")
        ordered.append(f"s.x{i}")
        sent.append(f"array_send(q.x{i}::real[]) AS x{i}")
    for i, output in enumerate(outputs):
        raw.append(f"{quote_identifier(output.name)}::{output.kind.sql} AS y{i}")
        if output.encoded:
            joins.append(f"LEFT JOIN {_classes(summary, output)} c{i} ON {_same(db, output, f's.y{i}', f'c{i}.v')}")
            ordered.append(f"CASE WHEN s.y{i} IS NULL THEN {output.null_code} ELSE coalesce(c{i}.code, -1) END AS y{i}")
            sent.append(f"q.y{i}")
        else:
            ordered.append(f"s.y{i}")
            array = f"ARRAY[q.y{i}]" if output.scalar else f"q.y{i}"
            sent.append(f"array_send({array}::{output.wire}[]) AS y{i}")
    order = "ORDER BY s.n" if joins else ""  # a join may change the order of the scan
    if seed is not None:
        order = f"ORDER BY hashint8extended(s.n, {int(seed)}), s.n"
    return (f"SELECT {', '.join(sent)} FROM (SELECT {', '.join(ordered)} FROM (SELECT {', '.join(raw)} "
            f"FROM {source}) s {' '.join(joins)} {order}) q")


def unknown_class(db, source, summary, output, seed):
    """Raise the MopError that says which labels are no classes."""
    if seed is not None:  # the classes were read from these very rows
        changed(source)
    label = f"s.{quote_identifier(output.name)}::{output.kind.sql}"
    null = "false" if output.null_code == 0 else f"{label} IS NULL"
    rows = db.execute(
        f"SELECT DISTINCT coalesce({label}::text, 'NULL') AS v FROM {source} s WHERE {null} OR ({label} IS NOT NULL "
        f"AND NOT EXISTS (SELECT 1 FROM {_classes(summary, output)} c WHERE {_same(db, output, label, 'c.v')})) "
        "ORDER BY 1 LIMIT 6")
    values = [row["v"] for row in rows]
    raise MopError(f'the classes of column "{output.name}" are no subset of those of training',
                   detail="Training has no class " + ", ".join(values[:5]) + (", ..." if len(values) > 5 else "."))


def changed(source):
    """Raise the MopError of a source that is written to meanwhile."""
    raise MopError(f"the rows of {source} changed while they were being packed", sqlstate="40001",
                   hint="Try again, or use BEGIN ISOLATION LEVEL REPEATABLE READ.")


def _classes(summary, output):
    """SQL: the classes of an output, but NULL, with their codes."""
    return (f"(SELECT u.v, u.o::integer - 1 AS code FROM unnest((SELECT {output.class_column} FROM {summary})) "
            "WITH ORDINALITY AS u(v, o) WHERE u.v IS NOT NULL)")


def _same(db, output, label, value):
    """SQL: a label of the source equals a class value, whatever the caller's operators."""
    equals = (equality(db, output.kind) if output.kind.oid == output.class_kind.oid
              else "OPERATOR(pg_catalog.=)")
    return f"{output.kind.collated(label)} {equals} {output.class_kind.collated(value)}"
