"""The summary of a packed table: one row, with the classes of every output."""

import json

from pg_mop.backend.errors import MopError
from pg_mop.backend.quoting import quote_identifier
from pg_mop.engines.base import COPIES

MAX_WIDTH = 32_767  # classes of one output


def create(db, summary, inputs, outputs, places):
    """Create the empty table `summary` (quoted). `places`: where the segments are to be."""
    rules, copies = _rules_type(places), any(places.copies)
    classes = "".join(
        f"{output.class_column} {output.class_kind.sql if output.encoded else 'text'}[], " for output in outputs
    )
    db.execute(
        f"CREATE TABLE {summary} (source_table text, output_table text, dependent_varname text[], "
        f"independent_varname text[], dependent_vartype text[], {classes}buffer_size integer, "
        f"normalizing_const real, num_classes integer[], distribution_rules {rules}, "
        f"__internal_gpu_config__ {rules}{', dependent_dtype text' if _is_regression(outputs) else ''}"
        f"{f', {COPIES} text' if copies else ''})"
    )
    db.identify_by_all(summary)


def write(db, summary, source_table, output_table, inputs, outputs, constant, class_lists, places):
    """Insert the one row, but what `complete` adds. `class_lists`: SQL for each output, or None."""
    rules = _rules_type(places)
    db.execute(
        f"INSERT INTO {summary} SELECT $1, $2, $3, $4, $5, {''.join((c or 'NULL') + ', ' for c in class_lists)}"
        f"NULL, $6, NULL, $7, $8{', $$float32$$' if _is_regression(outputs) else ''}",
        ["text", "text", "text[]", "text[]", "text[]", "real", rules, rules],
        [
            source_table,
            output_table,
            [o.name for o in outputs],
            [i.name for i in inputs],
            [o.kind.shown for o in outputs],
            constant,
            places.rules,
            places.gpu_config,
        ],
    )


def complete(db, summary, buffer_size, num_classes, copies):
    """Write what is known once the rows are packed. `copies`: see COPIES."""
    db.execute(
        f"UPDATE {summary} SET buffer_size = $1, num_classes = $2", ["int4", "int4[]"], [buffer_size, num_classes]
    )
    if copies:
        db.execute(f"UPDATE {summary} SET {COPIES} = $1", ["text"], [json.dumps(copies)])


def copies_in(row, table):
    """[(segment, server, quoted table there), ...] of the copies of segments that a summary's row (a dict) names; the
    server is None where they are here. `table`: the summary, quoted. Raises MopError."""
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


def class_list(source, output, width):
    """SQL for the distinct labels as an array: NULL first, ascending, padded with NULL up to `width`."""
    if not output.encoded:
        return None
    kind = output.kind
    value, ordered = kind.collated(f"s.{quote_identifier(output.name)}::{kind.sql}"), kind.collated("d.v")
    classes = (
        f"(SELECT array_agg(d.v ORDER BY {ordered} NULLS FIRST) AS a "
        f"FROM (SELECT DISTINCT {value} AS v FROM {source} s) d)"
    )
    if width is None:
        return f"(SELECT c.a::{kind.sql}[] FROM {classes} c)"
    return (
        f"(SELECT c.a::{kind.sql}[] || array_fill(NULL::{kind.sql}, ARRAY[greatest({int(width)} - "
        f"cardinality(c.a), 0)]) FROM {classes} c)"
    )


def read_classes(db, summary, output, requested):
    """Set width and NULL's code from the classes in the summary; checks the requested width."""
    row = db.one(
        f"SELECT cardinality(c) AS width, c[array_lower(c, 1)] IS NULL AS null_first "
        f"FROM (SELECT {output.class_column} AS c FROM {summary}) s"
    )
    output.width, output.null_code = row["width"], 0 if row["null_first"] else -1
    if requested is not None and output.width > requested:
        raise MopError(
            f'num_classes value too small: {requested} for column "{output.name}", which has {output.width} classes',
            hint=f"Give {output.width} or more, or NULL.",
        )
    if output.width > MAX_WIDTH:
        raise MopError(
            f'column "{output.name}" has {output.width} classes, more than {MAX_WIDTH}',
            detail="Labels are encoded one-hot: every distinct value is a class.",
        )


def _rules_type(places):
    return "text" if isinstance(places.rules, str) else "integer[]"


def _is_regression(outputs):
    return any(output.element == "real" for output in outputs)
